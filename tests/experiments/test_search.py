"""Each split chooses by its own training and validation nodes, and no test label reaches the choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_struct
from torch.nn.functional import one_hot

from h3gnn.baselines.registry import systems
from h3gnn.baselines.supervised import Predictions
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.probe import L2_GRID, probe_candidates
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.evaluation.results import Result
from h3gnn.experiments.methods import METHODS, Callback, Method, Task
from h3gnn.experiments.run import labels_and_masks
from h3gnn.experiments.search import Changes, SplitValidation, Trainer, ranges_of, resplit, run_nested
from h3gnn.experiments.spaces import SearchBudget, Space, draw_settings
from h3gnn.experiments.tune import Tuned, preset_of, tune_from_list
from h3gnn.graphs.graph import Graph, first_splits, random_splits
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.settings import kept_for
from h3gnn.storage.schema import check_values
from h3gnn.tuned import PRESET
from reproduction.cells import Cell
from reproduction.markdown import Row
from reproduction.running import run_searched
from reproduction.search import CHOICES, search_clusterings

RANGES = {"learning_rate": (0.5, 0.01), "width": (4, 8)}


def nested(method: Method, graph: Graph, trials: int) -> Result:
    budget = SearchBudget(trials)
    return run_nested(method, graph, seeds=[0], budget=budget, device="cpu").results["nested"]


def quick(name: str) -> Method:
    method = METHODS[name]
    assert method.system is not None
    small = method.with_settings(epochs=5) if method.supervised else method.with_settings(epochs=3, width=4)
    return replace(small, system=replace_struct(method.system, ranges={} if method.supervised else RANGES))


def overlapping(graph: Graph) -> Graph:
    """Splits like Geom-GCN's: most test nodes of one are training or validation nodes of the others."""
    labels, generator = labels_and_masks(graph)[0], torch.Generator().manual_seed(1)
    train, val, test = random_splits(labels, generator=generator, splits=4)
    return replace(graph, train_mask=train, val_mask=val, test_mask=test)


def test_resplit_nodes_are_the_splits_own_with_the_same_class_counts() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, -1, 0])
    train = torch.tensor([1, 1, 0, 0, 1, 0, 0, 0, 1, 0]).bool()
    val = torch.tensor([0, 0, 1, 0, 0, 1, 1, 0, 0, 0]).bool()
    inner_train, inner_val = resplit(labels, train, val, 20, seed=0)
    own = (train | val) & (labels >= 0)
    assert torch.equal((inner_train | inner_val).all(dim=1), own)
    assert not bool((inner_train & inner_val).any())
    assert inner_train[:4].sum(dim=0).tolist() == [2] * 20
    assert inner_train[4:8].sum(dim=0).tolist() == [1] * 20
    assert len({tuple(row) for row in inner_train.t().tolist()}) > 5


def test_drawn_settings_are_distinct_and_start_with_the_default() -> None:
    found = draw_settings(RANGES, 10, 0)
    assert found[0] == {}
    assert len(found) == 5
    assert draw_settings({}, 10, 0) == [{}]
    assert draw_settings({"width": (4, 8)}, 10, 0)[0] == {}  # of one alone, both values are drawn
    assert sorted(one["width"] for one in draw_settings({"width": (4, 8)}, 10, 0)[1:]) == [4, 8]
    assert draw_settings(RANGES, 3, 0) == draw_settings(RANGES, 3, 0)


def test_the_values_of_the_first_setting_are_tried_first() -> None:
    ranges = {"objective": ("a", "b", "c"), "hops": (2, 1), "rate": (0.1, 0.2, 0.3)}
    found = draw_settings(ranges, 9, 0)
    assert found[:3] == [{}, {"objective": "b"}, {"objective": "c"}]
    assert all(one.keys() == ranges.keys() for one in found[3:])
    assert draw_settings(ranges, 2, 0) == found[:2]
    assert draw_settings(ranges, 6, 0) == found[:6]  # a larger budget starts with the same ones
    assert draw_settings(ranges, 9, 1)[3:] != found[3:]
    every = draw_settings(ranges, 1000, 0)
    assert len(every) == len({str(one) for one in every}) == 18 + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgi", "mlp"])
def test_no_choice_of_a_split_depends_on_labels_of_its_test_nodes(small_mixed: Graph, name: str) -> None:
    graph, method = overlapping(small_mixed), quick(name)
    before = nested(method, graph, 4)
    for split in range(2):
        after = nested(method, turned(graph, split), 4)
        assert after.chosen[0][split] == before.chosen[0][split]
        assert after.validation.values[0][split] == before.validation.values[0][split]
        assert after.probe.values[0][split] != before.probe.values[0][split]
    assert before.protocol == "nested"
    assert "its own training and validation nodes" in before.as_dict()["protocol_in_words"]


