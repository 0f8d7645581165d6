"""Measures of answers against labels, some that a rare class cannot hide from, and which of them leads.

All take labels first, int `[nodes]` with a negative number where none is known; such nodes are left out. What
cannot be measured is NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

COMMON = 0.8
"""A class that holds at least so much of the labelled nodes makes the others rare.

Whoever always answers it has this accuracy, so that accuracy can hardly be wrong; it then no longer leads.
"""
TITLES = {
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "recall_at_k": "recall at k",
    "majority": "majority's share",
}
"""What a person calls the measures that may stand beside accuracy."""
RECALLS = np.linspace(0.0, 1.0, 51)
"""Where a precision–recall curve is measured."""

Labels = npt.NDArray[Any]
Floats = npt.NDArray[np.floating]


def accuracy(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the share of labelled nodes whose class is predicted."""
    known = labels >= 0
    return float((predicted[known] == labels[known]).mean()) if known.any() else float("nan")


def macro_f1(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the mean F1 of the classes that labelled nodes have or are given."""
    from sklearn.metrics import f1_score

    known = labels >= 0
    return float(f1_score(labels[known], predicted[known], average="macro")) if known.any() else float("nan")


def balanced_accuracy(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the mean over classes of the share of their nodes that are found: each class counts the same."""
    shares = [float((predicted[labels == one] == one).mean()) for one in np.unique(labels[labels >= 0])]
    return float(np.mean(shares)) if shares else float("nan")


def majority_share(labels: Labels) -> float:
    """Return the share of the largest class: the accuracy of whoever always answers it."""
    known = labels[labels >= 0]
    return float(np.bincount(known).max() / known.size) if known.size else float("nan")


def rarest_class(labels: Labels) -> int:
    """Return the class with the fewest labelled nodes, the last of several; 1 where no label is known.

    Of two classes this is the one that is usually meant by positive: fraud, not its absence.
    """
    known = labels[labels >= 0]
    if not known.size:
        return 1
    counts = np.bincount(known, minlength=2)
    there = np.flatnonzero(counts) if np.count_nonzero(counts) > 1 else np.arange(2)
    return int(there[len(there) - 1 - np.argmin(counts[there][::-1])])


def roc_auc(labels: Labels, scores: Floats, positive: int = 1) -> float:
    """Return how often a node of the positive class has a higher score than one of another, ties half."""
    from sklearn.metrics import roc_auc_score

    asked = _asked(labels, scores, positive)
    if asked is None or asked[0].all():
        return float("nan")
    return float(roc_auc_score(*asked))


def average_precision(labels: Labels, scores: Floats, positive: int = 1) -> float:
    """Return the area under the precision–recall curve of the positive class.

    Scores that say nothing have the positives' own share.
    """
    from sklearn.metrics import average_precision_score

    asked = _asked(labels, scores, positive)
    return float("nan") if asked is None else float(average_precision_score(*asked))


def recall_at(labels: Labels, scores: Floats, k: int | None = None, positive: int = 1) -> float:
    """Return which share of the positive nodes is among the k with the highest scores.

    Of nodes with equal scores of which only some fit in, each counts in proportion, as if drawn at random.

    Args:
        labels, scores: of the nodes.
        k: how many are looked at; by default as many as there are positive ones.
        positive: the class that is looked for.
    """
    asked = _asked(labels, scores, positive)
    if asked is None:
        return float("nan")
    wanted, found = asked
    most = min(int(wanted.sum()) if k is None else k, len(found))
    if most < 1:
        return 0.0
    border = np.partition(found, len(found) - most)[len(found) - most]
    above, tied = found > border, found == border
    part = (most - above.sum()) / tied.sum()
    return float((wanted[above].sum() + part * wanted[tied].sum()) / wanted.sum())


def precision_at_recalls(
    labels: Labels, scores: Floats, positive: int = 1, recalls: Floats = RECALLS
) -> npt.NDArray[np.float64]:
    """Return the precision at given recalls: that of the fewest nodes which reach each."""
    from sklearn.metrics import precision_recall_curve

    asked = _asked(labels, scores, positive)
    if asked is None:
        return np.full(len(recalls), np.nan)
    precision, recall, _ = precision_recall_curve(*asked)  # recall falls from 1 to 0
    place = len(recall) - 1 - np.searchsorted(recall[::-1], recalls - 1e-9)
    at: npt.NDArray[np.float64] = precision[np.minimum(place, len(recall) - 2)]  # its end is no set of nodes
    return at


def secondary_measures(
    labels: Labels, predicted: npt.NDArray[Any], scores: Floats, rare: int, k: int | None = None
) -> dict[str, float]:
    """Return what stands beside accuracy, by the names of `TITLES`.

    Args:
        labels: of the nodes.
        predicted: the class that each is given.
        scores: higher where the rare class is likelier.
        rare: that class.
        k: for recall at k; by default as many as the class has nodes.
    """
    return {
        "average_precision": average_precision(labels, scores, rare),
        "recall_at_k": recall_at(labels, scores, k, rare),
        "balanced_accuracy": balanced_accuracy(labels, predicted),
        "majority": majority_share(labels),
    }


def leading_measure(majority: float, classes: int) -> str:
    """Return the measure that leads: the one that can be wrong.

    That is accuracy while no class is `COMMON`; else, of two classes, the average precision of the rare one,
    and of more the balanced accuracy.
    """
    if not majority >= COMMON:
        return "accuracy"
    return "average_precision" if classes == 2 else "balanced_accuracy"


def _asked(labels: Labels, scores: Floats, positive: int) -> tuple[npt.NDArray[np.bool_], Floats] | None:
    """Return which labelled nodes are positive, and their scores; None where that measures nothing."""
    known = labels >= 0
    wanted, found = labels[known] == positive, scores[known]
    return None if not wanted.any() or np.isnan(found).any() else (wanted, found)


ONE_CLASS = "all labelled nodes have one class: accuracies say nothing, and there is no ROC-AUC"


class LabelWarning(UserWarning):
    """Something cannot be computed from these labels and splits; the rest is."""


def label_problems(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> list[str]:
    """Return what cannot be computed, and why, one sentence each.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train, val, test: bool `[nodes, splits]`.
        class_names: for the words.
    """
    known = (labels >= 0)[:, None]
    train, val, test = (mask & known for mask in (train, val, test))
    splits, told = train.shape[1], []
    if len(torch.unique(labels[labels >= 0])) < 2:
        told.append(ONE_CLASS)
    lacking = "{} of {} split(s) have no labelled {} node: {}"
    for mask, which, without in (
        (train, "training", "the classifier there has learned nothing"),
        (val, "validation", "nothing can be chosen there, and the first of the probe's strengths is taken"),
        (test, "test", "there is no accuracy there"),
    ):
        empty = int((~mask.any(dim=0)).sum())
        if empty:
            told.append(lacking.format(empty, splits, which, without))
    unseen = _unseen(labels, train, test)
    if unseen:
        names = ", ".join(class_names[one] if one < len(class_names) else str(one) for one in unseen[:5])
        told.append(
            f"class(es) {names}{' and more' if len(unseen) > 5 else ''} have test nodes but no training node "
            "in some split: they cannot be predicted there, and count as wrong"
        )
    return told


def _unseen(labels: Tensor, train: Tensor, test: Tensor) -> list[int]:
    """Return the classes that some split tests and does not train."""
    found: set[int] = set()
    for taught, asked in zip(train.t(), test.t(), strict=True):
        if taught.any():
            found |= set(labels[asked].tolist()) - set(labels[taught].tolist())
    return sorted(found)


def warn_label_problems(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> None:
    """Warn of each limit, once."""
    for limit in label_problems(labels, train, val, test, class_names):
        warnings.warn(limit, LabelWarning, stacklevel=1)  # one place: each is said once


def usable_splits(labels: Tensor, *masks: Tensor) -> Tensor:
    """Return which splits have a labelled node in each of the masks, bool `[splits]`."""
    known = (labels >= 0)[:, None]
    return torch.stack([(mask & known).any(dim=0) for mask in masks]).all(dim=0)
