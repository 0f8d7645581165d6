"""How well predictions agree with classes; nodes without a class (negative label) are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def accuracy(predicted: Array, labels: Array) -> float:
    """Return the share of labelled nodes whose class is predicted; NaN where no node has a label."""
    known = labels >= 0
    return float((predicted[known] == labels[known]).mean()) if known.any() else float("nan")


def macro_f1(predicted: Array, labels: Array, classes: int) -> float:
    """Return the mean over classes of F1 = 2 TP / (2 TP + FP + FN); NaN where no node has a label.

    A class that is neither there nor predicted says nothing and is left out of the mean.
    """
    known = labels >= 0
    if not known.any():
        return float("nan")
    size = max(classes, int(labels.max()) + 1, int(predicted.max()) + 1)
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (labels[known], predicted[known]), 1)
    right = np.diag(counts)
    spoken_of = counts.sum(axis=0) + counts.sum(axis=1)  # 2 TP + FP + FN
    there = spoken_of > 0
    return float((2 * right[there] / spoken_of[there]).mean())


def roc_auc(scores: Array, labels: Array) -> float:
    """Return the chance that a node of class 1 scores above one of class 0, ties counted as half.

    NaN where one of the two classes is absent, or a score is not a number.

    Args:
        scores: how much each node looks like class 1, `[nodes]`.
        labels: 0, 1, or negative where unknown.
    """
    from scipy.stats import rankdata

    known = labels >= 0
    positive = labels[known] == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros or np.isnan(scores[known]).any():
        return float("nan")
    above = rankdata(scores[known])[positive].sum() - ones * (ones + 1) / 2
    return float(above / (ones * zeros))
