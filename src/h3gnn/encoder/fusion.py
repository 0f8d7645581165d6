"""Fusing a node's tokens: a Transformer block with attention over them, or, as an ablation, an MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from h3gnn.encoder.layers import FeedForward, Generators, LayerNorm, Linear
from h3gnn.encoder.noise import keep_scale
from h3gnn.encoder.triton import kernels_for


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
    models, nodes, count, _, heads, channels = qkv.shape
    if (kernels := kernels_for(qkv)) is not None:
        mixed: Tensor = kernels.mix_tokens(qkv, qkv.new_zeros(models, 1, 3 * heads * channels), kept, scale)
        return mixed
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


class TokenAttention(nn.Module):
    r"""A Transformer block over the S tokens of each node; nodes do not see one another here.

    .. math::
        \mathrm{Attn}(X) &= \mathrm{Softmax}(Q K^\top / \sqrt c) \\
        Y &= X + \mathrm{Norm}(\mathrm{Linear}(\mathrm{Attn}(X) V)) \\
        X &= Y + \mathrm{Norm}(\mathrm{MLP}(Y))

    That is `norm="residual-post"`, the paper's. `"post"` is :math:`\mathrm{Norm}(X + \cdot)` and `"pre"` is
    :math:`X + f(\mathrm{Norm}(X))`.
    """

    def __init__(
        self,
        models: int,
        channels: int,
        heads: int,
        norm: str,
        dropout: Sequence[float],
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.heads, self.norm, self.dropout = heads, norm, list(dropout)
        self.qkv = Linear(models, channels, 3 * channels)
        self.projection = Linear(models, channels, channels)
        self.attention_norm = LayerNorm(models, channels)
        self.mlp = FeedForward(models, channels, 4 * channels, channels, activation)
        self.mlp_norm = LayerNorm(models, channels)

    def reset_parameters(self, generators: Generators) -> None:
        """Start all layers anew."""
        for layer in (self.qkv, self.projection, self.attention_norm, self.mlp, self.mlp_norm):
            layer.reset_parameters(generators)

    def keep_shape(self, tokens: int) -> tuple[int, ...]:
        """Shape of one node's dropout mask."""
        return (tokens, tokens, self.heads)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Fuse `[models, nodes, tokens, channels]`."""
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
        """Return how much each token listens to each other, `[models, nodes, S, S, heads]`."""
        return attention_weights(self._qkv(self.attention_norm(tokens) if self.norm == "pre" else tokens))

    def _qkv(self, tokens: Tensor) -> Tensor:
        models, nodes, count, channels = tokens.shape
        flat = tokens.reshape(models, nodes * count, channels)
        projected: Tensor = self.qkv(flat)
        return projected.view(models, nodes, count, 3, self.heads, channels // self.heads)

    def _mix(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        models, nodes, count, channels = tokens.shape
        scale = None if kept is None else keep_scale(self.dropout, tokens)
        heard = mix_tokens(self._qkv(tokens), kept, scale)
        mixed: Tensor = self.projection(heard.reshape(models, nodes * count, channels))
        return mixed.view(models, nodes, count, channels)


class HierarchicalAttention(TokenAttention):
    r"""Two Transformer blocks: the hops' tokens hear one another, then all tokens do (the later version).

    .. math::
        (X_3, \dots, X_S) &\leftarrow \mathrm{Block}_1(X_3, \dots, X_S) \\
        X &\leftarrow \mathrm{Block}_2(X_1, X_2, X_3, \dots, X_S)

    :math:`X_1` and :math:`X_2` are the node's own tokens. Both blocks are as in `TokenAttention`, and the
    attention that is shown is the second one's.
    """

    OWN = 2

    def __init__(
        self,
        models: int,
        channels: int,
        heads: int,
        norm: str,
        dropout: Sequence[float],
        activation: str = "gelu",
    ) -> None:
        super().__init__(models, channels, heads, norm, dropout, activation)
        self.among_hops = TokenAttention(models, channels, heads, norm, dropout, activation)

    def reset_parameters(self, generators: Generators) -> None:
        """Start both blocks anew."""
        self.among_hops.reset_parameters(generators)
        super().reset_parameters(generators)

    def keep_shape(self, tokens: int) -> tuple[int, ...]:
        """Shape of one node's dropout masks: of all pairs of tokens, then of those of the hops."""
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
        """Return how much each token listens to each other, `[models, nodes, S, S, heads]`."""
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
        """Start anew."""
        self.mlp.reset_parameters(generators)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Fuse `[models, nodes, tokens, channels]`; `kept` is the attention's, and there is none."""
        fused: Tensor = self.mlp(tokens.flatten(2))
        return fused.view_as(tokens)
