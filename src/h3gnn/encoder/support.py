r"""The support of Ã: between which nodes messages may flow, and how strongly at the start."""

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
"""Start values are kept inside these bounds, where a sigmoid still has a slope to learn by."""
ENTRIES_AT_A_TIME = 1 << 22
"""Arrays that may be longer than memory are read in pieces of so many entries."""
Ends = tuple[Tensor, Tensor]
"""The receiving and the sending node of each of some entries."""


@dataclass(frozen=True, eq=False)
class Support:
    r"""The rows of :math:`\tilde A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`, in memory or in files.

    What is asked of an entry (its start value, its fixed factor) is computed from the degrees of its two
    ends, so that a support whose arrays lie in files is read only where it is touched.

    Attributes:
        pattern: row = receiving node, column = sending node.
        weight: the data's own weights `[entries]`, or None for ones.
        in_degree, out_degree: weighted degrees `[nodes]`.
        start_at: the one start value of all edge weights; None starts each at its entry of Ã.
        normalize: whether the fixed factor of a weight is its entry of Ã; else it is 1.
        bounded: whether start values are kept inside `START_BOUNDS`.
    """

    pattern: Pattern
    weight: Tensor | None
    in_degree: Tensor
    out_degree: Tensor
    start_at: float | None = None
    normalize: bool = False
    bounded: bool = True

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
        """What each learned weight is multiplied with `[entries]`."""
        return self.factors(None)

    @cached_property
    def start(self) -> Tensor:
        """Start value of each learnable weight `[entries]`."""
        return self.starts(None)

    def factors(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return the fixed factor of some entries, or of all; whoever knows their ends gives them."""
        if self.normalize:
            return self.normalized(entries, ends)
        return torch.ones(
            self.entries if entries is None else len(entries),
            dtype=self.in_degree.dtype,
            device=self.in_degree.device,
        )

    def starts(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return the start values of some entries, or of all."""
        found = self.normalized(entries, ends)
        if self.start_at is not None:
            found = torch.full_like(found, self.start_at)
        return found.clamp(*START_BOUNDS) if self.bounded else found

    def normalized(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return some entries of Ã, or all."""
        rows, cols = ends or self.ends(entries)
        own = self.weight if self.weight is None or entries is None else self.weight[entries]
        spread = (self.in_degree.index_select(0, rows) * self.out_degree.index_select(0, cols)).sqrt()
        return spread.reciprocal() if own is None else own / spread

    def ends(self, entries: Tensor | None) -> Ends:
        """Return the receiving and the sending node of some entries, or of all."""
        if entries is None:
            return self.pattern.rows, self.pattern.cols.long()
        rows = torch.searchsorted(self.pattern.crow, entries, right=True) - 1
        return rows, self.pattern.cols[entries].long()

    def pair_keys(self, entries: Tensor | None, ends: Ends | None = None) -> Tensor:
        """Return one number for the two ends of some entries, or of all, the same in both directions.

        A loop has -1.
        """
        rows, cols = ends or self.ends(entries)
        keys = torch.minimum(rows, cols) * self.nodes + torch.maximum(rows, cols)
        return torch.where(rows == cols, -1, keys)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Support:
        """Return the support on another device, or in another precision."""
        weight = None if self.weight is None else self.weight.to(device, dtype)
        receives, sends = self.in_degree.to(device, dtype), self.out_degree.to(device, dtype)
        pattern = self.pattern.to(device)
        return replace(self, pattern=pattern, weight=weight, in_degree=receives, out_degree=sends)


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
        edge_weight: the data's own positive weights `[edges]`; they take the place of the ones in A.
        undirected: let messages flow both ways along each edge; each direction learns its own weight.
        self_loops: let each node hear itself; without it, self-loops of the data are left out too.
        start: `"normalized"` starts each weight at its entry of Ã, a number in (0, 1) starts all there.
        normalize: multiply each learned weight with its entry of Ã.
        bounded: keep start values inside `START_BOUNDS`.
    """
    keys, weights = adjacency_entries(
        edge_index, edge_weight, nodes, undirected=undirected, self_loops=self_loops
    )
    rows, cols = keys // nodes, keys % nodes
    receives = torch.zeros(nodes, device=keys.device).index_add_(0, rows, weights)
    sends = torch.zeros(nodes, device=keys.device).index_add_(0, cols, weights)
    pattern = Pattern(row_pointers(rows, nodes), cols, nodes)
    return Support(pattern, weights, receives, sends, _start_at(start), normalize, bounded)


def support_from_rows(
    crow: npt.NDArray[Any],
    cols: npt.NDArray[Any],
    weight: npt.NDArray[Any] | None,
    *,
    start: float | str,
    normalize: bool,
    bounded: bool = True,
) -> Support:
    """Return the support over arrays in files, with the degrees summed a range of entries at a time."""
    nodes, pointers = len(crow) - 1, _over(crow)
    receives, sends = np.zeros(nodes), np.zeros(nodes)
    for first in range(0, len(cols), ENTRIES_AT_A_TIME):
        span = slice(first, min(first + ENTRIES_AT_A_TIME, len(cols)))
        own = None if weight is None else np.asarray(weight[span], dtype=np.float64)
        sends += np.bincount(cols[span], weights=own, minlength=nodes)
        rows = _rows_between(pointers, span.start, span.stop).numpy()
        receives += np.bincount(rows, weights=own, minlength=nodes)
    heard, sent = (torch.from_numpy(degree.astype(np.float32)) for degree in (receives, sends))
    pattern = Pattern(pointers, _over(cols), nodes)
    own_weight = None if weight is None else _over(weight)
    return Support(pattern, own_weight, heard, sent, _start_at(start), normalize, bounded)


def adjacency_entries(
    edge_index: Tensor, edge_weight: Tensor | None, nodes: int, *, undirected: bool, self_loops: bool
) -> tuple[Tensor, Tensor]:
    """Return the sorted keys `row * nodes + column` of A (or A + I) and the weight of each.

    Self-loops of the data are left out. Of an edge that is there both ways with two weights, the larger
    counts. A loop of A + I weighs as much as the mean edge.
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
        typical = weights.mean() if weights.numel() else weights.new_ones(())
        weights = torch.cat([weights, typical.expand(nodes)])
    keys, position = torch.unique(target * nodes + source, return_inverse=True)
    strongest = weights.new_zeros(keys.shape[0]).scatter_reduce_(0, position, weights, "amax")
    return keys, strongest


def find_entries(known: Pattern, wanted: Pattern, node_of: Tensor) -> tuple[Tensor, Tensor]:
    """Find which entries of `wanted` stand in `known`, where node i of `wanted` is `node_of[i]` there.

    Args:
        known, wanted: of two graphs.
        node_of: `[wanted.targets]`, -1 for a node that `known` does not have.

    Returns:
        The position in `known` of each entry of `wanted` (0 where there is none), and whether it was found.
    """
    rows, cols = node_of[wanted.rows], node_of[wanted.cols]
    keys = known.rows * known.sources + known.cols
    sought = torch.where((rows >= 0) & (cols >= 0), rows * known.sources + cols, -1)
    if keys.numel() == 0:
        return torch.zeros_like(sought), torch.zeros_like(sought, dtype=torch.bool)
    position = torch.searchsorted(keys, sought).clamp(max=keys.numel() - 1)
    found = keys[position] == sought
    return torch.where(found, position, 0), found


def _rows_between(crow: Tensor, first: int, last: int) -> Tensor:
    """Return the row of each entry of a range, without a search for each."""
    at = torch.tensor([first, last - 1], dtype=crow.dtype, device=crow.device)
    begin, end = (torch.searchsorted(crow, at, right=True) - 1).tolist()
    counts = crow[begin : end + 2].clamp(first, last).diff()
    each = torch.arange(begin, end + 1, device=crow.device)
    return torch.repeat_interleave(each, counts, output_size=last - first)


def _start_at(start: float | str) -> float | None:
    return None if isinstance(start, str) else float(start)


def _over(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor over an array, which may lie in a file that nobody may write to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)
