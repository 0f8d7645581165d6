"""Fusion of a node's tokens: a Transformer block over them or, as an ablation, an MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from h3gnn.encoder.layers import FeedForward, Generators, LayerNorm, Linear
from h3gnn.encoder.noise import keep_scale
from h3gnn.encoder.triton import kernels_for


def attention_weights(qkv: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{Softmax}(QK^\top/\sqrt c)`, `[models, nodes, S, S, heads]`.

    `qkv` is `[models, nodes, S, 3, heads, c]`; each query's weights sum to 1 over axis 3.
    """
    models, nodes, count, _, heads, _ = qkv.shape
    query, key, _ = _by_head(qkv)
    return _weights(query, key).view(models, nodes, heads, count, count).permute(0, 1, 4, 3, 2)


def mix_tokens(qkv: Tensor, kept: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Return attention times values, `[models, nodes, S, heads, c]`, from `[models, nodes, S, 3, heads, c]`.

    `kept` is a dropout mask on the weights, bool `[models, nodes, S, S, heads]`, and `scale` the factor of
    the kept ones, `[models]`.
    """
    models, _, count, _, heads, channels = qkv.shape
    if (kernels := kernels_for(qkv)) is not None:
        mixed: Tensor = kernels.mix_tokens(qkv, qkv.new_zeros(models, 1, 3 * heads * channels), kept, scale)
        return mixed
    factors = None
    if kept is not None and scale is not None:
        scaled = kept * scale.view(-1, 1, 1, 1, 1).to(torch.promote_types(qkv.dtype, torch.float32))
        factors = scaled.permute(0, 1, 4, 3, 2).reshape(-1, count, count)
    attended: Tensor = _Attend.apply(qkv, factors)  # type: ignore[no-untyped-call]
    return attended


class _Attend(torch.autograd.Function):
    """Attention times values; the gradients of queries, keys and values are written into one tensor."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, factors: Tensor | None) -> Tensor:
        query, key, value = parts = _by_head(qkv)
        weights = _weights(query, key)
        ctx.save_for_backward(parts, weights, factors)
        ctx.shape, ctx.dtype = qkv.shape, qkv.dtype
        models, nodes, count, _, heads, channels = qkv.shape
        kept = weights if factors is None else weights * factors
        attended = torch.bmm(kept.mT, value).view(models, nodes, heads, count, channels)
        return attended.transpose(2, 3).to(qkv.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        parts, weights, factors = ctx.saved_tensors
        models, nodes, count, _, heads, channels = ctx.shape
        upstream = gradients[0].transpose(2, 3).to(parts.dtype, memory_format=torch.contiguous_format)
        upstream = upstream.reshape(-1, count, channels)
        query, key, value = parts
        found = torch.empty_like(parts)
        to_weights = torch.bmm(value, upstream.mT)
        kept = weights if factors is None else weights * factors
        torch.bmm(kept, upstream, out=found[2])
        to_weights = to_weights if factors is None else to_weights.mul_(factors)
        slopes = torch._softmax_backward_data(to_weights, weights, 1, weights.dtype).div_(math.sqrt(channels))
        torch.bmm(slopes.mT, key, out=found[0])
        torch.bmm(slopes, query, out=found[1])
        found = found.view(3, models, nodes, heads, count, channels).permute(1, 2, 4, 0, 3, 5)
        return found.to(ctx.dtype, memory_format=torch.contiguous_format), None


def _by_head(qkv: Tensor) -> Tensor:
    """Return queries, keys and values `[3, models · nodes · heads, S, c]`, at least in float32.

    A CPU multiplies matrices with few rows no faster in bfloat16.
    """
    dtype = torch.promote_types(qkv.dtype, torch.float32)
    by_head = qkv.permute(3, 0, 1, 4, 2, 5).to(dtype, memory_format=torch.contiguous_format)
    return by_head.flatten(1, 3)


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """Return the weights with a column per query: softmax is slowest along the last axis."""
    return torch.softmax(torch.bmm(key, query.mT) / math.sqrt(query.shape[-1]), dim=1)


class TokenAttention(nn.Module):
    r"""A Transformer block over the S tokens of each node; nodes do not interact here.

    .. math::
        \mathrm{Attn}(X) &= \mathrm{Softmax}(Q K^\top / \sqrt c) \\
        Y &= X + \mathrm{Norm}(\mathrm{Linear}(\mathrm{Attn}(X) V)) \\
        X &= Y + \mathrm{Norm}(\mathrm{MLP}(Y))

    with `norm="residual-post"`, as in the paper. `"post"` is :math:`\mathrm{Norm}(X + \cdot)` and `"pre"` is
    :math:`X + f(\mathrm{Norm}(X))`.
    """

    def __init__(
        self, models: int, channels: int, heads: int, norm: str, dropout: Sequence[float], activation: str
    ) -> None:
        super().__init__()
        self.heads, self.norm, self.dropout = heads, norm, list(dropout)
        self.qkv = Linear(models, channels, 3 * channels)
        self.projection = Linear(models, channels, channels)
        self.attention_norm = LayerNorm(models, channels)
        self.mlp = FeedForward(models, channels, 4 * channels, channels, activation)
        self.mlp_norm = LayerNorm(models, channels)

    def reset_parameters(self, generators: Generators) -> None:
        """Reinitialise all layers."""
        for layer in (self.qkv, self.projection, self.attention_norm, self.mlp, self.mlp_norm):
            layer.reset_parameters(generators)

    def keep_shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape of one node's dropout mask."""
        return (tokens, tokens, self.heads)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Fuse `[models, nodes, tokens, channels]`; `kept` is the dropout mask of the attention."""
        if self.norm != "pre" and (kernels := kernels_for(tokens)) is not None:
            scale = None if kept is None else keep_scale(self.dropout, tokens)
            by_kernels: Tensor = kernels.fuse(self, tokens, kept, scale)
            return by_kernels
        if self.norm == "pre":
            tokens = tokens + self._mix(self.attention_norm(tokens), kept)
            fused: Tensor = tokens + self.mlp(self.mlp_norm(tokens))
        elif self.norm == "post":
            tokens = self.attention_norm(tokens + self._mix(tokens, kept))
            fused = self.mlp_norm(tokens + self.mlp(tokens))
        else:
            tokens = tokens + self.attention_norm(self._mix(tokens, kept))
            fused = tokens + self.mlp_norm(self.mlp(tokens))
        return fused

    def attention(self, tokens: Tensor) -> Tensor:
        """Return the attention weights, `[models, nodes, S, S, heads]`."""
        return attention_weights(self._qkv(self.attention_norm(tokens) if self.norm == "pre" else tokens))

    def _qkv(self, tokens: Tensor) -> Tensor:
        models, nodes, count, channels = tokens.shape
        flat = tokens.reshape(models, nodes * count, channels)
        projected: Tensor = self.qkv(flat)
        return projected.view(models, nodes, count, 3, self.heads, channels // self.heads)

    def _mix(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        models, nodes, count, channels = tokens.shape
        scale = None if kept is None else keep_scale(self.dropout, tokens)
        attended = mix_tokens(self._qkv(tokens), kept, scale)
        mixed: Tensor = self.projection(attended.reshape(models, nodes * count, channels))
        return mixed.view(models, nodes, count, channels)


class HierarchicalAttention(TokenAttention):
    r"""Two Transformer blocks: attention among the hop tokens, then among all tokens (later version).

    .. math::
        (X_3, \dots, X_S) &\leftarrow \mathrm{Block}_1(X_3, \dots, X_S) \\
        X &\leftarrow \mathrm{Block}_2(X_1, X_2, X_3, \dots, X_S)

    :math:`X_1` and :math:`X_2` are the tokens of the node's own features. `attention` is that of the second
    block.
    """

    OWN = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.among_hops = TokenAttention(*args, **options)

    def reset_parameters(self, generators: Generators) -> None:
        """Reinitialise both blocks."""
        self.among_hops.reset_parameters(generators)
        super().reset_parameters(generators)

    def keep_shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape of one node's dropout masks: all pairs of tokens, then pairs of hop tokens."""
        return (tokens**2 + (tokens - self.OWN) ** 2, self.heads)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Fuse `[models, nodes, tokens, channels]`."""
        if kept is None:
            return super().forward(self._first(tokens, None))
        count, hops = tokens.shape[2], tokens.shape[2] - self.OWN
        of_all, of_hops = torch.split(kept, [count**2, hops**2], dim=2)
        shape = kept.shape[:2]
        tokens = self._first(tokens, of_hops.reshape(*shape, hops, hops, self.heads))
        return super().forward(tokens, of_all.reshape(*shape, count, count, self.heads))

    def attention(self, tokens: Tensor) -> Tensor:
        """Return the attention weights of the second block, `[models, nodes, S, S, heads]`."""
        return super().attention(self._first(tokens, None))

    def _first(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        own, hops = tokens[:, :, : self.OWN], tokens[:, :, self.OWN :]
        return torch.cat([own, self.among_hops(hops, kept)], dim=2)


class TokenMLP(nn.Module):
    """The ablation without attention: one MLP over the concatenated tokens."""

    def __init__(self, models: int, channels: int, tokens: int, activation: str = "gelu") -> None:
        super().__init__()
        self.mlp = FeedForward(models, tokens * channels, 4 * channels, tokens * channels, activation)

    def reset_parameters(self, generators: Generators) -> None:
        """Reinitialise the MLP."""
        self.mlp.reset_parameters(generators)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Fuse `[models, nodes, tokens, channels]`; there is no attention to drop from."""
        fused: Tensor = self.mlp(tokens.flatten(2))
        return fused.view_as(tokens)
