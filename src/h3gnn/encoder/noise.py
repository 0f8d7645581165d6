"""Random numbers that belong to a node: the same whichever batch, process or machine asks for them.

A stream of random numbers depends on who drew before. When the nodes of a step are spread over batches and
processes, that would make the result depend on the split. So here a number is a hash of (seed, node, which):
the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in whole-number arithmetic that wraps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_STRIDE = 0xD1B54A32D192ED03 - 2**64


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


def node_below(seed: int, nodes: Tensor, limits: Tensor) -> Tensor:
    """Return whole numbers `[nodes, count]`, uniform in [0, limit) for the limit of each place."""
    numbers = _shift(_hashed(seed, nodes, limits.shape[1]), 11).to(torch.float64) * 2.0**-53
    return (numbers * limits).to(torch.int64)


def _hashed(seed: int, nodes: Tensor, count: int) -> Tensor:
    start = mix(nodes.to(torch.int64) * _GOLDEN + _signed(seed))
    column = torch.arange(1, count + 1, device=nodes.device) * _STRIDE
    return mix(start[:, None] + column)


def _signed(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


class NodeNoise:
    """Keep-masks for dropout whose rows belong to nodes, so that a split into batches changes nothing.

    Args:
        seeds: one per model, new for every step.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)

    def keep(self, rates: Sequence[float], nodes: Tensor, count: int, place: int) -> Tensor | None:
        """Return bool `[models, nodes, count]`, False where a value is dropped; None where nothing is.

        Args:
            rates: of each model.
            nodes: which nodes, by their number in the whole graph.
            count: values per node.
            place: where in the encoder; other places get other numbers.
        """
        if not any(rates):
            return None
        drawn = [node_uniform(seed + 7919 * (place + 1), nodes, count) for seed in self.seeds]
        return torch.stack([numbers >= rate for numbers, rate in zip(drawn, rates, strict=True)])
