"""Measures of predicted classes and numbers, the choice of the leading one, and checks of labels and splits.

What is true comes first, `[nodes]`: labels, of which negative ones are ignored, or numbers, of which NaN are
ignored. Undefined values are NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAJORITY = 0.8
"""Accuracy does not lead if the largest class has this share: always predicting it is that accurate."""
TITLES = {
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "recall_at_k": "recall at k",
    "majority": "majority's share",
}
"""Titles of accuracy and of the secondary measures."""
NUMBER_TITLES = {
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "spearman": "rank correlation",
}
"""Titles of the measures of numbers; R², which is largest for the best, leads."""
PREDICTION_TITLES = {
    "unmarked": "share of unmarked nodes",
    "accuracy_unmarked": "accuracy of unmarked nodes",
    "roc_auc": "ROC AUC",
    "coverage": "share inside the interval",
    "width": "median width of intervals",
    **NUMBER_TITLES,
}
"""Titles of the measures of predictions that are not named by their keys."""
IN_UNITS = ("mae", "rmse")
"""Measures in the unit of the number; the others are shares."""
RECALLS = np.linspace(0.0, 1.0, 51)  # at which a precision–recall curve is stored
ONE_CLASS = "all labelled nodes have one class or number: scores say nothing"

Labels = npt.NDArray[Any]
Floats = npt.NDArray[np.floating]


def accuracy(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the share of labelled nodes that are predicted correctly."""
    known = labels >= 0
    return float((predicted[known] == labels[known]).mean()) if known.any() else float("nan")


