"""Rows of embeddings: standardised, and multiplied with one another without a copy of the whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

COLUMNS = 1024
"""So many columns are standardised at a time when all that is needed are the rows' inner products."""
CONSTANT = 1e-8
"""A column whose standard deviation is no larger is constant."""


def as_rows(embedding: npt.ArrayLike | Tensor) -> Tensor:
    """Return an embedding `[nodes, D]` as a tensor, where it is if it is one already."""
    if isinstance(embedding, Tensor):
        return embedding.detach()
    return torch.as_tensor(np.asarray(embedding))


def standardise(embeddings: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return each column with mean 0 and variance 1 over the nodes; constant columns become 0.

    With a spread that is given, such as `common_spread`, every column is divided by that.
    """
    centred = embeddings - embeddings.mean(dim=-2, keepdim=True)
    if spread is None:
        spread = centred.std(dim=-2, correction=0, keepdim=True)
    return torch.where(spread > CONSTANT, centred / spread.clamp_min(CONSTANT), 0.0)


def common_spread(embeddings: Tensor) -> Tensor:
    """Return one standard deviation for all columns of `[models, nodes, D]`, `[models, 1, 1]`.

    For features: standardised one by one, a word that stands in two pages would weigh more than one that
    stands in half of them.
    """
    variances = torch.var(embeddings.float(), dim=1, correction=0)
    return variances.mean(dim=1).sqrt()[:, None, None]


def inner_products(embeddings: Tensor, chosen: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return the inner products of all standardised rows with the chosen ones, `[models, nodes, chosen]`.

    In float64, some columns at a time: an embedding of many joined models is never copied whole.

    Args:
        embeddings: `[models, nodes, D]`.
        chosen: positions of nodes.
        spread: what to divide the columns by; by default each by its own standard deviation.
    """
    models, nodes, _ = embeddings.shape
    total = torch.zeros(models, nodes, len(chosen), dtype=torch.float64, device=embeddings.device)
    for columns in torch.split(embeddings, COLUMNS, dim=2):
        scaled = standardise(columns.double(), spread)
        total.baddbmm_(scaled, scaled[:, chosen].mT)
    return total
