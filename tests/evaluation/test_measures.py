from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3gnn.evaluation.metrics import (
    accuracy,
    average_precision,
    balanced_accuracy,
    leading_measure,
    macro_f1,
    majority_share,
    precision_at_recalls,
    rarest_class,
    recall_at,
    roc_auc,
)


def test_metrics_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, -1])
    predicted = np.array([0, 1, 1, 1, 0, 2])
    assert accuracy(labels, predicted) == pytest.approx(3 / 5)
    # class 0: TP 1, FP 1, FN 1 -> 1/2; class 1: TP 2, FP 1 -> 4/5; class 2: FN 1 -> 0
    assert macro_f1(labels, predicted) == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)
    # a predicted class without nodes counts as 0: (2/3 + 0) / 2
    assert macro_f1(np.array([0, 0]), np.array([0, 3])) == pytest.approx(1 / 3)
    assert roc_auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.9])) == pytest.approx(3.5 / 4)
    # recalls of classes 0, 1 and 2: 1/2, 1 and 0
    assert balanced_accuracy(labels, predicted) == pytest.approx(1 / 2)
    assert majority_share(np.array([0, 0, 0, 1, -1])) == pytest.approx(3 / 4)


def test_always_predicting_the_largest_class() -> None:
    labels = np.array([0] * 96 + [1] * 4)
    lazy = np.zeros(100, dtype=np.int64)
    assert accuracy(labels, lazy) == majority_share(labels) == pytest.approx(0.96)
    assert balanced_accuracy(labels, lazy) == pytest.approx(1 / 2)
    assert average_precision(labels, np.zeros(100)) == pytest.approx(0.04)
    assert recall_at(labels, np.zeros(100), 25) == pytest.approx(1 / 4)


def test_metrics_of_the_positive_class_by_hand() -> None:
    labels = np.array([1, 0, 1, 0, 0, -1])
    scores = np.array([0.9, 0.8, 0.7, 0.2, 0.1, 0.95])
    # found at ranks 1 and 3, with precisions 1 and 2/3
    assert average_precision(labels, scores) == pytest.approx((1 + 2 / 3) / 2)
    assert [recall_at(labels, scores, k) for k in (1, 2, 3, 50)] == [0.5, 0.5, 1.0, 1.0]
    assert recall_at(labels, scores) == 0.5  # k = 2, the number of positives
    tied = np.array([1, 1, 1, 0, 0, 0.0])
    assert recall_at(labels, tied, 2) == pytest.approx(2 / 3)  # two of three at random
    curve = precision_at_recalls(labels, scores, recalls=np.array([0.0, 0.5, 0.6, 1.0]))
    np.testing.assert_allclose(curve, [1, 1, 2 / 3, 2 / 3])
    # the other class as the positive one, by scores that are higher where it is likelier
    assert roc_auc(labels, -scores, positive=0) == pytest.approx(roc_auc(labels, scores))


def test_rarest_class_and_leading_measure() -> None:
    assert rarest_class(np.array([1, 1, 1, 0, -1])) == 0
    assert rarest_class(np.array([0, 1, 1, 0])) == 1  # a tie
    assert rarest_class(np.array([0, 0, 2, 1, 1])) == 2
    assert rarest_class(np.array([0, 0, 0])) == 1  # of two classes, the absent one
    assert rarest_class(np.array([-1])) == 1
    assert leading_measure(0.79, 2) == "accuracy"
    assert leading_measure(0.96, 2) == "average_precision"
    assert leading_measure(0.96, 3) == "balanced_accuracy"
    assert leading_measure(float("nan"), 2) == "accuracy"


def test_undefined_metrics_are_nan() -> None:
    unknown, predicted, some = np.array([-1, -1]), np.array([0, 1]), np.array([0.2, 0.3])
    for metric in (accuracy, macro_f1, balanced_accuracy):
        assert np.isnan(metric(unknown, predicted))
    assert np.isnan(majority_share(unknown))
    assert np.isnan(roc_auc(np.array([1, 1]), some))
    assert np.isnan(roc_auc(np.array([0, 1]), np.array([np.nan, 0.3])))
    for curve in (average_precision, recall_at, precision_at_recalls):
        assert np.isnan(curve(np.array([0, 0]), some)).all()


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 5)), min_size=1), st.integers(0, 60))
def test_recall_lies_between_the_worst_and_the_best_order_of_ties(
    nodes: list[tuple[int, int]], k: int
) -> None:
    labels, scores = (np.array(one) for one in zip(*nodes, strict=True))
    found = recall_at(labels, scores.astype(float), k)
    known = [(score, label) for label, score in nodes if label >= 0]
    if not any(label == 1 for _, label in known):
        assert np.isnan(found)
        return
    ends = []
    for sign in (-1, 1):
        ordered = sorted(known, key=lambda one: (-one[0], sign * (one[1] == 1)))
        positives = sum(label == 1 for _, label in known)
        ends.append(sum(label == 1 for _, label in ordered[:k]) / positives)
    assert min(ends) - 1e-12 <= found <= max(ends) + 1e-12
    assert recall_at(labels, scores.astype(float), len(nodes)) == 1.0
