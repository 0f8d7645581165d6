"""A preset from a list: it names its study, counts its trials, and is what all splits liked best."""

from __future__ import annotations

import json
from typing import Any

import pytest

from h3gnn.estimator import H3GNN
from h3gnn.experiments.search import Allowance, preset_of, tune_from_list
from h3gnn.experiments.spaces import Space
from h3gnn.graphs.graph import Graph
from h3gnn.settings import PRESET, kept_for
from h3gnn.storage.schema import check_values

ABOUT = {
    "by": "h3gnn reproduce",
    "study": "texas, table classification",
    "graph": "texas",
    "sha256": "0" * 64,
}
RECORD: dict[str, Any] = {
    "settings": kept_for("preset", H3GNN.from_preset("single", channels=8).get_settings()),
    "ranges": {"objective": ["teacher", "edges+teacher"], "smoothing": [0.0, 0.5]},
    "allowed": Allowance(3, looks=(5, 10)).as_dict(),
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


def test_a_study_holds_every_trial_and_what_was_taken() -> None:
    record = preset_of(RECORD, CHOSEN, NESTED, ABOUT).record
    assert record["search"]["space"] == RECORD["ranges"]
    assert record["search"]["rungs"] == [5, 10]
    first, second = record["trials"]
    assert (first["params"], first["curve"], first["smoothing"]) == ({}, {"5": 0.55, "10": 0.75}, 0.5)
    assert (second["curve"], second["seed"]) == ({"5": 0.8, "10": 0.8}, 4)
    (taken,) = record["finalists"]
    assert taken["params"] == RECORD["tried"][1]
    assert taken["looks"] == [[5, 0.0, 0.75], [5, 0.5, 0.8], [10, 0.0, 0.8]]


def test_the_preset_is_what_was_chosen_where_stored_scores_are_equal() -> None:
    other = {"epochs": 10, "smoothing": 0.5}
    record = {**RECORD, "candidates": [[1, CHOSEN, [0.8, 0.8]], [0, other, [0.8, 0.8]]]}
    record["candidates"][0][1] = {"epochs": 10, "smoothing": 0.0}
    tuned = preset_of(record, other, NESTED, ABOUT)
    assert tuned.record["finalists"] == [{"params": {}, "looks": [[10, 0.5, 0.8]]}]
    assert tuned.params["objective"] == "teacher"


def test_a_list_keeps_to_what_may_be_chosen(small_mixed: Graph) -> None:
    space = Space({"objective": ("decorrelation",), "smoothing": (0.5,)}, start=None).restricted(
        {"channels": [8], "heads": [2], "epochs": [1], "hops": [2, 1]}
    )
    found = tune_from_list(small_mixed, space, Allowance(2), models=2, study="mine", device="cpu")
    params = found.params
    assert (params["objective"], params["channels"], params["epochs"]) == ("decorrelation", 8, 1)
    assert (params["smoothing"], params["n_models"]) == (0.5, 2)
    assert [look[:2] for one in found.record["finalists"] for look in one["looks"]] == [[1, 0.5]]
    assert len(found.made["nested"]["trials"]) == small_mixed.num_splits