def test_labels_of_test_nodes_in_other_splits_do_not_change_a_choice(small_mixed: Graph) -> None:
    """One embedding knows the classes; the other knows those that the first split's test nodes are given."""
    graph = overlapping(small_mixed)
    true, _, _, test = labels_and_masks(graph)
    hidden = test[:, 0]
    other = torch.where(hidden, (true + 1) % 5, true)
    blurred = torch.where(torch.arange(100) % 10 == 0, (true + 2) % 5, true)
    known = {
        "true": one_hot(true, 5).float(),
        "other": one_hot(torch.where(hidden, other, blurred), 5).float(),
    }

    def embed(task: Task, callback: Callback) -> None:
        callback(0, known[task.settings["knows"]])

    system = replace_struct(systems()["dgi"], ranges={"knows": ("true", "other")})
    method = replace(METHODS["dgi"], embed=embed, settings={"knows": "other"}, system=system)
    for labels in (true, other):
        found = nested(method, replace(graph, labels=labels), 3)
        assert found.params["tried"][found.chosen[0][0]["trial"]] == {"knows": "true"}


def test_a_probe_is_chosen_by_its_mean_over_resplits(small_mixed: Graph) -> None:
    graph = first_splits(overlapping(small_mixed), 2)
    noisy = graph.features + 2 * torch.randn(graph.features.shape, generator=torch.Generator().manual_seed(0))
    graph = replace(graph, features=noisy)
    taken = [one["strength"] for one in nested(METHODS["raw"], graph, 1).chosen[0]]
    known, first, second, _ = labels_and_masks(graph)
    alone, rows = [], Trainer(METHODS["raw"], graph, None, torch.device("cpu")).embed(0, {})
    for split, (labels, train, val) in enumerate(SplitValidation(graph, torch.device("cpu"), 0).resplits):
        assert train.shape[1] == 10
        right, loss = [], []
        for draw in range(10):
            asked = val[:, [draw]]
            one = probe_candidates(rows, labels, train[:, [draw]], asked, asked, by_column=False)
            right.append(one.val_accuracy[0])
            loss.append(one.val_loss[0])
        best, error = np.mean(right, axis=0), int(val[:, 0].sum()) ** -0.5
        near = best >= best.max() - error * (best.max() * (1 - best.max())) ** 0.5
        expected = L2_GRID[int(np.where(near, np.mean(loss, axis=0), np.inf).argmin())]
        assert taken[split] == expected
        own = (first[:, [split]], second[:, [split]], second[:, [split]])
        single = probe_candidates(rows, known, *own, by_column=False)
        alone.append(VALIDATION.choose({0: single})[0].setting["strength"])
    assert alone != taken  # the choice on a single draw differs


def test_every_method_with_settings_has_ranges() -> None:
    for method in METHODS.values():
        ours = method.takes_settings and method.settings.get("epochs") != 0
        searched = ours or method.supervised or method.system is not None
        chooses = method.typed is not None or "head" in method.settings  # in each fit, by its own nodes
        assert bool(ranges_of(method)) == (searched and not chooses), method.name


TINY = {"channels": 8, "heads": 2, "hidden_channels": None, "epochs": 4}
OURS: dict[str, tuple[Any, ...]] = {
    "objective": ("teacher", "decorrelation", "edges"),
    "hops": (1, 2),
    "smoothing": (0.0, 0.6),
}


def turned(graph: Graph, split: int) -> Graph:
    """Return the graph with other labels for a split's test nodes, also where other splits use them."""
    labels, _, _, test = labels_and_masks(graph)
    return replace(graph, labels=torch.where(test[:, split], (labels + 1) % 5, labels))


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


@pytest.mark.slow
def test_no_choice_of_a_split_in_a_table_depends_on_labels_of_its_test_nodes(small_mixed: Graph) -> None:
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
    space = Space({"channels": (8,), **OURS}).restricted({"heads": [2], "epochs": [2]})
    return tune_from_list(graph, space, SearchBudget(6), models=1, study="mine", device="cpu")


def test_no_choice_of_a_split_from_a_list_depends_on_labels_of_its_test_nodes(small_mixed: Graph) -> None:
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


