r"""Strategies that choose the nodes to hide from the student: random, by difficulty, by probability.

Each strategy maps the nodes' difficulty `[models, nodes]` from the previous step and one generator per model
to a mask, bool `[models, nodes]`. Of N nodes, :math:`M = \lfloor N R \rfloor` are masked, where R is the mask
ratio; r is the exploit ratio, the share that difficulty decides.

Each draws one uniform number per node and masks the first nodes in an order computed from it. So a mask costs
one sort, has a fixed shape, and never loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

LOWER, UPPER = Fraction(1, 2), Fraction(5, 4)
"""A bounded probability mask hides ⌈M/2⌉ to ⌈5M/4⌉ nodes, and never all."""


def masked_count(nodes: int, ratio: float) -> int:
    """Return M = ⌊N·R⌋ exactly, with R read as the decimal that it is written as (100 · 0.29 is 29)."""
    return math.floor(nodes * Fraction(str(ratio)))


def draw(generators: Sequence[torch.Generator], nodes: int, device: torch.device) -> Tensor:
    """Draw uniform numbers `[models, nodes]`, each row from its model's generator."""
    numbers = torch.empty(len(generators), nodes, device=device)
    for row, generator in zip(numbers, generators, strict=True):
        row.uniform_(generator=generator)
    return numbers


def _first(order_by: Tensor, counts: Tensor) -> Tensor:
    """Mark, in each row, the `counts` nodes with the smallest numbers."""
    order = order_by.argsort(dim=1)
    chosen = torch.arange(order.shape[1], device=order.device) < counts
    return torch.empty_like(chosen).scatter_(1, order, chosen)


@dataclass(frozen=True)
class RandomMask:
    """M nodes, all equally likely."""

    ratios: Sequence[float]

    def __call__(self, difficulty: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the mask; of `difficulty` only the shape and device matter."""
        nodes = difficulty.shape[1]
        return _first(draw(generators, nodes, difficulty.device), _counts(nodes, self.ratios, difficulty))


@dataclass(frozen=True)
class DifficultyMask:
    """The m = ⌊M·r⌋ most difficult nodes, and M − m others drawn without replacement."""

    ratios: Sequence[float]
    exploit_ratios: Sequence[float]

    def __call__(self, difficulty: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the mask."""
        nodes = difficulty.shape[1]
        masked = _counts(nodes, self.ratios, difficulty)
        exploited = [
            masked_count(masked_count(nodes, ratio), exploit)
            for ratio, exploit in zip(self.ratios, self.exploit_ratios, strict=True)
        ]
        hardest = _first(-difficulty, _column(exploited, difficulty))
        order = draw(generators, nodes, difficulty.device).masked_fill(hardest, -1.0)
        return _first(order, masked)


@dataclass(frozen=True)
class ProbabilityMask:
    r"""Each node is masked with its own probability.

    .. math:: p_v = (1-r) R + r R \cdot \mathrm{Diffi}(v) / \mathrm{Diffi}_{max}

    A node has the waiting time :math:`\tau_v = \log u_v / \log(1 - p_v)`, so that :math:`\tau_v \le 1` with
    probability :math:`p_v`: one round of Bernoulli draws. The nodes with the shortest times are masked.
    `size` decides their number. "bounded" is the paper's sanity check: with fewer than ⌈M/2⌉, the draws
    continue, round after round, until that many are masked; with more than ⌈5M/4⌉, they stop early. "exact"
    continues or stops at M, so that r changes which nodes are masked and not how many. "free" is one round
    without bounds, except that one node stays unmasked.
    """

    ratios: Sequence[float]
    exploit_ratios: Sequence[float]
    size: str = "bounded"

    def __call__(self, difficulty: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the mask."""
        nodes = difficulty.shape[1]
        times = waiting_times(self.probabilities(difficulty), draw(generators, nodes, difficulty.device))
        fewest, most = zip(*(mask_bounds(nodes, ratio, self.size) for ratio in self.ratios), strict=True)
        arrived = (times <= 1).sum(dim=1, keepdim=True)
        counts = torch.minimum(torch.maximum(arrived, _column(fewest, difficulty)), _column(most, difficulty))
        return _first(times, counts)

    def probabilities(self, difficulty: Tensor) -> Tensor:
        """Return p_v of every node, `[models, nodes]`."""
        ratio, exploit = _column(self.ratios, difficulty), _column(self.exploit_ratios, difficulty)
        largest = difficulty.amax(dim=1, keepdim=True).clamp_min(torch.finfo(difficulty.dtype).tiny)
        return (1 - exploit) * ratio + exploit * ratio * (difficulty / largest)


def waiting_times(probability: Tensor, uniform: Tensor) -> Tensor:
    """Return the number of rounds of Bernoulli draws until each node is drawn."""
    longest = torch.finfo(uniform.dtype).max
    times = uniform.clamp_min(torch.finfo(uniform.dtype).tiny).log() / torch.log1p(-probability)
    never = longest * (0.5 + 0.5 * uniform)  # p = 0: behind all others, in random order
    return torch.where(probability > 0, times.clamp(max=0.5 * longest), never)


@lru_cache(maxsize=256)
def mask_bounds(nodes: int, ratio: float, size: str = "bounded") -> tuple[int, int]:
    """Return the minimum and maximum number of nodes in a probability mask of this size."""
    masked = masked_count(nodes, ratio)
    if size == "exact":
        return masked, masked
    if size == "free":
        return 0, nodes - 1
    most = min(math.ceil(masked * UPPER), nodes - 1) if masked < nodes else masked
    return math.ceil(masked * LOWER), max(most, 0)


def _counts(nodes: int, ratios: Sequence[float], like: Tensor) -> Tensor:
    return _column([masked_count(nodes, ratio) for ratio in ratios], like)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return _column_on(tuple(values), like.device)


@lru_cache(maxsize=256)
def _column_on(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one value per model, `[models, 1]`; cached, since a copy to a GPU is a sync."""
    return torch.tensor(values, device=device)[:, None]
