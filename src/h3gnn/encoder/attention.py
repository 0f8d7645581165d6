"""Attention over the handful of tokens of each node."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor


def attention_weights(qkv: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{Softmax}(QK^\top/\sqrt c)`.

    With a handful of tokens, products and sums beat thousands of matrix products of 4 × 4.

    Args:
        qkv: queries, keys and values `[models, nodes, S, 3, heads, c]`.

    Returns:
        `[models, nodes, S, S, heads]`; each query's weights sum to 1 over axis 3.
    """
    query, key, _ = qkv.unbind(3)
    scores = (query.unsqueeze(3) * key.unsqueeze(2)).sum(dim=-1) / math.sqrt(qkv.shape[-1])
    return torch.softmax(scores, dim=3)


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
    weights = attention_weights(qkv)
    if kept is not None and scale is not None:
        weights = weights * (kept * scale.view(-1, 1, 1, 1, 1).to(weights.dtype))
    return (weights.unsqueeze(-1) * qkv.unbind(3)[2].unsqueeze(2)).sum(dim=3)


@cache
def _cuda_kernels() -> ModuleType | None:
    """Return the fused kernels, where Triton is there to compile them."""
    try:
        from h3gnn.encoder import attention_cuda
    except ImportError:
        return None
    return attention_cuda
