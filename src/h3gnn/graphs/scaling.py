"""Bringing features to a common scale before the encoder sees them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.sparse import csr_tensor

SCALINGS = ("auto", "none", "rows", "columns")


@dataclass(frozen=True)
class FeatureScaler:
    """What `fit_scaler` learned: scale each row to length 1, or each column to mean 0 and variance 1.

    Attributes:
        kind: `"none"`, `"rows"` or `"columns"`.
        mean, scale: of each column, for `"columns"`.
    """

    kind: str
    mean: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Return scaled features; the input is left as it is."""
        if self.kind == "rows":
            return _unit_rows(features)
        if self.kind == "columns":
            assert self.mean is not None
            assert self.scale is not None
            return (features.to_dense() - self.mean) / self.scale
        return features


def fit_scaler(features: Tensor, kind: str = "auto") -> FeatureScaler:
    """Choose and learn a scaling.

    `"auto"` scales rows where no feature is negative and more than half are zero (bags of words, counts, one-hot
    columns), else columns (measurements in units of their own).
    """
    if kind == "auto":
        values = features.values() if features.layout == torch.sparse_csr else features
        counts = bool((values >= 0).all()) and int(torch.count_nonzero(values)) <= 0.5 * features.numel()
        kind = "rows" if counts else "columns"
    if kind != "columns":
        return FeatureScaler(kind)
    dense = features.to_dense()
    spread = dense.std(dim=0, correction=0)
    return FeatureScaler(kind, dense.mean(dim=0), torch.where(spread > 1e-12, spread, 1.0))


def _unit_rows(features: Tensor) -> Tensor:
    if features.layout != torch.sparse_csr:
        return torch.nn.functional.normalize(features, dim=1)
    crow, values = features.crow_indices(), features.values()
    row = torch.repeat_interleave(torch.arange(features.shape[0]), crow.diff())
    length = torch.zeros(features.shape[0]).index_add_(0, row, values.square()).sqrt().clamp_min(1e-12)
    size = (features.shape[0], features.shape[1])
    return csr_tensor(crow, features.col_indices(), values / length[row], size)
