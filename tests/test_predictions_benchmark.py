"""`python -m benchmarks.predictions`: draws, scores, ranks, and a trial run that is taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.prediction_cases import CASES, Case, Problem, draw
from benchmarks.predictions import METHODS, Place, first_or_near, markdown, run, score, summarize, wanted
from h3gnn.graphs.checks import check_graph
from reproduction.files import read_json

TRIAL = ["fraud/predict", "fraud/label-propagation", "fraud/forest", "houses/label-propagation"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(Path("no such folder"), tmp_path_factory.mktemp("cache"), quick=True)


def test_a_trial_run_is_taken_up_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    out = place.cache / "found.json"
    first = run(place, out, ",".join(TRIAL[:2]), [7], again=False)
    assert [one["method"] for one in first["cells"]] == ["predict", "label-propagation"]
    again = run(place, out, ",".join([*TRIAL, "cora"]), [7], again=False)
    assert all(one in again["cells"] for one in first["cells"])
    printed = capsys.readouterr().out
    assert printed.count("fraud/predict") == 1
    assert "cora: left out" in printed
    stored = read_json(out)
    assert {"versions", "origin", "cells"} <= stored.keys()
    for cell in stored["cells"]:
        assert cell["seed"] == 7
        assert cell["score"] <= 1
    table = markdown(stored)
    assert "| fraud (example) | 81 | average precision |" in table
    assert "★" in table


def problem_of(truth: list[float], classes: tuple[str, ...]) -> Problem:
    return Problem(check_graph(np.eye(len(truth)), np.array([[0], [1]])), np.array(truth), classes)


def case_of(labelled: Any) -> Case:
    return Case("c", "c", "accuracy", labelled, CASES["fraud"].make)


def test_draws_are_stratified_and_repeatable() -> None:
    truth = np.array([0] * 40 + [1] * 10 + [2] + [-1] * 5)
    problem = problem_of(truth.tolist(), ("a", "b", "c"))
    nodes = draw(case_of(0.2), problem, 3)
    assert np.bincount(truth[nodes]).tolist() == [8, 4]  # at least four; none of a class with one node
    assert (nodes == draw(case_of(0.2), problem, 3)).all()
    assert (nodes != draw(case_of(0.2), problem, 4)).any()
    assert np.bincount(truth[draw(case_of({"a": 3, "b": 7, "c": 1}), problem, 0)]).tolist() == [3, 5]
    numbers = problem_of([1.5, float("nan"), 2.5, 3.5], ())
    assert len(draw(case_of(0.7), numbers, 0)) == 2


def test_scores_by_hand() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    assert score("accuracy", np.array([0, 1, 1, 0]), p)["score"] == 0.75
    found = score("average precision", np.array([0, 1, 1, 0]), p)
    assert found["score"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["auc"] == 0.75
    assert score("R²", np.array([1.0, 3.0]), np.array([2.0, 3.0])) == {"score": 0.5, "mae": 0.5}


def test_near_is_within_one_standard_error_of_the_first() -> None:
    scores = {"predict": (0.5, 0.9), "boosting": (0.6, 0.7), "forest": (0.5, 0.6)}
    cells = [
        {"case": "fraud", "method": method, "seed": seed, "score": one}
        for method, both in scores.items()
        for seed, one in enumerate(both)
    ]
    found = summarize(cells)["fraud"]
    assert found["predict"] == pytest.approx((0.7, 0.2))
    assert found["boosting"] == pytest.approx((0.65, 0.05))
    assert first_or_near(found) == {"predict", "boosting", "forest"}
    assert first_or_near({"predict": (0.7, 0.04), "boosting": (0.65, 0.05)}) == {"predict"}


def test_cells_are_chosen_by_name() -> None:
    assert wanted("fraud/boosting,twitch") == {"fraud": ["boosting"], "twitch": list(METHODS)}
    assert wanted("all/boosting") == {name: ["boosting"] for name in CASES}
    with pytest.raises(SystemExit):
        wanted("fraud/magic")
