"""New nodes beside a fitted graph: they hear its nodes and one another, and no fitted node hears them.

So the embeddings of the fitted nodes stay what they are, and only the new rows are worked out, from the part
of the graph that a new node can hear.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.encode import Allocate
from h3gnn.encoder.readout import Columns, Smoother
from h3gnn.encoder.sparse import Pattern, csr_tensor, row_pointers
from h3gnn.encoder.support import Support, adjacency_entries
from h3gnn.training.models import files_in

PRECISION, MOST_STEPS = 1e-6, 2000
"""Walks are followed until a step changes no more than this share, and for no more than so many steps."""


@dataclass(frozen=True)
class NewEdges:
    """The edges of nodes that join a graph; the new nodes are numbered after the known ones.

    Attributes:
        edge_index: `[2, edges]`, source above target; at least one end of each edge is new.
        weight: positive `[edges]`, or None for ones.
        known, new: how many nodes there are of each kind.
        loop: what a node's loop to itself weighs: as much as the mean edge of the fitted graph.
    """

    edge_index: Tensor
    weight: Tensor | None
    known: int
    new: int
    loop: float = 1.0

    @classmethod
    def to_nearest(cls, neighbours: Tensor, known: int) -> NewEdges:
        """Return the edges of new nodes `[new, k]` that each hear k known ones."""
        new, count = neighbours.shape
        target = torch.arange(known, known + new).repeat_interleave(count)
        return cls(torch.stack([neighbours.flatten(), target]), None, known, new)

    def entries(self, *, undirected: bool, self_loops: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return rows, columns and weights of what new nodes hear, and the new nodes' degrees in both roles.

        Sorted by row, then column. A new node's degree as a sender counts the known nodes at its edges.
        """
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
        heard = rows >= self.known
        return rows[heard], cols[heard], weights[heard], receives, sends


def attach_nodes(support: Support, edges: NewEdges, *, undirected: bool, self_loops: bool) -> Support:
    r"""Return the support with new nodes that hear known ones and each other; no known node hears them.

    An entry between a new node v and a known u is the one that Ã would have if v alone had come:
    :math:`w / \sqrt{d_v (d_u + w)}`. So what a new node hears does not depend on who else came with it,
    but for those that it is joined to.

    Args:
        support: of the known nodes.
        edges: of the new ones.
        undirected: whether messages flow both ways along each edge.
        self_loops: whether each new node hears itself, too.
    """
    rows, cols, weights, receives, sends = edges.entries(undirected=undirected, self_loops=self_loops)
    degree = torch.where(support.sends > 0, support.sends, 1.0)
    to_known = cols < edges.known
    sender = cols.clamp_max(edges.known - 1)
    alone = weights * (degree[sender] / (support.sends[sender] + weights)).sqrt()
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
        receives=torch.cat([support.receives, receives]),
        sends=torch.cat([degree, sends]),
    )


def cut_around(support: Support, nodes: Tensor, hops: int) -> tuple[Support, Tensor]:
    """Return the part of a support that some nodes hear in so many hops, and which nodes it has, ascending.

    All rows but those of the outermost nodes are whole, and degrees are those of the whole graph: an encoder
    of so many hops gives the chosen nodes what it gives them there.
    """
    kept = torch.zeros(support.nodes, dtype=torch.bool)
    kept[nodes] = True
    whole, frontier = kept.clone(), torch.unique(nodes)
    for hop in range(hops):
        heard = torch.unique(support.pattern.cols[_entries_of(support, frontier)].long())
        frontier = heard[~kept[heard]]
        kept[heard] = True
        if hop < hops - 1:
            whole[frontier] = True
    chosen = torch.nonzero(kept).flatten()
    inside = torch.nonzero(whole).flatten()
    entries = _entries_of(support, inside)
    place = torch.full((support.nodes,), -1, dtype=torch.long)
    place[chosen] = torch.arange(len(chosen))
    counts = support.pattern.crow[inside + 1] - support.pattern.crow[inside]
    rows = torch.repeat_interleave(place[inside], counts)
    pattern = Pattern(
        row_pointers(rows, len(chosen)), place[support.pattern.cols[entries].long()], len(chosen)
    )
    weight = None if support.weight is None else support.weight[entries]
    receives, sends = support.receives[chosen], support.sends[chosen]
    return replace(support, pattern=pattern, weight=weight, receives=receives, sends=sends), chosen


