"""Each split chooses by its own training and validation nodes, and no test label reaches the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from h3gnn.evaluation.judge import Judge
from h3gnn.experiments.allowances import Allowance, draw_settings, ranges_of
from h3gnn.experiments.methods import METHODS, Task
from h3gnn.experiments.nested import run_nested
from h3gnn.experiments.preferences import inner_draws
from h3gnn.graphs.graph import Graph, random_splits

RANGES = {"learning_rate": (0.5, 0.01), "width": (4, 8)}


def quick(name: str) -> object:
    method = METHODS[name]
    assert method.system is not None
    small = method.with_settings(epochs=5) if method.supervised else method.with_settings(epochs=3, width=4)
    return replace(small, system=replace(method.system, ranges={} if method.supervised else RANGES))


def overlapping(graph: Graph) -> Graph:
    """Splits like Geom-GCN's: most test nodes of one are training or validation nodes of the others."""
    assert graph.labels is not None
    train, val, test = random_splits(graph.labels, generator=torch.Generator().manual_seed(1), splits=4)
    return replace(graph, train_mask=train, val_mask=val, test_mask=test)


def test_dealt_nodes_are_the_splits_own_and_as_many_of_each_class() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, -1, 0])
    train = torch.tensor([1, 1, 0, 0, 1, 0, 0, 0, 1, 0]).bool()
    val = torch.tensor([0, 0, 1, 0, 0, 1, 1, 0, 0, 0]).bool()
    inner_train, inner_val = inner_draws(labels, train, val, 20, seed=0)
    own = (train | val) & (labels >= 0)
    assert torch.equal((inner_train | inner_val).all(dim=1), own)
    assert not bool((inner_train & inner_val).any())
    assert inner_train[:4].sum(dim=0).tolist() == [2] * 20
    assert inner_train[4:8].sum(dim=0).tolist() == [1] * 20
    assert len({tuple(row) for row in inner_train.t().tolist()}) > 5


def test_settings_differ_and_the_first_changes_nothing() -> None:
    found = draw_settings(RANGES, 10, 0)
    assert found[0] == {}
    assert len(found) == 5  # four there are, and none
    assert draw_settings({}, 10, 0) == [{}]
    assert draw_settings(RANGES, 3, 0) == draw_settings(RANGES, 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgi", "mlp"])
def test_no_choice_of_a_split_hangs_on_labels_of_its_test_nodes_in_any_split(
    small_mixed: Graph, name: str
) -> None:
    graph = overlapping(small_mixed)
    assert graph.labels is not None
    assert graph.test_mask is not None
    method = quick(name)
    before = run_nested(method, graph, seeds=[0], allowance=Allowance(4), device="cpu").results["nested"]  # type: ignore[arg-type]
    for split in range(2):
        hidden = graph.test_mask[:, split]
        turned = replace(graph, labels=torch.where(hidden, (graph.labels + 1) % 5, graph.labels))
        after = run_nested(method, turned, seeds=[0], allowance=Allowance(4), device="cpu").results["nested"]  # type: ignore[arg-type]
        assert after.chosen[0][split] == before.chosen[0][split]
        assert after.validation.values[0][split] == before.validation.values[0][split]
        assert after.probe.values[0][split] != before.probe.values[0][split]
    assert before.protocol == "nested"
    assert "its own training and validation nodes" in before.as_dict()["protocol_in_words"]


def test_a_choice_that_other_splits_would_turn_stays(small_mixed: Graph) -> None:
    """One embedding knows the classes; the other knows those that the first split's test nodes are given."""
    graph = overlapping(small_mixed)
    assert graph.labels is not None
    assert graph.test_mask is not None
    hidden, true = graph.test_mask[:, 0], graph.labels
    other = torch.where(hidden, (true + 1) % 5, true)
    blurred = torch.where(torch.arange(100) % 10 == 0, (true + 2) % 5, true)
    known = {
        "true": one_hot(true, 5).float(),
        "other": one_hot(torch.where(hidden, other, blurred), 5).float(),
    }

    def train(task: Task) -> list[Callable[[Judge], None]]:
        return [lambda judge: judge.add(0, known[task.settings["knows"]])]

    system = replace(METHODS["dgi"].system, ranges={"knows": ("true", "other")})  # type: ignore[type-var]
    method = replace(METHODS["dgi"], train=train, settings={"knows": "other"}, system=system)
    for labels in (true, other):
        found = run_nested(
            method, replace(graph, labels=labels), seeds=[0], allowance=Allowance(3), device="cpu"
        ).results["nested"]
        assert found.params["tried"][found.chosen[0][0]["trial"]] == {"knows": "true"}


def test_every_method_with_settings_has_ranges() -> None:
    for method in METHODS.values():
        ours = method.takes_settings and method.settings.get("epochs") != 0
        assert bool(ranges_of(method)) == (ours or method.system is not None), method.name
