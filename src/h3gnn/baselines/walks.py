"""Random walks and skip-gram with negative sampling: LINE, node2vec and unsupervised GraphSAGE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import BatchEmbedder, Embedder, EmbedderSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency, neighbour_mean, row_sums
from h3gnn.baselines.registry import Sizes
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

AT_ONCE = 2**22
"""Steps of walks sampled together, which is faster than batch by batch."""
SHARED = 128
"""Number of negative nodes sampled per batch."""
ENDED = -1
"""Padding after the end of a walk."""


class Walker:
    """Samples random walks by edge weight, with the bias of node2vec (Grover and Leskovec, 2016).

    For a walk that came from t, the weight of a step to x is multiplied by 1/p (`back`) if x is t, by 1 if x
    is a neighbour of t, and by 1/q (`away`) otherwise. Rejection sampling avoids a table per pair of edges.
    """

    def __init__(self, matrix: SparseMatrix, back: float = 1.0, away: float = 1.0) -> None:
        self.matrix, self.back, self.away = matrix, back, away
        self.ends = matrix.values.double().cumsum(0)
        joined = torch.cat([self.ends.new_zeros(1), self.ends])
        self.low, self.high = joined[matrix.crow[:-1]], joined[matrix.crow[1:]]
        self.keys = matrix.rows * matrix.shape[1] + matrix.cols

    def walks(self, starts: Tensor, length: int) -> Tensor:
        """Return a walk `[starts, length]` from each node, padded with `ENDED`."""
        path = [starts]
        for number in range(1, length):
            biased = number > 1 and (self.back, self.away) != (1.0, 1.0)
            path.append(self._biased(path[-2], path[-1]) if biased else self.step(path[-1]))
        return torch.stack(path, dim=1)

    def step(self, nodes: Tensor) -> Tensor:
        """Sample a neighbour of each node by weight; `ENDED` for a node without any."""
        here = nodes.clamp_min(0)
        low, high = self.low[here], self.high[here]
        if not self.keys.numel():
            return torch.full_like(nodes, ENDED)
        chosen = torch.searchsorted(self.ends, low + self._coins(nodes.numel()) * (high - low), right=True)
        first, last = self.matrix.crow[here], self.matrix.crow[here + 1] - 1
        reached = self.matrix.cols[torch.minimum(torch.maximum(chosen, first), last.clamp_min(0))]
        return torch.where((nodes == ENDED) | (high <= low), ENDED, reached)

    def edges(self, count: int) -> Tensor:
        """Sample edges `[count, 2]` by weight."""
        chosen = torch.searchsorted(self.ends, self._coins(count) * self.ends[-1], right=True)
        chosen = chosen.clamp_max(self.keys.numel() - 1)
        return torch.stack([self.matrix.rows[chosen], self.matrix.cols[chosen]], dim=1)

    def _biased(self, before: Tensor, nodes: Tensor) -> Tensor:
        """Sample the next node of each walk by weight and previous node."""
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
        position = torch.searchsorted(self.keys, keys).clamp_max(self.keys.numel() - 1)
        near = torch.where(self.keys[position] == keys, 1.0, 1 / self.away)
        return torch.where(reached == before, 1 / self.back, near)

    def _coins(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, device=self.ends.device)


def edges_to_walk(graph: Graph, device: torch.device, title: str) -> SparseMatrix:
    """Return the adjacency of a graph; reject a graph without edges."""
    matrix = adjacency(graph, self_loops=False).to(device)
    if not matrix.values.numel():
        raise InputError(f"{title} learns from edges alone, and this graph has none", code="no-edges")
    return matrix


class SkipGram(nn.Module):
    r"""Skip-gram with negative sampling: centre vectors u and context vectors v.

    .. math:: \mathcal L = \frac{1}{\sum w_{ij}} \sum_{i, j} w_{ij} \Big(-\log \sigma(u_i^\top v_j)
        - k\, \mathbb E_{n \sim f^{3/4}} \log \sigma(-u_i^\top v_n)\Big), \quad
        w_{ij} = 1 - \frac{|i - j| - 1}{\text{window}}

    over positions i ≠ j of one walk, at most a window apart, the fraction of word2vec's random windows; f is
    the frequency of a node. All pairs of a batch share the negatives. `tied` uses one vector for both roles.
    """

    frequency: Tensor

    def __init__(self, nodes: int, width: int, window: int, negatives: int, tied: bool = False) -> None:
        super().__init__()
        self.window, self.negatives = window, negatives
        self.centres = nn.Parameter((torch.rand(nodes, width) - 0.5) / width)
        self.company = self.centres if tied else nn.Parameter(torch.zeros(nodes, width))
        self.register_buffer("frequency", torch.ones(nodes))

    def loss(self, walks: Tensor, negative_nodes: Tensor | None = None) -> Tensor:
        """Return the loss of walks `[batch, length]`, padded with `ENDED`."""
        if negative_nodes is None:
            negative_nodes = torch.multinomial(self.frequency**0.75, SHARED, replacement=True)
        position = torch.arange(walks.shape[1], device=walks.device)
        apart = (position[:, None] - position[None]).abs()
        band = (1 - (apart - 1) / self.window).clamp_min(0) * (apart > 0)
        there = (walks != ENDED).float()
        weight = band * there[:, :, None] * there[:, None]  # [batch, length, length]
        centres = functional.embedding(walks.clamp_min(0), self.centres)
        company = functional.embedding(walks.clamp_min(0), self.company)
        others = functional.embedding(negative_nodes, self.company)
        return skipgram_loss(centres, company, others, weight, self.negatives)


def skipgram_loss(
    centres: Tensor, company: Tensor, negative_nodes: Tensor, weight: Tensor, negatives: int
) -> Tensor:
    """Return the mean skip-gram loss.

    `centres` are `[batch, positions, width]`, `company` `[batch, others, width]`, `negative_nodes`
    `[shared, width]`; `weight` `[batch, positions, others]` is that of each pair.
    """
    met = functional.logsigmoid(centres @ company.mT)
    apart = functional.logsigmoid(-centres @ negative_nodes.mT).mean(dim=2)
    gain = (weight * met).sum() + negatives * (weight.sum(dim=2) * apart).sum()
    return -gain / weight.sum().clamp_min(1e-6)


@dataclass(frozen=True)
class WalkSettings(EmbedderSettings):
    """Settings of a system that learns from walks; an epoch is one walk from each node.

    Attributes:
        walk_length: nodes on a walk.
        window: maximum distance of two nodes of a pair.
        negatives: weight of the negatives relative to a positive.
        batch: walks per step of the optimizer.
    """

    width: int = 128
    epochs: int = 20
    learning_rate: float = 0.005
    walk_length: int = 80
    window: int = 10
    negatives: int = 5
    batch: int = 32


class WalkEmbedder(BatchEmbedder):
    """A system that learns vectors from walks; a subclass defines `walks`."""

    uses_features = False
    falling = True

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        steps = min(AT_ONCE, sizes.nodes * settings.walk_length)
        positions = settings.batch * settings.walk_length
        batch = positions * (8 * settings.width + 6 * (settings.walk_length + SHARED))
        return 4 * int(sizes.nodes * settings.width * 8 + batch + 4 * steps + 16 * sizes.edges)

    def build(self, graph: Graph) -> None:
        self.nodes = graph.num_nodes
        self.skipgram = SkipGram(
            graph.num_nodes, self.settings.width, self.settings.window, self.settings.negatives
        )

    def walks(self, starts: Tensor) -> Tensor:
        """Return a walk from each of these nodes, `[starts, walk_length]`."""
        raise NotImplementedError

    def begin(self) -> None:
        """Count the nodes on one walk from each node, for the distribution of the negatives."""
        super().begin()
        walks = self._walks_of(torch.arange(self.nodes, device=self.device))
        counts = [torch.bincount(some[some != ENDED], minlength=self.nodes) for some in walks]
        self.skipgram.frequency = torch.stack(counts).sum(dim=0).to(self.skipgram.frequency)

    def batches(self) -> Iterator[Tensor]:
        for walks in self._walks_of(torch.randperm(self.nodes, device=self.device)):
            yield from torch.split(walks, self.settings.batch)

    def batch_loss(self, batch: Tensor) -> Tensor:
        return self.skipgram.loss(batch)

    def embedding(self) -> Tensor:
        return self.skipgram.centres

    def _walks_of(self, nodes: Tensor) -> Iterator[Tensor]:
        """Yield a walk from each node, as many at once as memory allows."""
        for starts in torch.split(nodes, max(1, AT_ONCE // self.settings.walk_length)):
            yield self.walks(starts)


@dataclass(frozen=True)
class LINESettings(EmbedderSettings):
    """Settings of LINE; an epoch samples as many edges as there are directed edges.

    Attributes:
        width: of each of the two parts.
        negatives: weight of the negatives relative to a positive.
        batch: edges per step of the optimizer.
    """

    width: int = 128
    epochs: int = 100
    learning_rate: float = 0.01
    negatives: int = 5
    batch: int = 1024


class LINE(BatchEmbedder, settings=LINESettings):
    r"""Large-scale information network embedding (Tang et al., 2015).

    .. math:: \mathcal L_1 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u_i^\top u_j)
        + k\, \mathbb E_n \log \sigma(-u_i^\top u_n)\big), \quad
        \mathcal L_2 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u'^\top_i v_j)
        + k\, \mathbb E_n \log \sigma(-u'^\top_i v_n)\big)

    with edges drawn by weight and n by degree to the power of 3/4: `SkipGram` on walks of two nodes. Each
    part has rows of length 1. Features are not used.
    """

    uses_features = False
    falling = True

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        vectors = sizes.nodes * settings.width * 12
        return 4 * int(vectors + settings.batch * 2 * (16 * settings.width + 6 * SHARED) + 20 * sizes.edges)

    def build(self, graph: Graph) -> None:
        matrix = edges_to_walk(graph, self.device, "LINE")
        self.walker = Walker(matrix)
        sizes = {"nodes": graph.num_nodes, "width": self.settings.width}
        self.first = SkipGram(**sizes, window=1, negatives=self.settings.negatives, tied=True)
        self.second = SkipGram(**sizes, window=1, negatives=self.settings.negatives)
        self.first.frequency = self.second.frequency = row_sums(matrix)

    def batches(self) -> Iterator[Tensor]:
        yield from torch.split(self.walker.edges(self.walker.keys.numel()), self.settings.batch)

    def batch_loss(self, batch: Tensor) -> Tensor:
        return self.first.loss(batch) + self.second.loss(batch)

    def embedding(self) -> Tensor:
        parts = (self.first.centres, self.second.centres)
        return torch.cat([functional.normalize(part, dim=1) for part in parts], dim=1)


@dataclass(frozen=True)
class Node2VecSettings(WalkSettings):
    """Settings of node2vec; those of the paper, but for Adam in place of plain gradient descent.

    Attributes:
        back: p, large to avoid returning.
        away: q, small to explore far nodes.
    """

    back: float = 1.0
    away: float = 1.0


class Node2Vec(WalkEmbedder, settings=Node2VecSettings):
    r"""Skip-gram on biased random walks (Grover and Leskovec, 2016); features are not used.

    .. math:: P(x \mid t, v) \propto w_{vx} \cdot \begin{cases} 1/p & x = t \\ 1 & (t, x) \in E \\
        1/q & \text{else} \end{cases}

    With p = q = 1 this is DeepWalk (Perozzi et al., 2014) with negative sampling.
    """

    def build(self, graph: Graph) -> None:
        matrix = edges_to_walk(graph, self.device, "node2vec")
        self.walker = Walker(matrix, self.settings.back, self.settings.away)
        super().build(graph)

    def walks(self, starts: Tensor) -> Tensor:
        return self.walker.walks(starts, self.settings.walk_length)


@dataclass(frozen=True)
class SageSettings(EmbedderSettings):
    """Settings of GraphSAGE without labels; an epoch is one walk from each node.

    Attributes:
        width: of a node's own half of each layer, and of its neighbours' half.
        samples: neighbours sampled in the first and in the second layer; 0 for all.
        walk_length: steps of a walk; its start is paired with all others on it.
        negatives: sampled nodes per epoch, each weighted like a positive.
    """

    width: int = 128
    epochs: int = 200
    samples: tuple[int, int] = (0, 0)
    walk_length: int = 5
    negatives: int = 20


class SageUnsupervised(Embedder, settings=SageSettings):
    r"""GraphSAGE with the unsupervised random-walk loss (Hamilton et al., 2017).

    .. math:: h_v' = \big[W_1 h_v \,\|\, W_2\, \tfrac{1}{|N(v)|} \textstyle\sum_{u \in N(v)} h_u\big], \quad
        \mathcal L = -\log \sigma(z_v^\top z_u) - k\, \mathbb E_{n \sim d^{3/4}} \log \sigma(-z_v^\top z_n)

    for u on a walk from v, with ReLU between the layers and unit rows of Z. Training may sample neighbours;
    the embedding uses all of them.
    """

    frequency: Tensor

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        width = settings.width
        rows = 24 * width + sizes.features + max(settings.samples) * 3 * width
        pairs = 4 * settings.walk_length * 2 * width + 4 * settings.negatives
        return 4 * int(sizes.features * width * 8 + sizes.nodes * (rows + pairs) + 16 * sizes.edges)

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        matrix = adjacency(graph, self_loops=False).to(self.device)
        self.walker, self.mean = Walker(matrix), neighbour_mean(matrix)
        self.everyone = torch.arange(graph.num_nodes, device=self.device)
        self.first = nn.Parameter(torch.empty(graph.num_features, 2, width))
        self.second = nn.Parameter(torch.empty(2 * width, 2, width))
        for weight in (self.first, self.second):
            bound = (6 / (weight.shape[0] + width)) ** 0.5
            nn.init.uniform_(weight, -bound, bound)
        degree = row_sums(matrix)
        self.register_buffer("frequency", torch.where(degree.sum() > 0, degree, torch.ones_like(degree)))

    def encode(self, samples: tuple[int, int]) -> Tensor:
        """Return the encoding of all nodes `[nodes, 2 width]`."""
        hidden = torch.relu(self.aggregate(self.features.product(self.first), samples[0]))
        projected = torch.einsum("ni,ijo->njo", hidden, self.second)
        return functional.normalize(self.aggregate(projected, samples[1]), dim=1)

    def aggregate(self, projected: Tensor, samples: int) -> Tensor:
        """Concatenate a node's own projection `[nodes, 2, width][:, 0]` and the mean of its neighbours'."""
        own, others = projected[:, 0], projected[:, 1]
        if not samples:
            return torch.cat([own, self.mean @ others], dim=1)
        drawn = self.walker.step(self.everyone.repeat_interleave(samples))
        known = (drawn != ENDED).float()
        mean = (functional.embedding(drawn.clamp_min(0), others) * known[:, None]).view(len(own), samples, -1)
        return torch.cat([own, mean.mean(dim=1)], dim=1)

    def loss(self, epoch: int) -> Tensor:
        walks = self.walker.walks(self.everyone, self.settings.walk_length + 1)
        drawn = torch.multinomial(self.frequency**0.75, self.settings.negatives, replacement=True)
        return self.meetings(self.encode(self.settings.samples), walks, drawn)

    def meetings(self, rows: Tensor, walks: Tensor, drawn: Tensor) -> Tensor:
        """Return the loss of encodings, given walks `[nodes, length]` and negative nodes."""
        starts, others = walks[:, :1], walks[:, 1:]
        weight = ((others != ENDED) & (others != starts)).float()[:, None]
        company = functional.embedding(others.clamp_min(0), rows)
        return skipgram_loss(rows[starts], company, rows[drawn], weight, self.settings.negatives)

    def embedding(self) -> Tensor:
        return self.encode((0, 0))
