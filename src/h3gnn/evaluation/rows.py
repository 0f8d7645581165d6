"""Rows of embeddings: standardised, and turned into the span of some of them without a copy of the whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

COLUMNS = 1024
"""So many columns are standardised at a time when all that is needed are the rows' inner products."""
CONSTANT = 1e-8
"""A column whose standard deviation is no larger is constant."""
JITTER = 1e-10
"""Added to the squared lengths of rows, as a share of their mean, so that equal rows have a factor too."""


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


def common_spread(embedding: Tensor) -> Tensor:
    """Return one standard deviation for all columns of an embedding.

    For features: standardised one by one, a word that stands in two pages would weigh more than one that
    stands in half of them.
    """
    return torch.var(embedding.float(), dim=0, correction=0).mean().sqrt()


def inner_products(embedding: Tensor, chosen: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return the inner products of all standardised rows with the chosen ones, `[nodes, chosen]`.

    In float64, some columns at a time: an embedding of many joined models is never copied whole.

    Args:
        embedding: `[nodes, D]`.
        chosen: positions of nodes.
        spread: what to divide the columns by; by default each by its own standard deviation.
    """
    total = torch.zeros(len(embedding), len(chosen), dtype=torch.float64, device=embedding.device)
    for columns in torch.split(embedding, COLUMNS, dim=1):
        scaled = standardise(columns.double(), spread)
        total.addmm_(scaled, scaled[chosen].mT)
    return total


def turned(products: Tensor, chosen: Tensor) -> Tensor:
    r"""Return all rows in an orthonormal basis of the chosen rows' span, `[nodes, chosen]`.

    A rotation: lengths and angles among the chosen rows stay, and of the others what lies in the span. With
    Cholesky's :math:`K = L L^\top` of the chosen rows' products, these are the rows of
    :math:`K_{\cdot} L^{-\top}`.

    Args:
        products: of all rows with the chosen ones, `[nodes, chosen]`.
        chosen: positions of nodes.
    """
    within = products[chosen]
    jitter = JITTER * within.diagonal().mean().clamp_min(CONSTANT)
    factor = torch.linalg.cholesky(within + jitter * torch.eye(len(chosen), device=within.device))
    found: Tensor = torch.linalg.solve_triangular(factor, products.mT, upper=False).mT
    return found
