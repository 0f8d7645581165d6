"""Structural similarity of nodes: struc2vec, and WRGAT, which attends to similar nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.supervised import USUAL_WIDTH, Classifier, ClassifierSettings, Ground, Noise
from h3gnn.baselines.walks import WalkEmbedder, Walker, WalkSettings
from h3gnn.graphs.graph import Graph

HALF = 0.5
"""Added to degrees before their ratio, which allows a degree of 0."""
SOURCES = 256
"""Nodes whose rings are computed together."""
PAIRS = 2**13
"""Pairs of sequences that are warped together."""

Sequences = tuple[Tensor, Tensor, Tensor]
"""Sorted degrees `[sequences, longest]`, their counts, and the lengths `[sequences]`."""


@dataclass(frozen=True, eq=False)
class StructuralDistances:
    """Distances of candidate pairs of similar nodes.

    `pairs` `[pairs, 2]` has the smaller node first and each pair once; `distances` `[layers, pairs]` are up
    to the ring of that layer, infinite for an empty ring.
    """

    pairs: Tensor
    distances: Tensor
    nodes: int

    def layer(self, index: int, nearest: int = 0) -> SparseMatrix:
        """Return a layer's weights :math:`e^{-f_k(u, v)}`, of all or the `nearest` nodes; rows sum to 1."""
        found = torch.isfinite(self.distances[index])
        one, two = self.pairs[found].unbind(1)
        rows, cols = torch.cat([one, two]), torch.cat([two, one])
        far = self.distances[index][found].repeat(2)
        order = torch.argsort(far, stable=True)
        order = order[torch.argsort(rows[order], stable=True)]  # by row, the most alike first
        rows, cols, far = rows[order], cols[order], far[order]
        starts = torch.searchsorted(rows, torch.arange(self.nodes, device=rows.device))
        weights = (far[starts[rows]] - far).exp()
        if nearest:
            kept = torch.arange(rows.numel(), device=rows.device) - starts[rows] < nearest
            rows, cols, weights = rows[kept], cols[kept], weights[kept]
        total = weights.new_zeros(self.nodes).index_add_(0, rows, weights)
        position = torch.argsort(rows * self.nodes + cols)
        values = (weights / total[rows]).float()
        return SparseMatrix(rows[position], cols[position], values[position], (self.nodes, self.nodes))


def structural_distances(graph: Graph, layers: int, device: torch.device) -> StructuralDistances:
    r"""Return structural distances between nodes (Ribeiro et al., 2017).

    .. math:: f_k(u, v) = f_{k-1}(u, v) + \mathrm{DTW}\big(s(R_k(u)), s(R_k(v))\big)

    :math:`s(R_k(u))` is the sorted degree sequence of the nodes at distance k from u; DTW is dynamic time
    warping. Sequences are compressed to pairs (degree, count), and two pairs cost
    :math:`(\max(a, b) / \min(a, b) - 1) \max(n_a, n_b)`, where a and b are the degrees plus one half. A node
    is compared with the :math:`\log_2 n` nodes before and after it in the order of degrees, ties shuffled.
    """
    edges = adjacency(graph, self_loops=False)
    degrees = edges.crow.diff().numpy()
    pairs = _candidates(degrees)
    parts = []
    for counts in _rings(edges, degrees, layers):
        unique, kind = np.unique(counts, axis=0, return_inverse=True)
        kinds = torch.from_numpy(kind.reshape(-1).astype(np.int64))[pairs]
        sequences = compressed(np.unique(degrees), unique)
        parts.append(_distances_of(kinds, sequences, device))
    distances = torch.stack(parts).cumsum(0) if parts else torch.zeros(0, pairs.shape[0])
    return StructuralDistances(pairs.to(device), distances, graph.num_nodes)


