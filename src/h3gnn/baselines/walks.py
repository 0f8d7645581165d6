"""Random walks and skip-gram with negative sampling: LINE, node2vec and struc2vec."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import BatchEmbedder, EmbedderSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency, row_sums, to_device
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.structure import StructuralDistances, structural_distances
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

AT_ONCE = 2**22
"""Steps of walks sampled together, which is faster than batch by batch."""
SHARED = 128
"""Number of negative nodes sampled per batch."""
ENDED = -1
"""Padding after the end of a walk."""


class Walker:
    r"""Samples random walks by edge weight, with the bias of node2vec (Grover and Leskovec, 2016).

    For a walk that came from t, the weight of a step to x is multiplied by 1/p if x is t, by 1 if x is a
    neighbour of t, and by 1/q otherwise. Rejection sampling avoids a table per pair of edges.

    Args:
        matrix: non-negative weights of the steps from row to column; rows need not sum to 1.
        back: p, the return parameter.
        away: q, the in-out parameter.
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
    matrix = to_device(adjacency(graph, self_loops=False), device)
    if not matrix.values.numel():
        raise InputError(
            f"{title} learns from edges alone, and this graph has no edges; use a system that uses features",
            code="no-edges",
        )
    return matrix


class SkipGram(nn.Module):
    r"""Skip-gram with negative sampling: centre vectors u and context vectors v.

    .. math:: \mathcal L = \frac{1}{\sum w_{ij}} \sum_{i, j} w_{ij} \Big(-\log \sigma(u_i^\top v_j)
        - k\, \mathbb E_{n \sim f^{3/4}} \log \sigma(-u_i^\top v_n)\Big), \quad
        w_{ij} = 1 - \frac{|i - j| - 1}{\text{window}}

    over positions i ≠ j of one walk, at most a window apart. The weight is the fraction of word2vec's random
    windows of that size; f is the frequency of a node. All pairs of a batch share the `shared` negatives, so
    that the loss is a product of dense matrices. `tied` uses one vector for both roles.
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
        """Count the nodes of walks, for the distribution of the negatives."""
        met = [torch.bincount(some[some != ENDED], minlength=self.frequency.numel()) for some in walks]
        self.frequency = torch.stack(met).sum(dim=0).to(self.frequency)

    def draw(self) -> Tensor:
        """Sample the negative nodes, `[shared]`."""
        return torch.multinomial(self.frequency**0.75, self.shared, replacement=True)

    def loss(self, walks: Tensor, negative_nodes: Tensor | None = None) -> Tensor:
        """Return the loss of walks `[batch, length]`, padded with `ENDED`."""
        negative_nodes = self.draw() if negative_nodes is None else negative_nodes
        weight = self.pair_weights(walks)
        centres = functional.embedding(walks.clamp_min(0), self.centres)
        company = functional.embedding(walks.clamp_min(0), self.company)
        others = functional.embedding(negative_nodes, self.company)
        return skipgram_loss(centres, company, others, weight, self.negatives)

    def pair_weights(self, walks: Tensor) -> Tensor:
        """Return the weight of each pair of positions, `[batch, length, length]`."""
        position = torch.arange(walks.shape[1], device=walks.device)
        apart = (position[:, None] - position[None]).abs()
        band = (1 - (apart - 1) / self.window).clamp_min(0) * (apart > 0)
        there = (walks != ENDED).float()
        return band * there[:, :, None] * there[:, None]


def skipgram_loss(
    centres: Tensor, company: Tensor, negative_nodes: Tensor, weight: Tensor, negatives: int
) -> Tensor:
    """Return the mean skip-gram loss.

    Args:
        centres: `[batch, positions, width]`.
        company: `[batch, others, width]`, the contexts.
        negative_nodes: `[shared, width]`.
        weight: `[batch, positions, others]`, of each pair; 0 for no pair.
        negatives: weight of the negatives relative to a positive.
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
    """A system that learns vectors from walks; a subclass defines `prepare` and `walks`."""

    uses_features = False
    falling = True

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return the vectors with Adam's moments, the walks drawn together, a batch, and the edges."""
        steps = min(AT_ONCE, sizes.nodes * settings.walk_length)
        positions = settings.batch * settings.walk_length
        batch = positions * (8 * settings.width + 6 * (settings.walk_length + SHARED))
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


class LINE(BatchEmbedder):
    r"""Large-scale information network embedding (Tang et al., 2015).

    .. math:: \mathcal L_1 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u_i^\top u_j)
        + k\, \mathbb E_n \log \sigma(-u_i^\top u_n)\big), \quad
        \mathcal L_2 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u'^\top_i v_j)
        + k\, \mathbb E_n \log \sigma(-u'^\top_i v_n)\big)

    with edges drawn by weight and n by degree to the power of 3/4: `SkipGram` on walks of two nodes. Each
    part has rows of length 1. Features are not used.
    """

    settings_class = LINESettings
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


