"""Attention over a node's tokens as one CUDA kernel each way: nothing of size tokens² × channels is stored.

A program takes a few nodes and one head, holds their queries, keys and values in registers, and writes what
each token hears. The way back recomputes the weights, which is cheaper than reading them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from h3gnn.encoder.triton.rows import activate, add_norm, column_sums

if TYPE_CHECKING:
    from h3gnn.encoder.fusion import TokenAttention
    from h3gnn.encoder.layers import LayerNorm, Linear

NODES_PER_PROGRAM, WARPS = 2, 1
"""What was fastest on an H200 at 4 tokens and 4 heads of 32 channels."""


@triton.jit
def _part(qkv, bias, place, there, own, real, part):  # type: ignore[no-untyped-def]
    """Return queries, keys or values, with their share of the bias."""
    added = tl.load(bias + own + part, mask=real, other=0.0).to(tl.float32)
    return tl.load(qkv + place + part, mask=there, other=0.0).to(tl.float32) + added


@triton.jit
def _weights(q, k, key_there, root):  # type: ignore[no-untyped-def]
    """Softmax over axis 2 of `[nodes, count, count]`; tokens that are padding get no weight."""
    scores = tl.sum(q[:, :, None, :] * k[:, None, :, :], axis=3) * root
    scores = tl.where(key_there, scores, float("-inf"))
    raised = tl.exp(scores - tl.max(scores, axis=2)[:, :, None])
    return raised / tl.sum(raised, axis=2)[:, :, None]


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, heard, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    head = tl.program_id(1)
    token, channel = tl.arange(0, padded_count), tl.arange(0, padded_width)
    wide = node.to(tl.int64)
    there = (node < rows)[:, None, None] & (token < count)[None, :, None] & (channel < width)[None, None, :]
    start = wide[:, None, None] * (count * 3 * heads * width) + token[None, :, None] * (3 * heads * width)
    place = start + head * width + channel[None, None, :]
    real = (node < rows)[:, None, None] & (channel < width)[None, None, :]
    own = (wide // nodes)[:, None, None] * (3 * heads * width) + head * width + channel[None, None, :]
    q = _part(qkv, bias, place, there, own, real, 0)
    k = _part(qkv, bias, place, there, own, real, heads * width)
    v = _part(qkv, bias, place, there, own, real, 2 * heads * width)
    p = _weights(q, k, (token < count)[None, None, :], root)
    if dropping:
        pair = (node < rows)[:, None, None] & (token < count)[None, :, None] & (token < count)[None, None, :]
        at = (
            (wide[:, None, None] * count + token[None, :, None]) * count + token[None, None, :]
        ) * heads + head
        keep = tl.load(kept + at, mask=pair, other=0).to(tl.float32)
        p = p * keep * tl.load(scale + node // nodes, mask=node < rows, other=0.0)[:, None, None]
    out = tl.sum(p[:, :, :, None] * v[:, None, :, :], axis=2)
    to = (
        wide[:, None, None] * (count * heads * width)
        + token[None, :, None] * (heads * width)
        + head * width
        + channel[None, None, :]
    )
    tl.store(heard + to, out.to(heard.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, of_heard, of_qkv, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    head = tl.program_id(1)
    token, channel = tl.arange(0, padded_count), tl.arange(0, padded_width)
    wide = node.to(tl.int64)
    there = (node < rows)[:, None, None] & (token < count)[None, :, None] & (channel < width)[None, None, :]
    start = wide[:, None, None] * (count * 3 * heads * width) + token[None, :, None] * (3 * heads * width)
    place = start + head * width + channel[None, None, :]
    real = (node < rows)[:, None, None] & (channel < width)[None, None, :]
    own = (wide // nodes)[:, None, None] * (3 * heads * width) + head * width + channel[None, None, :]
    q = _part(qkv, bias, place, there, own, real, 0)
    k = _part(qkv, bias, place, there, own, real, heads * width)
    v = _part(qkv, bias, place, there, own, real, 2 * heads * width)
    to = (
        wide[:, None, None] * (count * heads * width)
        + token[None, :, None] * (heads * width)
        + head * width
        + channel[None, None, :]
    )
    g = tl.load(of_heard + to, mask=there, other=0.0).to(tl.float32)
    p = _weights(q, k, (token < count)[None, None, :], root)
    of_p = tl.sum(g[:, :, None, :] * v[:, None, :, :], axis=3)
    used = p
    if dropping:
        pair = (node < rows)[:, None, None] & (token < count)[None, :, None] & (token < count)[None, None, :]
        at = (
            (wide[:, None, None] * count + token[None, :, None]) * count + token[None, None, :]
        ) * heads + head
        keep = tl.load(kept + at, mask=pair, other=0).to(tl.float32)
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
        heard = qkv.new_empty(models, nodes, tokens, heads, width)
        ctx.save_for_backward(qkv, bias, kept, scale)
        _launch(_forward, qkv, bias, kept, scale, heard)
        return heard

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
    masks = (kept, scale) if dropping else (qkv, qkv)  # not read where nothing is dropped
    kernel[triton.cdiv(rows, NODES_PER_PROGRAM), heads](
        qkv,
        bias,
        *masks,
        *results,
        rows,
        nodes,
        width**-0.5,
        count=tokens,
        heads=heads,
        width=width,
        padded_count=triton.next_power_of_2(tokens),
        padded_width=triton.next_power_of_2(width),
        block=NODES_PER_PROGRAM,
        dropping=dropping,
        num_warps=WARPS,
    )


def mix_tokens(qkv: Tensor, bias: Tensor, kept: Tensor | None, scale: Tensor | None) -> Tensor:
    """Do what `h3gnn.encoder.fusion.mix_tokens` says of `qkv + bias`, in one kernel each way.

    Args:
        qkv: `[models, nodes, S, 3, heads, c]`.
        bias: `[models, 1, 3 · heads · c]`.
        kept, scale: as there.
    """
    mixed: Tensor = _MixTokens.apply(  # type: ignore[no-untyped-call]
        qkv.contiguous(), bias, None if kept is None else kept.contiguous(), scale
    )
    return mixed


def fuse(block: TokenAttention, tokens: Tensor, kept: Tensor | None, scale: Tensor | None) -> Tensor:
    """Do what `TokenAttention` says, for a norm behind each branch.

    Args:
        block: whose weights to use.
        tokens: `[models, nodes, S, channels]`.
        kept: the attention's dropout masks, or None.
        scale: what kept weights are multiplied with, `[models]`.
    """
    models, nodes, count, channels = tokens.shape
    flat = tokens.reshape(models, nodes * count, channels)
    qkv = product(flat, block.qkv).view(models, nodes, count, 3, block.heads, channels // block.heads)
    assert block.qkv.bias is not None
    heard = mix_tokens(qkv, block.qkv.bias, kept, scale).view_as(flat)
    flat = _joined(flat, product(heard, block.projection), block.projection, block.attention_norm, block.norm)
    first, second = block.mlp.input, block.mlp.output
    assert first.bias is not None
    hidden = activate(product(flat, first), first.bias, block.mlp.activation_name)
    flat = _joined(flat, product(hidden, second), second, block.mlp_norm, block.norm)
    return flat.view_as(tokens)


def product(x: Tensor, layer: Linear) -> Tensor:
    """Return `x W`; the bias is left to whoever reads it."""
    return torch.bmm(x, layer.weight.to(x.dtype))


def _joined(residual: Tensor, branch: Tensor, layer: Linear, norm: LayerNorm, place: str) -> Tensor:
    assert layer.bias is not None
    return add_norm(residual, branch, layer.bias, norm.weight, norm.bias, inside=place == "post")
