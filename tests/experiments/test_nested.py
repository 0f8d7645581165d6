"""Each split chooses by its own training and validation nodes, and no test label reaches the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from h3gnn.baselines.supervised import Predictions
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.evaluator import Judge
from h3gnn.evaluation.probe import STRENGTHS, probe_candidates
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.experiments.methods import METHODS, Task
from h3gnn.experiments.search import (
    Allowance,
    Changes,
    Training,
    draw_settings,
    ranges_of,
    run_nested,
    tune_from_list,
)
from h3gnn.experiments.selection import OwnNodes, inner_draws
from h3gnn.experiments.spaces import Space
from h3gnn.experiments.tune import Tuned
from h3gnn.graphs.graph import Graph, random_splits
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.settings import kept_for
from reproduction.cells import Cell
from reproduction.markdown import Row
from reproduction.running import run_searched

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
    assert draw_settings({"width": (4, 8)}, 10, 0)[0] == {}  # of one alone, both values are drawn
    assert sorted(one["width"] for one in draw_settings({"width": (4, 8)}, 10, 0)[1:]) == [4, 8]
    assert draw_settings(RANGES, 3, 0) == draw_settings(RANGES, 3, 0)


def test_the_first_setting_is_tried_alone_before_all_are_drawn() -> None:
    ranges = {"objective": ("a", "b", "c"), "hops": (2, 1), "rate": (0.1, 0.2, 0.3)}
    found = draw_settings(ranges, 9, 0)
    assert found[:3] == [{}, {"objective": "b"}, {"objective": "c"}]
    assert all(one.keys() == ranges.keys() for one in found[3:])
    assert draw_settings(ranges, 2, 0) == found[:2]
    assert draw_settings(ranges, 6, 0) == found[:6]  # who is given more tries the same ones first
    assert draw_settings(ranges, 9, 1)[3:] != found[3:]
    every = draw_settings(ranges, 1000, 0)
    assert len(every) == len({str(one) for one in every}) == 18 + 1


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


def test_a_probe_is_chosen_by_how_it_does_on_average_where_the_nodes_are_dealt_anew(
    small_mixed: Graph,
) -> None:
    graph = overlapping(small_mixed)
    assert graph.labels is not None
    noisy = graph.features + 2 * torch.randn(graph.features.shape, generator=torch.Generator().manual_seed(0))
    graph = replace(graph, features=noisy)
    found = run_nested(METHODS["raw"], graph, seeds=[0], allowance=Allowance(1), device="cpu")
    taken = [one["strength"] for one in found.results["nested"].chosen[0]]
    assert graph.labels is not None
    alone, rows = [], Training(METHODS["raw"], graph, None, torch.device("cpu")).rows(0, {})
    for split, (labels, train, val) in enumerate(OwnNodes(graph, torch.device("cpu"), 0).dealt):
        assert train.shape[1] == 10
        right, loss = [], []
        for draw in range(10):
            asked = val[:, [draw]]
            one = probe_candidates(rows, labels, train[:, [draw]], asked, asked, by_column=False)
            right.append(one.val_accuracy[0])
            loss.append(one.val_loss[0])
        best, error = np.mean(right, axis=0), int(val[:, 0].sum()) ** -0.5
        near = best >= best.max() - error * (best.max() * (1 - best.max())) ** 0.5
        expected = STRENGTHS[int(np.where(near, np.mean(loss, axis=0), np.inf).argmin())]
        assert taken[split] == expected
        assert graph.train_mask is not None
        assert graph.val_mask is not None
        first, second = graph.train_mask[:, [split]], graph.val_mask[:, [split]]
        single = probe_candidates(rows, graph.labels, first, second, second, by_column=False)
        alone.append(VALIDATION.choose({0: single})[0].setting["strength"])
    assert alone != taken  # what one draw likes is another matter


def test_every_method_with_settings_has_ranges() -> None:
    for method in METHODS.values():
        ours = method.takes_settings and method.settings.get("epochs") != 0
        assert bool(ranges_of(method)) == (ours or method.system is not None), method.name


TINY = {"channels": 8, "heads": 2, "hidden_channels": None, "epochs": 4}
OURS: dict[str, tuple[Any, ...]] = {
    "objective": ("teacher", "decorrelation", "edges"),
    "hops": (1, 2),
    "smoothing": (0.0, 0.6),
}


def turned(graph: Graph, split: int) -> Graph:
    """Other labels for a split's test nodes, in whichever split else they are used."""
    assert graph.labels is not None
    assert graph.test_mask is not None
    return replace(graph, labels=torch.where(graph.test_mask[:, split], (graph.labels + 1) % 5, graph.labels))


