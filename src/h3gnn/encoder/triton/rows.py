"""The operations between the encoder's products, as one CUDA kernel each for forward and backward.

A kernel adds the bias of the preceding product and sums its gradient in the backward pass. Values are
computed in float32 and written in the precision of the input. Sums over rows have two steps in a fixed order,
without atomic additions, so that a repeated run gives the same numbers. For attention a program holds the
queries, keys and values of a few nodes and one head in registers; its backward kernel recomputes the weights,
which is cheaper than reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from h3gnn.encoder.fusion import TokenAttention
    from h3gnn.encoder.layers import LayerNorm, Linear

TILE = 2048
"""Values per program."""
PROGRAMS = 1056
"""Programs that share the rows where each keeps a sum: as many as an H200 runs at once."""


@triton.jit
def _normalised(x, there, channels):  # type: ignore[no-untyped-def]
    """Return each row with mean 0 and variance 1, and its scale."""
    centred = tl.where(there, x - (tl.sum(x, axis=1) / channels)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / channels + 1e-5)
    return centred * scale[:, None], scale


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _norm_forward(  # type: ignore[no-untyped-def]
    residual, branch, bias, weight, shift, out, rows, channels,
    padded: tl.constexpr, block: tl.constexpr, inside: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, padded)
    real = column < channels
    there = (row < rows)[:, None] & real[None, :]
    place = (model * rows + row)[:, None] * channels + column[None, :]
    own = model * channels + column
    x = tl.load(branch + place, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias + own, mask=real, other=0.0).to(tl.float32)[None, :]
    kept = tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
    if inside:
        x += kept
    normed, _ = _normalised(x, there, channels)
    scaled = normed * tl.load(weight + own, mask=real, other=0.0).to(tl.float32)[None, :]
    y = scaled + tl.load(shift + own, mask=real, other=0.0).to(tl.float32)[None, :]
    if not inside:
        y += kept
    tl.store(out + place, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "turns"])  # type: ignore[untyped-decorator]
def _norm_backward(  # type: ignore[no-untyped-def]
    residual, branch, bias, weight, of_out, of_branch, sums, rows, channels, turns,
    padded: tl.constexpr, block: tl.constexpr, inside: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    first, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, padded)
    real = column < channels
    own = model * channels + column
    added = tl.load(bias + own, mask=real, other=0.0).to(tl.float32)
    stretch = tl.load(weight + own, mask=real, other=0.0).to(tl.float32)
    to_bias = tl.zeros([block, padded], tl.float32)  # summed over rows once, at the end
    to_weight = tl.zeros([block, padded], tl.float32)
    to_shift = tl.zeros([block, padded], tl.float32)
    for turn in range(turns):
        row = (first + turn * programs) * block + tl.arange(0, block)
        there = (row < rows)[:, None] & real[None, :]
        place = (model * rows + row)[:, None] * channels + column[None, :]
        x = tl.load(branch + place, mask=there, other=0.0).to(tl.float32) + added[None, :]
        if inside:
            x += tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
        normed, scale = _normalised(x, there, channels)
        slope = tl.load(of_out + place, mask=there, other=0.0).to(tl.float32)
        wanted = slope * stretch[None, :]
        along = tl.sum(wanted * normed, axis=1) / channels
        level = tl.sum(wanted, axis=1) / channels
        back = (wanted - level[:, None] - normed * along[:, None]) * scale[:, None]
        back = tl.where(there, back, 0.0)
        tl.store(of_branch + place, back.to(of_branch.dtype.element_ty), mask=there)
        to_bias += back
        to_weight += slope * normed
        to_shift += slope
    at = sums + ((model * programs + first) * 3) * channels + column
    tl.store(at, tl.sum(to_bias, axis=0), mask=real)
    tl.store(at + channels, tl.sum(to_weight, axis=0), mask=real)
    tl.store(at + 2 * channels, tl.sum(to_shift, axis=0), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(x, relu: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the derivative of the activation."""
    if relu:
        return tl.where(x > 0, 1.0, 0.0)
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _activation_forward(  # type: ignore[no-untyped-def]
    x, bias, out, rows, channels, model_stride, row_stride,
    block: tl.constexpr, width: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * width + tl.arange(0, width)
    real = column < channels
    there = (row < rows)[:, None] & real[None, :]
    place = (model * rows + row)[:, None] * channels + column[None, :]
    given = model * model_stride + row.to(tl.int64)[:, None] * row_stride + column[None, :]
    value = tl.load(x + given, mask=there, other=0.0).to(tl.float32)
    value += tl.load(bias + model * channels + column, mask=real, other=0.0).to(tl.float32)[None, :]
    value = tl.maximum(value, 0.0) if relu else 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "turns"])  # type: ignore[untyped-decorator]
