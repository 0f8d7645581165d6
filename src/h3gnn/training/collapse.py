"""Collapse is seen, not hidden: the effective rank of the embedding, and when it is too small."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from h3gnn.training.history import History

SAMPLE = 512
"""The rank is measured on at most this many nodes, evenly spaced."""

SMALLEST_RANK = 2.0
SMALLEST_SHARE = 0.1
"""A representation counts as collapsed when its effective rank is under 2, or under a tenth of its start."""


class CollapseWarning(UserWarning):
    """The representation lost most of its dimensions in training."""


def effective_rank(embedding: Tensor) -> Tensor:
    r"""Return the effective rank of each model's embedding `[models, nodes, D]`.

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad p_i = \sigma_i / \textstyle\sum_j \sigma_j

    over the singular values of the centred rows: 1 when all nodes lie on a line, up to min(nodes, D) when
    they spread evenly (Roy and Vetterli, 2007).
    """
    rows = embedding.double()
    rows = rows - rows.mean(dim=1, keepdim=True)
    finite = rows.isfinite().all(dim=2).all(dim=1)
    rows = torch.where(finite[:, None, None], rows, 0.0)
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    squares = torch.linalg.eigvalsh(gram).clamp_min(0)
    singular = torch.where(squares > 1e-12 * squares.amax(dim=1, keepdim=True), squares, 0).sqrt()
    share = singular / singular.sum(dim=1, keepdim=True).clamp_min(torch.finfo(torch.double).tiny)
    entropy = torch.special.entr(share).sum(dim=1)
    return torch.where(finite, entropy.exp(), float("nan"))


def sample_rows(nodes: int) -> Tensor:
    """Return which nodes the rank is measured on."""
    return torch.linspace(0, nodes - 1, min(nodes, SAMPLE)).round().long()


def collapse_epochs(history: History) -> dict[int, int]:
    """Return, for each model that collapsed, the first epoch at which its rank was under the bound."""
    if not len(history):
        return {}
    at, ranks = history.measured("effective_rank")
    collapsed = {}
    for model in range(ranks.shape[1]):
        bound = max(SMALLEST_RANK, SMALLEST_SHARE * ranks[0, model])
        under = [int(epoch) for epoch, rank in zip(at, ranks[:, model], strict=True) if rank < bound]
        if under and ranks[0, model] >= SMALLEST_RANK:
            collapsed[model] = under[0]
    return collapsed


def warn_of_collapse(history: History, *, stacklevel: int) -> None:
    """Warn of each model that collapsed, with the epoch and its rank there."""
    for model, epoch in collapse_epochs(history).items():
        at, ranks = history.measured("effective_rank")
        rank = ranks[list(at).index(epoch), model]
        warnings.warn(
            f"model {model}: the representation collapsed: at epoch {epoch} its effective rank fell to "
            f"{rank:.1f} from {ranks[0, model]:.1f}; try fewer epochs, a smaller learning rate or "
            "a larger momentum",
            CollapseWarning,
            stacklevel=stacklevel,
        )
