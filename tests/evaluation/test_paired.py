from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from h3gnn.evaluation.results import RepeatedScore, paired_test


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
