"""Deterministic sparse products, Adam steps and moving averages as CUDA kernels.

cuSPARSE adds the partial sums of a row in the order in which threads finish, so that two runs differ. Here
one program adds a row, or a piece of a long row, in the order of its entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LONG = 128
"""Rows with more entries are cut into pieces, whose sums are then added."""
TOGETHER, COLUMNS = 8, 256
"""Entries of a row that are read at once, and columns per program."""


class Pieces(NamedTuple):
    """Start of each piece among the entries, and first piece of each row."""

    of_entries: Tensor
    of_rows: Tensor


def cut_long_rows(crow: Tensor) -> Pieces | None:
    """Return the pieces of rows with pointers `[rows + 1]`; None if no row is long."""
    counts = crow.diff()
    if counts.numel() == 0 or int(counts.max()) <= LONG:
        return None
    each = ((counts + LONG - 1) // LONG).clamp_min(1)
    of_rows = torch.cat([each.new_zeros(1), each.cumsum(0)])
    number = torch.arange(int(of_rows[-1]), device=crow.device)
    start = torch.repeat_interleave(crow[:-1] - LONG * of_rows[:-1], each) + LONG * number
    return Pieces(torch.cat([start, crow[-1:]]), of_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(  # type: ignore[no-untyped-def]
    crow, cols, values, order, dense, out, channels, row_stride,
    width: tl.constexpr, together: tl.constexpr, chosen: tl.constexpr, weighted: tl.constexpr,
    ordered: tl.constexpr, adding: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * width + tl.arange(0, width)
    real = column < channels
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    total = tl.zeros([width], tl.float32)
    for first in range(begin, end, together):
        for one in tl.static_range(together):  # reads in flight together
            at = first + one
            there = at < end
            sender = at
            if chosen:
                sender = tl.load(cols + at, mask=there, other=0)
            row_of = tl.load(dense + sender * row_stride + column, mask=there & real, other=0.0)
            row_of = row_of.to(tl.float32)
            if weighted:
                entry = at
                if ordered:
                    entry = tl.load(order + at, mask=there, other=0)
                row_of *= tl.load(values + entry, mask=there, other=0.0).to(tl.float32)
            total += row_of
    to = out + row * channels + column
    if adding:
        total += tl.load(to, mask=real, other=0.0).to(tl.float32)
    tl.store(to, total.to(out.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["entries"])  # type: ignore[untyped-decorator]
def _sampled_product(  # type: ignore[no-untyped-def]
    rows, cols, left, right, out, entries, channels, width: tl.constexpr, block: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = at < entries
    here = tl.load(rows + at, mask=there, other=0)
    sender = tl.load(cols + at, mask=there, other=0)
    total = tl.zeros([block], tl.float32)
    for first in range(0, channels, width):
        column = first + tl.arange(0, width)
        both = there[:, None] & (column < channels)[None, :]
        a = tl.load(left + here[:, None] * channels + column[None, :], mask=both, other=0.0).to(tl.float32)
        b = tl.load(right + sender[:, None] * channels + column[None, :], mask=both, other=0.0).to(tl.float32)
        total += tl.sum(a * b, axis=1)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=there)


def multiply(
    crow: Tensor,
    cols: Tensor,
    values: Tensor | None,
    dense: Tensor,
    pieces: Pieces | None,
    order: Tensor | None = None,
    add_to: Tensor | None = None,
) -> Tensor:
    """Return `A @ dense` for the sparse A, `[rows, channels]`, or add it to `add_to` in place.

    The values of A are ones if None; `order` has the index of the value of each entry. The rows of `dense`
    are contiguous; `pieces` is from `cut_long_rows`.
    """
    rows, channels = len(crow) - 1, dense.shape[1]
    out = torch.empty(rows, channels, dtype=dense.dtype, device=dense.device) if add_to is None else add_to
    if pieces is None:
        _launch(crow, cols, values, order, dense, out, adding=add_to is not None)
        return out
    parts = torch.empty(len(pieces.of_entries) - 1, channels, dtype=torch.float32, device=dense.device)
    _launch(pieces.of_entries, cols, values, order, dense, parts, adding=False)
    _launch(pieces.of_rows, None, None, None, parts, out, adding=add_to is not None)
    return out


def _launch(
    crow: Tensor,
    cols: Tensor | None,
    values: Tensor | None,
    order: Tensor | None,
    dense: Tensor,
    out: Tensor,
    *,
    adding: bool,
) -> None:
    """Sum the rows of `dense` selected by `cols` (or all between two pointers), times `values`."""
    channels = dense.shape[1]
    width = min(COLUMNS, triton.next_power_of_2(channels))
    _sum_rows[len(crow) - 1, triton.cdiv(channels, width)](
        crow, cols, values, order, dense, out, channels, dense.stride(0),
        width=width, together=TOGETHER, chosen=cols is not None, weighted=values is not None,
        ordered=order is not None, adding=adding, num_warps=1,
    )  # fmt: skip


def sampled_product(rows: Tensor, cols: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ rightᵀ` at the given entries, in float32 `[entries]`."""
    channels = left.shape[1]
    out = torch.empty(len(rows), dtype=torch.float32, device=left.device)
    _sampled_product[(triton.cdiv(len(rows), 16),)](
        rows, cols, left, right, out, len(rows), channels,
        width=min(128, triton.next_power_of_2(channels)), block=16,
    )  # fmt: skip
    return out


