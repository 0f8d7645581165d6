from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from h3gnn.evaluation.protocols import SplitScores
from h3gnn.evaluation.results import RepeatedScore, Result, join_seeds, paired_test
from h3gnn.report.tables import percent


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
    assert percent(RepeatedScore([[float("nan")]])) == "–"
    assert percent(RepeatedScore([[0.5, float("nan")]])) == "50.0 ± 0.0"


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
    assert "TEST nodes" not in kept["protocol_in_words"]
    assert "TEST nodes" in result("published").as_dict()["protocol_in_words"]


def test_corrected_resampled_t_test_by_hand() -> None:
    a, b = RepeatedScore([[0.80, 0.82, 0.78, 0.84]]), RepeatedScore([[0.78, 0.81, 0.78, 0.80]])
    found = paired_test(a, b, test_to_train=0.25)
    # differences 0.02 0.01 0 0.04: mean 0.0175, s² = 0.00087500 / 3; t = 0.0175 / sqrt(s² (1/4 + 1/4))
    s2 = (0.0025**2 + 0.0075**2 + 0.0175**2 + 0.0225**2) / 3
    assert found.difference == pytest.approx(0.0175)
    assert found.p_value == pytest.approx(2 * stats.t.sf(0.0175 / np.sqrt(s2 * 0.5), 3))
    assert found.n == 4
    plain = stats.ttest_rel(a.values[0], b.values[0]).pvalue
    assert found.p_value > plain


def test_seeds_of_a_split_are_averaged_first() -> None:
    a = RepeatedScore([[0.9, 0.7, 0.8], [0.7, 0.9, 0.8]])
    one, many = RepeatedScore([[0.8, 0.8, 0.8]]), RepeatedScore([[0.8, 0.8, 0.8]] * 2)
    assert paired_test(a, one) == paired_test(a, many)
    assert paired_test(a, one).p_value == 1.0  # the seeds cancel: 0, 0, 0
    assert paired_test(a, one).n == 3


def test_one_split_compares_seeds_by_a_plain_t_test() -> None:
    a, b = RepeatedScore([[0.8], [0.83], [0.81]]), RepeatedScore([[0.7], [0.79], [0.74]])
    flat_a, flat_b = [row[0] for row in a.values], [row[0] for row in b.values]
    assert paired_test(a, b).p_value == pytest.approx(stats.ttest_rel(flat_a, flat_b).pvalue)


def test_false_positives_are_rare_on_overlapping_splits() -> None:
    random = np.random.default_rng(0)
    corrected, plain = 0, 0
    for _ in range(150):
        right_a, right_b = random.random((2, 60)) < 0.8
        tests = [random.permutation(60)[:12] for _ in range(10)]
        a, b = ([float(right[nodes].mean()) for nodes in tests] for right in (right_a, right_b))
        corrected += paired_test(RepeatedScore([a]), RepeatedScore([b])).differ
        plain += int(stats.ttest_rel(a, b).pvalue < 0.05)
    assert corrected < 0.1 * 150 < plain


def test_one_pair_has_p_value_one_and_other_shapes_are_rejected() -> None:
    assert paired_test(RepeatedScore([[0.9]]), RepeatedScore([[0.1]])).p_value == 1.0
    with pytest.raises(ValueError, match="same seeds and splits"):
        paired_test(RepeatedScore([[0.9, 0.8]]), RepeatedScore([[0.1]]))
