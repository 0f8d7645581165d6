"""The joint structural encoder: features and support in, embeddings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.fusion import TokenAttention, TokenMLP
from h3gnn.encoder.layers import Dropout, Generators, drop, uniform_
from h3gnn.encoder.propagation import Adjacency, FeatureMatrix
from h3gnn.encoder.support import Support
from h3gnn.encoder.tokens import EdgeWeights, InputProjection, NodeMLP, Projected, WeightedGCN

NORMS = ("residual-post", "post", "pre")
FUSIONS = ("attention", "mlp")
OUTPUTS = ("flatten", "first")


class JointEncoder(nn.Module):
    r"""Joint structural node encoding: S = 2 + K tokens per node, fused by attention.

    .. math::
        \mathbf f(v) = [f^{(Linear)}(v) \,\|\, f^{(Mlp)}(v) \,\|\, H^{(1)}(v) \,\|\, \cdots \,\|\, H^{(K)}(v)]

    followed by `TokenAttention`. The work falls into three steps, each a method: `project` (the raw features,
    once), `tokens` (the graph), `fuse` (node by node). `forward` is the three in a row.

    All weights have a first axis `models`: a stack trains together, and no model sees another.

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        entries: number of entries of the support, each with a learnable weight.
        hops: K, one weighted-GCN token for each hop 1…K.
        hidden_channels: hidden width of the MLP (4C by default) and of the weighted GCNs (C by default).
        heads: attention heads; must divide `channels`.
        norm: `"residual-post"` (paper), `"post"` or `"pre"`.
        fusion: `"attention"` (paper) or `"mlp"` (ablation).
        output: `"flatten"` gives D = S·C, `"first"` the first token alone.
        batch_norm: batch norm between the layers of a weighted GCN.
        token_dropout: rate on the tokens and between weighted-GCN layers, one for all models or one each.
        attention_dropout: rate on the attention weights, likewise.
        mask_token: the mask token starts `"normal"` or `"zero"`.
        fuse_in_bfloat16: compute the fusion block in bfloat16; weights and all else stay as they are.
        side_by_side: how the first weights of several models lie in memory; see `propagation.side_by_side`.
        models: how many models stand in the stack.

    Shapes:
        features `[nodes, d]`, support over the same nodes; output `[models, nodes, D]`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        entries: int,
        *,
        hops: int = 2,
        hidden_channels: int | None = None,
        heads: int = 4,
        norm: str = "residual-post",
        fusion: str = "attention",
        output: str = "flatten",
        batch_norm: bool = False,
        token_dropout: float | Sequence[float] = 0.0,
        attention_dropout: float | Sequence[float] = 0.0,
        mask_token: str = "normal",
        fuse_in_bfloat16: bool = False,
        side_by_side: bool = False,
        models: int = 1,
    ) -> None:
        super().__init__()
        mlp_width, hop_width = hidden_channels or 4 * channels, hidden_channels or channels
        hop_widths = [channels if hop == 1 else hop_width for hop in range(1, hops + 1)]
        self.models, self.channels, self.hops, self.output = models, channels, hops, output
        self.fuse_in_bfloat16 = fuse_in_bfloat16
        self.token_dropout = per_model(token_dropout, models)
        widths = [channels, mlp_width, *hop_widths]
        self.input = InputProjection(models, in_channels, widths, mask_token, side_by_side=side_by_side)
        self.edges = EdgeWeights(models, entries)
        self.linear_bias = nn.Parameter(torch.empty(models, 1, channels))
        self.mlp = NodeMLP(models, mlp_width, channels)
        self.hop_tokens = nn.ModuleList(
            WeightedGCN(models, hop, hop_width, channels, batch_norm) for hop in range(1, hops + 1)
        )
        self.fusion: TokenAttention | TokenMLP
        if fusion == "attention":
            self.fusion = TokenAttention(models, channels, heads, norm, per_model(attention_dropout, models))
        else:
            self.fusion = TokenMLP(models, channels, 2 + hops)

    @property
    def out_channels(self) -> int:
        """Width D of one model's embedding."""
        return self.channels * (2 + self.hops if self.output == "flatten" else 1)

    def reset_parameters(self, generators: Generators, start: Tensor) -> None:
        """Draw each model's start from its own generator; edge weights start where the support says."""
        in_channels = self.input.weight.shape[1]
        self.input.reset_parameters(generators)
        self.edges.reset_parameters(start)
        uniform_(self.linear_bias, in_channels**-0.5, generators)
        self.mlp.reset_parameters(generators, in_channels)
        for token in self.hop_tokens:
            cast(WeightedGCN, token).reset_parameters(generators)
        self.fusion.reset_parameters(generators)

    def project(self, features: FeatureMatrix) -> Projected:
        """Multiply the features and the mask token with every first-layer weight."""
        projected: Projected = self.input(features)
        return projected

    def tokens(
        self,
        projected: Projected,
        support: Support,
        mask: Tensor | None = None,
        edge_weights: Tensor | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Return the tokens `[models, nodes, 2 + hops, channels]`.

        Args:
            projected: from `project`, or a moving average of it.
            support: where messages may flow.
            mask: bool `[models, nodes]`, the nodes whose features are hidden.
            edge_weights: `[models, entries]`; the learned ones by default.
            dropout: where keep-masks come from; None drops nothing.
        """
        seen = projected.masked(mask)
        to_linear, to_mlp, *to_hops = self.input.widths
        linear, hidden, messages = torch.split(seen, [to_linear, to_mlp, sum(to_hops)], dim=-1)
        weights = self.edges(support) if edge_weights is None else edge_weights
        adjacency = Adjacency(support.pattern, weights)
        first_layers = torch.split(torch.relu(adjacency @ messages), to_hops, dim=-1)
        hops = [
            token(first_layer, adjacency, self.token_dropout, dropout)
            for token, first_layer in zip(self.hop_tokens, first_layers, strict=True)
        ]
        stacked = torch.stack([linear + self.linear_bias, self.mlp(hidden), *hops], dim=2)
        kept = None
        if dropout is not None:
            kept = dropout.keep(self.token_dropout, stacked.shape[1:], stacked.device)
        return drop(stacked, kept, self.token_dropout)

    def attention_keep(self, nodes: int, dropout: Dropout | None) -> Tensor | None:
        """Draw the attention's dropout masks for the whole graph; None where nothing is dropped."""
        if dropout is None or isinstance(self.fusion, TokenMLP):
            return None
        shape = self.fusion.keep_shape(nodes, 2 + self.hops)
        return dropout.keep(self.fusion.dropout, shape, self.linear_bias.device)

    def fuse(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the embedding `[models, nodes, D]` of these nodes' tokens."""
        block_input = tokens.bfloat16() if self.fuse_in_bfloat16 else tokens
        fused: Tensor = self.fusion(block_input, kept)
        fused = fused.to(tokens.dtype)
        return fused.flatten(2) if self.output == "flatten" else fused[:, :, 0]

    def attention(self, tokens: Tensor) -> Tensor | None:
        """Return how much each token listens to each other, `[models, nodes, S, S, heads]`."""
        return self.fusion.attention(tokens) if isinstance(self.fusion, TokenAttention) else None

    def forward(self, features: FeatureMatrix, support: Support, mask: Tensor | None = None) -> Tensor:
        """Encode all nodes: `[models, nodes, D]`."""
        return self.fuse(self.tokens(self.project(features), support, mask))


def per_model(rate: float | Sequence[float], models: int) -> list[float]:
    """Return one value for each model."""
    return [float(rate)] * models if isinstance(rate, int | float) else [float(value) for value in rate]
