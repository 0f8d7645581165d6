"""The joint structural encoder for a stack of models: from a part of a graph to embeddings of its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.fusion import HierarchicalAttention, TokenAttention, TokenMLP
from h3gnn.encoder.layers import ACTIVATIONS, Generators, add_bias, uniform_
from h3gnn.encoder.noise import Noise, drop
from h3gnn.encoder.sparse import Adjacency
from h3gnn.encoder.tokens import (
    ATTENTION_DROPOUT,
    TOKEN_DROPOUT,
    EdgeWeights,
    InputProjection,
    NodeMLP,
    Part,
    PathTokens,
    Projected,
    Unprojected,
    WeightedGCN,
)

CHOICES = {
    "norm": ("residual-post", "post", "pre"),
    "fusion": ("attention", "hierarchical", "mlp"),
    "activation": tuple(ACTIVATIONS),
    "output": ("flatten", "first", "max"),
    "mask_token": ("normal", "zero"),
    "edge_weights": ("fixed", "free", "learned", "computed"),
}
"""Allowed values of the string options."""


class EncoderStack(nn.Module):
    r"""Joint structural node encoding: S = 2 + K tokens per node, fused by attention.

    .. math::
        \mathbf f(v) = [f^{(Linear)}(v) \,\|\, f^{(Mlp)}(v) \,\|\, H^{(1)}(v) \,\|\, \cdots \,\|\, H^{(K)}(v)]

    followed by `TokenAttention`. There are three steps, each a method: `project` (features), `tokens`
    (neighbourhoods) and `fuse` (node by node); `forward` runs all three.

    All weights have a first axis `models`; the models of a stack do not interact. `JointEncoder` is a stack
    of one with the interface of PyG.

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        entries: number of entries of the support, each with a learnable weight.
        hops: K, the number of hop tokens.
        min_layers: least number of layers of a hop token; at most `hops`.
        hidden_channels: hidden width of the MLP (4C by default) and of the weighted GCNs (C by default).
        heads: attention heads; must divide `channels`.
        norm: `"residual-post"` (paper), `"post"` or `"pre"`.
        activation: `"gelu"` or `"relu"` in the MLP of the fusion block.
        fusion: `"attention"` (paper), `"hierarchical"` (later version) or `"mlp"` (ablation).
        output: `"flatten"` gives D = S·C, `"first"` the first token, `"max"` the maximum over tokens.
        batch_norm: batch norm between the layers of a weighted GCN.
        edge_weights: `"free"` (paper), `"learned"`, `"fixed"` or `"computed"`; see `EdgeWeights`.
        token_dropout: rate on the tokens and between weighted-GCN layers, for all models or per model.
        attention_dropout: rate on the attention weights, likewise.
        mask_token: initial mask token, `"normal"` or `"zero"`.
        fuse_in_bfloat16: compute the fusion block in bfloat16.
        side_by_side: memory layout of the first-layer weights; see `features.side_by_side`.
        paths: paths of relations, in place of the hops, with a token each; see `relation_paths`.
        path_widths: columns of each path to other node types, which has a token; see `PathTokens`.
        models: number of models.
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
        paths: Sequence[Sequence[int]] = (),
        path_widths: Sequence[int] = (),
        models: int = 1,
    ) -> None:
        super().__init__()
        words = {"norm": norm, "activation": activation, "fusion": fusion, "output": output}
        words |= {"edge_weights": edge_weights, "mask_token": mask_token}
        sizes = {"hops": hops, "min_layers": min_layers, "hidden_channels": hidden_channels, "heads": heads}
        flags = {"batch_norm": batch_norm, "side_by_side": side_by_side, "fuse_in_bfloat16": fuse_in_bfloat16}
        self._options: dict[str, Any] = {
            **words,
            **sizes,
            **flags,
            "paths": paths,
            "path_widths": path_widths,
        }
        for name, value in words.items():
            if value not in CHOICES[name]:
                allowed = ", ".join(map(repr, CHOICES[name]))
                raise ValueError(f"{name} must be one of {allowed}, not {value!r}")
        if fusion != "mlp" and channels % heads:
            raise ValueError(f"channels ({channels}) must be a multiple of heads ({heads})")
        if min_layers > hops:
            raise ValueError(f"min_layers ({min_layers}) must not be more than hops ({hops})")
        mlp_width, hop_width = hidden_channels or 4 * channels, hidden_channels or channels
        self.paths = [tuple(path) for path in paths]
        layers = [
            max(hop, min_layers) for hop in map(len, paths or [range(hop) for hop in range(1, hops + 1)])
        ]
        hop_widths = [channels if count == 1 else hop_width for count in layers]
        self.models, self.channels, self.hops, self.output = models, channels, hops, output
        self.fuse_in_bfloat16 = fuse_in_bfloat16
        self.token_dropout = per_model(token_dropout, models)
        self.computes_edges = edge_weights == "computed"
        widths, reaches = [channels, mlp_width, *hop_widths], [0, *layers]
        if self.computes_edges:
            widths, reaches = [*widths, 2], [*reaches, hops]
        self.input = InputProjection(
            models, in_channels, widths, reaches, len(layers), mask_token, side_by_side=side_by_side
        )
        self.edges = EdgeWeights(models, entries, edge_weights)
        self.linear_bias = nn.Parameter(torch.empty(models, 1, channels))
        self.mlp = NodeMLP(models, mlp_width, channels)
        self.hop_tokens = nn.ModuleList(
            WeightedGCN(models, hop, count, hop_width, channels, batch_norm)
            for hop, count in enumerate(layers, start=1)
        )
        self.path_tokens = PathTokens(models, path_widths, channels) if path_widths else None
        self.fusion: TokenAttention | TokenMLP
        if fusion == "mlp":
            self.fusion = TokenMLP(models, channels, self.num_tokens, activation)
        else:
            block = HierarchicalAttention if fusion == "hierarchical" else TokenAttention
            dropped = per_model(attention_dropout, models)
            self.fusion = block(models, channels, heads, norm, dropped, activation)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of a node."""
        return 2 + len(self.hop_tokens) + (0 if self.path_tokens is None else len(self.path_tokens.widths))

    @property
    def out_channels(self) -> int:
        """Width D of one model's embedding."""
        return self.channels * (self.num_tokens if self.output == "flatten" else 1)

    @property
    def fused_tokens(self) -> int:
        """Number of tokens per node in the fusion blocks; in two blocks the hop tokens count twice."""
        twice = isinstance(self.fusion, HierarchicalAttention)
        return self.num_tokens + (self.num_tokens - 2) * twice

    @property
    def bfloat16_tokens(self) -> bool:
        """Whether the tokens are computed in bfloat16 too, which halves the memory traffic."""
        return self.fuse_in_bfloat16

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.linear_bias.device

    def reset_parameters(self, generators: Generators, start: Tensor) -> None:
        """Initialise each model from its generator, and edge weights at `start`, see `Support.start`."""
        in_channels = self.input.weight.shape[1]
        self.input.reset_parameters(generators)
        self.edges.reset_parameters(start)
        uniform_(self.linear_bias, in_channels**-0.5, generators)
        self.mlp.reset_parameters(generators, in_channels)
        for token in self.hop_tokens:
            cast(WeightedGCN, token).reset_parameters(generators)
        self.fusion.reset_parameters(generators)
        if self.path_tokens is not None:
            self.path_tokens.reset_parameters(generators)

    def copy_models(self, models: Sequence[int]) -> EncoderStack:
        """Return a stack with copies of some models."""
        chosen = list(models)
        rates = self.fusion.dropout if isinstance(self.fusion, TokenAttention) else [0.0] * self.models
        smaller = EncoderStack(
            self.input.weight.shape[1],
            self.channels,
            self.edges.logit.shape[1],
            **self._options,
            token_dropout=[self.token_dropout[model] for model in chosen],
            attention_dropout=[rates[model] for model in chosen],
            models=len(chosen),
        ).to(self.device, self.linear_bias.dtype)
        smaller.load_state_dict({name: value[chosen] for name, value in self.state_dict().items()})
        return smaller.train(self.training)

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return all parameters except the edge weights."""
        return [parameter for parameter in self.parameters() if parameter is not self.edges.logit]

    def project(self, part: Part, columns_kept: Tensor | None = None) -> list[Projected | Unprojected]:
        """Multiply the features and the mask token with all first-layer weights."""
        made: list[Projected | Unprojected] = self.input(part, columns_kept, bfloat16=self.bfloat16_tokens)
        return made

    def tokens(
        self,
        projected: list[Projected | Unprojected],
        part: Part,
        edge_weights: Tensor,
        mask: Tensor | None = None,
        noise: Noise | None = None,
        donors: Tensor | None = None,
        paths_kept: Tensor | None = None,
    ) -> Tensor:
        """Return the seeds' tokens `[models, seeds, tokens, channels]`.

        `projected`, from `project` or a moving average of it, is emptied, which frees its large tensors as
        soon as they are used. Edge weights are `[models, weights]`, indexed by the part's blocks; for `mask`
        and `donors` see `Projected.masked`, for `paths_kept` `PathTokens`. Without noise there is no dropout.
        """
        to_linear, to_mlp, *to_others = self.input.widths
        widths = [to_linear, to_mlp]
        count, shared = len(self.hop_tokens), part.whole and not self.paths
        if shared:  # one product for all hops
            widths += [sum(to_others[:count]), *to_others[count:]]
        elif part.whole:
            widths += to_others
        linear, hidden, *here = cast(Projected, projected.pop(0)).pieces(widths, mask, donors)
        sent = [
            *here,
            *(run.masked(mask, donors) if isinstance(run, Projected) else run for run in projected),
        ]
        projected.clear()
        ends = cast(Tensor, sent.pop()) if self.computes_edges else None
        adjacencies = self._adjacencies(part, edge_weights, ends)
        if shared:  # one product for the first layers of all hops
            received = adjacencies[0][0] @ cast(Tensor, sent[0])
            first_layers = list(torch.split(received, to_others[:count], dim=-1))
        else:
            towards = [along[-1] for along in adjacencies]
            first_layers = [
                one.aggregate(adjacency, mask, donors) if isinstance(one, Unprojected) else adjacency @ one
                for adjacency, one in zip(towards, sent, strict=True)
            ]
        hops = [
            token(torch.relu(first_layer), along, self.token_dropout, noise, part.nodes)
            for token, along, first_layer in zip(self.hop_tokens, adjacencies, first_layers, strict=True)
        ]
        own = [add_bias(linear, self.linear_bias), self.mlp(hidden)]
        others = [one.to(own[0].dtype) for one in self.others(part.paths, paths_kept)]
        stacked = torch.stack([*own, *hops, *others], dim=2)
        if noise is None:
            return stacked
        kept = noise.keep(self.token_dropout, part.seeds, stacked.shape[2:], TOKEN_DROPOUT)
        return drop(stacked, kept, self.token_dropout)

    def others(self, means: Tensor | None, kept: Tensor | None = None) -> list[Tensor]:
        """Return the tokens of paths to other node types; none for a graph of one type."""
        if self.path_tokens is None:
            return []
        assert means is not None
        found: list[Tensor] = self.path_tokens(means, kept)
        return found

    def _adjacencies(self, part: Part, edge_weights: Tensor, ends: Tensor | None) -> list[list[Adjacency]]:
        """Return the adjacencies of the layers of each hop token, the last layer's first."""
        gates = cache(lambda block: None if ends is None else self.edges.gates(block, ends))

        @cache
        def along(reach: int, relation: int | None) -> Adjacency:
            block, weights = part.blocks[reach], edge_weights
            if relation is not None:
                assert part.relations is not None
                weights = weights * part.relations[relation].to(weights.dtype)
            return Adjacency(block, weights, gates(block))

        return [
            [
                along(0 if part.whole else reach, relation)
                for reach, relation in enumerate(self.relations_of(token, cast(WeightedGCN, one).layers))
            ]
            for token, one in enumerate(self.hop_tokens)
        ]

    def relations_of(self, token: int, layers: int) -> list[int | None]:
        """Return the relation of each layer of a hop token, the last layer's first; None for all edges."""
        if not self.paths:
            return [None] * layers
        path = self.paths[token]
        return [path[min(layer, len(path) - 1)] for layer in range(layers)]

    def attention_keep(self, nodes: Tensor, noise: Noise | None) -> Tensor | None:
        """Draw the dropout masks of the attention; None without dropout."""
        if noise is None or isinstance(self.fusion, TokenMLP):
            return None
        shape = self.fusion.keep_shape(self.num_tokens)
        return noise.keep(self.fusion.dropout, nodes, shape, ATTENTION_DROPOUT)

    def fuse(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the embeddings `[models, nodes, D]` of tokens."""
        block_input = tokens.bfloat16() if self.fuse_in_bfloat16 else tokens
        fused: Tensor = self.fusion(block_input, kept)
        fused = fused.to(self.linear_bias.dtype)
        if self.output == "flatten":
            return fused.flatten(2)
        return fused[:, :, 0] if self.output == "first" else fused.amax(dim=2)

    def attention(self, tokens: Tensor) -> Tensor | None:
        """Return the attention weights `[models, nodes, S, S, heads]`; None without attention."""
        return self.fusion.attention(tokens) if isinstance(self.fusion, TokenAttention) else None

    def forward(self, part: Part, edge_weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode the seeds: `[models, seeds, D]`."""
        return self.fuse(self.tokens(self.project(part), part, edge_weights, mask))


def per_model(rate: float | Sequence[float], models: int) -> list[float]:
    """Return one rate per model."""
    return [float(value) for value in rate] if isinstance(rate, Sequence) else [float(rate)] * models