def macro_f1(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the mean F1 over the classes that are labelled or predicted."""
    from sklearn.metrics import f1_score

    known = labels >= 0
    return float(f1_score(labels[known], predicted[known], average="macro")) if known.any() else float("nan")


def balanced_accuracy(labels: Labels, predicted: npt.NDArray[Any]) -> float:
    """Return the mean recall over classes."""
    recalls = [float((predicted[labels == one] == one).mean()) for one in np.unique(labels[labels >= 0])]
    return float(np.mean(recalls)) if recalls else float("nan")


def majority_share(labels: Labels) -> float:
    """Return the share of the largest class, which is the accuracy of always predicting it."""
    known = labels[labels >= 0]
    return float(np.bincount(known).max() / known.size) if known.size else float("nan")


def rarest_class(labels: Labels) -> int:
    """Return the class with the fewest labelled nodes, the last of several; 1 without labels.

    Of two classes this is usually the positive one, such as fraud.
    """
    known = labels[labels >= 0]
    if not known.size:
        return 1
    counts = np.bincount(known, minlength=2)
    there = np.flatnonzero(counts) if np.count_nonzero(counts) > 1 else np.arange(2)
    return int(there[len(there) - 1 - np.argmin(counts[there][::-1])])


def roc_auc(labels: Labels, scores: Floats, positive: int = 1) -> float:
    """Return the area under the ROC curve of one class against the rest."""
    from sklearn.metrics import roc_auc_score

    binary = _one_against_rest(labels, scores, positive)
    return float("nan") if binary is None or binary[0].all() else float(roc_auc_score(*binary))


def average_precision(labels: Labels, scores: Floats, positive: int = 1) -> float:
    """Return the area under the precision–recall curve of one class against the rest."""
    from sklearn.metrics import average_precision_score

    binary = _one_against_rest(labels, scores, positive)
    return float("nan") if binary is None else float(average_precision_score(*binary))


def recall_at(labels: Labels, scores: Floats, k: int | None = None, positive: int = 1) -> float:
    """Return the recall of one class among the k nodes with the highest scores.

    Tied nodes at the border count in proportion. By default k is the number of positive nodes.
    """
    binary = _one_against_rest(labels, scores, positive)
    if binary is None:
        return float("nan")
    wanted, found = binary
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
    """Return the precision of the smallest set of top nodes that reaches each recall."""
    from sklearn.metrics import precision_recall_curve

    binary = _one_against_rest(labels, scores, positive)
    if binary is None:
        return np.full(len(recalls), np.nan)
    precision, recall, _ = precision_recall_curve(*binary)  # recall decreases from 1 to 0
    place = len(recall) - 1 - np.searchsorted(recall[::-1], recalls - 1e-9)
    at: npt.NDArray[np.float64] = precision[np.minimum(place, len(recall) - 2)]  # the last point has no nodes
    return at


def _one_against_rest(
    labels: Labels, scores: Floats, positive: int
) -> tuple[npt.NDArray[np.bool_], Floats] | None:
    """Return which labelled nodes are positive, and their scores; None without positives or scores."""
    known = labels >= 0
    wanted, found = labels[known] == positive, scores[known]
    return None if not wanted.any() or np.isnan(found).any() else (wanted, found)


def secondary_measures(
    labels: Labels, predicted: npt.NDArray[Any], scores: Floats, rare: int, k: int | None = None
) -> dict[str, float]:
    """Return the measures that complement accuracy; `scores` are higher where `rare` is likelier."""
    return {
        "average_precision": average_precision(labels, scores, rare),
        "recall_at_k": recall_at(labels, scores, k, rare),
        "balanced_accuracy": balanced_accuracy(labels, predicted),
        "majority": majority_share(labels),
    }


def leading_measure(majority: float, classes: int) -> str:
    """Return the measure to report first, given the share of the largest class.

    Accuracy below a share of `MAJORITY`; above, average precision of the rare class if there are two classes,
    else balanced accuracy.
    """
    if not majority >= MAJORITY:
        return "accuracy"
    return "average_precision" if classes == 2 else "balanced_accuracy"


class LabelWarning(UserWarning):
    """Some scores cannot be computed from these labels and splits."""


def label_problems(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> list[str]:
    """Return the scores that cannot be computed, and why, for masks `[nodes, splits]`."""
    known, numbers = is_known(labels)[:, None], labels.is_floating_point()
    train, val, test = (mask & known for mask in (train, val, test))
    problems = [ONE_CLASS] if len(torch.unique(labels[known[:, 0]])) < 2 else []
    for mask, name, effect in (
        (train, "training", "the probe is untrained there"),
        (val, "validation", "nothing can be chosen there, and the probe uses its first penalty"),
        (test, "test", "there is no accuracy there"),
    ):
        if empty := int((~mask.any(dim=0)).sum()):
            problems.append(f"{empty} of {mask.shape[1]} split(s) have no labelled {name} node: {effect}")
    unseen: set[int] = set()
    for training, testing in zip(train.t(), test.t(), strict=True):
        if training.any() and not numbers:
            unseen |= set(labels[testing].tolist()) - set(labels[training].tolist())
    if unseen:
        first = sorted(unseen)[:5]
        names = ", ".join(class_names[one] if one < len(class_names) else str(one) for one in first)
        problems.append(
            f"class(es) {names}{' and more' if len(unseen) > 5 else ''} have test nodes but no training node "
            "in some split: they cannot be predicted there, and count as wrong"
        )
    return problems


def warn_label_problems(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> None:
    """Warn of each of `label_problems`."""
    for problem in label_problems(labels, train, val, test, class_names):
        warnings.warn(problem, LabelWarning, stacklevel=1)  # one location, so that each is shown once


def usable_splits(labels: Tensor, *masks: Tensor) -> Tensor:
    """Return which splits have a labelled node in each mask, bool `[splits]`."""
    known = is_known(labels)[:, None]
    return torch.stack([(mask & known).any(dim=0) for mask in masks]).all(dim=0)


def is_known(labels: Tensor) -> Tensor:
    """Return which labels are known: classes that are not negative, or numbers that are not NaN."""
    return ~labels.isnan() if labels.is_floating_point() else labels >= 0


def number_measures(truth: Floats, predicted: Floats) -> dict[str, float]:
    """Return the measures of `NUMBER_TITLES`."""
    known = ~np.isnan(truth)
    truth, predicted = np.asarray(truth[known], np.float64), np.asarray(predicted[known], np.float64)
    if not truth.size:
        return dict.fromkeys(NUMBER_TITLES, float("nan"))
    error = predicted - truth
    return {
        "r2": r_squared(truth, predicted),
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "spearman": rank_correlation(truth, predicted),
    }


def r_squared(truth: Floats, predicted: Floats) -> float:
    """Return the share of the variance that is explained; NaN if there is none."""
    known = ~np.isnan(truth)
    truth, error = truth[known], (predicted - truth)[known]
    total = ((truth - truth.mean()) ** 2).sum() if truth.size else 0.0
    return float(1 - (error**2).sum() / total) if total > 0 else float("nan")


def rank_correlation(truth: Floats, predicted: Floats) -> float:
    """Return Spearman's correlation; 0 for a constant prediction."""
    from scipy.stats import rankdata

    first, second = (rankdata(one) - (len(one) + 1) / 2 for one in (truth, predicted))
    if not first.any():
        return float("nan")
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size else 0.0


def solve_ridge(rows: Tensor, numbers: Tensor, penalties: Sequence[float]) -> Tensor:
    r"""Return weights and intercept of ridge regressions, `[penalties, columns + 1]`.

    .. math:: \min_{w, b} \frac1n \sum_v (w^\top x_v + b - y_v)^2 + \rho |w|^2
    """
    centre, mean, nodes = rows.mean(dim=0), numbers.mean(), len(rows)
    rows, numbers = rows - centre, numbers - mean
    primal = rows.shape[1] <= nodes
    values, vectors = torch.linalg.eigh(rows.mT @ rows if primal else rows @ rows.mT)
    along = vectors.mT @ (rows.mT @ numbers if primal else numbers)
    shrunk = values.clamp_min(0)[:, None] + nodes * torch.tensor(list(penalties), dtype=rows.dtype).to(rows)
    weights = vectors @ (along[:, None] / shrunk)
    weights = weights if primal else rows.mT @ weights
    return torch.cat([weights, mean - (centre @ weights)[None]]).mT
