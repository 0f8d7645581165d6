"""What is done to every weight in every step, for tensors large enough to keep a GPU busy by themselves.

torch's own kernels for lists of tensors give each block 65,536 values, so that a million weights keep a
fraction of the device busy.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGE = 1 << 17
"""Smaller tensors are better off together in one of torch's lists."""
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _adam(  # type: ignore[no-untyped-def]
    weight, slope, mean, square, rate, step, decay, epsilon, size, block: tl.constexpr,
    first: tl.constexpr, second: tl.constexpr, log_first: tl.constexpr, log_second: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = at < size
    count = tl.load(step).to(tl.float64)
    w = tl.load(weight + at, mask=there)
    g = tl.load(slope + at, mask=there) + decay * w
    m = tl.load(mean + at, mask=there)
    m += (1.0 - first) * (g - m)
    v = second * tl.load(square + at, mask=there) + (1.0 - second) * g * g
    size_of = (1.0 - tl.exp(count * log_first)).to(tl.float32)
    spread = tl.sqrt(1.0 - tl.exp(count * log_second)).to(tl.float32)
    w -= tl.load(rate) / size_of * m / (tl.sqrt(v) / spread + epsilon)
    tl.store(weight + at, w, mask=there)
    tl.store(mean + at, m, mask=there)
    tl.store(square + at, v, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _follow(  # type: ignore[no-untyped-def]
    mine, theirs, columns, own_stride, their_stride, share, block: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = at < columns
    average = tl.load(mine + row * own_stride + at, mask=there)
    average += share * (tl.load(theirs + row * their_stride + at, mask=there) - average)
    tl.store(mine + row * own_stride + at, average, mask=there)


def is_large(weight: Tensor) -> bool:
    """Whether a weight `[models, in, out]` is worth a kernel of its own, and lies in memory without gaps."""
    laid_out = weight.is_contiguous() or weight.transpose(0, 1).is_contiguous()
    return weight.dim() == 3 and weight.numel() >= LARGE and weight.dtype == torch.float32 and laid_out


def adam(
    weight: Tensor,
    slope: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: Tensor,
    step: Tensor,
    *,
    decay: float,
    first: float,
    second: float,
    epsilon: float,
) -> None:
    """Make one step of Adam in place, which `step` counts already; all lie in memory as the weight does."""
    _adam[(triton.cdiv(weight.numel(), BLOCK),)](
        weight, slope, mean, square, rate, step, decay, epsilon, weight.numel(), block=BLOCK,
        first=first, second=second, log_first=math.log(first), log_second=math.log(second),
    )  # fmt: skip


def follow(mine: Tensor, theirs: Tensor, share: float) -> None:
    """Move an average `[models, in, out]` a share of the way, in place.

    `theirs` may be the first models of a larger stack, whose models lie side by side or one after another.
    """
    rows, columns, own, other = 1, mine.numel(), 0, 0
    if not mine.is_contiguous():
        rows, columns, own, other = (
            mine.shape[1],
            mine.shape[0] * mine.shape[2],
            mine.stride(1),
            theirs.stride(1),
        )
    _follow[triton.cdiv(columns, BLOCK), rows](mine, theirs, columns, own, other, share, block=BLOCK)
