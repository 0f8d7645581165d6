from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.criteria import ClusterAccuracy
from h3gnn.experiments.spaces import SPACES, Space, with_objectives
from h3gnn.experiments.tune import Budget, Searcher, Tried, Tuned, finished, open_study, start_of, tune
from h3gnn.graphs.graph import Graph
from h3gnn.storage.runs import commit

CPU = torch.device("cpu")
SPACE = Space(
    {"channels": (8,), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8), "learning_rate": (0.001, 0.01)}
)


def run(
    graph: Graph, storage: str | None = None, trials: int = 6, space: Space = SPACE, **changes: Any
) -> Tuned:
    objective = changes.get("objective", "validation")
    study = open_study(graph, "study", storage, objective, seed=0)
    budget = Budget(trials=trials, at_once=4, joined=2, rungs=(2, 4))
    return tune(graph, study, space, budget, models=3, finalists=2, device=CPU, **changes)


def test_a_search_ends_in_a_preset_that_the_estimator_takes(small_mixed: Graph) -> None:
    found = run(small_mixed)
    assert found.params["epochs"] in (2, 4)
    assert found.params["n_models"] == 3
    assert found.made["trials"] == 6
    assert found.made["sha256"] == small_mixed.provenance.sha256
    assert [trial["seed"] for trial in found.record["trials"]] == [1000 * number for number in range(6)]
    assert found.made["trainings"] == 6 + 2
    assert found.made["origin"] == {"commit": commit()}
    asked = found.record["search"]
    assert asked["space"] == {name: list(values) for name, values in SPACE.choices.items()}
    assert {name: asked[name] for name in ("trials", "at_once", "joined", "rungs", "seconds", "start")} == {
        "trials": 6, "at_once": 4, "joined": 2, "rungs": [2, 4], "seconds": None, "start": "single"
    }  # fmt: skip
    assert (asked["models"], asked["finalists"], asked["splits"], asked["seed"]) == (3, 2, None, 0)
    finalists = [max(score for _, _, score in one["looks"]) for one in found.record["finalists"]]
    assert found.made["score"] == pytest.approx(max(finalists), abs=1e-5)
    embedding = H3GNN.from_preset("single", **found.params).fit_transform(small_mixed)
    assert embedding.shape == (100, 3 * 8 * (2 + found.params["hops"]))


def test_a_committee_is_searched_from_the_default_on(small_mixed: Graph) -> None:
    space = SPACES["committee"].restricted({"channels": [8], "hops": [2, 1], "smoothing": [0.0, 0.5]})
    found = run(small_mixed, trials=3, space=space)
    tried = [trial["params"] for trial in found.record["trials"]]
    default = {name: value for name, value in H3GNN(channels=8).get_settings().items() if name in tried[0]}
    assert with_objectives(tried[0]) == {**default, "objective": list(default["objective"])}
    assert len(found.record["trials"]) == 3
    params = found.params
    assert params["n_models"] == 3
    assert params["edge_weights"] == "fixed"  # what the space does not name is the default's
    assert "+" not in params["objective"]
    embedding = H3GNN.from_settings(params).fit_transform(small_mixed)
    assert embedding.shape == (100, 3 * 8 * (2 + params["hops"]))


def test_the_default_is_the_first_choice_of_the_committee() -> None:
    default = H3GNN().get_settings()
    for name, values in SPACES["committee"].choices.items():
        if name not in ("objective", "smoothing"):
            assert values[0] == default[name], name
    assert SPACES["committee"].choices["objective"][0] == "+".join(default["objective"])


def test_every_smoothing_is_tried_on_every_trained_model(small_mixed: Graph) -> None:
    found = run(small_mixed, trials=2, space=SPACE.restricted({"smoothing": [0.0, 0.5, -0.5]}))
    (first, *_) = found.record["finalists"]
    assert {(epoch, strength) for epoch, strength, _ in first["looks"]} == {
        (epoch, strength) for epoch in (2, 4) for strength in (0.0, 0.5, -0.5)
    }
    every = [look for one in found.record["finalists"] for look in one["looks"]]
    best = max(every, key=lambda look: look[2])
    assert [found.params["epochs"], found.params["smoothing"]] == best[:2]
    assert "smoothing" not in found.record["trials"][0]["params"]  # nothing was proposed
    assert found.record["trials"][0]["smoothing"] in (0.0, 0.5, -0.5)


