from __future__ import annotations

import json
import math

import pytest

from h3gnn.evaluation.protocols import SplitScores
from h3gnn.evaluation.results import RepeatedScore, Result, join_seeds


def result(protocol: str = "validation", roc_auc: list[float] | None = None) -> Result:
    scores = [
        SplitScores([0.8, 0.9], [0.7, 0.8], roc_auc, [0.75, 0.85], [{"epoch": 5, "strength": 0.1}] * 2),
        SplitScores([0.6, 0.7], [0.5, 0.6], roc_auc, [0.65, 0.75], [{"epoch": 5, "strength": 0.3}] * 2),
    ]
    return Result(
        method="H3GNN",
        graph="texas",
        sha256="abc",
        protocol=protocol,
        epoch_rule="last",
        params={"channels": 8},
        seeds=[0, 1],
        versions={"python": "3"},
        origin={"commit": "0123456789ab", "code": {"training": "01234567"}},
        device="cpu",
        seconds=1.5,
        clustering={"acc": {"mean": 0.5, "std": 0.0, "values": [0.5]}},
        **join_seeds(scores),
    )


def test_mean_standard_deviation_and_interval_by_hand() -> None:
    scores = RepeatedScore([[0.8, 0.9], [0.6, 0.7]])
    assert scores.mean == pytest.approx(0.75)
    assert scores.std == pytest.approx(math.sqrt((0.05**2 + 0.15**2) * 2 / 4))
    low, high = scores.interval95 or (0, 0)
    half = 3.182446 * math.sqrt((0.05**2 + 0.15**2) * 2 / 3) / 2  # t of 3 degrees of freedom
    assert (low, high) == pytest.approx((0.75 - half, 0.75 + half), abs=1e-6)
    assert RepeatedScore([[0.5]]).interval95 is None


@pytest.mark.parametrize("roc_auc", [None, [0.9, float("nan")]])
def test_a_result_survives_json(roc_auc: list[float] | None) -> None:
    first = result(roc_auc=roc_auc)
    text = json.dumps(first.as_dict(), allow_nan=False)
    again = Result.from_dict(json.loads(text))
    assert json.dumps(again.as_dict()) == text
    kept = json.loads(text)
    assert kept["probe"]["test_mean"] == pytest.approx(0.75)
    assert kept["probe"]["per_split"] == [[0.8, 0.9], [0.6, 0.7]]
    assert kept["probe"]["validation_mean"] == pytest.approx(0.75)
    assert kept["chosen"][1][0] == {"epoch": 5, "strength": 0.3}
    assert kept.pop("origin") == {"commit": "0123456789ab", "code": {"training": "01234567"}}
    assert Result.from_dict(kept).origin is None  # an old file


def test_published_is_described_as_chosen_on_test_nodes() -> None:
    assert "TEST nodes" in result("published").as_dict()["protocol_in_words"]
    assert "TEST" not in result().as_dict()["protocol_in_words"]
