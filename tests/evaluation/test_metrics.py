from __future__ import annotations

import numpy as np
import pytest

from h3gnn.evaluation.protocols import accuracy, macro_f1, roc_auc


def test_answers_worked_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, -1])
    predicted = np.array([0, 1, 1, 1, 0, 2])
    assert accuracy(predicted, labels) == pytest.approx(3 / 5)
    # class 0: TP 1, FP 1, FN 1 -> 1/2; class 1: TP 2, FP 1 -> 4/5; class 2: FN 1 -> 0
    assert macro_f1(predicted, labels) == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)
    # a class that is predicted and nowhere there counts as 0: (2/3 + 0) / 2
    assert macro_f1(np.array([0, 3]), np.array([0, 0])) == pytest.approx(1 / 3)
    assert roc_auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1])) == pytest.approx(3.5 / 4)


def test_what_cannot_be_measured_is_nan() -> None:
    unknown = np.array([-1, -1])
    assert np.isnan(accuracy(np.array([0, 1]), unknown))
    assert np.isnan(macro_f1(np.array([0, 1]), unknown))
    assert np.isnan(roc_auc(np.array([0.2, 0.3]), np.array([1, 1])))
    assert np.isnan(roc_auc(np.array([np.nan, 0.3]), np.array([0, 1])))
