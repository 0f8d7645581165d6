"""What systems that compare all nodes with one another share: InfoNCE, in parts where nodes are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from h3gnn.baselines.layers import Convolution, Features, SparseMatrix

PAIRS = 2**24
"""So many values of pairs of nodes are in memory at once; more are computed in parts, and twice."""


def sum_by_rows(part: Callable[[int, int], Tensor], rows: int, columns: int) -> Tensor:
    """Add up what `part(start, stop)` returns for all rows of a matrix that is never whole in memory.

    Where it takes more than one part, each is computed again for its gradient instead of being kept.

    Args:
        part: makes the rows from start to stop and returns their share; must not draw random numbers.
        rows, columns: the size of the matrix.
    """
    step = max(1, PAIRS // max(1, columns))
    if step >= rows:
        return part(0, rows)
    total: Tensor | None = None
    for start in range(0, rows, step):
        share = checkpoint(
            part, start, min(start + step, rows), use_reentrant=False, preserve_rng_state=False
        )
        total = share if total is None else total + share
    assert total is not None
    return total


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    r"""Return how badly each node of one view finds itself in the other, the mean over nodes and both ways.

    .. math:: \ell(u_i) = -\log \frac{e^{\cos(u_i, v_i) / \tau}}
        {\sum_k e^{\cos(u_i, v_k) / \tau} + \sum_{k \ne i} e^{\cos(u_i, u_k) / \tau}}, \quad
        \mathcal L = \tfrac1{2n} \textstyle\sum_i \ell(u_i) + \ell(v_i)

    Args:
        first, second: the views' rows `[nodes, D]`; their lengths do not matter.
        temperature: :math:`\tau`.
    """
    first, second = functional.normalize(first, dim=1), functional.normalize(second, dim=1)
    ways = _one_way(first, second, temperature) + _one_way(second, first, temperature)
    return ways / (2 * first.shape[0])


def _one_way(own: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Return the sum over the nodes of one view: a class for each node of both, the other self is right."""
    nodes, everyone = own.shape[0], torch.cat([own, other])
    order = torch.arange(nodes, device=own.device)

    def part(start: int, stop: int) -> Tensor:
        logits = (own[start:stop] / temperature) @ everyone.t()
        itself = torch.stack([order[: stop - start], order[start:stop]])
        logits[itself[0], itself[1]] = float("-inf")
        return functional.cross_entropy(logits, nodes + itself[1], reduction="sum")

    return sum_by_rows(part, nodes, 2 * nodes)


class GraphEncoder(nn.Module):
    """Graph convolutions one after the other.

    Args:
        features: of the nodes, constant.
        widths: of the layers' outputs.
        activation: makes what follows a layer.
        at_the_end: whether one follows the last layer, too.
    """

    def __init__(
        self,
        features: Features,
        widths: Sequence[int],
        activation: Callable[[], nn.Module],
        *,
        at_the_end: bool,
    ) -> None:
        super().__init__()
        self.features = features
        self.first = Convolution(features.shape[1], widths[0])
        self.others = nn.ModuleList(Convolution(wide, out) for wide, out in pairwise(widths))
        self.activations = nn.ModuleList(activation() for _ in widths)
        if not at_the_end:
            self.activations[-1] = nn.Identity()

    def forward(self, matrix: SparseMatrix | Tensor, kept_columns: Tensor | None = None) -> Tensor:
        """Encode the features along a matrix; columns that are not kept `[features]` count as zero."""
        return self.along(matrix, self.product(kept_columns))

    def product(self, kept_columns: Tensor | None = None) -> Tensor:
        """Return the features times the first layer's weights."""
        weight = self.first.weight if kept_columns is None else self.first.weight * kept_columns[:, None]
        return self.features.product(weight.unsqueeze(1)).squeeze(1)

    def along(self, matrix: SparseMatrix | Tensor, product: Tensor) -> Tensor:
        """Encode such a product, or rows of it, along a matrix."""
        hidden: Tensor = self.activations[0](matrix @ product + self.first.bias)
        for layer, activation in zip(self.others, self.activations[1:], strict=True):
            hidden = activation(layer(hidden, matrix))
        return hidden
