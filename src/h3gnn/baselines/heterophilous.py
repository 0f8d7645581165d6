"""Supervised systems for heterophilous graphs: H2GCN, FAGCN, GPR-GNN, G², AERO-GNN and PCNet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classics import MLP
from h3gnn.baselines.layers import (
    SparseMatrix,
    adjacency,
    edge_ends,
    neighbour_mean,
    pairs_of,
    symmetric,
    two_hop_adjacency,
)
from h3gnn.baselines.registry import Sizes, check_choice
from h3gnn.baselines.supervised import Classifier, ClassifierSettings, Noise
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


class H2GCN(Classifier):
    r"""Concatenated means over one-hop and two-hop neighbours (Zhu et al., 2020).

    .. math:: r_0 = \mathrm{ReLU}(X W_e), \quad r_k = [\bar A_1 r_{k-1} \,|\, \bar A_2 r_{k-1}], \quad
        \hat y = \mathrm{softmax}([r_0 | r_1 | r_2] W_c)

    :math:`\bar A_i` joins nodes exactly i steps apart, without self-loops, symmetrically normalized.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        near = adjacency(graph, self_loops=False)
        return {"near": symmetric(near), "far": symmetric(two_hop_adjacency(near))}

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return 30 * sizes.nodes * width

    def build(self) -> None:
        self.weights.glorot("embed", self.in_channels, self.width)
        self.weights.glorot("classify", 7 * self.width, self.ground.classes)
        self.weights.zeros("bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        near, far = self.ground.matrices["near"], self.ground.matrices["far"]
        rounds = [functional.relu(self.ground.features.product(self.weights["embed"], noise))]
        if noise is None:
            return self.classified(rounds[0]) + self.weights["bias"]
        for _ in range(2):
            rounds.append(torch.cat([near @ rounds[-1], far @ rounds[-1]], dim=2))
        joined = noise.drop(torch.cat(rounds, dim=2))
        return self.dense(joined, "classify") + self.weights["bias"]

    def classified(self, start: Tensor) -> Tensor:
        """Classify before propagation, which is equivalent without dropout and needs fewer columns."""
        near, far = self.ground.matrices["near"], self.ground.matrices["far"]
        maps = torch.split(self.weights["classify"], self.width)
        parts = torch.stack(maps, dim=2).flatten(2)  # [in, models, 7 · out]
        projected = torch.einsum("nmc,cmk->nmk", start, parts)
        own, one, two, one_one, one_two, two_one, two_two = projected.chunk(7, dim=2)
        near_ones = one + near @ one_one + far @ one_two
        return own + near @ near_ones + far @ (two + near @ two_one + far @ two_two)


@dataclass(frozen=True)
class FAGCNSettings(ClassifierSettings):
    """Settings of FAGCN.

    Attributes:
        layers: number of propagation steps.
        keep: ε, weight of the initial values in each layer.
    """

    layers: int = 4
    keep: float = 0.3


class FAGCN(Classifier, settings=FAGCNSettings):
    r"""Frequency-adaptive propagation with signed edge weights (Bo et al., 2021).

    .. math:: h^0 = \mathrm{ReLU}(X W_1 + b_1), \quad
        h_v^l = \varepsilon h_v^0 + \sum_{u \in N(v)} \frac{\alpha^l_{vu}}{\sqrt{d_v d_u}} h_u^{l-1}, \quad
        \alpha^l_{vu} = \tanh(g_l^\top [h_v^{l-1} | h_u^{l-1}] + c_l), \quad \hat y = h^L W_2 + b_2

    Features, :math:`h^0` and the :math:`\alpha_{vu}` have dropout in training.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        scaled = symmetric(adjacency(graph, self_loops=False))
        return edge_ends(scaled, scaled.values)

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return settings.layers * ((3 * sizes.edges + 5 * sizes.nodes) * width + 8 * sizes.edges)

    def build(self) -> None:
        self.weights.linear("first", self.in_channels, self.width, gain=2)
        for layer in range(self.settings.layers):
            fan = (2 * self.width + 1) // 2
            self.weights.glorot(f"gate {layer} to", 1, self.width, fan)
            self.weights.glorot(f"gate {layer} from", 1, self.width, fan)
            self.weights.zeros(f"gate {layer} bias", 1)
        self.weights.linear("second", self.width, self.ground.classes, gain=2)

    def logits(self, noise: Noise | None) -> Tensor:
        first = self.ground.features.product(self.weights["first"], noise)
        start = hidden = self.dropped(functional.relu(first + self.weights["first bias"]), noise)
        for layer in range(self.settings.layers):
            hidden = self.settings.keep * start + self.gathered(hidden, layer, noise)
        return self.dense(hidden, "second") + self.weights["second bias"]

    def gathered(self, hidden: Tensor, layer: int, noise: Noise | None) -> Tensor:
        ends = self.ground.matrices
        gates = (self.weights[f"gate {layer} {end}"] for end in ("to", "from"))
        to, sent = ((hidden * gate).sum(dim=2, keepdim=True) for gate in gates)
        score = ends["target"] @ to + ends["source"] @ sent
        gate = self.dropped(torch.tanh(score + self.weights[f"gate {layer} bias"]), noise)
        return ends["sum"] @ (gate * (ends["source"] @ hidden))


STARTS = ("ppr", "nppr", "sgc", "random")
"""Initial weights of the steps, see `start_weights`."""


@dataclass(frozen=True)
class GPRGNNSettings(ClassifierSettings):
    """Settings of GPR-GNN; those of its authors' code.

    Attributes:
        steps: K, the number of propagation steps.
        start: initial weights of the steps, one of `STARTS`.
        restart: α of the initial weights.
        propagation_dropout: before the propagation.
        steps_decay: factor of the weight decay for the weights of the steps.
    """

    steps: int = 10
    start: str = "ppr"
    restart: float = 0.1
    propagation_dropout: float = 0.5
    steps_decay: float = 0.0


class GPRGNN(MLP, settings=GPRGNNSettings):
    r"""Generalized PageRank: learned weights of the propagation steps (Chien et al., 2021).

    .. math:: H_0 = \mathrm{ReLU}(X W_1 + b_1) W_2 + b_2, \quad H_k = P H_{k-1}, \quad
        \hat y = \mathrm{softmax}\big(\textstyle\sum_{k=0}^{K} \gamma_k H_k\big)

    :math:`P = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`; negative :math:`\gamma_k` set neighbours apart.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return 3 * settings.steps * sizes.nodes * classes

    def build(self) -> None:
        super().build()
        settings = self.settings
        if settings.start == "random":
            bound = math.sqrt(3 / (settings.steps + 1))
            self.weights.uniform("steps", settings.steps + 1, 1, bound, decay=settings.steps_decay)
            with torch.no_grad():
                self.weights["steps"].div_(self.weights["steps"].abs().sum(dim=0))
        else:
            start = start_weights(settings.start, settings.steps, settings.restart)
            self.weights.constant("steps", start[:, None], decay=settings.steps_decay)

    def logits(self, noise: Noise | None) -> Tensor:
        propagated = super().logits(noise)
        if noise is not None:
            propagated = noise.at(self.settings.propagation_dropout).drop(propagated)
        weights = self.weights["steps"].unbind(0)
        total = weights[0] * propagated
        for weight in weights[1:]:
            propagated = self.ground.matrices["gcn"] @ propagated
            total = total + weight * propagated
        return total


def start_weights(start: str, steps: int, restart: float) -> Tensor:
    r"""Return the initial weights of 0 to K steps, `[steps + 1]`.

    "ppr": :math:`\alpha (1 - \alpha)^k`, and the rest of 1 on the last; "nppr": :math:`\alpha^k`, divided by
    the sum of their sizes; "sgc": all on the last step.
    """
    check_choice("GPR-GNN", "start", start, STARTS)
    powers = torch.arange(steps + 1)
    if start == "sgc":
        return (powers == steps).float()
    if start == "nppr":
        weights = torch.tensor(restart) ** powers
        return weights / weights.abs().sum()
    weights = restart * torch.tensor(1 - restart) ** powers
    weights[-1] = (1 - restart) ** steps
    return weights


INNER = ("sage", "gcn")
"""The layers that can be gated."""


@dataclass(frozen=True)
class G2Settings(ClassifierSettings):
    """Settings of G²; those of the authors' code, but for fewer layers and a faster exponent.

    Attributes:
        layers: number of layers, which share their weights.
        inner: the layer that is gated, one of `INNER`.
        exponent: p of the differences, at least 1.
        own_gate: whether the gate has separate weights.
        last_dropout: before the classifier.
    """

    layers: int = 4
    inner: str = "sage"
    exponent: float = 2.0
    own_gate: bool = False
    last_dropout: float = 0.1


class G2(Classifier, settings=G2Settings):
    r"""Gradient gating (Rusch et al., 2023).

    .. math:: X^0 = \mathrm{ReLU}(X W + b), \quad
        X^{l} = (1 - \tau^l) \odot X^{l-1} + \tau^l \odot \sigma(F(X^{l-1})), \quad
        \tau^l_{vk} = \tanh\Big(\tfrac{1}{|N(v)|} \sum_{u \in N(v)}
        \big|\sigma(\hat F(X^{l-1}))_{uk} - \sigma(\hat F(X^{l-1}))_{vk}\big|^p\Big)

    F is a layer of GraphSAGE or of a GCN, :math:`\hat F` is F or another such layer, and :math:`\sigma` a
    ReLU. The mean is that of the authors' code, where the paper has a sum.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        check_choice("G²", "inner", settings.inner, INNER)
        if settings.exponent < 1:
            raise InputError("G²: exponent must be at least 1", code="invalid-setting")
        near = adjacency(graph, self_loops=False)
        mean = neighbour_mean(near)
        each = neighbour_mean(near.with_values(torch.ones_like(near.values)))
        inner = mean if settings.inner == "sage" else symmetric(adjacency(graph, self_loops=True))
        return {**edge_ends(near, each.values), "inner": inner}

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return settings.layers * (3 * sizes.edges + 10 * sizes.nodes) * width

    def build(self) -> None:
        self.weights.linear("first", self.in_channels, self.width)
        for layer in ("inner", "gate") if self.settings.own_gate else ("inner",):
            self.weights.glorot(f"{layer} near", self.width, self.width)
            if self.settings.inner == "sage":
                self.weights.glorot(f"{layer} own", self.width, self.width)
            self.weights.zeros(f"{layer} bias", self.width)
        self.weights.linear("second", self.width, self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = functional.relu(first + self.weights["first bias"])
        for _ in range(self.settings.layers):
            proposed = self.layer(hidden, "inner")
            gate = self.rate(self.layer(hidden, "gate") if self.settings.own_gate else proposed)
            hidden = torch.lerp(hidden, proposed, gate)
        hidden = hidden if noise is None else noise.at(self.settings.last_dropout).drop(hidden)
        return self.dense(hidden, "second") + self.weights["second bias"]

    def layer(self, hidden: Tensor, name: str) -> Tensor:
        total = self.ground.matrices["inner"] @ self.dense(hidden, f"{name} near")
        if self.settings.inner == "sage":
            total = total + self.dense(hidden, f"{name} own")
        return functional.relu(total + self.weights[f"{name} bias"])

    def rate(self, x: Tensor) -> Tensor:
        """Return τ from the differences to the neighbours."""
        ends = self.ground.matrices
        apart = (ends["source"] @ x - ends["target"] @ x).abs() ** self.settings.exponent
        return torch.tanh(ends["sum"] @ apart)


SMALL = 1e-6
"""ε, the lower bound of attention and fading."""


@dataclass(frozen=True)
class AEROGNNSettings(ClassifierSettings):
    """Settings of AERO-GNN.

    Attributes:
        iterations: number of propagation steps.
        layers: of the MLP.
        fading: λ; a larger one gives the accumulated sum more weight in the attention of early hops.
        last_dropout: whether dropout precedes the classifier.
        attention_decay: factor of the weight decay for the attention.
    """

    iterations: int = 4
    layers: int = 2
    fading: float = 0.5
    last_dropout: bool = True
    attention_decay: float = 1.0


class AEROGNN(Classifier, settings=AEROGNNSettings):
    r"""Attentive deep propagation (Lee et al., 2023).

    .. math:: H^{(k)} = \mathcal A^{(k)} H^{(k-1)}, \quad
        Z^{(k)} = \textstyle\sum_{l \le k} \Gamma^{(l)} H^{(l)}, \quad
        \tilde Z^{(k)} = \ln\big(\tfrac{\lambda}{k + 1} + 1 + \varepsilon\big) Z^{(k)}

    .. math:: \alpha^{(k)}_{ij} = \mathrm{softplus}\big(a_k^\top\, \mathrm{ELU}(\tilde z_i + \tilde z_j)\big),
        \quad \gamma^{(k)}_i = b_k + w_k^\top\, \mathrm{ELU}[h^{(k)}_i \,|\, \tilde z_i],
        \quad \tilde z = \tilde z^{(k-1)}

    H⁽⁰⁾ is the output of an MLP, 𝒜 is α over the edges and self-loops, symmetrically normalized, Γ is
    diagonal with γ, and the logits are a linear map of the last ELU(Z). α is computed once per pair of nodes.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        edges = adjacency(graph, self_loops=True)
        count, nodes = edges.cols.numel(), graph.num_nodes
        pairs, pair = pairs_of(edges)
        order = torch.argsort(pair * nodes + edges.rows)
        twice = torch.where(edges.rows == edges.cols, 2.0, 1.0)  # both ends of a self-loop are one node
        ends = SparseMatrix(pair[order], edges.rows[order], twice[order], (pairs, nodes))
        of_pair = SparseMatrix(torch.arange(count), pair, torch.ones(count), (count, pairs))
        return {**edge_ends(edges), "ends": ends, "pair": of_pair}

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return settings.iterations * (3 * sizes.edges + 9 * sizes.nodes) * width

    def build(self) -> None:
        width, steps, share = self.width, self.settings.iterations, self.settings.attention_decay
        for layer in range(self.settings.layers):
            self.weights.glorot(f"map {layer}", width if layer else self.in_channels, width)
            self.weights.zeros(f"map {layer} bias", width)
        self.weights.glorot("edge", steps, width, 1 + width, decay=share)
        self.weights.glorot("first hop", 1, width, decay=share)
        self.weights.glorot("hop", steps, 2 * width, 1 + 2 * width, decay=share)
        self.weights.constant("hop start", torch.ones(steps + 1, 1), decay=share)
        self.weights.glorot("classify", width, self.ground.classes)
        self.weights.zeros("bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        hidden = self.ground.features.product(self.weights["map 0"], noise) + self.weights["map 0 bias"]
        for layer in range(1, self.settings.layers):
            hidden = functional.elu(hidden)
            hidden = self.dropped(hidden, noise)
            hidden = self.dense(hidden, f"map {layer}") + self.weights[f"map {layer} bias"]
        last = noise if self.settings.last_dropout else None
        total = self.dropped(functional.elu(self.gather(hidden)), last)
        return self.dense(total, "classify") + self.weights["bias"]

    def gather(self, hidden: Tensor) -> Tensor:
        """Return Z after the last step, for H⁽⁰⁾ `[nodes, models, width]`."""
        starts = self.weights["hop start"]
        total = hidden * (_weigh(hidden, self.weights["first hop"][0]) + starts[0])
        for step in range(1, self.settings.iterations + 1):
            decayed = total * math.log(self.settings.fading / step + 1 + SMALL)
            hidden = self.spread(hidden, self.attention(decayed, step))
            seen = torch.cat([hidden, decayed], dim=2)
            total = total + hidden * (_weigh(seen, self.weights["hop"][step - 1]) + starts[step])
        return total

    def attention(self, decayed: Tensor, step: int) -> Tensor:
        """Return α of both directions of each edge, `[edges, models, 1]`."""
        matrices = self.ground.matrices
        score = _weigh(matrices["ends"] @ decayed, self.weights["edge"][step - 1])
        return matrices["pair"] @ (functional.softplus(score) + SMALL)

    def spread(self, hidden: Tensor, attention: Tensor) -> Tensor:
        """Return 𝒜 H."""
        source, total = self.ground.matrices["source"], self.ground.matrices["sum"]
        scale = (total @ attention).rsqrt()
        return scale * (total @ (attention * (source @ (scale * hidden))))


def _weigh(x: Tensor, weights: Tensor) -> Tensor:
    """Return the product of ELU(x) `[rows, models, width]` with `[models, width]`, `[rows, models, 1]`."""
    return (functional.elu(x) * weights).sum(dim=-1, keepdim=True)


@dataclass(frozen=True)
class PCNetSettings(ClassifierSettings):
    """Settings of PCNet.

    Attributes:
        filters: K, the number of powers of I - L.
        terms: N, of each filter's series.
        heat: t, the diffusion time.
        diagonal: b, the diagonal of the Laplacian.
        power: c, the exponent of the degree normalization.
        start: initial weight of each filter.
        input_dropout, filter_dropout: of the features and of the input of the filters.
        second_rate, second_decay: factors of the learning rate and weight decay of the second map.
        filter_rate, filter_decay: likewise for the weights of the filters.
    """

    filters: int = 5
    terms: int = 4
    heat: float = 1.0
    diagonal: float = 1.5
    power: float = 0.5
    start: float = 0.5
    input_dropout: float = 0.1
    filter_dropout: float = 0.1
    second_rate: float = 1.0
    second_decay: float = 1.0
    filter_rate: float = 1.0
    filter_decay: float = 1.0


class PCNet(Classifier, settings=PCNetSettings):
    r"""Two-fold filtering with Poisson–Charlier polynomials (Li et al., 2024).

    .. math:: \hat Y = \theta_0 Y + \sum_{k=1}^{K} \theta_k \sum_{n=0}^{N-1}
        \frac{C_n(k, t)}{n!} (-L)^n Y, \quad Y = (X W_1 + b_1) W_2 + b_2, \quad
        L = b I - \tilde D^{-c} (A + I) \tilde D^{-c}

    :math:`C_0 = 1, C_1 = k - t, C_n = (k - n - t + 1) C_{n-1} - (n - 1) t C_{n-2}`: for many terms, the inner
    sum is :math:`e^{tL} (I - L)^k`. The sums are exchanged, so that N - 1 products with L serve all filters.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return {"near": symmetric(adjacency(graph, self_loops=True), settings.power)}

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return 2 * settings.terms * sizes.nodes * classes

    def build(self) -> None:
        settings, classes = self.settings, self.ground.classes
        first, second = 1 / math.sqrt(max(1, self.in_channels)), 1 / math.sqrt(self.width)
        apart = {"rate": settings.second_rate, "decay": settings.second_decay}
        self.weights.uniform("first", self.in_channels, self.width, first)
        self.weights.uniform("first bias", 1, self.width, first)
        self.weights.uniform("second", self.width, classes, second, **apart)
        self.weights.uniform("second bias", 1, classes, second, **apart)
        shares = torch.full((settings.filters + 1, 1), settings.start)
        self.weights.constant("shares", shares, rate=settings.filter_rate, decay=settings.filter_decay)
        self.series = series(settings.filters, settings.terms, settings.heat).to(self.weights.device)

    def logits(self, noise: Noise | None) -> Tensor:
        settings = self.settings
        early = None if noise is None else noise.at(settings.input_dropout)
        hidden = self.ground.features.product(self.weights["first"], early) + self.weights["first bias"]
        hidden = self.dropped(hidden, noise)
        scores = self.dense(hidden, "second") + self.weights["second bias"]
        return self.filter(scores if noise is None else noise.at(settings.filter_dropout).drop(scores))

    def filter(self, scores: Tensor) -> Tensor:
        """Return Ŷ for Y `[nodes, models, classes]`."""
        shares = torch.tensordot(self.series, self.weights["shares"], dims=1)  # [terms, models, 1]
        near = self.ground.matrices["near"]
        filtered: Tensor = shares[0] * scores
        for share in shares[1:]:
            scores = near @ scores - self.settings.diagonal * scores
            filtered = filtered + share * scores
        return filtered


def series(filters: int, terms: int, heat: float) -> Tensor:
    """Return what each filter has of each power of -L, `[terms, 1 + filters]`; filter 0 is 1."""
    table = torch.zeros(terms, 1 + filters, dtype=torch.float64)
    table[0, 0] = 1
    for k in range(1, 1 + filters):
        before, now = 0.0, 1.0
        for n in range(terms):
            table[n, k] = now / math.factorial(n)
            before, now = now, (k - n - heat) * now - n * heat * before
    return table.float()
