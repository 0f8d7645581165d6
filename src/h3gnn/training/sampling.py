"""Which part of the graph a step sees: neighbours drawn at random, hop by hop, from compressed sparse rows.

The rows are tensors, in memory, over memory-mapped files, or on a GPU, and what is drawn is made where they
are. What a node hears is a function of (seed, hop, node) alone, not of the batch that it happens to stand in,
nor of the device: one round draws one thinned graph, and any split of its nodes over batches or processes
sees the same thinned graph. Or a batch is made of METIS clusters of nodes that lie close together, and hears
the edges within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.noise import node_below
from h3gnn.errors import InputError

NodeIds = npt.NDArray[np.int64]
ALL = -1
"""As a fan-out: every neighbour."""
CLUSTERS_PER_BATCH = 4
"""A batch joins this many clusters, drawn anew in every epoch, so that the edges between them are met too."""


@dataclass(frozen=True, eq=False)
class Hop:
    """The messages of one hop: of each target its sources, by their position in the part, and their entries.

    Attributes:
        crow: `[targets + 1]`.
        cols: position of the sending node among the part's nodes `[messages]`.
        entries: position of each edge in the support of the whole graph, PyG's `e_id` `[messages]`.
        sources: number of the sending node in the whole graph `[messages]`.
    """

    crow: Tensor
    cols: Tensor
    entries: Tensor
    sources: Tensor


@dataclass(frozen=True, eq=False)
class Sample:
    """Nodes within K hops of the seeds (seeds first), how many within each, and the messages of each hop."""

    nodes: Tensor
    counts: list[int]
    hops: list[Hop]

    def touched(self) -> tuple[Tensor, list[Tensor], tuple[Tensor, Tensor]]:
        """Return each entry once, which of these each hop's messages are, and the nodes at both ends.

        A node hears something in every hop from its own on, so its entries may come again; those of nodes
        that hear in the last hop alone, most of all, come once and need not be sorted.
        """
        every = torch.cat([hop.entries for hop in self.hops])
        sources = torch.cat([hop.sources for hop in self.hops])
        targets = torch.cat([self._targets(hop) for hop in self.hops])
        new = int(self.hops[-1].crow[self.counts[-3]]) if len(self.hops) > 1 else 0
        again = len(every) - len(self.hops[-1].entries) + new
        head, place = torch.unique(every[:again], return_inverse=True)
        each = torch.arange(len(every), device=every.device)
        at = torch.empty_like(head).scatter_(0, place, each[:again])  # any of those with the same entry
        at = torch.cat([at, each[again:]])
        place = torch.cat([place, each[again:] + (len(head) - again)])
        places = torch.split(place, [len(hop.entries) for hop in self.hops])
        entries, targets, sources = (one.index_select(0, at) for one in (every, targets, sources))
        return entries, list(places), (targets, sources)

    def _targets(self, hop: Hop) -> Tensor:
        hearing = self.nodes[: len(hop.crow) - 1]
        return torch.repeat_interleave(hearing, hop.crow.diff(), output_size=len(hop.entries))


class NeighbourSampler:
    """Draws at most `num_neighbors[h]` neighbours of every node within h hops of the seeds, each only once.

    Args:
        crow: where each node's entries of the support begin `[nodes + 1]`.
        cols: the sending node of each entry `[entries]`, any whole-number type.
        num_neighbors: neighbours per hop; -1 takes all.
    """

    def __init__(self, crow: Tensor, cols: Tensor, num_neighbors: Sequence[int]) -> None:
        self.crow, self.cols, self.num_neighbors = crow, cols, list(num_neighbors)
        self.device, self.seed = crow.device, 0
        self._position = torch.full((len(crow) - 1,), -1, dtype=torch.int32, device=self.device)

    def begin(self, seed: int, allowed: Tensor | None = None) -> None:
        """Start a round; `allowed` is not looked at, every neighbour may be drawn."""
        self.seed = seed

    def sample(self, seeds: Tensor) -> Sample:
        """Return the seeds, which must differ, and what they hear."""
        position = self._position
        position[seeds] = self._range(0, len(seeds), torch.int32)
        nodes, counts, hops = seeds, [len(seeds)], []
        for hop in range(len(self.num_neighbors)):
            crow, entries = self._expand(nodes, hop)
            sources = self.cols.index_select(0, entries)
            unseen = position.index_select(0, sources) < 0
            new = torch.unique(sources.masked_select(unseen)).long()
            position[new] = self._range(len(nodes), len(nodes) + len(new), torch.int32)
            nodes = torch.cat([nodes, new])
            hops.append(Hop(crow, position.index_select(0, sources).long(), entries, sources.long()))
            counts.append(len(nodes))
        position[nodes] = -1
        return Sample(nodes, counts, hops)

    def _expand(self, nodes: Tensor, hop: int) -> tuple[Tensor, Tensor]:
        """Return row pointers and entries of what these nodes hear at this hop."""
        begin = self.crow.index_select(0, nodes)
        degree, fan = self.crow.index_select(0, nodes + 1) - begin, self.num_neighbors[hop]
        taken = degree if fan == ALL else degree.clamp_max(fan)
        crow = torch.cat([taken.new_zeros(1), taken.cumsum(0)])
        messages = int(crow[-1])
        shift = torch.repeat_interleave(begin - crow[:-1], taken, output_size=messages)
        entries = shift + self._range(0, messages)
        many = (degree > taken).nonzero().flatten()
        if len(many):
            at = [one.index_select(0, many) for one in (nodes, degree, begin, crow)]
            picked = at[2] + _choose(self.seed + hop, at[0], at[1], fan)
            entries.index_copy_(0, (at[3] + self._range(0, fan)[:, None]).flatten(), picked.flatten())
        return crow, entries

    def _range(self, first: int, last: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.arange(first, last, dtype=dtype, device=self.device)


class ClusterSampler(NeighbourSampler):
    """All neighbours that belong to the batch themselves: the subgraph that its nodes induce.

    Args:
        crow, cols: as in `NeighbourSampler`.
        hops: how many hops.
    """

    def __init__(self, crow: Tensor, cols: Tensor, hops: int) -> None:
        super().__init__(crow, cols, [ALL] * hops)
        self._inside = torch.ones(len(crow) - 1, dtype=torch.bool, device=self.device)

    def begin(self, seed: int, allowed: Tensor | None = None) -> None:
        """Start a batch whose nodes are `allowed`; None allows all."""
        self._inside[:] = allowed is None
        if allowed is not None:
            self._inside[allowed] = True

    def _expand(self, nodes: Tensor, hop: int) -> tuple[Tensor, Tensor]:
        crow, entries = super()._expand(nodes, hop)
        inside = self._inside.index_select(0, self.cols.index_select(0, entries))
        before = torch.cat([crow.new_zeros(1), inside.cumsum(0)])
        return before[crow], entries.masked_select(inside)


def _choose(seed: int, nodes: Tensor, degree: Tensor, count: int) -> Tensor:
    """Choose `count` of `degree` for each node, ascending, all subsets equally likely, `[count, nodes]`.

    Floyd's algorithm, one row at a time for all nodes: the i-th number is drawn from 0 … degree-count+i; one
    that was drawn before is replaced by the largest of that range, which cannot have been.
    """
    last = degree - count + torch.arange(count, device=degree.device)[:, None]
    drawn = node_below(seed, nodes, last.t() + 1).t().contiguous()
    for place in range(1, count):
        again = (drawn[:place] == drawn[place]).any(dim=0)
        drawn[place] = torch.where(again, last[place], drawn[place])
    return drawn.sort(dim=0).values


def fan_out_for(hops: int, given: int | Sequence[int] | None) -> list[int]:
    """Return one fan-out per hop: 10 and then 5 where nothing is given, one number for all, or a list."""
    if given is None:
        return [10] + [5] * (hops - 1)
    return [given] * hops if isinstance(given, int) else [int(one) for one in given]


def find_clusters(crow: npt.NDArray[Any], cols: npt.NDArray[Any], size: int) -> list[NodeIds]:
    """Cut the graph into clusters of about `size` nodes with few edges between them.

    Args:
        crow, cols: the support; METIS needs it in memory and reads it as undirected.
        size: nodes per cluster.

    Raises:
        InputError: without `pymetis`.
    """
    try:
        import pymetis
    except ImportError:
        raise InputError(
            'batches="clusters" needs pymetis; install it with `pip install "h3gnn[scale]"`, '
            'or use batches="neighbours"'
        ) from None
    nodes = len(crow) - 1
    parts = max(1, round(nodes / size))
    if parts == 1:
        return [np.arange(nodes)]
    pointers, neighbours = _undirected(crow, cols)
    adjacency = pymetis.CSRAdjacency(pointers, neighbours)
    _, membership = pymetis.part_graph(parts, adjacency=adjacency)
    of = np.asarray(membership, dtype=np.int64)
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(1, parts))
    return [cluster for cluster in np.split(order, ends) if len(cluster)]


def _undirected(crow: npt.NDArray[Any], cols: npt.NDArray[Any]) -> tuple[NodeIds, NodeIds]:
    """Return each edge in both directions, once, and no loops."""
    nodes = len(crow) - 1
    rows = np.repeat(np.arange(nodes), np.diff(crow))
    ends = np.asarray(cols, dtype=np.int64)
    keys = np.unique(np.concatenate([rows * nodes + ends, ends * nodes + rows]))
    rows, ends = keys // nodes, keys % nodes
    rows, ends = rows[rows != ends], ends[rows != ends]
    return np.searchsorted(rows, np.arange(nodes + 1)), ends


def cluster_batches(clusters: list[NodeIds], generator: torch.Generator) -> list[NodeIds]:
    """Return the batches of an epoch: every cluster once, some at a time, in random order."""
    order = torch.randperm(len(clusters), generator=generator).tolist()
    groups = [order[start : start + CLUSTERS_PER_BATCH] for start in range(0, len(order), CLUSTERS_PER_BATCH)]
    return [np.concatenate([clusters[one] for one in group]) for group in groups]


def node_batches(nodes: int, size: int, generator: torch.Generator) -> list[NodeIds]:
    """Return the batches of an epoch: every node once, in random order, in batches as even as can be."""
    order = torch.randperm(nodes, generator=generator).numpy()
    return [np.asarray(batch) for batch in np.array_split(order, max(1, -(-nodes // size)))]
