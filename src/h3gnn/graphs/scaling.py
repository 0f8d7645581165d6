"""Bringing features to a common scale before the encoder sees them.

What a scaling asks of all rows at once is gathered a block of rows at a time: a graph in memory is one that
comes in few blocks, so it and the same graph in files are scaled by one rule.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.resources import check_memory

BLOCK_ROWS = 1 << 16
"""Rows that are looked at in double precision at a time."""
COLUMN = 8 * 12
"""Bytes that the moments of a column take, with those of one block, and as numbers of Python."""


@dataclass(frozen=True)
class FeatureScaler:
    """What `fit_scaler` learned: rows of one length, or columns of mean 0 and variance 1.

    Attributes:
        kind: `"none"`, `"rows"` or `"columns"`.
        mean: of each column, for `"columns"`; 0 for `"rows"`.
        scale: of each column, for `"columns"`; for `"rows"` the one length of all rows, which is the root of
            the mean number of non-zero features: the typical length of a row of zeros and ones.
    """

    kind: str
    mean: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Return scaled features; the input is left as it is."""
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
    """What a scaling asks of all features at once.

    Attributes:
        rows: how many there are.
        filled: number of values that are not 0.
        zeros_and_ones: whether there is nothing else.
        negative: whether some value is.
        mean, variance: of each column.
    """

    rows: int
    filled: int
    zeros_and_ones: bool
    negative: bool
    mean: list[float]
    variance: list[float]

    def scaler(self, kind: str = "auto") -> FeatureScaler:
        """Choose and learn a scaling, as `fit_scaler` describes it."""
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
    """Sums up `Moments`; the variance is taken around the mean so far: large means cost no digits."""

    def __init__(self, columns: int) -> None:
        self.rows, self.filled, self.zeros_and_ones, self.negative = 0, 0, True, False
        self.mean, self.squares = torch.zeros(columns).double(), torch.zeros(columns).double()

    def add(self, block: Tensor) -> None:
        """Take a block of rows, dense or CSR (Chan, Golub and LeVeque's pairwise update)."""
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
        """Return plain values, from which `from_dict` goes on exactly."""
        plain = {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}
        return {**plain, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> MomentSums:
        """Read what `as_dict` returned."""
        sums = cls(len(kept["mean"]))
        vars(sums).update(kept)
        sums.mean, sums.squares = (
            torch.tensor(kept[name], dtype=torch.float64) for name in ("mean", "squares")
        )
        return sums

    def moments(self) -> Moments:
        """Return what was summed up."""
        variance = (self.squares / max(1, self.rows)).tolist()
        return Moments(
            self.rows, self.filled, self.zeros_and_ones, self.negative, self.mean.tolist(), variance
        )


def fit_scaler(features: Tensor, kind: str = "auto") -> FeatureScaler:
    """Choose and learn a scaling.

    `"auto"` leaves zeros and ones as they are (bags of words, one-hot columns), scales rows where no feature
    is negative and more than half are zero (counts, TF-IDF), else columns (measurements in units of their
    own).
    """
    if kind == "none":
        return FeatureScaler(kind)
    columns = features.shape[1]
    check_memory(COLUMN * columns, f"the scaling of {columns:,} feature columns")
    sums = MomentSums(columns)
    sparse = features.layout == torch.sparse_csr
    for block in (features,) if sparse else torch.split(features, BLOCK_ROWS):
        sums.add(block)
    return sums.moments().scaler(kind)


def _column_moments(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each column and its squared distances from that mean, summed, in float64."""
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
    """Return sparse features, with indices checked and without torch's warning that the layout is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(crow, cols, values, shape, check_invariants=True)