def _entries_of(support: Support, rows: Tensor) -> Tensor:
    """Return the entries of some rows, row after row."""
    crow = support.pattern.crow.long()
    counts = crow[rows + 1] - crow[rows]
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(rows) else 0
    return torch.repeat_interleave(crow[rows] - (ends - counts), counts) + torch.arange(total)


@torch.no_grad()
def smooth_attached(embedding: Tensor, known: Tensor, edges: NewEdges, strength: float) -> Tensor:
    r"""Return the read-out of new nodes beside that of the known ones, which stays as it is, `[new, D]`.

    The walks of `Smoother` from the new nodes, where a walk that enters the known graph has the embedding
    that is there: :math:`Z = (1 - s) H + s (P_{new} Z + P_{known} Z_{known})`.

    Args:
        embedding: the new nodes' own, not smoothed, `[new, D]`.
        known: the smoothed embeddings of the known nodes, `[nodes, D]`.
        edges: of the new nodes.
        strength: s.
    """
    if not strength:
        return embedding
    rows, cols, weights, receives, _ = edges.entries(undirected=True, self_loops=True)
    rows = rows - edges.known
    share = weights / receives[rows]
    old = cols < edges.known

    def matrix(chosen: Tensor, shift: int, width: int) -> Tensor:
        return csr_tensor(
            row_pointers(rows[chosen], edges.new), cols[chosen] - shift, share[chosen], (edges.new, width)
        )

    fixed = (1 - strength) * embedding + strength * (matrix(old, 0, edges.known) @ known)
    step, now = matrix(~old, edges.known, edges.new), embedding
    for _ in range(MOST_STEPS):
        before, now = now, torch.add(fixed, step @ now, alpha=strength)
        if float((now - before).abs().max()) <= PRECISION * float(now.abs().max().clamp_min(1e-12)):
            break
    return now


Array = npt.NDArray[np.float32]
CHUNK = 16_384
"""So many nodes are embedded at a time, where memory is bounded."""


@dataclass(frozen=True)
class PiecewiseEmbedding:
    """What it takes to embed a graph piece by piece.

    Attributes:
        encode: yields the models' embeddings side by side, `[some nodes, D]`, in the nodes' order; arrays
            over all nodes lie where it is told.
        nodes, width: N and D.
        budget: bytes of memory; past half of it, arrays over all nodes lie in temporary files.
        scale: brings columns of the embedding, from a first to a last, to one scale; None leaves them.
        smoother: carries them along the edges.
    """

    encode: Callable[[Allocate | None], Iterator[Tensor]]
    nodes: int
    width: int
    budget: int
    scale: Callable[[Tensor, slice], Tensor] | None
    smoother: Smoother

    def chunks(self) -> Iterator[Array]:
        """Yield the embedding read out, some nodes at a time."""
        if self.scale is None and not self.smoother.strength:
            with self._beside() as allocate:
                yield from (piece.cpu().contiguous().numpy() for piece in self.encode(allocate))
            return
        with self.rows() as rows:
            yield from (rows[first : first + CHUNK] for first in range(0, self.nodes, CHUNK))

    @contextmanager
    def rows(self) -> Iterator[Array]:
        """Give the embedding read out as one array, in memory or in a temporary file."""
        with self._beside() as allocate:
            make = allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
            rows, first = make("embedding", (self.nodes, self.width), torch.float32), 0
            for piece in self.encode(allocate):
                rows[first : first + len(piece)] = piece
                first += len(piece)
            some = max(1, self.budget // (32 * self.nodes))
            for first in range(0, self.width, some):
                part = rows[:, first : first + some]
                scaled = part.clone() if self.scale is None else self.scale(part, slice(first, first + some))
                part.copy_(self.smoother(scaled))
            yield rows.numpy()

    @contextmanager
    def _beside(self) -> Iterator[Allocate | None]:
        with tempfile.TemporaryDirectory(prefix="h3gnn-") as folder:
            yield files_in(Path(folder)) if 4 * self.nodes * self.width > self.budget // 2 else None


def own_scale(rows: Tensor, columns: slice) -> Tensor:
    """Bring columns to mean 0 and variance 1 over the nodes of this very embedding."""
    return Columns.of(rows)(rows)
