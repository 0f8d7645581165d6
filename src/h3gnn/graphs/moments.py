"""What feature scaling asks of all rows at once, gathered a block of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.graphs.scaling import FeatureScaler


@dataclass(frozen=True)
class Moments:
    """What `fit_scaler` asks of all features at once, gathered a block of rows at a time."""

    rows: int
    filled: int
    zeros_and_ones: bool
    negative: bool
    mean: list[float]
    variance: list[float]


class MomentSums:
    """Gathers `Moments`; the variance is summed around the mean so far: large means cost no digits."""

    def __init__(self, columns: int) -> None:
        self.rows, self.filled, self.zeros_and_ones, self.negative = 0, 0, True, False
        self.mean, self.squares = torch.zeros(columns).double(), torch.zeros(columns).double()

    def add(self, block: Tensor) -> None:
        """Take a block of rows (Chan, Golub and LeVeque's pairwise update)."""
        values, rows = block.double(), block.shape[0]
        mean = values.mean(dim=0)
        total = self.rows + rows
        apart = mean - self.mean
        self.squares += (values - mean).square().sum(dim=0) + apart.square() * self.rows * rows / total
        self.mean += apart * rows / total
        self.rows, self.filled = total, self.filled + int(torch.count_nonzero(block))
        self.zeros_and_ones &= bool(((block == 0) | (block == 1)).all())
        self.negative |= bool((block < 0).any())

    def moments(self) -> Moments:
        """Return what was gathered."""
        variance = (self.squares / max(1, self.rows)).tolist()
        return Moments(
            self.rows, self.filled, self.zeros_and_ones, self.negative, self.mean.tolist(), variance
        )


def scaler_from_moments(moments: Moments, kind: str = "auto") -> FeatureScaler:
    """Return what `fit_scaler` returns for the same features."""
    cells = moments.rows * len(moments.mean)
    if kind == "auto":
        sparse = moments.filled <= 0.5 * cells and not moments.negative
        kind = "none" if moments.zeros_and_ones else "rows" if sparse else "columns"
    if kind == "none":
        return FeatureScaler(kind)
    if kind == "rows":
        length = (max(1, moments.filled) / moments.rows) ** 0.5
        return FeatureScaler(kind, torch.zeros(1), torch.tensor([length]))
    spread = torch.tensor(moments.variance).sqrt()
    return FeatureScaler(kind, torch.tensor(moments.mean), torch.where(spread > 1e-12, spread, 1.0))
