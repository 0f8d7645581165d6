"""Random walks, and vectors of nodes from who meets whom on them: skip-gram with negative sampling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import BatchEmbedder, EmbedderSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency, to_device
from h3gnn.baselines.systems import Sizes
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

AT_ONCE = 2**22
"""Steps of walks that are drawn together, which is quicker than batch by batch."""
SHARED = 128
"""Nodes that are drawn for a batch, to stand for those that its walks did not meet."""
ENDED = -1
"""Stands in a walk behind a node that nothing leads away from."""


class Walker:
    r"""Draws random walks: the next node by the weights of the edges, and by where the walk came from.

    With a return parameter p and an in-out parameter q (Grover and Leskovec, 2016), an edge from v to x of a
    walk that came from t counts 1/p times its weight where x is t, once where x is next to t, and 1/q times
    elsewhere. A step is drawn by the weights alone and then taken or drawn again: as many tables as there are
    pairs of edges are not needed.

    Args:
        matrix: the weight of the step from row to column, not negative; rows need not add up to 1.
        back: p, large where walks should not turn back.
        away: q, small where walks should go far.
    """

    def __init__(self, matrix: SparseMatrix, back: float = 1.0, away: float = 1.0) -> None:
        self.matrix, self.back, self.away = matrix, back, away
        self.ends = matrix.values.double().cumsum(0)
        joined = torch.cat([self.ends.new_zeros(1), self.ends])
        self.low, self.high = joined[matrix.crow[:-1]], joined[matrix.crow[1:]]
        self.keys = matrix.rows * matrix.shape[1] + matrix.cols

    def walks(self, starts: Tensor, length: int) -> Tensor:
        """Return a walk `[starts, length]` from each node; behind its end stands `ENDED`."""
        path = [starts]
        for place in range(1, length):
            biased = place > 1 and (self.back, self.away) != (1.0, 1.0)
            path.append(self._biased(path[-2], path[-1]) if biased else self.step(path[-1]))
        return torch.stack(path, dim=1)

    def step(self, nodes: Tensor) -> Tensor:
        """Return a neighbour of each node, by weight; `ENDED` for a node without any."""
        here = nodes.clamp_min(0)
        low, high = self.low[here], self.high[here]
        if not self.keys.numel():
            return torch.full_like(nodes, ENDED)
        chosen = torch.searchsorted(self.ends, low + self._coins(nodes.numel()) * (high - low), right=True)
        first, last = self.matrix.crow[here], self.matrix.crow[here + 1] - 1
        reached = self.matrix.cols[torch.minimum(torch.maximum(chosen, first), last.clamp_min(0))]
        return torch.where((nodes == ENDED) | (high <= low), ENDED, reached)

    def edges(self, count: int) -> Tensor:
        """Return edges `[count, 2]`, drawn by weight."""
        chosen = torch.searchsorted(self.ends, self._coins(count) * self.ends[-1], right=True)
        chosen = chosen.clamp_max(self.keys.numel() - 1)
        return torch.stack([self.matrix.rows[chosen], self.matrix.cols[chosen]], dim=1)

    def _biased(self, before: Tensor, nodes: Tensor) -> Tensor:
        """Return the next node of each walk by weight and by where it came from."""
        most = max(1 / self.back, 1.0, 1 / self.away)
        reached = self.step(nodes)
        open_walks = torch.nonzero(reached != ENDED).flatten()
        while open_walks.numel():
            share = self._bias(before[open_walks], reached[open_walks]) / most
            refused = self._coins(open_walks.numel()) >= share
            open_walks = open_walks[refused]
            reached[open_walks] = self.step(nodes[open_walks])
        return reached

    def _bias(self, before: Tensor, reached: Tensor) -> Tensor:
        keys = before * self.matrix.shape[1] + reached
        place = torch.searchsorted(self.keys, keys).clamp_max(self.keys.numel() - 1)
        near = torch.where(self.keys[place] == keys, 1.0, 1 / self.away)
        return torch.where(reached == before, 1 / self.back, near)

    def _coins(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, device=self.ends.device)


def edges_to_walk(graph: Graph, device: torch.device, title: str) -> SparseMatrix:
    """Return the edges of a graph for a system that sees nothing else.

    Raises:
        InputError: where there are none.
    """
    matrix = to_device(adjacency(graph, self_loops=False), device)
    if not matrix.values.numel():
        raise InputError(
            f"{title} learns from edges alone, and this graph has none; use a system that sees features, "
            "such as ae"
        )
    return matrix


class SkipGram(nn.Module):
    r"""Vectors u of nodes that say who stands nearby on a walk, and vectors v of nodes as company.

    .. math:: \mathcal L = \frac{1}{\sum w_{ij}} \sum_{i, j} w_{ij} \Big(-\log \sigma(u_i^\top v_j)
        - k\, \mathbb E_{n \sim f^{3/4}} \log \sigma(-u_i^\top v_n)\Big), \quad
        w_{ij} = 1 - \frac{|i - j| - 1}{\text{window}}

    over places i ≠ j of one walk, at most a window apart. The weight is the share of word2vec's random
    windows that reach so far; f is how often a node is met. All pairs of a batch share the nodes that are
    drawn for the expectation, so that everything is a product of dense matrices.

    Args:
        nodes: how many there are.
        width: of the vectors.
        window: how far apart two places of a walk may be.
        negatives: k, how much the nodes that were not met count.
        shared: how many nodes are drawn for a batch.
        tied: a node has one vector for both roles.
    """

    frequency: Tensor

    def __init__(
        self,
        nodes: int,
        width: int,
        window: int,
        negatives: int = 5,
        shared: int = SHARED,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.window, self.negatives, self.shared = window, negatives, shared
        self.centres = nn.Parameter((torch.rand(nodes, width) - 0.5) / width)
        self.company = self.centres if tied else nn.Parameter(torch.zeros(nodes, width))
        self.register_buffer("frequency", torch.ones(nodes))

    def count(self, walks: Iterable[Tensor]) -> None:
        """Count how often each node is met: what negatives are drawn by."""
        met = [torch.bincount(some[some != ENDED], minlength=self.frequency.numel()) for some in walks]
        self.frequency = torch.stack(met).sum(dim=0).to(self.frequency)

    def draw(self) -> Tensor:
        """Return the nodes that stand for those that are not met, `[shared]`."""
        return torch.multinomial(self.frequency**0.75, self.shared, replacement=True)

    def loss(self, walks: Tensor, strangers: Tensor | None = None) -> Tensor:
        """Return the loss of walks `[batch, length]`, with `ENDED` behind the end of a walk."""
        strangers = self.draw() if strangers is None else strangers
        weight = self.pair_weights(walks)
        centres = functional.embedding(walks.clamp_min(0), self.centres)
        company = functional.embedding(walks.clamp_min(0), self.company)
        others = functional.embedding(strangers, self.company)
        return meeting_loss(centres, company, others, weight, self.negatives)

    def pair_weights(self, walks: Tensor) -> Tensor:
        """Return how much each pair of places counts, `[batch, length, length]`."""
        place = torch.arange(walks.shape[1], device=walks.device)
        apart = (place[:, None] - place[None]).abs()
        band = (1 - (apart - 1) / self.window).clamp_min(0) * (apart > 0)
        there = (walks != ENDED).float()
        return band * there[:, :, None] * there[:, None]


def meeting_loss(
    centres: Tensor, company: Tensor, strangers: Tensor, weight: Tensor, negatives: int
) -> Tensor:
    """Return the mean loss of pairs that met, against nodes that stand for those that did not.

    Args:
        centres: `[batch, places, width]`.
        company: `[batch, others, width]`, whom the centres of the same row met.
        strangers: `[shared, width]`.
        weight: `[batch, places, others]`, how much each pair counts; 0 for no pair.
        negatives: how much the strangers count, as a multiple of one that was met.
    """
    met = functional.logsigmoid(centres @ company.mT)
    apart = functional.logsigmoid(-centres @ strangers.mT).mean(dim=2)
    gain = (weight * met).sum() + negatives * (weight.sum(dim=2) * apart).sum()
    return -gain / weight.sum().clamp_min(1e-6)


@dataclass(frozen=True)
class WalkSettings(EmbedderSettings):
    """Settings of a system that learns from walks; an epoch is one walk from each node.

    Attributes:
        walk_length: nodes on a walk.
        window: how far apart on a walk two nodes may be that count as met.
        negatives: how much the nodes that were not met count, as a multiple of one that was.
        batch: walks per step of the optimiser.
    """

    width: int = 128
    epochs: int = 20
    learning_rate: float = 0.005
    walk_length: int = 80
    window: int = 10
    negatives: int = 5
    batch: int = 32


class WalkEmbedder(BatchEmbedder):
    """A system that learns vectors from walks; a subclass gets ready and draws the walks."""

    falling = True

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return the vectors with Adam's moments, the walks drawn together, a batch, and the edges."""
        steps = min(AT_ONCE, sizes.nodes * settings.walk_length)
        places = settings.batch * settings.walk_length
        batch = places * (8 * settings.width + 6 * (settings.walk_length + SHARED))
        return 4 * int(sizes.nodes * settings.width * 8 + batch + 4 * steps + 16 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Get ready to walk, and make the vectors."""
        self.prepare(graph)
        self.nodes = graph.num_nodes
        self.skipgram = SkipGram(
            graph.num_nodes, self.settings.width, self.settings.window, self.settings.negatives
        )

    def prepare(self, graph: Graph) -> None:
        """Make what walks are drawn from, on `self.device`."""
        raise NotImplementedError

    def walks(self, starts: Tensor) -> Tensor:
        """Return a walk from each of these nodes, `[starts, walk_length]`."""
        raise NotImplementedError

    def begin(self) -> None:
        """Count who is met how often on one walk from each node."""
        super().begin()
        everyone = torch.arange(self.nodes, device=self.device)
        self.skipgram.count(self._walks_of(everyone))

    def batches(self) -> Iterator[Tensor]:
        """Give the walks of an epoch, batch by batch."""
        for walks in self._walks_of(torch.randperm(self.nodes, device=self.device)):
            yield from torch.split(walks, self.settings.batch)

    def batch_loss(self, batch: Tensor) -> Tensor:
        """Return the loss of walks."""
        return self.skipgram.loss(batch)

    def embedding(self) -> Tensor:
        """Return the vectors u."""
        return self.skipgram.centres

    def _walks_of(self, nodes: Tensor) -> Iterator[Tensor]:
        """Give a walk from each node, as many at once as may be."""
        for starts in torch.split(nodes, max(1, AT_ONCE // self.settings.walk_length)):
            yield self.walks(starts)
