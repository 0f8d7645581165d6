"""The joint structural encoder as a stack of models: a part of a graph in, embeddings of its seeds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.fusion import HierarchicalAttention, TokenAttention, TokenMLP
from h3gnn.encoder.layers import ACTIVATIONS, Generators, add_bias, uniform_
from h3gnn.encoder.noise import Noise, drop
from h3gnn.encoder.sparse import Adjacency
from h3gnn.encoder.tokens import (
    EdgeWeights,
    InputProjection,
    NodeMLP,
    Part,
    Projected,
    Unprojected,
    WeightedGCN,
)

WORDS = {
    "norm": ("residual-post", "post", "pre"),
    "fusion": ("attention", "hierarchical", "mlp"),
    "activation": tuple(ACTIVATIONS),
    "output": ("flatten", "first", "max"),
    "mask_token": ("normal", "zero"),
    "edge_weights": ("fixed", "free", "learned", "computed"),
}
"""What the options that are words may be."""
ATTENTION_PLACE, TOKEN_PLACE = 0, 1


class EncoderStack(nn.Module):
    r"""Joint structural node encoding: S = 2 + K tokens per node, fused by attention.

    .. math::
        \mathbf f(v) = [f^{(Linear)}(v) \,\|\, f^{(Mlp)}(v) \,\|\, H^{(1)}(v) \,\|\, \cdots \,\|\, H^{(K)}(v)]

    followed by `TokenAttention`. The work falls into three steps, each a method: `project` (the raw
    features), `tokens` (the graph), `fuse` (node by node). `forward` is the three in a row.

    All weights have a first axis `models`: a stack trains together, and no model sees another. `JointEncoder`
    is the stack of one, with the calling habits of PyG.

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        entries: number of entries of the support, each with a learnable weight.
        hops: K, one weighted-GCN token for each hop 1…K.
        min_layers: how many layers even the 1-hop token has; at most `hops`.
        hidden_channels: hidden width of the MLP (4C by default) and of the weighted GCNs (C by default).
        heads: attention heads; must divide `channels`.
        norm: `"residual-post"` (paper), `"post"` or `"pre"`.
        activation: `"gelu"` or `"relu"` in the MLP of the fusion block.
        fusion: `"attention"` (paper), `"hierarchical"` (later version) or `"mlp"` (ablation).
        output: `"flatten"` gives D = S·C, `"first"` the first token alone, `"max"` the largest over tokens.
        batch_norm: batch norm between the layers of a weighted GCN.
        edge_weights: `"free"` (paper), `"learned"`, `"fixed"` or `"computed"`; see `EdgeWeights`.
        token_dropout: rate on the tokens and between weighted-GCN layers, one for all models or one each.
        attention_dropout: rate on the attention weights, likewise.
        mask_token: the mask token starts `"normal"` or `"zero"`.
        fuse_in_bfloat16: compute the fusion block in bfloat16; weights and all else stay as they are.
        side_by_side: how the first weights of several models lie in memory; see `features.side_by_side`.
        models: how many models stand in the stack.

    Shapes:
        output `[models, seeds, D]`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        entries: int,
        *,
        hops: int = 2,
        min_layers: int = 1,
        hidden_channels: int | None = None,
        heads: int = 4,
        norm: str = "residual-post",
        activation: str = "gelu",
        fusion: str = "attention",
        output: str = "flatten",
        batch_norm: bool = False,
        edge_weights: str = "learned",
        token_dropout: float | Sequence[float] = 0.0,
        attention_dropout: float | Sequence[float] = 0.0,
        mask_token: str = "normal",
        fuse_in_bfloat16: bool = False,
        side_by_side: bool = False,
        models: int = 1,
    ) -> None:
        super().__init__()
        self._options: dict[str, Any] = {
            "hops": hops,
            "min_layers": min_layers,
            "hidden_channels": hidden_channels,
            "heads": heads,
            "norm": norm,
            "activation": activation,
            "fusion": fusion,
            "output": output,
            "batch_norm": batch_norm,
            "edge_weights": edge_weights,
            "mask_token": mask_token,
            "fuse_in_bfloat16": fuse_in_bfloat16,
            "side_by_side": side_by_side,
        }
        for name, known in WORDS.items():
            if self._options[name] not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, known))}, not {self._options[name]!r}"
                )
        if fusion != "mlp" and channels % heads:
            raise ValueError(f"channels ({channels}) must be a multiple of heads ({heads})")
        if min_layers > hops:
            raise ValueError(f"min_layers ({min_layers}) must not be more than hops ({hops})")
        mlp_width, hop_width = hidden_channels or 4 * channels, hidden_channels or channels
        layers = [max(hop, min_layers) for hop in range(1, hops + 1)]
        hop_widths = [channels if count == 1 else hop_width for count in layers]
        self.models, self.channels, self.hops, self.output = models, channels, hops, output
        self.fuse_in_bfloat16 = fuse_in_bfloat16
        self.token_dropout = per_model(token_dropout, models)
        self.computes_edges = edge_weights == "computed"
        widths, reaches = [channels, mlp_width, *hop_widths], [0, *layers]
        if self.computes_edges:
            widths, reaches = [*widths, 2], [*reaches, hops]
        self.input = InputProjection(
            models, in_channels, widths, reaches, hops, mask_token, side_by_side=side_by_side
        )
        self.edges = EdgeWeights(models, entries, edge_weights)
        self.linear_bias = nn.Parameter(torch.empty(models, 1, channels))
        self.mlp = NodeMLP(models, mlp_width, channels)
        self.hop_tokens = nn.ModuleList(
            WeightedGCN(models, hop, count, hop_width, channels, batch_norm)
            for hop, count in enumerate(layers, start=1)
        )
        self.fusion: TokenAttention | TokenMLP
        if fusion == "mlp":
            self.fusion = TokenMLP(models, channels, 2 + hops, activation)
        else:
            block = HierarchicalAttention if fusion == "hierarchical" else TokenAttention
            dropped = per_model(attention_dropout, models)
            self.fusion = block(models, channels, heads, norm, dropped, activation)

    @property
    def out_channels(self) -> int:
        """Width D of one model's embedding."""
        return self.channels * (2 + self.hops if self.output == "flatten" else 1)

    @property
    def fused_tokens(self) -> int:
        """How many tokens of a node go through a fusion block, those that go through two twice."""
        return 2 + self.hops * (2 if isinstance(self.fusion, HierarchicalAttention) else 1)

    @property
    def bfloat16_tokens(self) -> bool:
        """Whether the tokens are made in bfloat16 too: a GPU then reads and writes half as much."""
        return self.fuse_in_bfloat16 and self.linear_bias.is_cuda

    @property
    def device(self) -> torch.device:
        """Where the encoder works."""
        return self.linear_bias.device

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

    def copy_models(self, models: Sequence[int]) -> EncoderStack:
        """Return a stack of copies of some of the models."""
        places = list(models)
        fusion = self.fusion
        smaller = EncoderStack(
            self.input.weight.shape[1],
            self.channels,
            self.edges.logit.shape[1],
            **self._options,
            token_dropout=[self.token_dropout[place] for place in places],
            attention_dropout=(
                [fusion.dropout[place] for place in places] if isinstance(fusion, TokenAttention) else 0.0
            ),
            models=len(places),
        ).to(self.device, self.linear_bias.dtype)
        smaller.load_state_dict({name: value[places] for name, value in self.state_dict().items()})
        return smaller.train(self.training)

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return all parameters but the edge weights, of which there is one for each edge."""
        return [parameter for parameter in self.parameters() if parameter is not self.edges.logit]

    def project(self, part: Part, columns_kept: Tensor | None = None) -> list[Projected | Unprojected]:
        """Multiply the features and the mask token with every first-layer weight."""
        projected: list[Projected | Unprojected] = self.input(
            part, columns_kept, rounded=self.bfloat16_tokens
        )
        return projected

    def tokens(
        self,
        projected: list[Projected | Unprojected],
        part: Part,
        edge_weights: Tensor,
        mask: Tensor | None = None,
        noise: Noise | None = None,
        donors: Tensor | None = None,
    ) -> Tensor:
        """Return the seeds' tokens `[models, seeds, 2 + hops, channels]`.

        Args:
            projected: from `project`, or a moving average of it. The list is emptied: its tensors, the widest
                of all, are let go as soon as they have been looked at.
            part: the seeds and what they hear.
            edge_weights: `[models, weights]`, of the edges that the part's blocks name.
            mask: bool `[models, nodes of the part]`, whose features are hidden.
            noise: where keep-masks come from; None drops nothing.
            donors: whose features each node shows, `[models, nodes of the part]`, itself or a seed; None lets
                each show its own.
        """
        to_linear, to_mlp, *to_others = self.input.widths
        widths = [to_linear, to_mlp]
        if part.whole:  # one product has them all
            widths += [sum(to_others[: self.hops]), *to_others[self.hops :]]
        linear, hidden, *here = cast(Projected, projected.pop(0)).pieces(widths, mask, donors)
        rest = [run.masked(mask, donors) if isinstance(run, Projected) else run for run in projected]
        sent = [*here, *rest]
        projected.clear()
        ends = cast(Tensor, sent.pop()) if self.computes_edges else None
        blocks = list(part.blocks[:1]) if part.whole else part.blocks
        adjacencies = [
            Adjacency(block, edge_weights, None if ends is None else self.edges.gates(block, ends))
            for block in blocks
        ]
        if part.whole:  # one product makes the first layers of all hops
            heard = list(torch.split(adjacencies[0] @ cast(Tensor, sent[0]), to_others[: self.hops], dim=-1))
            adjacencies = adjacencies * self.hops
        else:
            towards = [adjacencies[reach - 1] for reach in self.input.reaches[1 : 1 + self.hops]]
            heard = [
                one.heard(adjacency, mask, donors) if isinstance(one, Unprojected) else adjacency @ one
                for adjacency, one in zip(towards, sent, strict=True)
            ]
        hops = [
            token(torch.relu(first_layer), adjacencies, self.token_dropout, noise, part.nodes)
            for token, first_layer in zip(self.hop_tokens, heard, strict=True)
        ]
        stacked = torch.stack([add_bias(linear, self.linear_bias), self.mlp(hidden), *hops], dim=2)
        if noise is None:
            return stacked
        kept = noise.keep(self.token_dropout, part.seeds, stacked.shape[2:], TOKEN_PLACE)
        return drop(stacked, kept, self.token_dropout)

    def attention_keep(self, nodes: Tensor, noise: Noise | None) -> Tensor | None:
        """Draw the attention's dropout masks for these nodes; None where nothing is dropped."""
        if noise is None or isinstance(self.fusion, TokenMLP):
            return None
        shape = self.fusion.keep_shape(2 + self.hops)
        return noise.keep(self.fusion.dropout, nodes, shape, ATTENTION_PLACE)

    def fuse(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the embedding `[models, nodes, D]` of these nodes' tokens."""
        block_input = tokens.bfloat16() if self.fuse_in_bfloat16 else tokens
        fused: Tensor = self.fusion(block_input, kept)
        fused = fused.to(self.linear_bias.dtype)
        if self.output == "flatten":
            return fused.flatten(2)
        return fused[:, :, 0] if self.output == "first" else fused.amax(dim=2)

    def attention(self, tokens: Tensor) -> Tensor | None:
        """Return how much each token listens to each other, `[models, nodes, S, S, heads]`."""
        return self.fusion.attention(tokens) if isinstance(self.fusion, TokenAttention) else None

    def forward(self, part: Part, edge_weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode the seeds: `[models, seeds, D]`."""
        return self.fuse(self.tokens(self.project(part), part, edge_weights, mask))


def per_model(rate: float | Sequence[float], models: int) -> list[float]:
    """Return one value for each model."""
    return [float(value) for value in rate] if isinstance(rate, Sequence) else [float(rate)] * models
