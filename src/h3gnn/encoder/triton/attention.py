"""Attention over a node's tokens as one CUDA kernel each for forward and backward.

A program takes a few nodes and one head and holds their queries, keys and values in registers. The backward
kernel recomputes the weights, which is cheaper than reading them.
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


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, mixed, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    head = tl.program_id(1)
    token, channel = tl.arange(0, padded_count), tl.arange(0, padded_width)
    wide = node.to(tl.int64)[:, None, None]
    there = (node < rows)[:, None, None] & (token < count)[None, :, None] & (channel < width)[None, None, :]
    column = head * width + channel[None, None, :]
    place = wide * (count * 3 * heads * width) + token[None, :, None] * (3 * heads * width) + column
    real = (node < rows)[:, None, None] & (channel < width)[None, None, :]
    own = (wide // nodes) * (3 * heads * width) + column
    q = _part(qkv, bias, place, there, own, real, 0)
    k = _part(qkv, bias, place, there, own, real, heads * width)
    v = _part(qkv, bias, place, there, own, real, 2 * heads * width)
    p = _weights(q, k, (token < count)[None, None, :], root)
    if dropping:
        keep = _kept(kept, node, token, head, rows, count, heads)
        p = p * keep * tl.load(scale + node // nodes, mask=node < rows, other=0.0)[:, None, None]
    out = tl.sum(p[:, :, :, None] * v[:, None, :, :], axis=2)
    to = wide * (count * heads * width) + token[None, :, None] * (heads * width) + column
    tl.store(mixed + to, out.to(mixed.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "nodes"])  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    qkv, bias, kept, scale, of_mixed, of_qkv, rows, nodes, root,
    count: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    padded_count: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, dropping: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    head = tl.program_id(1)
    token, channel = tl.arange(0, padded_count), tl.arange(0, padded_width)
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