def searched(graph: Graph) -> tuple[dict[str, Row], list[list[float]], Changes]:
    """Run a cell of H3GNN as a table does: its rows by protocol, how splits liked all, what all chose."""
    params = {
        "method": "h3gnn",
        "settings": kept_for("preset", H3GNN.from_preset("single", **TINY).get_settings()),
        "changes": {},
        "ranges": OURS,
        "allowance": {"trials": 4, "looks": [1, 2, 4]},
        "parts": {},
        "protocols": ["nested", "pooled", "published"],
    }
    out = run_searched(Cell("method", "texas", params, (0,)), graph, torch.device("cpu"))
    liked = [own for _, _, own in out["record"]["candidates"]]
    return {row["protocol"]: row for row in out["rows"]}, liked, out["chosen"]


def test_no_choice_of_a_split_in_a_table_hangs_on_labels_of_its_test_nodes(small_mixed: Graph) -> None:
    graph = overlapping(small_mixed)
    rows, liked, pooled = searched(graph)
    others = {split: searched(turned(graph, split)) for split in (0, 2)}
    for split, (found, liked_now, _) in others.items():
        assert [one[split] for one in liked_now] == [one[split] for one in liked]
        for name, every in rows["nested"]["chosen"].items():
            told = found["nested"]["chosen"].get(name)  # not there where no split chose it
            assert (None if told is None else told[0][split]) == every[0][split]
        assert (
            found["nested"]["probe"]["validation"][0][split]
            == rows["nested"]["probe"]["validation"][0][split]
        )
    # the same labels are among those by which the other splits and the other rules choose
    assert all(found["nested"]["chosen"] != rows["nested"]["chosen"] for found, _, _ in others.values())
    assert all(now != pooled for _, _, now in others.values())
    assert all(found["published"]["chosen"] != rows["published"]["chosen"] for found, _, _ in others.values())


def listed(graph: Graph) -> Tuned:
    space = Space({"channels": (8,), **OURS}).restricted({"heads": [2], "epochs": [4]})
    return tune_from_list(graph, space, Allowance(6), models=1, study="mine", device="cpu")


def test_no_choice_of_a_split_from_a_list_hangs_on_labels_of_its_test_nodes(small_mixed: Graph) -> None:
    graph = overlapping(small_mixed)
    before = listed(graph)
    others = {split: listed(turned(graph, split)) for split in range(2)}
    chosen = before.made["nested"]["trials"]
    for split, after in others.items():
        assert after.made["nested"]["trials"][split] == chosen[split]
    assert any(after.made["nested"]["trials"] != chosen for after in others.values())
    assert any(
        after.params != before.params for after in others.values()
    )  # one setting for all splits: pooled


def test_what_a_classifier_was_tried_with_is_what_it_was_trained_with(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that share the system's own train as one stack, so that a time limit cuts no beginning off."""
    trained: dict[int, list[Changes]] = {0: [], 1: []}

    def train(task: Task) -> list[Predictions]:
        trained[task.seeds[0]] += [
            {"alpha": task.settings["alpha"], **point} for point in task.settings["grid"]
        ]
        splits, nodes = small_mixed.num_splits, small_mixed.num_nodes
        scores = torch.zeros(splits, nodes, small_mixed.num_classes).log_softmax(dim=-1)
        return [Predictions(scores, [{} for _ in range(splits)])]

    system = replace(METHODS["gprgnn"].system, ranges={"alpha": (0.1, 0.9)})  # type: ignore[type-var]
    own = {**METHODS["gprgnn"].settings, "alpha": 0.1}
    method = replace(METHODS["gprgnn"], train=train, settings=own, system=system)
    over = iter([False, True, True])  # two stacks from the first seed, one from the second
    monkeypatch.setattr(Allowance, "is_over", lambda self, began: next(over))
    found = run_nested(method, small_mixed, seeds=[0, 1], allowance=Allowance(8, 1.0), device="cpu")
    usual = {"alpha": 0.1, **own["grid"][0]}
    params = found.results["nested"].params
    tried = [{**usual, **one} for one in params["tried"]]
    assert [tried[at] for at in params["tried_by_seed"][1]] == trained[1] == [usual]
    assert [tried[at] for at in params["tried_by_seed"][0]] == trained[0] == tried
    assert {one["alpha"] for one in tried[1:]} == {0.9}
    assert 2 < len(tried) < 8
    assert found.record["tried"] == params["tried"]


@pytest.mark.parametrize("scaling", ["rows", "columns"])
def test_a_search_begins_with_the_smoothing_that_a_fit_takes(scaling: str) -> None:
    graph = mixed_graph(100, homophily=1.0, words=60, splits=2)
    model = H3GNN.from_preset(
        "single", **TINY | {"epochs": 1}, smoothing="auto", scale_features=scaling, undirected=False
    )
    method = replace(METHODS["h3gnn"], ranges={"smoothing": (0.0,)})
    found = run_nested(method, graph, seeds=[0], allowance=Allowance(1), model=model, device="cpu")
    strengths = [at["smoothing"] for _, at, _ in found.record["candidates"]]
    assert strengths == [model.fit(graph).smoothing_, 0.0]
    assert 0.0 < strengths[0] < 0.6
