"""The support of Ã: between which nodes messages may flow, and how strongly at the start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.encoder.propagation import Pattern
from h3gnn.sparse import adjacency_entries

START_BOUNDS = (0.01, 0.99)
"""Start values are kept inside these bounds, where the sigmoid still has a slope to learn by."""


@dataclass(frozen=True, eq=False)
class Support:
    """The entries of Ã, their start values, and the fixed factor of each.

    Attributes:
        pattern: row = receiving node, column = sending node.
        start: start value of each learnable weight `[entries]`, inside `START_BOUNDS`.
        factor: what each learned weight is multiplied with `[entries]`: `1/√(d_u d_v)` with symmetric
            normalisation, else 1.
    """

    pattern: Pattern
    start: Tensor
    factor: Tensor

    def to(self, device: torch.device) -> Support:
        """Return the support on another device."""
        return Support(self.pattern.to(device), self.start.to(device), self.factor.to(device))


def build_support(
    edge_index: Tensor,
    nodes: int,
    *,
    edge_weight: Tensor | None = None,
    undirected: bool = True,
    self_loops: bool = True,
    start: float | str = "normalized",
    normalize: bool = False,
) -> Support:
    r"""Return the support of :math:`\tilde A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.

    Args:
        edge_index: `[2, edges]`, source above target, no duplicates.
        nodes: number of nodes.
        edge_weight: the data's own positive weights `[edges]`; they take the place of the ones in A.
        undirected: let messages flow both ways along each edge; each direction learns its own weight.
        self_loops: let each node hear itself; without it, self-loops of the data are left out too.
        start: `"normalized"` starts each weight at its entry of Ã, a number in (0, 1) starts all there.
        normalize: multiply each learned weight with its entry of Ã.
    """
    keys, weights = adjacency_entries(
        edge_index, edge_weight, nodes, undirected=undirected, self_loops=self_loops
    )
    rows, cols = keys // nodes, keys % nodes
    receives = torch.zeros(nodes).index_add_(0, rows, weights)
    sends = torch.zeros(nodes).index_add_(0, cols, weights)
    normalized = weights / (receives[rows] * sends[cols]).sqrt()
    initial = normalized if isinstance(start, str) else torch.full_like(normalized, start)
    factor = normalized if normalize else torch.ones_like(normalized)
    return Support(Pattern(rows, cols, nodes), initial.clamp(*START_BOUNDS), factor)


def attach_nodes(
    support: Support, neighbours: Tensor, *, self_loops: bool, start: float | str, normalize: bool
) -> Support:
    """Return the support with new nodes that hear known ones and are heard by nobody.

    The known nodes keep their degrees, so each new node's tokens depend on that node alone.

    Args:
        support: of the known nodes.
        neighbours: `[new, k]`, the known nodes that each new node hears.
        self_loops, start, normalize: as in `build_support`.
    """
    known, (new, count) = support.pattern.nodes, neighbours.shape
    node = torch.arange(known, known + new)
    rows = [support.pattern.rows, node.repeat_interleave(count)]
    cols = [support.pattern.cols, neighbours.flatten()]
    degree = torch.bincount(support.pattern.rows, minlength=known).clamp_min(1)
    heard = 1 / (degree[neighbours] * (count + int(self_loops))).sqrt()
    normalized = [heard.flatten()]
    if self_loops:
        rows, cols = [*rows, node], [*cols, node]
        normalized.append(torch.full((new,), 1 / (count + 1)))
    weights = torch.cat(normalized)
    initial = weights if isinstance(start, str) else torch.full_like(weights, start)
    factor = weights if normalize else torch.ones_like(weights)
    row, col = torch.cat(rows), torch.cat(cols)
    order = torch.argsort(row * (known + new) + col)
    return Support(
        Pattern(row[order], col[order], known + new),
        torch.cat([support.start, initial.clamp(*START_BOUNDS)])[order],
        torch.cat([support.factor, factor])[order],
    )


def find_entries(known: Pattern, wanted: Pattern, node_of: Tensor) -> tuple[Tensor, Tensor]:
    """Find which entries of `wanted` stand in `known`, where node i of `wanted` is `node_of[i]` there.

    Args:
        node_of: `[wanted.nodes]`, -1 for a node that `known` does not have.

    Returns:
        The position in `known` of each entry of `wanted` (0 where there is none), and whether it was found.
    """
    rows, cols = node_of[wanted.rows], node_of[wanted.cols]
    keys = known.rows * known.nodes + known.cols
    sought = torch.where((rows >= 0) & (cols >= 0), rows * known.nodes + cols, -1)
    if keys.numel() == 0:
        return torch.zeros_like(sought), torch.zeros_like(sought, dtype=torch.bool)
    position = torch.searchsorted(keys, sought).clamp(max=keys.numel() - 1)
    found = keys[position] == sought
    return torch.where(found, position, 0), found
