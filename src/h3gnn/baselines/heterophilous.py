"""Supervised systems for heterophilous graphs: H2GCN, FAGCN, GPR-GNN and G²."""

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
    symmetric,
    two_hop_adjacency,
)
from h3gnn.baselines.registry import Sizes, check_choice
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.supervised import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


class H2GCN(Classifier):
    r"""Concatenated means over one-hop and two-hop neighbours (Zhu et al., 2020).

    .. math:: r_0 = \mathrm{ReLU}(X W_e), \quad r_k = [\bar A_1 r_{k-1} \,|\, \bar A_2 r_{k-1}], \quad
        \hat y = \mathrm{softmax}([r_0 | r_1 | r_2] W_c)

    :math:`\bar A_i` joins nodes that are exactly i steps apart, without self-loops, symmetrically normalised.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        near = adjacency(graph, self_loops=False)
        return {"near": symmetric(near), "far": symmetric(two_hop_adjacency(near))}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        return super().values_each(ground, width) + ground.features.shape[0] * 30 * width

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


class FAGCN(Classifier):
    r"""Frequency-adaptive propagation with signed edge weights (Bo et al., 2021).

    .. math:: h^0 = \mathrm{ReLU}(X W_1 + b_1), \quad
        h_v^l = \varepsilon h_v^0 + \sum_{u \in N(v)} \frac{\alpha^l_{vu}}{\sqrt{d_v d_u}} h_u^{l-1}, \quad
        \alpha^l_{vu} = \tanh(g_l^\top [h_v^{l-1} | h_u^{l-1}] + c_l)

    Logits are :math:`h^L W_2 + b_2`. There are no self-loops. Features, :math:`h^0` and the
    :math:`\alpha_{vu}` have dropout in training.
    """

    settings_class = FAGCNSettings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        scaled = symmetric(adjacency(graph, self_loops=False))
        return edge_ends(scaled, scaled.values)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layer = (3 * sizes.edges + 5 * sizes.nodes) * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * int(settings.layers) * layer

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        edges, nodes = ground.matrices["source"].shape
        layer = (3 * edges + 5 * nodes) * width + 8 * edges
        return super().values_each(ground, width) + int(ground.settings.layers) * layer

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
        """Return the gated sum over the neighbours."""
        ends = self.ground.matrices
        seen = {
            end: (hidden * self.weights[f"gate {layer} {end}"]).sum(dim=2, keepdim=True)
            for end in ("to", "from")
        }
        score = ends["target"] @ seen["to"] + ends["source"] @ seen["from"]
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
        propagation_dropout: before the propagation; None for that of the other layers.
        steps_decay: factor of the weight decay for the weights of the steps.
    """

    steps: int = 10
    start: str = "ppr"
    restart: float = 0.1
    propagation_dropout: float | None = 0.5
    steps_decay: float = 0.0


class GPRGNN(MLP):
    r"""Generalized PageRank: learned weights of the propagation steps (Chien et al., 2021).

    .. math:: H_0 = \mathrm{ReLU}(X W_1 + b_1) W_2 + b_2, \quad H_k = P H_{k-1}, \quad
        \hat y = \mathrm{softmax}\big(\textstyle\sum_{k=0}^{K} \gamma_k H_k\big)

    :math:`P = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. The :math:`\gamma_k` may become negative, so that
    unlike neighbours count against each other; they are trained without weight decay.
    """

    settings_class = GPRGNNSettings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        steps: int = ground.settings.steps
        return super().values_each(ground, width) + ground.features.shape[0] * 3 * steps * ground.classes

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

    "ppr": :math:`\alpha (1 - \alpha)^k`, and the rest of 1 on the last, a personalised PageRank; "nppr":
    :math:`\alpha^k`, divided by the sum of their sizes; "sgc": all on the last step.
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
        own_gate: whether the gate has a layer of its own.
        last_dropout: before the classifier; None for that of the input.
    """

    layers: int = 4
    inner: str = "sage"
    exponent: float = 2.0
    own_gate: bool = False
    last_dropout: float | None = 0.1


class G2(Classifier):
    r"""Gradient gating (Rusch et al., 2023).

    .. math:: X^0 = \mathrm{ReLU}(X W + b), \quad
        X^{l} = (1 - \tau^l) \odot X^{l-1} + \tau^l \odot \sigma(F(X^{l-1})), \quad
        \tau^l_{vk} = \tanh\Big(\tfrac{1}{|N(v)|} \sum_{u \in N(v)}
        \big|\sigma(\hat F(X^{l-1}))_{uk} - \sigma(\hat F(X^{l-1}))_{vk}\big|^p\Big)

    F is a layer of GraphSAGE, :math:`V \bar x_{N(v)} + U x_v + c`, or of a GCN, and :math:`\hat F` is F or a
    layer of its own; :math:`\sigma` is a ReLU. The mean is that of the authors' code, where the paper has a
    sum. A node that does not differ from its neighbours, or has none, keeps its values.
    """

    settings_class = G2Settings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        check_choice("G²", "inner", settings.inner, INNER)
        if settings.exponent < 1:
            raise InputError(
                f"G²: exponent must be at least 1, not {settings.exponent:g}", code="invalid-setting"
            )
        near = adjacency(graph, self_loops=False)
        mean = neighbour_mean(near)
        each = neighbour_mean(near.with_values(torch.ones_like(near.values)))
        inner = mean if settings.inner == "sage" else symmetric(adjacency(graph, self_loops=True))
        return {**edge_ends(near, each.values), "inner": inner}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layer = (3 * sizes.edges + 10 * sizes.nodes) * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * int(settings.layers) * layer

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        edges, nodes = ground.matrices["source"].shape
        layers = int(ground.settings.layers)
        return super().values_each(ground, width) + layers * (3 * edges + 10 * nodes) * width

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
        """Return the output of a layer."""
        total = self.ground.matrices["inner"] @ self.dense(hidden, f"{name} near")
        if self.settings.inner == "sage":
            total = total + self.dense(hidden, f"{name} own")
        return functional.relu(total + self.weights[f"{name} bias"])

    def rate(self, x: Tensor) -> Tensor:
        """Return τ from the differences to the neighbours."""
        ends = self.ground.matrices
        apart = (ends["source"] @ x - ends["target"] @ x).abs() ** self.settings.exponent
        return torch.tanh(ends["sum"] @ apart)
