"""The summary of predictions beside a model: stored, read while the model is the same, and never trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3gnn.answers.prediction import predict_nodes
from h3gnn.storage.runs import PREDICTIONS, read_predictions, store_predictions
from tests.answers.test_prediction import ring
from tests.rejects import rejects


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    labels = np.where(np.arange(40) < 30, (rows[:, 0] > 0).astype(int), -1)
    found = predict_nodes(ring(rows), rows, labels, ("no", "yes"), head="logistic", allow_leaks=True)
    return found.as_dict()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "model.json").write_text('{"a": 1}')
    return tmp_path


def test_a_summary_is_read_while_the_model_is_the_same(run: Path, summary: dict[str, Any]) -> None:
    assert read_predictions(run) is None
    store_predictions(run, summary)
    found = read_predictions(run)
    assert found is not None
    assert found["held_out"] == json.loads(json.dumps(summary["held_out"]))
    assert found["labelled"] == 30
    (run / "model.json").write_text('{"a": 2}')
    assert read_predictions(run) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"labelled"', '"labels"'),
        lambda text: text.replace('"folds": ', '"folds": -'),
        lambda text: text.replace('"held_out": {', '"held_out": {"x": 1, '),
    ],
)
def test_damaged_summaries_are_rejected(run: Path, summary: dict[str, Any], change: Any) -> None:
    store_predictions(run, summary)
    text = (run / PREDICTIONS).read_text()
    assert change(text) != text
    (run / PREDICTIONS).write_text(change(text))
    with rejects("file-damaged"):
        read_predictions(run)
