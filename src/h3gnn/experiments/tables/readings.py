"""What a stored measurement of `theory` reads: factors per epoch, epochs, slopes; and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
"""A stored row: one objective on one graph."""
Cells = tuple[list[str], list[list[str]]]
"""Headings and lines of a table; each line begins with a graph."""

WAYS = {"descent": "gradient descent", "adam": "Adam"}
STATES = ("untrained", "trained")
SMALLEST = 1e-4
"""Below this a curve is too near to its own end, and to the digits that are kept, to tell a slope."""
NEAR = 0.99
"""Converged: at this share of the run's own best validation accuracy."""
NOTHING = "–"


def contraction(epochs: Sequence[float], curve: Sequence[float]) -> float:
    r"""Return the factor per epoch, :math:`\exp` of the slope of the logarithm of a curve.

    Epochs that are close together count less, so that it does not matter where a run was looked at.
    """
    at, values = np.asarray(epochs, dtype=float), np.asarray(curve, dtype=float)
    used = np.isfinite(values) & (values >= SMALLEST)
    if used.sum() < 2:
        return math.nan
    return math.exp(line(at[used], np.log(values[used]), np.gradient(at[used]))[0])


def line(x: Any, y: Any, weight: Any = 1.0) -> tuple[float, float]:
    """Return slope and intercept of the line with the least squared distance."""
    x, y, weight = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float), np.asarray(weight, float))
    with np.errstate(all="ignore"):
        middle, level = (weight * x).sum() / weight.sum(), (weight * y).sum() / weight.sum()
        slope = (weight * (x - middle) * (y - level)).sum() / (weight * (x - middle) ** 2).sum()
    return float(slope), float(level - slope * middle)


def epochs_until(epochs: Sequence[int], curves: Sequence[Sequence[float]], share: float) -> float:
    """Return the first look at which the mean of some curves is at or under a share; infinite if none is."""
    with np.errstate(all="ignore"):
        middle = np.mean(curves, axis=0)
    return next((float(at) for at, value in zip(epochs, middle, strict=True) if value <= share), math.inf)


def epochs_until_near(row: Row) -> float:
    """Return the first look near the best validation accuracy; infinite where training never rises."""
    curve = np.mean(row["validation"], axis=0)
    if not curve.max() > curve[0]:
        return math.inf
    return next(
        float(at) for at, value in zip(row["epochs"], curve, strict=True) if value >= NEAR * curve.max()
    )


def factor(row: Row, way: str, curve: str) -> float:
    """Return the mean over seeds of the factor per epoch of "distance" or "gap"."""
    return mean([contraction(row["epochs"], one) for one in row[way][curve]])


def growth(row: Row, state: str) -> tuple[float, float]:
    """Return slope and intercept of the error against the shift, means over seeds."""
    found = [
        line(*pair) for pair in zip(row["masks"][state]["shift"], row["masks"][state]["error"], strict=True)
    ]
    return mean([slope for slope, _ in found]), mean([intercept for _, intercept in found])


def of_gradients(row: Row, name: str, over: Callable[..., Any] = np.median) -> float:
    """Return the mean over seeds of what is left of a gradient measure over the looks."""
    return mean(over(row["gradients"][name], axis=1))


def largest_step(row: Row) -> float:
    """Return the largest ratio between two looks that follow one another of the distance, under descent."""
    distance = np.asarray(row["descent"]["distance"], dtype=float)
    with np.errstate(all="ignore"):
        return mean((distance[:, 1:] / distance[:, :-1]).max(axis=1))


def kept_rank(row: Row) -> float:
    """Return the share of its effective rank that the embedding has at the limit, with Adam."""
    rank = np.asarray(row["rank"], dtype=float)
    with np.errstate(all="ignore"):
        return mean(rank[:, -1] / rank[:, 0])


def mean(values: Any) -> float:
    """Return the mean over seeds; of what is not finite, what arithmetic makes of it."""
    with np.errstate(all="ignore"):
        return float(np.mean(np.asarray(values, dtype=float)))


def settling(rows: Sequence[Row]) -> Cells:
    """Return the factors per epoch, and the epochs until a tenth and a hundredth of the start are left."""
    lines = []
    for row, way in ((row, way) for row in rows for way in WAYS):
        by = f"{WAYS[way]}, {row['rate']}" if way == "descent" else WAYS[way]
        told = [row["graph"], row["method"], by]
        for curve in ("distance", "gap"):
            told.append(f"{factor(row, way, curve):.4f}")
            told += [_epochs(epochs_until(row["epochs"], row[way][curve], share)) for share in (0.1, 0.01)]
        lines.append([*told, f"{mean(row[way]['moving']):.2f}"])
    headings = [
        f"{curve}: {words}" for curve in ("distance", "gap") for words in ("factor", "to 1/10", "to 1/100")
    ]
    return ["graph", "objective", "trained by", *headings, "moving"], lines


def bounds(rows: Sequence[Row]) -> Cells:
    """Return how the error grows with the mask before and after training, and how the gradient changes."""
    return [
        "graph", "objective", "untrained: slope", "intercept", "trained: slope", "intercept", "L_E", "L_D",
        "gradient per step", "least convexity", "share of the other's step",
    ], list(_bounds(rows))  # fmt: skip


def _bounds(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        trained = row["masks"]["trained"]
        values = [*growth(row, "untrained"), *growth(row, "trained")]
        values += [mean(trained["encoder"]), mean(trained["decoder"]), of_gradients(row, "smoothness")]
        values += [of_gradients(row, "convexity", np.min), of_gradients(row, "coupling")]
        yield [row["graph"], row["method"], *(f"{value:.3g}" for value in values)]


def accuracy(rows: Sequence[Row]) -> Cells:
    """Return where each objective begins and ends, and the first epoch that is near its best."""
    lines = []
    for row in rows:
        curve = 100 * np.mean(row["validation"], axis=0)
        told = [f"{value:.2f}" for value in (curve[0], curve.max(), curve[-1])]
        lines.append([row["graph"], row["method"], *told, _epochs(epochs_until_near(row))])
    headings = ["at the start", "best", "at the end", "epochs until near"]
    return ["graph", "objective", *headings], lines


def _epochs(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else NOTHING
