"""Scale features before the encoder reads them.

Moments are summed over blocks of rows, so a graph in memory and the same graph on disk are scaled alike.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

BLOCK_ROWS = 1 << 16
"""Rows converted to double precision at a time."""


@dataclass(frozen=True)
class FeatureScaler:
    """A fitted scaling: `"none"`, `"rows"` to one length, or `"columns"` to mean 0 and variance 1.

    For `"rows"`, `mean` is 0 and `scale` is the root of the mean number of non-zero features: the typical
    length of a row of zeros and ones.
    """

    kind: str
    mean: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Return scaled features; the input does not change."""
        if self.mean is None or self.scale is None:
            return features
        if self.kind == "rows":
            return _equal_rows(features, float(self.scale))
        if self.kind == "columns":
            mean, scale = self.mean.to(features.device), self.scale.to(features.device)
            return (features.to_dense() - mean).div_(scale)
        return features


@dataclass(frozen=True)
class Moments:
    """Statistics of all features: number of rows and of non-zero values, mean and variance of each column."""

    rows: int
    filled: int
    zeros_and_ones: bool
    negative: bool
    mean: list[float]
    variance: list[float]

    def scaler(self, kind: str = "auto") -> FeatureScaler:
        """Choose and fit a scaling; see `fit_scaler`."""
        if kind == "auto":
            sparse = self.filled <= 0.5 * self.rows * len(self.mean) and not self.negative
            kind = "none" if self.zeros_and_ones else "rows" if sparse else "columns"
        if kind == "none":
            return FeatureScaler(kind)
        if kind == "rows":
            length = (max(1, self.filled) / self.rows) ** 0.5
            return FeatureScaler(kind, torch.zeros(1), torch.tensor([length]))
        spread = torch.tensor(self.variance).sqrt()
        return FeatureScaler(kind, torch.tensor(self.mean), torch.where(spread > 1e-12, spread, 1.0))


class MomentSums:
    """Accumulates `Moments`; the variance is taken around the running mean, so large means lose no digits."""

    def __init__(self, columns: int) -> None:
        self.rows, self.filled, self.zeros_and_ones, self.negative = 0, 0, True, False
        self.mean, self.squares = torch.zeros(columns).double(), torch.zeros(columns).double()

    def add(self, block: Tensor) -> None:
        """Add a block of rows, dense or CSR (Chan, Golub and LeVeque's pairwise update)."""
        values = block.values() if block.layout == torch.sparse_csr else block
        rows, total = block.shape[0], self.rows + block.shape[0]
        mean, squares = _column_moments(block)
        apart = mean - self.mean
        self.squares += squares + apart.square() * self.rows * rows / total
        self.mean += apart * rows / total
        self.rows, self.filled = total, self.filled + int(torch.count_nonzero(values))
        self.zeros_and_ones &= bool(((values == 0) | (values == 1)).all())
        self.negative |= bool((values < 0).any())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without loss."""
        plain = {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}
        return {**plain, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> MomentSums:
        """Read what `as_dict` returns."""
        sums = cls(len(kept["mean"]))
        vars(sums).update(kept)
        sums.mean, sums.squares = (
            torch.tensor(kept[name], dtype=torch.float64) for name in ("mean", "squares")
        )
        return sums

    def moments(self) -> Moments:
        """Return the moments of all rows so far."""
        variance = (self.squares / max(1, self.rows)).tolist()
        return Moments(
            self.rows, self.filled, self.zeros_and_ones, self.negative, self.mean.tolist(), variance
        )


def fit_scaler(features: Tensor, kind: str = "auto") -> FeatureScaler:
    """Choose and fit a scaling.

    `"auto"` does not scale zeros and ones (bags of words, one-hot columns), scales rows if no feature is
    negative and more than half are zero (counts, TF-IDF), and otherwise columns (measurements in different
    units).
    """
    if kind == "none":
        return FeatureScaler(kind)
    sums = MomentSums(features.shape[1])
    sparse = features.layout == torch.sparse_csr
    for block in (features,) if sparse else torch.split(features, BLOCK_ROWS):
        sums.add(block)
    return sums.moments().scaler(kind)


def _column_moments(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each column and the sum of squared deviations from it, in float64."""
    if block.layout != torch.sparse_csr:
        values = block.double()
        mean = values.mean(dim=0)
        return mean, (values - mean).square().sum(dim=0)
    rows, columns = block.shape
    cols, values = block.col_indices(), block.values().double()
    stored = torch.bincount(cols, minlength=columns)
    mean = torch.bincount(cols, weights=values, minlength=columns) / rows
    around = torch.bincount(cols, weights=(values - mean[cols]).square(), minlength=columns)
    return mean, around + (rows - stored) * mean.square()


def _equal_rows(features: Tensor, length: float) -> Tensor:
    if features.layout != torch.sparse_csr:
        return length * torch.nn.functional.normalize(features, dim=1)
    crow, values = features.crow_indices(), features.values()
    row = torch.repeat_interleave(torch.arange(features.shape[0]), crow.diff())
    norm = torch.zeros(features.shape[0]).index_add_(0, row, values.square()).sqrt().clamp_min(1e-12)
    size = (features.shape[0], features.shape[1])
    return csr_features(crow, features.col_indices(), length * values / norm[row], size)


def csr_features(crow: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return sparse features with checked indices, without torch's warning that the layout is in beta."""
    with warnings.catch_warnings(action="ignore"):
        return torch.sparse_csr_tensor(crow, cols, values, shape, check_invariants=True)


def scipy_features(features: Tensor) -> sp.csr_array:
    """Return sparse features as a scipy array that shares their memory."""
    parts = (features.values().numpy(), features.col_indices().numpy(), features.crow_indices().numpy())
    return sp.csr_array(parts, shape=(features.shape[0], features.shape[1]))


def torch_features(matrix: Any) -> Tensor:
    """Return a scipy CSR matrix of float32 as a CSR tensor."""
    crow, cols = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    rows, columns = matrix.shape
    return csr_features(crow, cols, torch.from_numpy(matrix.data), (int(rows), int(columns)))