def test_a_classifier_records_the_settings_it_was_trained_with(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that share the system's own train as one stack, so that a time limit cuts no beginning off."""
    trained: dict[int, list[Changes]] = {0: [], 1: []}

    def predict(task: Task) -> list[Predictions]:
        trained[task.seeds[0]] += [
            {"alpha": task.settings["alpha"], **point} for point in task.settings["grid"]
        ]
        splits, nodes = small_mixed.num_splits, small_mixed.num_nodes
        scores = torch.zeros(splits, nodes, small_mixed.num_classes).log_softmax(dim=-1)
        return [Predictions(scores, [{} for _ in range(splits)])]

    system = replace_struct(systems()["gprgnn"], ranges={"alpha": (0.1, 0.9)})
    own = {**METHODS["gprgnn"].settings, "alpha": 0.1}
    method = replace(METHODS["gprgnn"], predict=predict, settings=own, system=system)
    over = iter([False, True, True])  # two stacks from the first seed, one from the second
    monkeypatch.setattr(SearchBudget, "is_over", lambda self, began: next(over))
    found = run_nested(method, small_mixed, seeds=[0, 1], budget=SearchBudget(8, 1.0), device="cpu")
    usual = {"alpha": 0.1, **own["grid"][0]}
    params = found.results["nested"].params
    tried = [{**usual, **one} for one in params["tried"]]
    assert [tried[at] for at in params["tried_by_seed"][1]] == trained[1] == [usual]
    assert [tried[at] for at in params["tried_by_seed"][0]] == trained[0] == tried
    assert {one["alpha"] for one in tried[1:]} == {0.9}
    assert 2 < len(tried) < 8
    assert found.record["tried"] == params["tried"]


@pytest.mark.parametrize("scaling", ["rows", "columns"])
def test_the_first_smoothing_of_a_search_is_that_of_a_fit(scaling: str) -> None:
    graph = mixed_graph(100, homophily=1.0, words=60, splits=2)
    model = H3GNN.from_preset(
        "single", **TINY | {"epochs": 1}, smoothing="auto", scale_features=scaling, undirected=False
    )
    method = replace(METHODS["h3gnn"], ranges={"smoothing": (0.0,)})
    found = run_nested(method, graph, seeds=[0], budget=SearchBudget(1), model=model, device="cpu")
    strengths = [at["smoothing"] for _, at, _ in found.record["candidates"]]
    assert strengths == [model.fit(graph).smoothing_, 0.0]
    assert 0.0 < strengths[0] < 0.6


OWN = torch.randperm(100, generator=torch.Generator().manual_seed(0)) % 5
"""Groups that have nothing to do with the classes."""


def noisy(classes: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return one_hot(classes, 5).float() + noise * torch.randn(len(classes), 5, generator=generator)


@pytest.fixture
def shown(small_mixed: Graph) -> tuple[Method, Callable[[str, int], torch.Tensor]]:
    """A method that shows noise, clusters of its own, or classes in some noise."""
    labels = labels_and_masks(small_mixed)[0]

    def rows(shows: str, seed: int) -> torch.Tensor:
        kinds = {"noise": (OWN, 9.0), "clusters": (OWN, 0.05), "classes": (labels, 0.35)}
        return noisy(*kinds[shows], seed)

    def embed(task: Task, callback: Callback) -> None:
        callback(0, rows(task.settings["shows"], task.seeds[0]))

    system = replace_struct(systems()["dgi"], ranges={"shows": ("noise", "clusters", "classes")})
    return replace(METHODS["dgi"], embed=embed, settings={"shows": "noise"}, system=system), rows


def clustered(method: Method, graph: Graph) -> dict[str, Any]:
    return search_clusterings(method, graph, [0, 1], SearchBudget(4), torch.device("cpu"))


def test_clusters_without_labels_are_chosen_without_labels(
    small_mixed: Graph, shown: tuple[Method, Callable[[str, int], torch.Tensor]]
) -> None:
    method, rows = shown
    found = clustered(method, small_mixed)
    assert found["tried"] == 4
    taken = {name: one["changes"] for name, one in found["choices"].items()}
    assert taken == {
        "defaults": {},
        "without labels": {"shows": "clusters"},
        "by validation labels": {"shows": "classes"},
        "by all labels": {"shows": "classes"},
    }
    for seed in range(2):  # each seed's values are those of its own training
        wanted = cluster_scores(rows("clusters", seed), labels_and_masks(small_mixed)[0], seeds=(seed,))
        for name in MEASURES:
            assert found["choices"]["without labels"]["values"][name][seed] == wanted[name][0]
    other = clustered(method, replace(small_mixed, labels=OWN))
    for name in CHOICES[:2]:
        assert other["choices"][name]["changes"] == taken[name]
    for name in CHOICES[2:]:
        assert other["choices"][name]["changes"] == {"shows": "clusters"}


def test_no_setting_starts_after_the_time_limit(
    small_mixed: Graph,
    shown: tuple[Method, Callable[[str, int], torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, _ = shown
    over = iter([False, True])
    monkeypatch.setattr(SearchBudget, "is_over", lambda self, began: next(over))
    assert clustered(method, small_mixed)["tried"] == 2
    over = iter([True])
    found = run_nested(method, small_mixed, seeds=[0], budget=SearchBudget(4, 1.0), device="cpu")
    assert found.record["tried"] == [{}]
    assert [trial for trial, *_ in found.record["candidates"]] == [0]


ABOUT = {
    "by": "h3gnn reproduce",
    "study": "texas, table classification",
    "graph": "texas",
    "sha256": "0" * 64,
}
RECORD: dict[str, Any] = {
    "settings": kept_for("preset", H3GNN.from_preset("single", channels=8).get_settings()),
    "ranges": {"objective": ["teacher", "edges+teacher"], "smoothing": [0.0, 0.5]},
    "allowed": SearchBudget(3, eval_epochs=(5, 10)).as_dict(),
    "tried": [{}, {"objective": "edges+teacher"}],  # of three, time was left for two
    "candidates": [
        [0, {"epochs": 5, "smoothing": 0.0}, [0.5, 0.6]],
        [0, {"epochs": 10, "smoothing": 0.5}, [0.7, 0.8]],
        [1, {"epochs": 5, "smoothing": 0.0}, [0.9, 0.6]],
        [1, {"epochs": 5, "smoothing": 0.5}, [0.9, 0.7]],
        [1, {"epochs": 10, "smoothing": 0.0}, [0.8, 0.8]],  # in four digits the same as the one before
    ],
}
CHOSEN = {"objective": "edges+teacher", "epochs": 10, "smoothing": 0.0}
NESTED = {
    "probe": {"test_mean": 0.7, "test_std": 0.1},
    "seeds": [4],
    "chosen": {"trial": [[1, 0]], "strength": [[0.1, 1.0]]},
    "versions": {"torch": "2"},
}


def test_a_preset_names_its_study_and_counts_its_trials() -> None:
    tuned = preset_of(RECORD, CHOSEN, NESTED, ABOUT)
    preset = tuned.preset("texas.json")
    made = preset["tuned"]
    assert made.items() >= {**ABOUT, "study_file": "texas.json", "protocol": "pooled", "seed": 4}.items()
    assert (made["trials"], made["trainings"], made["score"]) == (2, 2, pytest.approx(0.8))
    assert made["nested"].items() >= {"test_mean": 0.7, "test_std": 0.1, "trials": [1, 0]}.items()
    params = preset["params"]
    assert (params["objective"], params["epochs"], params["smoothing"]) == (["edges", "teacher"], 10, 0.0)
    assert params["channels"] == 8
    check_values(
        PRESET, json.loads(json.dumps({**preset, "command": ["h3gnn"], **tuned.record})), "texas.json"
    )
    H3GNN.from_settings(params)


def test_a_record_has_every_trial_and_the_choice() -> None:
    record = preset_of(RECORD, CHOSEN, NESTED, ABOUT).record
    assert record["search"]["space"] == RECORD["ranges"]
    assert record["search"]["eval_epochs"] == [5, 10]
    first, second = record["trials"]
    assert (first["params"], first["curve"], first["smoothing"]) == ({}, {"5": 0.55, "10": 0.75}, 0.5)
    assert (second["curve"], second["seed"]) == ({"5": 0.8, "10": 0.8}, 4)
    (taken,) = record["finalists"]
    assert taken["params"] == RECORD["tried"][1]
    assert taken["looks"] == [[5, 0.0, 0.75], [5, 0.5, 0.8], [10, 0.0, 0.8]]


def test_a_preset_is_the_choice_even_if_stored_scores_are_equal() -> None:
    other = {"epochs": 10, "smoothing": 0.5}
    record = {**RECORD, "candidates": [[1, CHOSEN, [0.8, 0.8]], [0, other, [0.8, 0.8]]]}
    record["candidates"][0][1] = {"epochs": 10, "smoothing": 0.0}
    tuned = preset_of(record, other, NESTED, ABOUT)
    assert tuned.record["finalists"] == [{"params": {}, "looks": [[10, 0.5, 0.8]]}]
    assert tuned.params["objective"] == "teacher"


def test_a_list_stays_within_the_space(small_mixed: Graph) -> None:
    space = Space({"objective": ("decorrelation",), "smoothing": (0.5,)}, start=None).restricted(
        {"channels": [8], "heads": [2], "epochs": [1], "hops": [2, 1]}
    )
    found = tune_from_list(small_mixed, space, SearchBudget(2), models=2, study="mine", device="cpu")
    params = found.params
    assert (params["objective"], params["channels"], params["epochs"]) == ("decorrelation", 8, 1)
    assert (params["smoothing"], params["n_models"]) == (0.5, 2)
    assert [look[:2] for one in found.record["finalists"] for look in one["looks"]] == [[1, 0.5]]
    assert len(found.made["nested"]["trials"]) == small_mixed.num_splits