def compressed(degrees: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Sequences:
    """Return sequences from how often each degree occurs in each, `[sequences, degrees]`."""
    present = counts > 0
    order = np.argsort(~present, axis=1, kind="stable")[:, : max(1, int(present.sum(1).max(initial=0)))]
    values = np.where(np.take_along_axis(present, order, 1), degrees[order], 0)
    often = np.take_along_axis(counts, order, 1)
    return (
        torch.from_numpy(values).double(),
        torch.from_numpy(often).double(),
        torch.from_numpy(present.sum(1)),
    )


def warped(one: Sequences, two: Sequences) -> Tensor:
    """Return the cost of warping each sequence onto its partner, `[pairs]`; infinite for an empty one."""
    (degrees, often, length), (others, other_often, other_length) = one, two
    count, rows, columns = degrees.shape[0], degrees.shape[1], others.shape[1]
    found = torch.full((count,), torch.inf, dtype=torch.float64, device=degrees.device)
    before = torch.full((count, rows + 1), torch.inf, dtype=torch.float64, device=degrees.device)
    last = before.clone()
    before[:, 0] = 0  # nothing onto nothing
    for diagonal in range(2, rows + columns + 1):
        low, high = max(1, diagonal - columns), min(rows, diagonal - 1)
        position = torch.arange(low, high + 1, device=degrees.device)
        a, b = degrees[:, position - 1] + HALF, others[:, diagonal - position - 1] + HALF
        cost = torch.maximum(a, b) / torch.minimum(a, b) - 1
        cost = cost * torch.maximum(often[:, position - 1], other_often[:, diagonal - position - 1])
        least = torch.minimum(
            torch.minimum(last[:, position - 1], last[:, position]), before[:, position - 1]
        )
        now = torch.full_like(last, torch.inf)
        now[:, position] = cost + least
        ends = (length + other_length == diagonal) & (length >= low) & (length <= high)
        found = torch.where(ends, now.gather(1, length.clamp_max(rows)[:, None]).squeeze(1), found)
        before, last = last, now
    return torch.where((length > 0) & (other_length > 0), found, torch.inf)


def _distances_of(kinds: Tensor, sequences: Sequences, device: torch.device) -> Tensor:
    """Return the cost of each pair of sequences `[pairs, 2]`; pairs of the same two are warped once."""
    sorted_kinds = kinds.sort(dim=1).values
    number = sequences[0].shape[0]
    keys, which = torch.unique(sorted_kinds[:, 0] * number + sorted_kinds[:, 1], return_inverse=True)
    one, two = keys // number, keys % number
    work = torch.argsort(sequences[2][one] + sequences[2][two])
    costs = torch.empty(keys.numel(), dtype=torch.float64, device=device)
    for start in range(0, work.numel(), PAIRS):
        some = work[start : start + PAIRS]
        left, right = (_some(sequences, ends[some], device) for ends in (one, two))
        costs[some.to(device)] = warped(left, right)
    return costs[which.to(device)]


def _some(sequences: Sequences, chosen: Tensor, device: torch.device) -> Sequences:
    """Return some of the sequences, no wider than their longest."""
    degrees, often, length = sequences
    longest = max(1, int(length[chosen].max()))
    shorter = degrees[chosen, :longest], often[chosen, :longest]
    return shorter[0].to(device), shorter[1].to(device), length[chosen].to(device)


def _candidates(degrees: npt.NDArray[np.int64]) -> Tensor:
    """Return the pairs of nodes close to each other in the order of degrees, each once."""
    nodes = degrees.shape[0]
    shuffle = np.random.default_rng(0).permutation(nodes)
    order = torch.from_numpy(shuffle[np.argsort(degrees[shuffle], kind="stable")])
    reach = min(nodes - 1, max(1, math.ceil(math.log2(max(2, nodes)))))
    ends = [torch.stack([order[:-step], order[step:]], dim=1) for step in range(1, reach + 1)]
    pairs = torch.cat(ends) if ends else torch.empty(0, 2, dtype=torch.int64)
    return pairs.sort(dim=1).values


def _rings(edges: SparseMatrix, degrees: npt.NDArray[np.int64], layers: int) -> list[npt.NDArray[np.int64]]:
    """Return for each layer how often each degree occurs in the ring of each node, `[nodes, degrees]`."""
    import scipy.sparse as sp

    nodes = degrees.shape[0]
    ones = np.ones(edges.cols.numel(), dtype=np.float32)
    near = sp.csr_array((ones, edges.cols.numpy(), edges.crow.numpy()), shape=edges.shape)
    known, kind = np.unique(degrees, return_inverse=True)
    one_hot = sp.csr_array(
        (np.ones(nodes, dtype=np.float32), (kind, np.arange(nodes))), shape=(known.size, nodes)
    )
    counts = [np.zeros((nodes, known.size), dtype=np.int64) for _ in range(layers)]
    for start in range(0, nodes, SOURCES):
        sources = np.arange(start, min(nodes, start + SOURCES))
        ring = np.zeros((nodes, sources.size), dtype=np.float32)
        ring[sources, sources - start] = 1
        seen = ring > 0
        for layer in range(layers):
            counts[layer][sources] = np.rint(one_hot @ ring).T
            ring = ((near @ ring > 0) & ~seen).astype(np.float32)
            seen |= ring > 0
    return counts


@dataclass(frozen=True)
class Struc2VecSettings(WalkSettings):
    """Settings of struc2vec.

    Attributes:
        layers: rings around a node that are compared, the node itself being the first.
        stay: the probability that a walk steps to another node and not to another layer.
    """

    layers: int = 4
    stay: float = 0.3


class Struc2Vec(WalkEmbedder, settings=Struc2VecSettings):
    r"""Skip-gram on walks between structurally similar nodes (Ribeiro et al., 2017).

    .. math:: p_k(u, v) \propto e^{-f_k(u, v)}, \quad
        p(u_k \to u_{k+1}) = \frac{w}{w + 1}, \quad w = \log\big(\Gamma_k(u) + e\big)

    f is the structural distance, and :math:`\Gamma_k(u)` counts the nodes whose weight to u is above the
    layer's mean. A walk steps within its layer with probability q, `stay`, and else goes a layer up or down:
    all such changes :math:`T_u` before a step add up to :math:`q\,(I - (1 - q)\, T_u)^{-1}`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        pairs = sizes.nodes * math.ceil(math.log2(max(2, sizes.nodes)))
        layers: int = settings.layers
        return super().bytes_for(sizes, settings) + (200 * pairs + 16 * sizes.nodes * layers) * layers

    def build(self, graph: Graph) -> None:
        found = structural_distances(graph, self.settings.layers, self.device)
        parts = [found.layer(index) for index in range(self.settings.layers)]
        nodes, states = graph.num_nodes, graph.num_nodes * len(parts)
        rows = torch.cat([part.rows + nodes * layer for layer, part in enumerate(parts)])
        cols = torch.cat([part.cols + nodes * layer for layer, part in enumerate(parts)])
        values = torch.cat([part.values for part in parts])
        self.walker = Walker(SparseMatrix(rows, cols, values, (states, states)))
        self.changes = layer_changes(found, self.settings.stay).cumsum(dim=2)
        super().build(graph)

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
    """Return the probabilities of the layer of the next step, `[nodes, layers, layers]`."""
    layers, device = found.distances.shape[0], found.distances.device
    weights = (-found.distances).exp()
    there = torch.isfinite(found.distances)
    mean = weights.sum(dim=1) / there.sum(dim=1).clamp_min(1)
    above = _per_node((weights > mean[:, None]) & there, found)
    exists = _per_node(there, found) > 0
    up = (above + math.e).log()
    up = up / (up + 1)
    higher, lower = torch.zeros(2, found.nodes, layers, dtype=torch.float64, device=device)
    higher[:, :-1] = (up[:-1] * exists[1:]).t()
    lower[:, 1:] = (1 - up[1:]).t()
    change = torch.diag_embed(1 - higher - lower)
    change += torch.diag_embed(higher[:, :-1], 1) + torch.diag_embed(lower[:, 1:], -1)
    same = torch.eye(layers, dtype=torch.float64, device=device)
    return stay * torch.linalg.inv(same - (1 - stay) * change)


def _per_node(flags: Tensor, found: StructuralDistances) -> Tensor:
    """Return how many pairs of each node have a flag, float64 `[layers, nodes]`."""
    counts = torch.zeros(flags.shape[0], found.nodes, dtype=torch.float64, device=flags.device)
    for end in found.pairs.unbind(1):
        counts.index_add_(1, end, flags.double())
    return counts


@dataclass(frozen=True)
class WRGATSettings(ClassifierSettings):
    """Settings of WRGAT.

    Attributes:
        layers: rings around a node that are compared; each is a relation, next to that of the edges.
        nearest: number of the most similar nodes per relation; 0 for all candidates.
        near_weight: of the edges, where the weights of a node in each other relation add up to 1.
    """

    layers: int = 3
    nearest: int = 5
    near_weight: float = 1.0


class WRGAT(Classifier, settings=WRGATSettings):
    r"""Relational attention over edges and structural similarity (Suresh et al., 2021).

    .. math:: h'_v = W_0 h_v + b + \sum_r \frac{1}{|N_r(v)|} \sum_{u \in N_r(v)}
        w^r_{uv}\, \alpha^r_{vu}\, W_r h_u, \quad
        \alpha^r_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a_r^\top [W_r h_v \,|\, W_r h_u])

    :math:`w^r_{uv} = e^{-f_r(u, v)} / \sum_x e^{-f_r(u, x)}` with the structural distance f of `structure`;
    the edges of the graph have one weight. ReLU and dropout are between the layers.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        edges = adjacency(graph, self_loops=False)
        relations = [edges.with_values(torch.full_like(edges.values, settings.near_weight))]
        found = structural_distances(graph, settings.layers, torch.device("cpu"))
        relations += [found.layer(index, settings.nearest) for index in range(settings.layers)]
        made: dict[str, SparseMatrix] = {}
        for number, relation in enumerate(one for one in relations if one.values.numel()):
            # A row lists the nodes similar to its node; messages go from the row to its columns.
            received = relation.transposed()
            ends = edge_ends(received, received.values / received.crow.diff()[received.rows])
            made |= {f"{end} {number}": matrix for end, matrix in ends.items()}
        return made

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layers: int = settings.layers
        alike = 2 * math.ceil(math.log2(max(2, sizes.nodes))) if not settings.nearest else settings.nearest
        edges = sizes.edges + layers * alike * sizes.nodes
        rows = sizes.nodes * (layers + 2) * 6 * USUAL_WIDTH + sizes.features * (layers + 2) * 6 * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * (edges * (4 * USUAL_WIDTH + 30) + rows)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        counts = [one.shape[1] for name, one in ground.matrices.items() if name.startswith("sum")]
        maps = (len(counts) + 1) * width * (6 * ground.features.shape[1] + 4 * ground.features.shape[0])
        on_edges = sum(counts) * (4 * width + 4 * ground.classes + 16)
        return super().bytes_each(ground, width) + 4 * (maps + on_edges)

    def build(self) -> None:
        self.relations = len(self.ground.matrices) // 3
        sizes = {"first": (self.in_channels, self.width), "second": (self.width, self.ground.classes)}
        for layer, (rows, columns) in sizes.items():
            self.weights.glorot(layer, rows, (1 + self.relations) * columns, rows + columns)
            self.weights.zeros(f"{layer} bias", columns)
            for end in ("from", "to") if self.relations else ():
                self.weights.glorot(f"{layer} {end}", self.relations, columns, self.relations + 2 * columns)

    def logits(self, noise: Noise | None) -> Tensor:
        hidden = functional.relu(self.attend(self.ground.features.product(self.weights["first"]), "first"))
        hidden = self.dropped(hidden, noise)
        return self.attend(self.dense(hidden, "second"), "second")

    def attend(self, mapped: Tensor, layer: str) -> Tensor:
        """Return a layer's values from all maps side by side, `[nodes, models, (1 + relations) width]`."""
        own, *projected = mapped.chunk(1 + self.relations, dim=2)
        total: Tensor = own + self.weights[f"{layer} bias"]
        for relation, x in enumerate(projected):
            total = total + self.receive(x, relation, layer)
        return total

    def receive(self, x: Tensor, relation: int, layer: str) -> Tensor:
        """Return the messages of one relation, summed at each node."""
        from torch_geometric.utils import softmax

        source, target, total = (
            self.ground.matrices[f"{name} {relation}"] for name in ("source", "target", "sum")
        )
        sent, received = (
            (x * self.weights[f"{layer} {end}"][relation]).sum(dim=-1, keepdim=True) for end in ("from", "to")
        )
        score = functional.leaky_relu(source @ sent + target @ received, 0.2)
        share = softmax(score.flatten(1), target.cols, num_nodes=x.shape[0]).view_as(score)
        return total @ (share * (source @ x))
