"""The fusion block on a CUDA device: products by cuBLAS, and one kernel for what lies between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from h3gnn.encoder.cuda.attention import mix_tokens
from h3gnn.encoder.cuda.rows import activate, add_norm

if TYPE_CHECKING:
    from h3gnn.encoder.fusion import TokenAttention
    from h3gnn.encoder.layers import LayerNorm, Linear


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
