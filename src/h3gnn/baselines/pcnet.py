"""PCNet: two-fold filtering by Poisson–Charlier polynomials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix, adjacency, symmetric
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.supervised import Classifier, ClassifierSettings, Ground
from h3gnn.graphs.graph import Graph


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
        input_dropout, filter_dropout: of the features and of the filter's input; the grid's dropout is
            between the two maps.
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


class PCNet(Classifier):
    r"""Two-fold filtering with Poisson–Charlier polynomials (Li et al., 2024).

    .. math:: \hat Y = \theta_0 Y + \sum_{k=1}^{K} \theta_k \sum_{n=0}^{N-1}
        \frac{C_n(k, t)}{n!} (-L)^n Y, \quad Y = (X W_1 + b_1) W_2 + b_2, \quad
        L = b I - \tilde D^{-c} (A + I) \tilde D^{-c}

    The Poisson–Charlier polynomials :math:`C_0 = 1, C_1 = k - t, C_n = (k - n - t + 1) C_{n-1} - (n - 1) t
    C_{n-2}` make the inner sum, for many terms, :math:`e^{tL} (I - L)^k`: with c = 1/2 and b = 1 that is k
    steps of averaging over neighbours, after heat has flowed from everywhere else.

    The sums over k and n are exchanged, so that N - 1 products with L serve all filters.
    """

    settings_class = PCNetSettings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return {"near": symmetric(adjacency(graph, self_loops=True), settings.power)}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        terms: int = settings.terms
        return super().bytes_for(sizes, settings) + 4 * sizes.nodes * 32 * (terms + 2)

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        terms: int = ground.settings.terms
        return super().values_each(ground, width) + 2 * terms * ground.features.shape[0] * ground.classes

    def build(self) -> None:
        settings, classes = self.settings, self.ground.classes
        first, second = 1 / math.sqrt(max(1, self.in_channels)), 1 / math.sqrt(self.width)
        apart = {"rate": settings.second_rate, "decay": settings.second_decay}
        self.weights.uniform("first", self.in_channels, self.width, first)
        self.weights.uniform("first bias", 1, self.width, first)
        self.weights.uniform("second", self.width, classes, second, **apart)
        self.weights.uniform("second bias", 1, classes, second, **apart)
        self.weights.constant(
            "shares",
            torch.full((settings.filters + 1, 1), settings.start),
            rate=settings.filter_rate,
            decay=settings.filter_decay,
        )
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
