"""Schedules: pure functions from step to number."""

from __future__ import annotations

import math


def warmup_cosine(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: a line up to 1 over `warmup` steps, then a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def constant(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: a line up to 1 over `warmup` steps, then 1."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