def test_repeats_are_averaged_look_by_look() -> None:
    one = Tried({"hops": 2}, 7, {(10, 0.0): 0.9, (10, 0.5): 0.6, (20, 0.0): 0.5})
    two = Tried({"hops": 2}, 8, {(10, 0.0): 0.3, (10, 0.5): 0.8, (20, 0.0): 0.5})
    both = Tried.mean([one, two])
    assert both.looks == pytest.approx({(10, 0.0): 0.6, (10, 0.5): 0.7, (20, 0.0): 0.5})
    assert both.score == pytest.approx(0.7)
    assert both.best == (10, 0.5)
    assert both.curve == pytest.approx({10: 0.7, 20: 0.5})


def test_finalists_may_be_repeated_and_probed(small_mixed: Graph) -> None:
    found = run(small_mixed, trials=2, repeats=2, probed=True)
    assert found.made["trainings"] == 2 + 2 * 2  # the trials, and two finalists twice
    assert found.record["search"]["final_seeds"] == [77_000_000, 77_001_000]
    assert (found.made["repeats"], found.made["scored_by"]) == (2, "validation, linear probe")
    assert 0 < found.made["score"] <= 1


def test_clusters_are_scored_on_validation_nodes_alone() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    val = torch.tensor([[True, False, True, True, False, True]]).t()
    apart = torch.tensor([0.0, 9, 0, 9, 0, 9])[:, None]  # nodes 1 and 4 are wrong, and nobody asks them
    score = ClusterAccuracy(labels, val, 2, starts=3)
    assert score(torch.stack([apart, torch.full_like(apart, torch.nan)])) == [1.0, 0.0]
    assert ClusterAccuracy(labels, torch.ones(6, 1, dtype=torch.bool), 2)(apart[None]) == [4 / 6]


def test_a_search_for_clusters_ends_in_a_preset(small_mixed: Graph) -> None:
    found = run(small_mixed, objective="clustering", trials=2)
    assert (found.made["objective"], found.made["protocol"]) == ("clustering", "pooled")
    assert 0 < found.made["score"] <= 1


def test_the_labels_of_test_nodes_change_nothing(small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    assert small_mixed.test_mask is not None
    one = replace(
        small_mixed,
        train_mask=small_mixed.train_mask[:, :1],  # type: ignore[index]
        val_mask=small_mixed.val_mask[:, :1],  # type: ignore[index]
        test_mask=small_mixed.test_mask[:, :1],
    )
    labels = one.labels
    assert labels is not None
    garbled = replace(one, labels=torch.where(one.test_mask[:, 0], labels.max() - labels, labels))  # type: ignore[index]
    for how in ({}, {"probed": True}, {"objective": "clustering"}):
        assert run(one, trials=2, **how).record == run(garbled, trials=2, **how).record


def test_a_study_goes_on_where_it_was(small_mixed: Graph, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/studies.db"
    first = run(small_mixed, storage, trials=4)
    second = run(small_mixed, storage, trials=8)
    assert second.record["trials"][:4] == first.record["trials"]
    assert second.made["trials"] == 8


def test_a_study_of_another_graph_is_refused(small_mixed: Graph, path_graph: Graph, tmp_path: Path) -> None:
    storage = str(tmp_path / "study.log")  # a journal, since the database was tried above
    run(small_mixed, storage, trials=2)
    with pytest.raises(InputError, match="another graph"):
        open_study(path_graph, "study", storage, "validation", seed=0)


def test_without_labels_clusters_are_compared(small_mixed: Graph) -> None:
    bare = replace(small_mixed, labels=None, train_mask=None, val_mask=None, test_mask=None, class_names=())
    with pytest.raises(InputError, match="label-free"):
        run(bare)
    found = run(bare, objective="label-free", trials=2, clusters=4)
    assert found.made["protocol"] == "no labels"
    assert 0 < found.made["score"] <= 1


def test_models_of_a_stack_share_its_shape(small_mixed: Graph) -> None:
    trials = run(small_mixed, trials=4).record["trials"]
    for first, second in ((0, 1), (2, 3)):
        for name in ("hops", "learning_rate", "channels"):
            assert trials[first]["params"][name] == trials[second]["params"][name]


def test_a_stack_that_does_not_fit_is_told_to_the_study(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    study = open_study(small_mixed, "study", None, "validation", seed=0)
    searcher = Searcher(
        small_mixed, H3GNN.from_preset("single").get_settings(), lambda _: [], Budget(trials=2), CPU
    )
    monkeypatch.setattr(searcher, "score", full)
    searcher.search(study, SPACE, seed=0)
    assert finished(study) == 2
    assert all(trial.user_attrs["failed"] == "out of memory" for trial in study.trials)


@pytest.mark.parametrize("name", SPACES)
def test_every_value_of_a_space_is_an_argument_that_is_accepted(name: str) -> None:
    from h3gnn.settings import check_arguments

    for argument, values in SPACES[name].choices.items():
        for value in values:
            check_arguments(with_objectives({**start_of(SPACES[name]), argument: value}))
