"""What moves from epoch to epoch beside the gradient: a learning rate along a curve, and a slow copy."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import nn

Part = TypeVar("Part", bound=nn.Module)


def half_cosine(share: float) -> float:
    """Return 1 at the beginning, 0 at the end, and half a cosine between them."""
    return (1 + math.cos(math.pi * share)) / 2


def warm_cosine(epoch: int, epochs: int) -> float:
    """Return the share of the learning rate: a line up over the first tenth, then half a cosine down."""
    warm = max(1, epochs // 10)
    if epoch < warm:
        return (epoch + 1) / warm
    return half_cosine((epoch - warm) / max(1, epochs - warm))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Let all parameters learn at a rate from now on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def slow_copy(part: Part) -> Part:
    """Return a copy that no gradient moves; constant features are shared."""
    return copy.deepcopy(part).requires_grad_(False)


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    """Move the slow copy towards the fast one by a share of 1 - momentum."""
    for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
        old.lerp_(new, 1 - momentum)
