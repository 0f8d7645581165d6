from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from h3gnn.evaluation.metrics import accuracy, macro_f1, roc_auc


def test_answers_worked_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, -1])
    predicted = np.array([0, 1, 1, 1, 0, 2])
    assert accuracy(predicted, labels) == pytest.approx(3 / 5)
    # class 0: TP 1, FP 1, FN 1 -> 1/2; class 1: TP 2, FP 1 -> 4/5; class 2: FN 1 -> 0
    assert macro_f1(predicted, labels, 3) == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)
    assert macro_f1(predicted, labels, 5) == macro_f1(predicted, labels, 3)
    assert roc_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1])) == pytest.approx(3.5 / 4)


def test_they_agree_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    labels, predicted = random.integers(0, 4, 80), random.integers(0, 4, 80)
    assert macro_f1(predicted, labels, 4) == pytest.approx(f1_score(labels, predicted, average="macro"))
    two, scores = random.integers(0, 2, 80), random.integers(0, 9, 80) / 9
    assert roc_auc(scores, two) == pytest.approx(roc_auc_score(two, scores))


def test_what_cannot_be_measured_is_nan() -> None:
    unknown = np.array([-1, -1])
    assert np.isnan(accuracy(np.array([0, 1]), unknown))
    assert np.isnan(macro_f1(np.array([0, 1]), unknown, 2))
    assert np.isnan(roc_auc(np.array([0.2, 0.3]), np.array([1, 1])))
    assert np.isnan(roc_auc(np.array([np.nan, 0.3]), np.array([0, 1])))