class Node2Vec(WalkEmbedder):
    r"""Skip-gram on biased random walks (Grover and Leskovec, 2016).

    .. math:: P(x \mid t, v) \propto w_{vx} \cdot \begin{cases} 1/p & x = t \\ 1 & (t, x) \in E \\
        1/q & \text{else} \end{cases}

    The loss is that of `SkipGram`. With p = q = 1 this is DeepWalk (Perozzi et al., 2014) with negative
    sampling. Features are not used.
    """

    settings_class = Node2VecSettings

    def prepare(self, graph: Graph) -> None:
        matrix = edges_to_walk(graph, self.device, "node2vec")
        self.walker = Walker(matrix, self.settings.back, self.settings.away)

    def walks(self, starts: Tensor) -> Tensor:
        return self.walker.walks(starts, self.settings.walk_length)


@dataclass(frozen=True)
class Struc2VecSettings(WalkSettings):
    """Settings of struc2vec.

    Attributes:
        layers: rings around a node that are compared, the node itself being the first.
        stay: the chance that a walk steps to another node and not to another layer.
    """

    layers: int = 4
    stay: float = 0.3


class Struc2Vec(WalkEmbedder):
    r"""Skip-gram on walks between structurally similar nodes (Ribeiro et al., 2017).

    .. math:: p_k(u, v) \propto e^{-f_k(u, v)}, \quad
        p(u_k \to u_{k+1}) = \frac{w}{w + 1}, \quad w = \log\big(\Gamma_k(u) + e\big)

    f is the structural distance, see `structure`; :math:`\Gamma_k(u)` counts the nodes whose weight to u is
    above the mean of the layer: a node similar to many others moves up for a closer comparison. A walk steps
    within its layer with probability `stay`, and else goes a layer up, or down. Only nodes are written down,
    so the layer of the next step is drawn at once: all changes before it add up to the matrix
    :math:`q\,(I - (1 - q)\, T_u)^{-1}`, with :math:`T_u` one change of layer at node u.
    """

    settings_class = Struc2VecSettings

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        pairs = sizes.nodes * math.ceil(math.log2(max(2, sizes.nodes)))
        layers: int = settings.layers
        return super().bytes_for(sizes, settings) + (200 * pairs + 16 * sizes.nodes * layers) * layers

    def prepare(self, graph: Graph) -> None:
        found = structural_distances(graph, self.settings.layers, self.device)
        parts = [found.layer(index) for index in range(self.settings.layers)]
        nodes, states = graph.num_nodes, graph.num_nodes * len(parts)
        shifts = [nodes * index for index in range(len(parts))]
        rows, cols = (
            torch.cat([getattr(part, name) + shift for part, shift in zip(parts, shifts, strict=True)])
            for name in ("rows", "cols")
        )
        values = torch.cat([part.values for part in parts])
        self.walker = Walker(SparseMatrix(rows, cols, values, (states, states)))
        self.changes = layer_changes(found, self.settings.stay).cumsum(dim=2)

    def walks(self, starts: Tensor) -> Tensor:
        nodes, path = self.changes.shape[0], [starts]
        layer = torch.zeros_like(starts)
        for _ in range(1, self.settings.walk_length):
            coins = torch.rand(starts.shape, dtype=torch.float64, device=self.device)[:, None]
            here = path[-1].clamp_min(0)
            layer = (coins >= self.changes[here, layer]).sum(dim=1).clamp_max(self.changes.shape[1] - 1)
            reached = self.walker.step(layer * nodes + here)
            path.append(torch.where((reached < 0) | (path[-1] < 0), -1, reached % nodes))
        return torch.stack(path, dim=1)


def layer_changes(found: StructuralDistances, stay: float) -> Tensor:
    """Return for each node and layer the chances of the layer of the next step, `[nodes, layers, layers]`."""
    layers, device = found.distances.shape[0], found.distances.device
    weights = (-found.distances).exp()
    there = torch.isfinite(found.distances)
    mean = weights.sum(dim=1) / there.sum(dim=1).clamp_min(1)
    above = _per_node((weights > mean[:, None]) & there, found)
    exists = _per_node(there, found) > 0
    up = (above + math.e).log()
    up = up / (up + 1)
    change = torch.zeros(found.nodes, layers, layers, dtype=torch.float64, device=device)
    for layer in range(layers):
        higher = up[layer] * exists[layer + 1] if layer + 1 < layers else torch.zeros_like(up[layer])
        lower = 1 - up[layer] if layer else torch.zeros_like(up[layer])
        change[:, layer, layer] = 1 - higher - lower
        if layer + 1 < layers:
            change[:, layer, layer + 1] = higher
        if layer:
            change[:, layer, layer - 1] = lower
    same = torch.eye(layers, dtype=torch.float64, device=device)
    return stay * torch.linalg.inv(same - (1 - stay) * change)


def _per_node(flags: Tensor, found: StructuralDistances) -> Tensor:
    """Return how many pairs of each node have a flag, float64 `[layers, nodes]`."""
    counts = torch.zeros(flags.shape[0], found.nodes, dtype=torch.float64, device=flags.device)
    for end in found.pairs.unbind(1):
        counts.index_add_(1, end, flags.double())
    return counts
