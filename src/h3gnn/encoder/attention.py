"""Attention over the handful of tokens of each node."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor


def attention_weights(qkv: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{Softmax}(QK^\top/\sqrt c)`.

    Args:
        qkv: queries, keys and values `[models, nodes, S, 3, heads, c]`.

    Returns:
        `[models, nodes, S, S, heads]`; each query's weights sum to 1 over axis 3.
    """
    models, nodes, count, _, heads, _ = qkv.shape
    query, key, _ = _by_head(qkv)
    return _weights(query, key).view(models, nodes, heads, count, count).permute(0, 1, 4, 3, 2)


def mix_tokens(qkv: Tensor, kept: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Let the tokens of each node hear one another: attention times values, `[models, nodes, S, heads, c]`.

    Args:
        qkv: `[models, nodes, S, 3, heads, c]`.
        kept: dropout mask on the weights, bool `[models, nodes, S, S, heads]`, or None.
        scale: what kept weights are multiplied with, `[models]`.
    """
    if qkv.is_cuda and (kernels := _cuda_kernels()) is not None:
        mixed: Tensor = kernels.mix_tokens(qkv, kept, scale)
        return mixed
    models, nodes, count, _, heads, channels = qkv.shape
    query, key, value = _by_head(qkv)
    weights = _weights(query, key)
    if kept is not None and scale is not None:
        scaled = kept * scale.view(-1, 1, 1, 1, 1).to(weights.dtype)
        weights = weights * scaled.permute(0, 1, 4, 3, 2).reshape_as(weights)
    heard = torch.bmm(weights.mT, value).view(models, nodes, heads, count, channels)
    return heard.transpose(2, 3).to(qkv.dtype)


def _by_head(qkv: Tensor) -> list[Tensor]:
    """Return queries, keys and values, each `[models · nodes · heads, S, c]`.

    They are in float32 at least: a processor multiplies matrices of so few rows no faster in bfloat16.
    """
    dtype = torch.promote_types(qkv.dtype, torch.float32)
    return [
        part.transpose(2, 3).to(dtype, memory_format=torch.contiguous_format).flatten(0, 2)
        for part in qkv.unbind(3)
    ]


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """Return the weights with a column for each query: softmax is faster along any axis but the last."""
    return torch.softmax(torch.bmm(key, query.mT) / math.sqrt(query.shape[-1]), dim=1)


@cache
def _cuda_kernels() -> ModuleType | None:
    """Return the fused kernels, where Triton is there to compile them."""
    try:
        from h3gnn.encoder import attention_cuda
    except ImportError:
        return None
    return attention_cuda
