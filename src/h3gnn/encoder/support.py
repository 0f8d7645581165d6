r"""The support of Ã: the node pairs between which messages flow, and the initial edge weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.sparse import Pattern, row_pointers

START_BOUNDS = (0.01, 0.99)
"""Initial weights are clipped to these bounds, where the sigmoid still has a gradient."""
ENTRIES_AT_A_TIME = 1 << 22  # of memory-mapped arrays
Ends = tuple[Tensor, Tensor]
"""The receiving and the sending node of each entry."""


@dataclass(frozen=True, eq=False)
class Support:
    r"""The rows of :math:`\tilde A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`, in memory or memory-mapped.

    Initial weights and factors are computed from the weighted degrees on request, so that a memory-mapped
    support is read only where needed. `weight` is that of the data, None for ones; all edge weights start at
    `start_at`, or at the entries of Ã if it is None; `relations` are factors `[relations, entries]` that turn
    edge weights into those of one relation; for the other fields see `build_support`.
    """

    pattern: Pattern
    weight: Tensor | None
    in_degree: Tensor
    out_degree: Tensor
    start_at: float | None = None
    normalize: bool = False
    bounded: bool = True
    relations: Tensor | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.pattern.targets

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.pattern.entries

    @cached_property
    def factor(self) -> Tensor:
        """Fixed factor of each edge weight `[entries]`."""
        return self.factors(None)

    @cached_property
    def start(self) -> Tensor:
        """Initial value of each edge weight `[entries]`."""
        return self.starts(None)

    def factors(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return the fixed factors of some entries, or of all; `ends` saves the search for their nodes."""
        if self.normalize:
            return self.normalized(entries, ends)
        return self.in_degree.new_ones(self.entries if entries is None else len(entries))

    def starts(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return the initial values of some entries, or of all."""
        start = self.normalized(entries, ends)
        if self.start_at is not None:
            start = torch.full_like(start, self.start_at)
        return start.clamp(*START_BOUNDS) if self.bounded else start

    def normalized(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return some entries of Ã, or all."""
        rows, cols = ends or self.ends(entries)
        weight = self.weight if self.weight is None or entries is None else self.weight[entries]
        spread = (self.in_degree.index_select(0, rows) * self.out_degree.index_select(0, cols)).sqrt()
        return spread.reciprocal() if weight is None else weight / spread

    def ends(self, entries: Tensor | None) -> Ends:
        """Return the receiving and the sending node of some entries, or of all."""
        if entries is None:
            return self.pattern.rows, self.pattern.cols.long()
        rows = torch.searchsorted(self.pattern.crow, entries, right=True) - 1
        return rows, self.pattern.cols[entries].long()

    def pair_keys(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return a key for the node pair of each entry, the same in both directions; -1 for self-loops."""
        rows, cols = ends or self.ends(entries)
        keys = torch.minimum(rows, cols) * self.nodes + torch.maximum(rows, cols)
        return torch.where(rows == cols, -1, keys)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Support:
        """Return the support on another device or in another precision."""
        return replace(
            self,
            pattern=self.pattern.to(device),
            weight=None if self.weight is None else self.weight.to(device, dtype),
            in_degree=self.in_degree.to(device, dtype),
            out_degree=self.out_degree.to(device, dtype),
            relations=None if self.relations is None else self.relations.to(device, dtype),
        )

    def with_relations(self, members: Tensor) -> Support:
        r"""Return the support with relations, given which of them each entry belongs to.

        The factor of an entry is its value in :math:`\tilde A` of the relation alone over that in
        :math:`\tilde A` of all edges, so that relations do not depend on each other; it is 1 where weights
        are not normalized.
        """
        rows, cols = self.ends(None)
        weight = torch.ones_like(rows, dtype=torch.float32) if self.weight is None else self.weight
        factors = members.to(torch.float32)
        if self.start_at is None or self.normalize:
            for factor in factors:
                own = factor * weight
                receives = torch.zeros_like(self.in_degree).index_add_(0, rows, own)
                sends = torch.zeros_like(self.out_degree).index_add_(0, cols, own)
                all_of = self.in_degree[rows] * self.out_degree[cols]
                factor.mul_((all_of / (receives[rows] * sends[cols]).clamp_min(1e-30)).sqrt())
        return replace(self, relations=factors)


def build_support(
    edge_index: Tensor,
    nodes: int,
    *,
    edge_weight: Tensor | None = None,
    undirected: bool = True,
    self_loops: bool = True,
    start: float | str = "normalized",
    normalize: bool = False,
    bounded: bool = True,
) -> Support:
    r"""Return the support of a graph in memory.

    Args:
        edge_index: `[2, edges]`, source above target, no duplicates.
        nodes: number of nodes.
        edge_weight: positive weights `[edges]` in place of the ones in A.
        undirected: send messages both ways along each edge; each direction learns its own weight.
        self_loops: add I; self-loops of the data are removed in any case.
        start: initial weights: `"normalized"` for the entries of Ã, or a number in (0, 1).
        normalize: multiply each weight with its entry of Ã.
        bounded: clip initial values to `START_BOUNDS`.
    """
    keys, weights = adjacency_entries(
        edge_index, edge_weight, nodes, undirected=undirected, self_loops=self_loops
    )
    rows, cols = keys // nodes, keys % nodes
    in_degree = torch.zeros(nodes, device=keys.device).index_add_(0, rows, weights)
    out_degree = torch.zeros(nodes, device=keys.device).index_add_(0, cols, weights)
    pattern = Pattern(row_pointers(rows, nodes), cols, nodes)
    return Support(pattern, weights, in_degree, out_degree, _start_at(start), normalize, bounded)


def support_from_rows(
    crow: npt.NDArray[Any],
    cols: npt.NDArray[Any],
    weight: npt.NDArray[Any] | None,
    *,
    start: float | str,
    normalize: bool,
    bounded: bool = True,
) -> Support:
    """Return the support over memory-mapped arrays; the degrees are summed `ENTRIES_AT_A_TIME`."""
    nodes, pointers = len(crow) - 1, _as_tensor(crow)
    in_degree, out_degree = np.zeros(nodes), np.zeros(nodes)
    for first in range(0, len(cols), ENTRIES_AT_A_TIME):
        span = slice(first, min(first + ENTRIES_AT_A_TIME, len(cols)))
        given = None if weight is None else np.asarray(weight[span], dtype=np.float64)
        out_degree += np.bincount(cols[span], weights=given, minlength=nodes)
        rows = _rows_between(pointers, span.start, span.stop).numpy()
        in_degree += np.bincount(rows, weights=given, minlength=nodes)
    received, sent = (torch.from_numpy(degree.astype(np.float32)) for degree in (in_degree, out_degree))
    pattern = Pattern(pointers, _as_tensor(cols), nodes)
    given_weight = None if weight is None else _as_tensor(weight)
    return Support(pattern, given_weight, received, sent, _start_at(start), normalize, bounded)


def adjacency_entries(
    edge_index: Tensor, edge_weight: Tensor | None, nodes: int, *, undirected: bool, self_loops: bool
) -> tuple[Tensor, Tensor]:
    """Return the sorted keys `row * nodes + column` of A (or A + I) and their weights.

    Self-loops of the data are removed. If both directions of an edge are listed, the larger weight counts.
    The self-loops of A + I have the mean edge weight.
    """
    source, target = edge_index
    weights = torch.ones(source.shape[0]) if edge_weight is None else edge_weight.to(torch.float32)
    weights = weights.to(source.device)
    between = source != target
    source, target, weights = source[between], target[between], weights[between]
    if undirected:
        source, target = torch.cat([source, target]), torch.cat([target, source])
        weights = weights.repeat(2)
    if self_loops:
        loop = torch.arange(nodes, device=source.device)
        source, target = torch.cat([source, loop]), torch.cat([target, loop])
        mean = weights.mean() if weights.numel() else weights.new_ones(())
        weights = torch.cat([weights, mean.expand(nodes)])
    keys, position = torch.unique(target * nodes + source, return_inverse=True)
    largest = weights.new_zeros(keys.shape[0]).scatter_reduce_(0, position, weights, "amax")
    return keys, largest


def find_entries(known: Pattern, wanted: Pattern, node_of: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position in `known` of each entry of `wanted` (0 if there is none), and whether it exists.

    Node i of `wanted` is `node_of[i]` in `known`, or -1.
    """
    rows, cols = node_of[wanted.rows], node_of[wanted.cols]
    keys = known.rows * known.sources + known.cols
    wanted_keys = torch.where((rows >= 0) & (cols >= 0), rows * known.sources + cols, -1)
    if keys.numel() == 0:
        return torch.zeros_like(wanted_keys), torch.zeros_like(wanted_keys, dtype=torch.bool)
    position = torch.searchsorted(keys, wanted_keys).clamp(max=keys.numel() - 1)
    found = keys[position] == wanted_keys
    return torch.where(found, position, 0), found


def cut_around(support: Support, nodes: Tensor, hops: int) -> tuple[Support, Tensor]:
    """Return the subgraph of all nodes within `hops` of some nodes, and the sorted positions of its nodes.

    All but the outermost rows are complete, and degrees are those of the whole graph. So an encoder with that
    number of hops gives the chosen nodes the same embeddings as in the whole graph.
    """
    kept = torch.zeros(support.nodes, dtype=torch.bool)
    kept[nodes] = True
    inner, frontier = kept.clone(), torch.unique(nodes)
    for hop in range(hops):
        senders = torch.unique(support.pattern.cols[_entries_of(support, frontier)].long())
        frontier = senders[~kept[senders]]
        kept[senders] = True
        if hop < hops - 1:
            inner[frontier] = True
    chosen = torch.nonzero(kept).flatten()
    inside = torch.nonzero(inner).flatten()
    entries = _entries_of(support, inside)
    number = torch.full((support.nodes,), -1, dtype=torch.long)
    number[chosen] = torch.arange(len(chosen))
    counts = support.pattern.crow[inside + 1] - support.pattern.crow[inside]
    rows = torch.repeat_interleave(number[inside], counts)
    pattern = Pattern(
        row_pointers(rows, len(chosen)), number[support.pattern.cols[entries].long()], len(chosen)
    )
    weight = None if support.weight is None else support.weight[entries]
    receives, sends = support.in_degree[chosen], support.out_degree[chosen]
    relations = None if support.relations is None else support.relations[:, entries]
    part = replace(support, pattern=pattern, weight=weight, in_degree=receives, out_degree=sends)
    return replace(part, relations=relations), chosen


def _entries_of(support: Support, rows: Tensor) -> Tensor:
    crow = support.pattern.crow.long()
    counts = crow[rows + 1] - crow[rows]
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(rows) else 0
    return torch.repeat_interleave(crow[rows] - (ends - counts), counts) + torch.arange(total)


def _rows_between(crow: Tensor, first: int, last: int) -> Tensor:
    """Return the row of each entry of a range, without a search per entry."""
    at = torch.tensor([first, last - 1], dtype=crow.dtype, device=crow.device)
    begin, end = (torch.searchsorted(crow, at, right=True) - 1).tolist()
    counts = crow[begin : end + 2].clamp(first, last).diff()
    each = torch.arange(begin, end + 1, device=crow.device)
    return torch.repeat_interleave(each, counts, output_size=last - first)


def _start_at(start: float | str) -> float | None:
    return None if isinstance(start, str) else float(start)


def _as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor that shares an array's memory; torch warns if the array is read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class NewEdges:
    """Edges of nodes that join a graph; new nodes are numbered after the known ones."""

    edge_index: Tensor  # [2, edges]; at least one end of each edge is new
    weight: Tensor | None  # [edges]
    known: int
    new: int
    loop: float = 1.0  # weight of a self-loop, the mean edge weight of the fitted graph

    @classmethod
    def to_nearest(cls, neighbours: Tensor, known: int) -> NewEdges:
        """Return edges from k known nodes to each new node, given as `[new, k]`."""
        new, count = neighbours.shape
        target = torch.arange(known, known + new).repeat_interleave(count)
        return cls(torch.stack([neighbours.flatten(), target]), None, known, new)

    def entries(self, *, undirected: bool, self_loops: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return rows, columns and weights of the new nodes' entries, sorted, and in- and out-degrees."""
        total = self.known + self.new
        keys, weights = adjacency_entries(
            self.edge_index, self.weight, total, undirected=undirected, self_loops=False
        )
        if self_loops:
            own = torch.arange(self.known, total)
            keys = torch.cat([keys, own * total + own])
            weights = torch.cat([weights, torch.full((self.new,), self.loop)])
            keys, order = keys.sort()
            weights = weights[order]
        rows, cols = keys // total, keys % total
        receives = torch.zeros(total).index_add_(0, rows, weights)[self.known :]
        sends = torch.zeros(total).index_add_(0, cols, weights)[self.known :]
        to_new = rows >= self.known
        return rows[to_new], cols[to_new], weights[to_new], receives, sends


def attach_nodes(support: Support, edges: NewEdges, *, undirected: bool, self_loops: bool) -> Support:
    r"""Return the support with new nodes, which receive from known nodes and from each other.

    An entry between a new node v and a known u is the one that Ã would have if v alone were added,
    :math:`w / \sqrt{d_v (d_u + w)}`. So a new node depends on no other new nodes but its neighbours.
    """
    rows, cols, weights, receives, sends = edges.entries(undirected=undirected, self_loops=self_loops)
    degree = torch.where(support.out_degree > 0, support.out_degree, 1.0)
    to_known = cols < edges.known
    sender = cols.clamp_max(edges.known - 1)
    alone = weights * (degree[sender] / (support.out_degree[sender] + weights)).sqrt()
    counts = torch.bincount(rows - edges.known, minlength=edges.new)
    pattern = Pattern(
        torch.cat([support.pattern.crow, support.entries + counts.cumsum(0)]),
        torch.cat([support.pattern.cols, cols]),
        edges.known + edges.new,
    )
    own = torch.ones(support.entries) if support.weight is None else support.weight
    return replace(
        support,
        pattern=pattern,
        weight=torch.cat([own, torch.where(to_known, alone, weights)]),
        in_degree=torch.cat([support.in_degree, receives]),
        out_degree=torch.cat([degree, sends]),
    )
