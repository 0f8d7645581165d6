"""Random numbers for dropout: drawn in sequence for the whole graph, or a function of the node.

A stream of random numbers depends on the order of the draws. When the nodes of a step are divided into
batches and processes, the result would depend on that division. `PerNodeNoise` hashes (seed, node, column)
instead, with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) in wrapping int64 arithmetic.
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
    """Draws keep-masks for dropout."""

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], layer: int) -> Tensor | None:
        """Return bool `[models, nodes, *shape]`, False where a value is dropped; None if all rates are 0.

        `rates` has one rate per model, `nodes` the numbers in the whole graph, and `shape` is that of one
        node's values. Each dropout `layer` draws different numbers.
        """

    def fork(self, models: int) -> Noise:
        """Return independent noise for the first models' second forward pass in a step."""


class SequentialNoise:
    """Draws from one generator per model, for all nodes of the graph in order."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], layer: int) -> Tensor | None:
        """Draw keep-masks, see `Noise.keep`. A model with rate 0 draws nothing."""
        if not any(rates):
            return None
        kept = torch.ones(len(rates), len(nodes), *shape, dtype=torch.bool, device=nodes.device)
        for piece, rate, generator in zip(kept, rates, self.generators, strict=True):
            if rate:
                piece.bernoulli_(1 - rate, generator=generator)
        return kept

    def fork(self, models: int) -> SequentialNoise:
        """Return the same generators, which have advanced."""
        return SequentialNoise(self.generators[:models])


class PerNodeNoise:
    """Each number is a function of its node and a seed per model, independent of batches and processes."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)

    def keep(self, rates: Sequence[float], nodes: Tensor, shape: Sequence[int], layer: int) -> Tensor | None:
        """Return the keep-masks of these nodes, see `Noise.keep`."""
        if not any(rates):
            return None
        count = torch.Size(shape).numel()
        drawn = [node_uniform(seed + 7919 * (layer + 1), nodes, count) for seed in self.seeds]
        kept = torch.stack([numbers >= rate for numbers, rate in zip(drawn, rates, strict=True)])
        return kept.view(len(rates), len(nodes), *shape)

    def fork(self, models: int) -> PerNodeNoise:
        """Return noise with other seeds."""
        return PerNodeNoise([seed + 1 for seed in self.seeds[:models]])


def drop(x: Tensor, kept: Tensor | None, rates: Sequence[float]) -> Tensor:
    """Zero the dropped values and scale the others, so that the expected value is unchanged."""
    if kept is None:
        return x
    return x * (kept * keep_scale(rates, x).view(-1, *[1] * (x.dim() - 1)))


def keep_scale(rates: Sequence[float], like: Tensor) -> Tensor:
    """Return 1 / (1 − rate) for each model, `[models]`."""
    return _scales(tuple(rates), like.dtype, like.device)


@lru_cache(maxsize=256)
def _scales(rates: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cached, since a copy to a device waits for it."""
    return torch.tensor([1 / (1 - rate) for rate in rates], dtype=dtype, device=device)


def mix(keys: Tensor) -> Tensor:
    """Hash int64 keys: every bit of the result depends on every bit of the key."""
    keys = (keys ^ _shift(keys, 30)) * _FIRST
    keys = (keys ^ _shift(keys, 27)) * _SECOND
    return keys ^ _shift(keys, 31)


def _shift(keys: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch alone would repeat the sign."""
    return (keys >> bits) & ((1 << (64 - bits)) - 1)


def node_uniform(seed: int, nodes: Tensor, count: int) -> Tensor:
    """Return float32 numbers in [0, 1), `[nodes, count]`, as a function of seed, node and column."""
    return _shift(_hashed(seed, nodes, count), 40).to(torch.float32) * 2.0**-24


def node_randint(seed: int, nodes: Tensor, limits: Tensor) -> Tensor:
    """Return integers `[nodes, count]`, uniform in [0, limit) for each of `limits`."""
    numbers = _shift(_hashed(seed, nodes, limits.shape[1]), 11).to(torch.float64) * 2.0**-53
    return (numbers * limits).to(torch.int64)


def _hashed(seed: int, nodes: Tensor, count: int) -> Tensor:
    signed = (seed + 2**63) % 2**64 - 2**63
    start = mix(nodes.to(torch.int64) * _GOLDEN + signed)
    column = torch.arange(1, count + 1, device=nodes.device) * _STRIDE
    return mix(start[:, None] + column)
