"""Where dropout's random numbers come from: drawn in turn for a whole graph, or belonging to each node.

A stream of random numbers depends on who drew before. When the nodes of a step are spread over batches and
processes, that would make the result depend on the split. There a number is a hash of (seed, node, which):
the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in whole-number arithmetic that wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_STRIDE = 0xD1B54A32D192ED03 - 2**64


class Noise(Protocol):
    """Hands out keep-masks for dropout."""

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], place: int) -> Tensor | None:
        """Return bool `[models, nodes, *shape]`, False where a value is dropped; None where nothing is.

        Args:
            rates: of each model.
            nodes: which nodes, by their number in the whole graph.
            shape: of the values of one node.
            place: where in the encoder; other places get other numbers.
        """

    def fork(self, models: int) -> Noise:
        """Return noise that has nothing to do with this, for the first models' second look in a step."""


class SequentialNoise:
    """Each model's numbers come from its own generator, for all nodes of the whole graph in turn."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], place: int) -> Tensor | None:
        """Draw keep-masks; the place is the order of the calls. A model with rate 0 draws nothing."""
        if not any(rates):
            return None
        kept = torch.ones(len(rates), len(nodes), *shape, dtype=torch.bool, device=nodes.device)
        for piece, rate, generator in zip(kept, rates, self.generators, strict=True):
            if rate:
                piece.bernoulli_(1 - rate, generator=generator)
        return kept

    def fork(self, models: int) -> SequentialNoise:
        """Return the first models' share of itself: the generators have moved on."""
        return SequentialNoise(self.generators[:models])


class PerNodeNoise:
    """Each number belongs to a node, so that a split into batches and processes changes nothing.

    Args:
        seeds: one per model, new for every step.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], place: int) -> Tensor | None:
        """Return the keep-masks of these nodes at this place."""
        if not any(rates):
            return None
        count = torch.Size(shape).numel()
        drawn = [node_uniform(seed + 7919 * (place + 1), nodes, count) for seed in self.seeds]
        kept = torch.stack([numbers >= rate for numbers, rate in zip(drawn, rates, strict=True)])
        return kept.view(len(rates), len(nodes), *shape)

    def fork(self, models: int) -> PerNodeNoise:
        """Return noise that has nothing to do with this, for the first models' second look in a step."""
        return PerNodeNoise([seed + 1 for seed in self.seeds[:models]])


def drop(x: Tensor, kept: Tensor | None, rates: Sequence[float]) -> Tensor:
    """Zero what is not kept and scale the rest up, so that the expected value stays."""
    if kept is None:
        return x
    return x * (kept * keep_scale(rates, x).view(-1, *[1] * (x.dim() - 1)))


def keep_scale(rates: Sequence[float], like: Tensor) -> Tensor:
    """Return 1 / (1 − rate) for each model, `[models]`."""
    return _scales(tuple(rates), like.dtype, like.device)


@lru_cache(maxsize=256)
def _scales(rates: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1 / (1 − rate) per model; kept, since a copy to a device stops it for a moment."""
    return torch.tensor([1 / (1 - rate) for rate in rates], dtype=dtype, device=device)


def mix(keys: Tensor) -> Tensor:
    """Scramble int64 keys: every bit of the result depends on every bit of the key."""
    keys = (keys ^ _shift(keys, 30)) * _FIRST
    keys = (keys ^ _shift(keys, 27)) * _SECOND
    return keys ^ _shift(keys, 31)


def _shift(keys: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch alone would repeat the sign."""
    return (keys >> bits) & ((1 << (64 - bits)) - 1)


def node_uniform(seed: int, nodes: Tensor, count: int) -> Tensor:
    """Return float32 numbers in [0, 1), `[nodes, count]`, each a function of seed, node and column alone."""
    return _shift(_hashed(seed, nodes, count), 40).to(torch.float32) * 2.0**-24


def node_randint(seed: int, nodes: Tensor, limits: Tensor) -> Tensor:
    """Return whole numbers `[nodes, count]`, uniform in [0, limit) for the limit of each place."""
    numbers = _shift(_hashed(seed, nodes, limits.shape[1]), 11).to(torch.float64) * 2.0**-53
    return (numbers * limits).to(torch.int64)


def _hashed(seed: int, nodes: Tensor, count: int) -> Tensor:
    start = mix(nodes.to(torch.int64) * _GOLDEN + _signed(seed))
    column = torch.arange(1, count + 1, device=nodes.device) * _STRIDE
    return mix(start[:, None] + column)


def _signed(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
