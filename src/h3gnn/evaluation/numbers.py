"""Measures of predicted numbers, and ridge regression.

True numbers come first, float `[nodes]`; nodes whose number is NaN are ignored. Undefined values are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]

NUMBER_TITLES = {
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "spearman": "rank correlation",
}
"""Titles of the measures of numbers; R², which is largest for the best, leads."""
IN_UNITS = ("mae", "rmse")
"""Measures in the unit of the number; the others are shares."""


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
