"""Products along the places of a sparse matrix as CUDA kernels of our own.

cuSPARSE adds up what several threads found for one row in whatever order they end, so that two runs differ.
Here a program has a row, or a piece of a long one, to itself and adds in the order of the entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LONG = 128
"""A row with more entries than this is cut into pieces, which are summed apart and then added."""
TOGETHER, COLUMNS = 8, 256
"""How many entries of a row are read at once, and how many columns at the most."""


class Pieces(NamedTuple):
    """Where each piece of a row begins, and of each row its first piece."""

    of_entries: Tensor
    of_rows: Tensor


def cut_long_rows(crow: Tensor) -> Pieces | None:
    """Return the pieces that rows `[rows + 1]` are summed in; None where no row is long."""
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
        for one in tl.static_range(together):  # so many reads are on their way at once
            at = first + one
            there = at < end
            sender = at
            if chosen:
                sender = tl.load(cols + at, mask=there, other=0)
            row_of = tl.load(dense + sender * row_stride + column, mask=there & real, other=0.0).to(
                tl.float32
            )
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
def _at_places(  # type: ignore[no-untyped-def]
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
    """Return `A @ dense` for the sparse A with these rows, `[rows, channels]`.

    Args:
        crow, cols: the places of A.
        values: at its places; None are ones.
        dense: with columns that lie side by side.
        pieces: of its long rows, from `cut_long_rows`.
        order: which value belongs to each place; None takes them in turn.
        add_to: what the product is added to, in place; None makes a new tensor.
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
    """Sum rows: those that `cols` names, or else those between two pointers, times `values`."""
    channels = dense.shape[1]
    width = min(COLUMNS, triton.next_power_of_2(channels))
    _sum_rows[len(crow) - 1, triton.cdiv(channels, width)](
        crow, cols, values, order, dense, out, channels, dense.stride(0),
        width=width, together=TOGETHER, chosen=cols is not None, weighted=values is not None,
        ordered=order is not None, adding=adding, num_warps=1,
    )  # fmt: skip


def at_places(rows: Tensor, cols: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ rightᵀ` at the given places alone, in float32 `[entries]`."""
    channels = left.shape[1]
    out = torch.empty(len(rows), dtype=torch.float32, device=left.device)
    _at_places[(triton.cdiv(len(rows), 16),)](
        rows, cols, left, right, out, len(rows), channels,
        width=min(128, triton.next_power_of_2(channels)), block=16,
    )  # fmt: skip
    return out


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


def ema_update(mine: Tensor, theirs: Tensor, share: float) -> None:
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
