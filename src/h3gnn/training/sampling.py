"""Neighbour sampling: neighbours drawn at random, hop by hop, from compressed sparse rows.

The rows are tensors in memory, in memory-mapped files, or on a GPU, and samples are drawn where they are. The
neighbours of a node are a function of (seed, hop, node) alone, not of its batch or the device: one round
draws one thinned graph, and any split of its nodes over batches or processes sees the same one. Alternatively
a batch consists of METIS clusters and uses the edges within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.noise import node_randint
from h3gnn.errors import InputError

NodeIds = npt.NDArray[np.int64]
ALL = -1
"""All neighbours of a node."""
CLUSTERS_PER_BATCH = 4
"""Clusters per batch, drawn in every epoch, so that the edges between them are used too."""


@dataclass(frozen=True, eq=False)
class Hop:
    """The messages of one hop as compressed sparse rows.

    Attributes:
        crow: row pointers of the targets, `[targets + 1]`.
        cols: position of the source in the part `[messages]`.
        entries: position of each edge in the support of the whole graph, PyG's `e_id` `[messages]`.
        sources: number of the source in the whole graph `[messages]`.
    """

    crow: Tensor
    cols: Tensor
    entries: Tensor
    sources: Tensor


@dataclass(frozen=True, eq=False)
class Sample:
    """Nodes within K hops of the seeds (seeds first), their number and the messages per hop."""

    nodes: Tensor
    counts: list[int]
    hops: list[Hop]

    def unique_entries(self) -> tuple[Tensor, list[Tensor], tuple[Tensor, Tensor]]:
        """Return each entry once, the position of each hop's messages in these, and the nodes at both ends.

        A node receives messages in every hop from its own on, so its entries may repeat. Entries of nodes
        that receive in the last hop only, which are most, are unique and need not be sorted.
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
        targets = self.nodes[: len(hop.crow) - 1]
        return torch.repeat_interleave(targets, hop.crow.diff(), output_size=len(hop.entries))


class NeighbourSampler:
    """Draws at most `num_neighbors[h]` neighbours (-1: all) of every node within h hops of the seeds.

    `crow` and `cols` are the support as compressed sparse rows; `cols` may have any integer type.
    """

    def __init__(self, crow: Tensor, cols: Tensor, num_neighbors: Sequence[int]) -> None:
        self.crow, self.cols, self.num_neighbors = crow, cols, list(num_neighbors)
        self.device, self.seed = crow.device, 0
        self._position = torch.full((len(crow) - 1,), -1, dtype=torch.int32, device=self.device)

    def begin(self, seed: int, allowed: Tensor | None = None) -> None:
        """Start a round; every neighbour may be drawn, whatever `allowed`."""
        self.seed = seed

    def sample(self, seeds: Tensor) -> Sample:
        """Return the seeds, which must differ, and their sampled neighbourhoods."""
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
        """Return row pointers and entries of the messages to these nodes at this hop."""
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
    """Uses all neighbours within the batch: the subgraph that its nodes induce."""

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

    Floyd's algorithm, one row at a time for all nodes: the i-th number is drawn from 0 … degree-count+i; a
    duplicate is replaced by the largest of that range, which cannot have been drawn before.
    """
    last = degree - count + torch.arange(count, device=degree.device)[:, None]
    drawn = node_randint(seed, nodes, last.t() + 1).t().contiguous()
    for place in range(1, count):
        again = (drawn[:place] == drawn[place]).any(dim=0)
        drawn[place] = torch.where(again, last[place], drawn[place])
    return drawn.sort(dim=0).values


def neighbors_per_hop(hops: int, given: int | Sequence[int] | None) -> list[int]:
    """Return the number of neighbours per hop: 10 and then 5 by default, one number for all, or a list."""
    if given is None:
        return [10] + [5] * (hops - 1)
    return [given] * hops if isinstance(given, int) else [int(one) for one in given]


def find_clusters(crow: npt.NDArray[Any], cols: npt.NDArray[Any], size: int) -> list[NodeIds]:
    """Cut the graph into METIS clusters of about `size` nodes with few edges between them."""
    try:
        import pymetis
    except ImportError:
        raise InputError(
            'batches="clusters" needs pymetis: `pip install "h3gnn[scale]"`, or use batches="neighbours"',
            code="pymetis-missing",
        ) from None
    nodes = len(crow) - 1
    parts = max(1, round(nodes / size))
    if parts == 1:
        return [np.arange(nodes)]
    pointers, neighbours = _undirected(crow, cols)
    _, membership = pymetis.part_graph(parts, adjacency=pymetis.CSRAdjacency(pointers, neighbours))
    cluster_of = np.asarray(membership, dtype=np.int64)
    order = np.argsort(cluster_of, kind="stable")
    ends = np.searchsorted(cluster_of[order], np.arange(1, parts))
    return [cluster for cluster in np.split(order, ends) if len(cluster)]


def _undirected(crow: npt.NDArray[Any], cols: npt.NDArray[Any]) -> tuple[NodeIds, NodeIds]:
    """Return each edge in both directions, once, and no loops."""
    nodes = len(crow) - 1
    rows, ends = np.repeat(np.arange(nodes), np.diff(crow)), np.asarray(cols, dtype=np.int64)
    rows, ends = rows[rows != ends], ends[rows != ends]
    keys = np.unique(np.concatenate([rows * nodes + ends, ends * nodes + rows]))
    return np.searchsorted(keys // nodes, np.arange(nodes + 1)), keys % nodes


def cluster_batches(clusters: list[NodeIds], generator: torch.Generator) -> list[NodeIds]:
    """Return the batches of an epoch: every cluster once, some at a time, in random order."""
    order = torch.randperm(len(clusters), generator=generator).tolist()
    groups = [order[start : start + CLUSTERS_PER_BATCH] for start in range(0, len(order), CLUSTERS_PER_BATCH)]
    return [np.concatenate([clusters[one] for one in group]) for group in groups]


def node_batches(nodes: int, size: int, generator: torch.Generator) -> list[NodeIds]:
    """Return the batches of an epoch: every node once, in random order, in batches of almost equal size."""
    order = torch.randperm(nodes, generator=generator).numpy()
    return [np.asarray(batch) for batch in np.array_split(order, max(1, -(-nodes // size)))]
