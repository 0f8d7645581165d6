"""The encoder on a part of the graph: the tokens of some seed nodes from the nodes within K hops of them.

The nodes of a part are numbered so that those within h hops of the seeds are the first `counts[h]`. A hop-k
token then needs the features of the first `counts[k]` nodes, and its layers shrink towards the seeds; the
linear and MLP tokens need the seeds alone. Nothing is computed for a node that no seed hears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.fusion import TokenAttention
from h3gnn.encoder.joint import JointEncoder
from h3gnn.encoder.layers import drop
from h3gnn.encoder.noise import NodeNoise
from h3gnn.encoder.propagation import FeatureMatrix, project, propagate
from h3gnn.encoder.tokens import Projected, WeightedGCN
from h3gnn.sparse import csr_tensor, row_pointers

ATTENTION_PLACE, TOKEN_PLACE, LAYER_PLACE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Block:
    """Messages from the first `sources` nodes of a part to its first `targets` nodes.

    Attributes:
        crow: where each target's messages begin `[targets + 1]`.
        cols: the sending node of each message `[messages]`.
        weight_of: which of the part's edge weights belongs to each message `[messages]`.
        sources: how many nodes may send.
    """

    crow: Tensor
    cols: Tensor
    weight_of: Tensor
    sources: int

    @property
    def targets(self) -> int:
        """How many nodes receive."""
        return self.crow.shape[0] - 1

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, columns and order of the transpose."""
        rows = torch.repeat_interleave(
            torch.arange(self.targets, device=self.crow.device), self.crow.diff(), output_size=len(self.cols)
        )
        order = torch.argsort(self.cols * max(1, self.targets) + rows)
        return row_pointers(self.cols[order], self.sources), rows[order], order

    def matrix(self, values: Tensor) -> Tensor:
        """Return the CSR matrix `[targets, sources]` with these values."""
        return csr_tensor(self.crow, self.cols, values, (self.targets, self.sources))

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """Return its transpose."""
        crow, cols, order = self._transposed
        return csr_tensor(crow, cols, values[order], (self.sources, self.targets))

    def to(self, device: torch.device) -> Block:
        """Return the block on another device."""
        return Block(self.crow.to(device), self.cols.to(device), self.weight_of.to(device), self.sources)


def receive(block: Block, edge_weights: Tensor, messages: Tensor) -> Tensor:
    """Sum the messages that reach each target: `[models, sources, channels]` to `[models, targets, …]`."""
    messages = messages[:, : block.sources]
    if block.cols.numel() == 0:
        return 0.0 * (messages[:, : block.targets] + edge_weights.sum())
    values = edge_weights.index_select(1, block.weight_of)
    pairs = zip(values, messages, strict=True)
    return torch.stack([propagate(one, sent.contiguous(), block) for one, sent in pairs])


@dataclass(frozen=True, eq=False)
class Part:
    """Some seed nodes and what they hear.

    Attributes:
        nodes: number of each node in the whole graph, seeds first, then by distance.
        counts: how many nodes lie within 0, 1, … K hops.
        blocks: `blocks[h]` carries messages from within h + 1 hops to within h hops.
        features: of `nodes`, dense or CSR.
    """

    nodes: Tensor
    counts: Sequence[int]
    blocks: Sequence[Block]
    features: Tensor

    @property
    def seeds(self) -> Tensor:
        """The nodes that the part was made for."""
        return self.nodes[: self.counts[0]]


def part_tokens(
    encoder: JointEncoder,
    part: Part,
    edge_weights: Tensor,
    mask: Tensor | None = None,
    noise: NodeNoise | None = None,
) -> Tensor:
    """Return the seeds' tokens `[models, seeds, 2 + hops, channels]`.

    Args:
        encoder: student or teacher.
        part: the seeds and what they hear.
        edge_weights: `[models, weights]`, of the edges that the part's blocks name.
        mask: bool `[models, nodes]`, whose features are hidden.
        noise: where keep-masks come from; None drops nothing.
    """
    widths = encoder.input.widths
    at_seeds = _project(encoder, part, 0, slice(0, widths[0] + widths[1]), mask)
    linear, hidden = torch.split(at_seeds, widths[:2], dim=-1)
    tokens = [linear + encoder.linear_bias, encoder.mlp(hidden)]
    start = widths[0] + widths[1]
    for hop, (token, width) in enumerate(zip(encoder.hop_tokens, widths[2:], strict=True), start=1):
        sent = _project(encoder, part, hop, slice(start, start + width), mask)
        heard = _hear(cast(WeightedGCN, token), hop, part, edge_weights, sent, encoder.token_dropout, noise)
        tokens.append(heard)
        start += width
    stacked = torch.stack(tokens, dim=2)
    kept = None
    if noise is not None:
        kept = noise.keep(encoder.token_dropout, part.seeds, stacked[0, 0].numel(), TOKEN_PLACE)
    return drop(stacked, None if kept is None else kept.view(stacked.shape), encoder.token_dropout)


def part_attention_keep(encoder: JointEncoder, part: Part, noise: NodeNoise | None) -> Tensor | None:
    """Return the attention's keep-masks for the seeds; None where nothing is dropped."""
    if noise is None or not isinstance(encoder.fusion, TokenAttention):
        return None
    shape = encoder.fusion.keep_shape(part.counts[0], 2 + encoder.hops)
    kept = noise.keep(encoder.fusion.dropout, part.seeds, shape[1] * shape[2] * shape[3], ATTENTION_PLACE)
    return None if kept is None else kept.view(-1, *shape)


def _project(encoder: JointEncoder, part: Part, hop: int, columns: slice, mask: Tensor | None) -> Tensor:
    """Multiply the features of the nodes within `hop` hops with some columns of the first-layer weights."""
    count = part.counts[hop]
    if part.features.layout == torch.sparse_csr:
        features = FeatureMatrix(_first_rows(part.features, count), "csr")
    else:
        features = FeatureMatrix(part.features[:count], "dense")
    projected = Projected(*project(features, encoder.input.weight[:, :, columns], encoder.input.mask_token))
    return projected.masked(None if mask is None else mask[:, :count])


def _first_rows(features: Tensor, count: int) -> Tensor:
    crow = features.crow_indices()[: count + 1]
    last = int(crow[-1])
    size = (count, features.shape[1])
    return csr_tensor(crow, features.col_indices()[:last], features.values()[:last], size)


def _hear(
    token: WeightedGCN,
    hop: int,
    part: Part,
    edge_weights: Tensor,
    sent: Tensor,
    rates: Sequence[float],
    noise: NodeNoise | None,
) -> Tensor:
    """Run a weighted GCN of `hop` layers towards the seeds."""
    hidden = torch.relu(receive(part.blocks[hop - 1], edge_weights, sent))
    for layer, linear in enumerate(token.linears):
        if len(token.norms):
            hidden = token.norms[layer](hidden)
        if noise is not None:
            place = LAYER_PLACE + 64 * hop + layer
            kept = noise.keep(rates, part.nodes[: hidden.shape[1]], hidden.shape[2], place)
            hidden = drop(hidden, kept, rates)
        hidden = torch.relu(receive(part.blocks[hop - 2 - layer], edge_weights, linear(hidden)))
    return hidden
