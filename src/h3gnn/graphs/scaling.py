"""Bringing features to a common scale before the encoder sees them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.sparse import csr_tensor

SCALINGS = ("auto", "none", "rows", "columns")


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
            return (features.to_dense() - self.mean) / self.scale
        return features


def fit_scaler(features: Tensor, kind: str = "auto") -> FeatureScaler:
    """Choose and learn a scaling.

    `"auto"` leaves zeros and ones as they are (bags of words, one-hot columns), scales rows where no feature
    is negative and more than half are zero (counts, TF-IDF), else columns (measurements in units of their
    own).
    """
    values = features.values() if features.layout == torch.sparse_csr else features
    filled = int(torch.count_nonzero(values))
    if kind == "auto":
        kind = _kind_for(values, sparse=filled <= 0.5 * features.numel())
    if kind == "none":
        return FeatureScaler(kind)
    if kind == "rows":
        length = (max(1, filled) / features.shape[0]) ** 0.5
        return FeatureScaler(kind, torch.zeros(1), torch.tensor([length]))
    dense = features.to_dense()
    spread = dense.std(dim=0, correction=0)
    return FeatureScaler(kind, dense.mean(dim=0), torch.where(spread > 1e-12, spread, 1.0))


def _kind_for(values: Tensor, *, sparse: bool) -> str:
    if bool(((values == 0) | (values == 1)).all()):
        return "none"
    return "rows" if sparse and bool((values >= 0).all()) else "columns"


def _equal_rows(features: Tensor, length: float) -> Tensor:
    if features.layout != torch.sparse_csr:
        return length * torch.nn.functional.normalize(features, dim=1)
    crow, values = features.crow_indices(), features.values()
    row = torch.repeat_interleave(torch.arange(features.shape[0]), crow.diff())
    norm = torch.zeros(features.shape[0]).index_add_(0, row, values.square()).sqrt().clamp_min(1e-12)
    size = (features.shape[0], features.shape[1])
    return csr_tensor(crow, features.col_indices(), length * values / norm[row], size)