LARGE = 1 << 17
"""Smaller tensors are faster in torch's multi-tensor functions."""
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _adam(  # type: ignore[no-untyped-def]
    weight, grad, mean, square, rate, step, decay, epsilon, size, block: tl.constexpr,
    beta1: tl.constexpr, beta2: tl.constexpr, log_beta1: tl.constexpr, log_beta2: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = at < size
    count = tl.load(step).to(tl.float64)
    w = tl.load(weight + at, mask=there)
    g = tl.load(grad + at, mask=there) + decay * w
    m = tl.load(mean + at, mask=there)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * tl.load(square + at, mask=there) + (1.0 - beta2) * g * g
    correction1 = (1.0 - tl.exp(count * log_beta1)).to(tl.float32)
    correction2 = tl.sqrt(1.0 - tl.exp(count * log_beta2)).to(tl.float32)
    w -= tl.load(rate) / correction1 * m / (tl.sqrt(v) / correction2 + epsilon)
    tl.store(weight + at, w, mask=there)
    tl.store(mean + at, m, mask=there)
    tl.store(square + at, v, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _ema_update(  # type: ignore[no-untyped-def]
    average, values, columns, average_stride, value_stride, share, block: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = at < columns
    moved = tl.load(average + row * average_stride + at, mask=there)
    moved += share * (tl.load(values + row * value_stride + at, mask=there) - moved)
    tl.store(average + row * average_stride + at, moved, mask=there)


def is_large(weight: Tensor) -> bool:
    """Whether a weight `[models, in, out]` is large enough for its own kernel, and without gaps in memory."""
    laid_out = weight.is_contiguous() or weight.transpose(0, 1).is_contiguous()
    return weight.dim() == 3 and weight.numel() >= LARGE and weight.dtype == torch.float32 and laid_out


def adam(
    weight: Tensor,
    grad: Tensor,
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
    """Make step number `step` of Adam in place; all tensors have the memory layout of the weight."""
    _adam[(triton.cdiv(weight.numel(), BLOCK),)](
        weight, grad, mean, square, rate, step, decay, epsilon, weight.numel(), block=BLOCK,
        beta1=first, beta2=second, log_beta1=math.log(first), log_beta2=math.log(second),
    )  # fmt: skip


def ema_update(average: Tensor, values: Tensor, share: float) -> None:
    """Move an average `[models, in, out]` towards values by a share, in place.

    `values` may be the first models of a larger stack, in either memory layout.
    """
    rows, columns, strides = 1, average.numel(), (0, 0)
    if not average.is_contiguous():
        rows, columns = average.shape[1], average.shape[0] * average.shape[2]
        strides = average.stride(1), values.stride(1)
    _ema_update[triton.cdiv(columns, BLOCK), rows](average, values, columns, *strides, share, block=BLOCK)