def _activation_backward(  # type: ignore[no-untyped-def]
    x, bias, of_out, of_x, sums, rows, channels, turns, model_stride, row_stride,
    block: tl.constexpr, width: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    first, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * width + tl.arange(0, width)
    real = column < channels
    added = tl.load(bias + model * channels + column, mask=real, other=0.0).to(tl.float32)
    total = tl.zeros([block, width], tl.float32)
    for turn in range(turns):
        row = (first + turn * programs) * block + tl.arange(0, block)
        there = (row < rows)[:, None] & real[None, :]
        place = (model * rows + row)[:, None] * channels + column[None, :]
        given = model * model_stride + row.to(tl.int64)[:, None] * row_stride + column[None, :]
        value = tl.load(x + given, mask=there, other=0.0).to(tl.float32) + added[None, :]
        slope = tl.load(of_out + place, mask=there, other=0.0).to(tl.float32) * _slope(value, relu)
        tl.store(of_x + place, slope.to(of_x.dtype.element_ty), mask=there)
        total += slope
    tl.store(sums + (model * programs + first) * channels + column, tl.sum(total, axis=0), mask=real)


@triton.jit(do_not_specialize=["rows", "turns"])  # type: ignore[untyped-decorator]
def _column_sums(  # type: ignore[no-untyped-def]
    x, sums, rows, channels, turns, model_stride, row_stride, block: tl.constexpr, width: tl.constexpr
):
    model = tl.program_id(2).to(tl.int64)
    first, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * width + tl.arange(0, width)
    total = tl.zeros([block, width], tl.float32)
    for turn in range(turns):
        row = (first + turn * programs) * block + tl.arange(0, block)
        there = (row < rows)[:, None] & (column < channels)[None, :]
        place = model * model_stride + row.to(tl.int64)[:, None] * row_stride + column[None, :]
        total += tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    tl.store(
        sums + (model * programs + first) * channels + column, tl.sum(total, axis=0), mask=column < channels
    )


@triton.jit(do_not_specialize=["programs"])  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    sums, out, programs, columns, block: tl.constexpr, width: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * width + tl.arange(0, width)
    total = tl.zeros([block, width], tl.float32)
    for first in range(0, programs, block):
        row = first + tl.arange(0, block)
        there = (row < programs)[:, None] & (column < columns)[None, :]
        place = (model * programs + row)[:, None] * columns + column[None, :]
        total += tl.load(sums + place, mask=there, other=0.0)
    tl.store(out + model * columns + column, tl.sum(total, axis=0), mask=column < columns)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _mask_forward(  # type: ignore[no-untyped-def]
    rows_of, token, mask, out, rows, channels, model_stride, row_stride, token_stride,
    block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * width + tl.arange(0, width)
    real = column < channels
    there = (row < rows)[:, None] & real[None, :]
    hidden = tl.load(mask + model * rows + row, mask=row < rows, other=0).to(tl.int1)
    given = model * model_stride + row.to(tl.int64)[:, None] * row_stride + column[None, :]
    shown = tl.load(rows_of + given, mask=there & (hidden == 0)[:, None], other=0.0)
    instead = tl.load(token + model * token_stride + column, mask=real, other=0.0)
    place = (model * rows + row)[:, None] * channels + column[None, :]
    tl.store(out + place, tl.where(hidden[:, None], instead[None, :], shown), mask=there)


@triton.jit(do_not_specialize=["rows", "turns"])  # type: ignore[untyped-decorator]
def _mask_backward(  # type: ignore[no-untyped-def]
    of_out, mask, of_rows, sums, rows, channels, turns, of_model, of_row, model_stride, row_stride,
    block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    first, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * width + tl.arange(0, width)
    real = column < channels
    total = tl.zeros([block, width], tl.float32)
    for turn in range(turns):
        row = (first + turn * programs) * block + tl.arange(0, block)
        there = (row < rows)[:, None] & real[None, :]
        hidden = tl.load(mask + model * rows + row, mask=row < rows, other=0).to(tl.int1)
        place = model * of_model + row.to(tl.int64)[:, None] * of_row + column[None, :]
        slope = tl.load(of_out + place, mask=there, other=0.0).to(tl.float32)
        total += tl.where(hidden[:, None], slope, 0.0)
        given = model * model_stride + row.to(tl.int64)[:, None] * row_stride + column[None, :]
        back = tl.where(hidden[:, None], 0.0, slope)
        tl.store(of_rows + given, back.to(of_rows.dtype.element_ty), mask=there)
    tl.store(sums + (model * programs + first) * channels + column, tl.sum(total, axis=0), mask=real)


def _shares(rows: int, block: int, models: int, columns: int = 1) -> tuple[int, int]:
    """Return the number of programs, and of blocks per program."""
    blocks = max(1, triton.cdiv(rows, block))
    programs = min(blocks, max(1, PROGRAMS // (models * columns)))
    return programs, triton.cdiv(blocks, programs)


def _folded(sums: Tensor) -> Tensor:
    """Add the sums of all programs, `[models, programs, columns]` to `[models, columns]`."""
    models, programs, columns = sums.shape
    out = torch.empty(models, columns, dtype=sums.dtype, device=sums.device)
    _fold[triton.cdiv(columns, 16), models](sums, out, programs, columns, block=256, width=16)
    return out


def _tile(channels: int) -> tuple[int, int]:
    """Return the rows and columns per program."""
    width = min(256, triton.next_power_of_2(channels))
    return max(1, TILE // width), width


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, inside: bool
    ) -> Tensor:
        models, rows, channels = branch.shape
        residual, branch = residual.contiguous(), branch.contiguous()
        out = torch.empty_like(branch)
        padded = triton.next_power_of_2(channels)
        block = max(1, TILE // padded)
        _norm_forward[triton.cdiv(rows, block), models](
            residual, branch, bias, weight, shift, out, rows, channels,
            padded=padded, block=block, inside=inside,
        )  # fmt: skip
        ctx.save_for_backward(residual if inside else branch, branch, bias, weight)
        ctx.inside = inside
        return out

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
        residual, branch, bias, weight = ctx.saved_tensors
        of_out = gradients[0].contiguous()
        models, rows, channels = branch.shape
        padded = triton.next_power_of_2(channels)
        block = max(1, TILE // padded)
        programs, turns = _shares(rows, block, models)
        of_branch = torch.empty_like(branch)
        sums = torch.empty(models, programs, 3 * channels, dtype=torch.float32, device=branch.device)
        _norm_backward[programs, models](
            residual, branch, bias, weight, of_out, of_branch, sums, rows, channels, turns,
            padded=padded, block=block, inside=ctx.inside,
        )  # fmt: skip
        to_bias, to_weight, to_shift = _folded(sums).view(models, 3, channels).unbind(dim=1)
        of_residual = of_branch if ctx.inside else of_out
        return of_residual, of_branch, to_bias.view_as(bias), to_weight, to_shift, None


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, relu: bool) -> Tensor:
        models, rows, channels = x.shape
        out = torch.empty(models, rows, channels, dtype=x.dtype, device=x.device)
        block, width = _tile(channels)
        _activation_forward[triton.cdiv(rows, block), triton.cdiv(channels, width), models](
            x, bias, out, rows, channels, x.stride(0), x.stride(1), block=block, width=width, relu=relu
        )
        ctx.save_for_backward(x, bias)
        ctx.relu = relu
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, bias = ctx.saved_tensors
        models, rows, channels = x.shape
        block, width = _tile(channels)
        columns = triton.cdiv(channels, width)
        programs, turns = _shares(rows, block, models, columns)
        of_x = torch.empty(models, rows, channels, dtype=x.dtype, device=x.device)
        sums = torch.empty(models, programs, channels, dtype=torch.float32, device=x.device)
        _activation_backward[programs, columns, models](
            x, bias, gradients[0].contiguous(), of_x, sums, rows, channels, turns, x.stride(0), x.stride(1),
            block=block, width=width, relu=ctx.relu,
        )  # fmt: skip
        return of_x, _folded(sums).view_as(bias), None


class _MaskRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, token: Tensor, mask: Tensor, widths: list[int]
    ) -> tuple[Tensor, ...]:
        models, rows, _ = nodes.shape
        ctx.save_for_backward(mask)
        ctx.widths, ctx.like, ctx.token = widths, (nodes.shape, nodes.stride(), nodes.dtype), token
        made = []
        for piece, instead in zip(*(torch.split(one, widths, dim=2) for one in (nodes, token)), strict=True):
            channels = piece.shape[2]
            out = torch.empty(models, rows, channels, dtype=nodes.dtype, device=nodes.device)
            block, width = _tile(channels)
            _mask_forward[triton.cdiv(rows, block), triton.cdiv(channels, width), models](
                piece, instead, mask, out, rows, channels, piece.stride(0), piece.stride(1),
                instead.stride(0), block=block, width=width,
            )  # fmt: skip
            made.append(out)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        shape, strides, dtype = ctx.like
        models, rows, _ = shape
        of_rows = torch.empty_strided(shape, strides, dtype=dtype, device=mask.device)
        of_token = []
        for given, piece in zip(gradients, torch.split(of_rows, ctx.widths, dim=2), strict=True):
            channels = piece.shape[2]
            of_out = torch.zeros_like(piece) if given is None else given
            of_out = of_out if of_out.stride(2) == 1 else of_out.contiguous()
            block, width = _tile(channels)
            columns = triton.cdiv(channels, width)
            programs, turns = _shares(rows, block, models, columns)
            sums = torch.empty(models, programs, channels, dtype=torch.float32, device=mask.device)
            _mask_backward[programs, columns, models](
                of_out, mask, piece, sums, rows, channels, turns, of_out.stride(0), of_out.stride(1),
                piece.stride(0), piece.stride(1), block=block, width=width,
            )  # fmt: skip
            of_token.append(_folded(sums))
        return of_rows, torch.cat(of_token, dim=1).view_as(ctx.token).to(dtype), None, None


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.bias = bias.shape
        return x + bias.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], column_sums(gradients[0]).view(ctx.bias)


def add_norm(
    residual: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, *, inside: bool
) -> Tensor:
    """Return `residual + Norm(branch + bias)`, or `Norm(residual + branch + bias)` with `inside`.

    `residual` and `branch` are `[models, rows, channels]`, `bias` is `[models, 1, channels]`, `weight` and
    `shift` of the norm are `[models, channels]`.
    """
    out: Tensor = _AddNorm.apply(residual, branch, bias, weight, shift, inside)  # type: ignore[no-untyped-call]
    return out


def activate(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return GELU or ReLU of `x + bias`; x `[models, rows, channels]` may be columns of a wider tensor."""
    out: Tensor = _Activate.apply(x, bias, activation == "relu")  # type: ignore[no-untyped-call]
    return out


def mask_rows(nodes: Tensor, token: Tensor, mask: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """Replace masked rows of `[models, rows, channels]` by the token, and split the columns into `widths`.

    Each piece has its own memory, so that none keeps the others alive.
    """
    made: tuple[Tensor, ...] = _MaskRows.apply(  # type: ignore[no-untyped-call]
        nodes, token, mask.contiguous(), list(widths)
    )
    return made


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Return `x + bias`, `[models, rows, channels]` and `[models, 1, channels]`."""
    added: Tensor = _AddBias.apply(x, bias)  # type: ignore[no-untyped-call]
    return added


def column_sums(x: Tensor) -> Tensor:
    """Return the sums over rows of `[models, rows, channels]`, in float32 `[models, channels]`."""
    models, rows, channels = x.shape
    x = x if x.stride(2) == 1 else x.contiguous()
    block, width = _tile(channels)
    columns = triton.cdiv(channels, width)
    programs, turns = _shares(rows, block, models, columns)
    sums = torch.empty(models, programs, channels, dtype=torch.float32, device=x.device)
    _column_sums[programs, columns, models](
        x, sums, rows, channels, turns, x.stride(0), x.stride(1), block=block, width=width
    )
    return _folded(sums)


NODES_PER_PROGRAM, WARPS = 2, 1
"""Fastest on an H200 with 4 tokens and 4 heads of 32 channels."""


@triton.jit
def _part(qkv, bias, place, there, own, real, part):  # type: ignore[no-untyped-def]
    """Return queries, keys or values, with their bias."""
    added = tl.load(bias + own + part, mask=real, other=0.0).to(tl.float32)
    return tl.load(qkv + place + part, mask=there, other=0.0).to(tl.float32) + added


@triton.jit
def _weights(q, k, key_there, root):  # type: ignore[no-untyped-def]
    """Softmax over axis 2 of `[nodes, count, count]`; padding tokens get no weight."""
    scores = tl.sum(q[:, :, None, :] * k[:, None, :, :], axis=3) * root
    scores = tl.where(key_there, scores, float("-inf"))
    raised = tl.exp(scores - tl.max(scores, axis=2)[:, :, None])
    return raised / tl.sum(raised, axis=2)[:, :, None]


@triton.jit  # type: ignore[untyped-decorator]
def _kept(kept, node, token, head, rows, count: tl.constexpr, heads: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the dropout mask `[nodes, count, count]` of a head."""
    wide = node.to(tl.int64)
    pair = (node < rows)[:, None, None] & (token < count)[None, :, None] & (token < count)[None, None, :]
    at = ((wide[:, None, None] * count + token[None, :, None]) * count + token[None, None, :]) * heads + head
    return tl.load(kept + at, mask=pair, other=0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _read_head(  # type: ignore[no-untyped-def]
    qkv, bias, node, head, token, channel, rows, nodes,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Return queries, keys and values of a head, their places and that of the result, and which exist."""
    wide = node.to(tl.int64)[:, None, None]
    there = (node < rows)[:, None, None] & (token < count)[None, :, None] & (channel < width)[None, None, :]
    column = head * width + channel[None, None, :]
    place = wide * (count * 3 * heads * width) + token[None, :, None] * (3 * heads * width) + column
    real = (node < rows)[:, None, None] & (channel < width)[None, None, :]
    own = (wide // nodes) * (3 * heads * width) + column
    q = _part(qkv, bias, place, there, own, real, 0)
    k = _part(qkv, bias, place, there, own, real, heads * width)
    v = _part(qkv, bias, place, there, own, real, 2 * heads * width)
    to = wide * (count * heads * width) + token[None, :, None] * (heads * width) + column
    return q, k, v, place, to, there


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, mixed, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node, head = tl.program_id(0) * block + tl.arange(0, block), tl.program_id(1)
    token = tl.arange(0, padded_count)
    q, k, v, _, to, there = _read_head(
        qkv, bias, node, head, token, tl.arange(0, padded_width), rows, nodes, count, heads, width
    )
    p = _weights(q, k, (token < count)[None, None, :], root)
    if dropping:
        keep = _kept(kept, node, token, head, rows, count, heads)
        p = p * keep * tl.load(scale + node // nodes, mask=node < rows, other=0.0)[:, None, None]
    out = tl.sum(p[:, :, :, None] * v[:, None, :, :], axis=2)
    tl.store(mixed + to, out.to(mixed.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, of_mixed, of_qkv, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node, head = tl.program_id(0) * block + tl.arange(0, block), tl.program_id(1)
    token = tl.arange(0, padded_count)
    q, k, v, place, to, there = _read_head(
        qkv, bias, node, head, token, tl.arange(0, padded_width), rows, nodes, count, heads, width
    )
    g = tl.load(of_mixed + to, mask=there, other=0.0).to(tl.float32)
    p = _weights(q, k, (token < count)[None, None, :], root)
    of_p = tl.sum(g[:, :, None, :] * v[:, None, :, :], axis=3)
    used = p
    if dropping:
        keep = _kept(kept, node, token, head, rows, count, heads)
        keep = keep * tl.load(scale + node // nodes, mask=node < rows, other=0.0)[:, None, None]
        used = p * keep
        of_p = of_p * keep
    of_scores = p * (of_p - tl.sum(p * of_p, axis=2)[:, :, None]) * root
    of_q = tl.sum(of_scores[:, :, :, None] * k[:, None, :, :], axis=2)
    of_k = tl.sum(of_scores[:, :, :, None] * q[:, :, None, :], axis=1)
    of_v = tl.sum(used[:, :, :, None] * g[:, :, None, :], axis=1)
    tl.store(of_qkv + place, of_q.to(of_qkv.dtype.element_ty), mask=there)
    tl.store(of_qkv + place + heads * width, of_k.to(of_qkv.dtype.element_ty), mask=there)
    tl.store(of_qkv + place + 2 * heads * width, of_v.to(of_qkv.dtype.element_ty), mask=there)


class _MixTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, kept: Tensor | None, scale: Tensor | None) -> Tensor:
        models, nodes, tokens, _, heads, width = qkv.shape
        mixed = qkv.new_empty(models, nodes, tokens, heads, width)
        ctx.save_for_backward(qkv, bias, kept, scale)
        _launch(_forward, qkv, bias, kept, scale, mixed)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        qkv, bias, kept, scale = ctx.saved_tensors
        of_qkv = torch.empty_like(qkv)
        _launch(_backward, qkv, bias, kept, scale, gradients[0].contiguous(), of_qkv)
        to_bias = None
        if ctx.needs_input_grad[1]:
            to_bias = column_sums(of_qkv.view(len(qkv), -1, bias.shape[-1])).view_as(bias)
        return of_qkv, to_bias, None, None


def _launch(
    kernel: Any, qkv: Tensor, bias: Tensor, kept: Tensor | None, scale: Tensor | None, *results: Tensor
) -> None:
    models, nodes, tokens, _, heads, width = qkv.shape
    rows = models * nodes
    dropping = kept is not None and scale is not None
    masks = (kept, scale) if dropping else (qkv, qkv)  # not read without dropout
    kernel[triton.cdiv(rows, NODES_PER_PROGRAM), heads](
        qkv, bias, *masks, *results, rows, nodes, width**-0.5, count=tokens, heads=heads, width=width,
        padded_count=triton.next_power_of_2(tokens), padded_width=triton.next_power_of_2(width),
        block=NODES_PER_PROGRAM, dropping=dropping, num_warps=WARPS,
    )  # fmt: skip


def mix_tokens(qkv: Tensor, bias: Tensor, kept: Tensor | None, scale: Tensor | None) -> Tensor:
    """Return `h3gnn.encoder.fusion.mix_tokens` of `qkv + bias`, with bias `[models, 1, 3 · heads · c]`."""
    mixed: Tensor = _MixTokens.apply(  # type: ignore[no-untyped-call]
        qkv.contiguous(), bias, None if kept is None else kept.contiguous(), scale
    )
    return mixed


def fuse(block: TokenAttention, tokens: Tensor, kept: Tensor | None, scale: Tensor | None) -> Tensor:
    """Return `block(tokens, kept)` for a norm after each branch; kept weights are multiplied with `scale`."""
    models, nodes, count, channels = tokens.shape
    flat = tokens.reshape(models, nodes * count, channels)
    qkv = _product(flat, block.qkv).view(models, nodes, count, 3, block.heads, channels // block.heads)
    assert block.qkv.bias is not None
    mixed = mix_tokens(qkv, block.qkv.bias, kept, scale).view_as(flat)
    flat = _add_branch(flat, mixed, block.projection, block.attention_norm, block.norm)
    first, second = block.mlp.input, block.mlp.output
    assert first.bias is not None
    hidden = activate(_product(flat, first), first.bias, block.mlp.activation_name)
    flat = _add_branch(flat, hidden, second, block.mlp_norm, block.norm)
    return flat.view_as(tokens)


def _product(x: Tensor, layer: Linear) -> Tensor:
    """Return `x W`; the next kernel adds the bias."""
    return torch.bmm(x, layer.weight.to(x.dtype))


def _add_branch(residual: Tensor, x: Tensor, layer: Linear, norm: LayerNorm, place: str) -> Tensor:
    assert layer.bias is not None
    branch = _product(x, layer)
    return add_norm(residual, branch, layer.bias, norm.weight, norm.bias, inside=place == "post")
