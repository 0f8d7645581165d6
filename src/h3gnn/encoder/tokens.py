"""The tokens of a node: its own features twice (linear, MLP) and its neighbourhood hop by hop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.features import FeatureMatrix, project
from h3gnn.encoder.layers import BatchNorm, Generators, Linear, uniform_
from h3gnn.encoder.noise import Noise, drop
from h3gnn.encoder.sparse import Adjacency, Pattern, propagate, stacked
from h3gnn.encoder.support import Support
from h3gnn.encoder.triton import kernels_for

LAYER_PLACE = 2
"""Where the noise between a weighted GCN's layers is drawn; attention and tokens have 0 and 1."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some seed nodes and what they hear; the whole graph is the part in which every node is a seed.

    The nodes are numbered so that those within h hops of the seeds are the first `counts[h]`. A hop-k token
    then needs the features of the first `counts[k]` nodes, and its layers shrink towards the seeds; the
    linear and MLP tokens need the seeds alone. Nothing is computed for a node that no seed hears.

    Attributes:
        nodes: number of each node in the whole graph, seeds first, then by distance.
        counts: how many nodes lie within 0, 1, … K hops.
        blocks: `blocks[h]` carries messages from within h + 1 hops to within h hops.
        features: of `nodes`.
        whole: every block is the whole support, so that one product serves all hops.
    """

    nodes: Tensor
    counts: Sequence[int]
    blocks: Sequence[Pattern]
    features: FeatureMatrix
    whole: bool = False

    @property
    def seeds(self) -> Tensor:
        """The nodes that the part was made for."""
        return self.nodes[: self.counts[0]]

    def rows_of(self, values: Tensor) -> Tensor:
        """Return the values `[models, nodes of the whole graph]` of this part's nodes."""
        return values if self.whole else values[:, self.nodes]


def whole_graph(features: FeatureMatrix, support: Support, hops: int) -> Part:
    """Return the part in which every node is a seed and hears all of its neighbours."""
    nodes = torch.arange(support.nodes, device=features.device)
    counts = [support.nodes] * (hops + 1)
    return Part(nodes, counts, [support.pattern] * hops, features, whole=True)


class Projected(NamedTuple):
    """What the first maps make of the features and of the mask token, each `[models, rows, widths]`."""

    nodes: Tensor
    token: Tensor

    def masked(self, mask: Tensor | None, donors: Tensor | None = None) -> Tensor:
        """Return the nodes' rows, those of masked nodes (bool `[models, nodes]`) replaced by the token's.

        Products with 0 and 1 choose exactly and, unlike `where`, collect the token's gradient in one product.

        Args:
            mask: who is masked, of these nodes and perhaps others behind them; None is nobody.
            donors: whose row each node shows, `[models, nodes or more]`; None lets each show its own.
        """
        nodes = self._shown(donors)
        if mask is None:
            return nodes
        hidden = mask[:, : nodes.shape[1], None].to(nodes.dtype)
        return (nodes * (1 - hidden)).baddbmm_(hidden, self.token)

    def pieces(
        self, widths: Sequence[int], mask: Tensor | None, donors: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the same, cut into pieces of so many columns each."""
        kernels = None if mask is None else kernels_for(self.nodes)
        if mask is None or kernels is None:
            return torch.split(self.masked(mask, donors), list(widths), dim=-1)
        nodes = self._shown(donors)
        made: tuple[Tensor, ...] = kernels.mask_rows(nodes, self.token, mask[:, : nodes.shape[1]], widths)
        return made

    def _shown(self, donors: Tensor | None) -> Tensor:
        """Return the rows that nodes show before anything is masked."""
        if donors is None:
            return self.nodes
        return self.nodes.gather(1, donors[:, : self.nodes.shape[1], None].expand_as(self.nodes))


class Unprojected(NamedTuple):
    r"""Features, mask token and a first map W that waits until the receivers have summed what they hear.

    .. math:: \mathbb A\, \mathrm{where}(\mathcal M, t, X)\, W = (\mathbb A_{\bar{\mathcal M}} X)\, W
        + (\mathbb A_{\mathcal M} 1)\, t W

    where :math:`\mathbb A_{\mathcal M}` keeps the columns of masked nodes and
    :math:`\mathbb A_{\bar{\mathcal M}}` the others.
    """

    features: FeatureMatrix
    weight: Tensor
    token: Tensor
    rounded: bool = False

    def heard(self, adjacency: Adjacency, mask: Tensor | None, donors: Tensor | None) -> Tensor:
        """Return what receivers hear, `[models, targets, width]`, of the rows of `Projected.masked`.

        Args:
            adjacency: of the receivers.
            mask, donors: as in `Projected.masked`.
        """
        pattern, seen = adjacency.pattern, adjacency.values
        senders = pattern.cols.expand(len(seen), -1)  # [models, entries]
        if mask is not None:
            seen = seen * ~mask.gather(1, senders)
        if donors is not None:
            senders = donors.gather(1, senders)
        weight, token, rows = self.weight, self.token, self.features.dense
        if self.rounded:
            weight, token, rows = weight.bfloat16(), token.bfloat16(), rows.bfloat16()
        summed = stacked(
            [
                propagate(one, rows, Pattern(pattern.crow, sender, pattern.sources))
                for one, sender in zip(seen, senders, strict=True)
            ]
        )
        if mask is None:
            return torch.bmm(summed, weight)
        shares = adjacency @ mask.unsqueeze(-1).to(summed.dtype)  # [models, targets, 1]
        return torch.baddbmm(shares * torch.bmm(token, weight), summed, weight)


class InputProjection(nn.Module):
    r"""Every map that touches the raw features, side by side, with the learnable mask token.

    A masked node's features are replaced by the mask token. Because a linear map acts row by row,

    .. math:: \mathrm{where}(\mathcal M, t, X)\, W = \mathrm{where}(\mathcal M, t W, X W),

    the features stay constant, one product :math:`XW` serves all tokens, and masking happens behind it; so
    does the exchange of one node's features for another's, which exchanges rows of :math:`XW`.
    Dropped feature columns are dropped rows of W, :math:`X\,\mathrm{diag}(m)\,W = X\,(\mathrm{diag}(m)\,W)`.

    Args:
        models: how many.
        in_channels: number of features.
        widths: of the linear token, the MLP, each hop's first layer, and what edges are computed from.
        reaches: within how many hops of the seeds the features are needed, for the two own tokens together
            and then for each of the others.
        hops: how many tokens hear the graph.
        mask_token: where the mask token starts.
        side_by_side: how the weights of several models lie in memory.
    """

    def __init__(
        self,
        models: int,
        in_channels: int,
        widths: Sequence[int],
        reaches: Sequence[int],
        hops: int,
        mask_token: str,
        *,
        side_by_side: bool,
    ) -> None:
        super().__init__()
        self.widths, self.reaches, self.hops = list(widths), list(reaches), hops
        self.mask_start = mask_token
        weight = torch.empty(models, in_channels, sum(widths))
        if side_by_side:
            weight = torch.empty(in_channels, models, sum(widths)).transpose(0, 1)
        self.weight = nn.Parameter(weight)
        self.mask_token = nn.Parameter(torch.empty(models, 1, in_channels))

    def reset_parameters(self, generators: Generators) -> None:
        """Start the maps uniform in ±1/√in, the mask token from N(0, 1) or at zero."""
        uniform_(self.weight, 1 / math.sqrt(self.weight.shape[1]), generators)
        with torch.no_grad():
            for token, generator in zip(self.mask_token, generators, strict=True):
                token.normal_(generator=generator) if self.mask_start == "normal" else token.zero_()

    def forward(
        self, part: Part, columns_kept: Tensor | None = None, *, rounded: bool = False
    ) -> list[Projected | Unprojected]:
        """Multiply the features with every first-layer weight, for as many nodes as each needs.

        Nothing is masked yet. In the whole graph all maps see all nodes and one product serves them; else
        there is one for the node's own tokens, one for each hop, unless it is cheaper to sum what is heard
        first, and one for what edges are computed from.

        Args:
            part: whose features to multiply.
            columns_kept: `[models, in]`, what each feature column is multiplied with; None keeps all.
            rounded: multiply in bfloat16, on a GPU.
        """
        weight = self.weight if columns_kept is None else self.weight * columns_kept[:, :, None]
        if part.whole:
            return [Projected(*project(part.features, weight, self.mask_token, rounded=rounded))]
        own, others = self.widths[0] + self.widths[1], self.widths[2:]
        pieces = torch.split(weight, [own, *others], dim=2)
        made: list[Projected | Unprojected] = []
        for place, (reach, piece) in enumerate(zip(self.reaches, pieces, strict=True)):
            features = part.features.first(part.counts[reach])
            sums = 0 < place <= self.hops and features.storage == "dense" and not features.learned
            if sums and part.blocks[reach - 1].sum_first(*piece.shape[1:]):
                made.append(Unprojected(features, piece, self.mask_token, rounded))
            else:
                made.append(Projected(*project(features, piece, self.mask_token, rounded=rounded)))
        return made


class EdgeWeights(nn.Module):
    r"""How strongly each edge carries its messages, the same in all layers and hops.

    `"free"`, the paper's, and `"learned"` have one number for each entry of Ã, as it is or bounded by a
    sigmoid:

    .. math:: \tilde{\mathbb A}_{uv} = e_{uv} \cdot c_{uv} \quad\text{or}\quad
        \tilde{\mathbb A}_{uv} = \sigma(w_{uv}) \cdot c_{uv}, \qquad \tilde A_{uv} \neq 0

    with :math:`c_{uv} = \tilde A_{uv}` under symmetric normalisation and 1 without it. `"fixed"` leaves every
    weight where a learned one would start, and has no state. `"computed"` multiplies that with a signed gate,
    a function of the features at both ends, which also serves edges that were not there in training:

    .. math:: g_{uv} = \tanh(1 + a^\top x_u + b^\top x_v) \,/ \tanh(1)

    Attributes:
        logit: what is learned, `[models, entries]`: w, or e itself where weights are free.
    """

    def __init__(self, models: int, entries: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.logit = nn.Parameter(torch.empty(models, entries if self.learns else 0))

    @property
    def learns(self) -> bool:
        """Whether every entry has a number of its own."""
        return self.kind in ("free", "learned")

    def to_weight(self, logit: Tensor) -> Tensor:
        """Return the weights that learned numbers stand for."""
        return logit if self.kind == "free" else torch.sigmoid(logit)

    def to_logit(self, strength: Tensor) -> Tensor:
        """Return the numbers that stand for these weights."""
        return strength if self.kind == "free" else torch.logit(strength)

    def reset_parameters(self, start: Tensor) -> None:
        """Start every model at the support's start values."""
        if self.learns:
            with torch.no_grad():
                self.logit.copy_(self.to_logit(start).expand_as(self.logit))

    def forward(self, factor: Tensor, start: Tensor | None) -> Tensor:
        """Return the weights `[models, entries]`, given the fixed factor and the start value of each."""
        if self.learns:
            return self.to_weight(self.logit) * factor
        assert start is not None
        return (start * factor).expand(len(self.logit), -1)

    def gates(self, pattern: Pattern, ends: Tensor) -> Tensor:
        """Return what each entry's weight is multiplied with, `[models, entries]`.

        Args:
            pattern: whose entries.
            ends: what each node adds as a sender and as a receiver, `[models, nodes, 2]`.
        """
        sent, received = ends.unbind(dim=2)
        return torch.tanh(1 + sent[:, pattern.cols] + received[:, pattern.rows]) / math.tanh(1)


class NodeMLP(nn.Module):
    r"""The second half of :math:`W_3\,\mathrm{GELU}(W_2 f(v) + b_2) + b_3`; the product is made before."""

    def __init__(self, models: int, hidden_channels: int, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(models, 1, hidden_channels))
        self.output = Linear(models, hidden_channels, channels)

    def reset_parameters(self, generators: Generators, in_channels: int) -> None:
        """Start as `torch.nn.Linear` does."""
        uniform_(self.bias, 1 / math.sqrt(in_channels), generators)
        self.output.reset_parameters(generators)

    def forward(self, projected: Tensor) -> Tensor:
        """`[models, nodes, hidden]` to `[models, nodes, channels]`."""
        if (kernels := kernels_for(projected)) is not None:
            active: Tensor = kernels.activate(projected, self.bias, "gelu")
        else:
            active = nn.functional.gelu(projected + self.bias)
        hidden: Tensor = self.output(active)
        return hidden


class WeightedGCN(nn.Module):
    r"""A weighted GCN of some layers; its output has heard exactly as many steps of the graph.

    .. math:: H^{(l+1)} = \sigma(\tilde{\mathbb A} H^{(l)} W^{(l)})

    The first layer, :math:`H^{(1)} = \sigma(\tilde{\mathbb A} X W^{(0)})`, is made before, with those of the
    other hops: in the whole graph it is the same product for all of them. The product with W comes first, or
    that with 𝔸 where this is cheaper (`Pattern.sum_first`).

    Args:
        models: how many.
        hop: which token it makes.
        layers: one for each hop, or more.
        hidden_channels: width between layers.
        channels: width of the last one.
        batch_norm: batch norm between layers.
    """

    def __init__(
        self, models: int, hop: int, layers: int, hidden_channels: int, channels: int, batch_norm: bool
    ) -> None:
        super().__init__()
        widths = [hidden_channels] * (layers - 1) + [channels]
        self.hop, self.layers = hop, layers
        self.linears = nn.ModuleList(
            Linear(models, width_in, width_out, bias=False) for width_in, width_out in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm(models, width) for width in widths[:-1] if batch_norm)

    def reset_parameters(self, generators: Generators) -> None:
        """Start all layers anew."""
        for layer in (*self.linears, *self.norms):
            layer.reset_parameters(generators)

    def width_after(self, layer: int) -> int:
        """Return how wide the messages after this layer are."""
        return cast(Linear, self.linears[layer]).weight.shape[2]

    def pass_on(self, layer: int, hidden: Tensor) -> Tensor:
        """Return what nodes send after this layer, `[models, nodes, channels]`."""
        sent: Tensor = self.linears[layer](self.norms[layer](hidden) if len(self.norms) else hidden)
        return sent

    def forward(
        self,
        hidden: Tensor,
        adjacencies: Sequence[Adjacency],
        rates: Sequence[float],
        noise: Noise | None,
        nodes: Tensor,
    ) -> Tensor:
        """From the first layer `[models, nodes, hidden]` to the last `[models, seeds, channels]`.

        Args:
            hidden: the first layer of the nodes within `layers - 1` hops.
            adjacencies: towards the nodes within 0, 1, … hops.
            rates: of dropout between layers, one for each model.
            noise: where keep-masks come from; None drops nothing.
            nodes: numbers of the nodes in the whole graph.
        """
        for layer, linear in enumerate(self.linears):
            if len(self.norms):
                hidden = self.norms[layer](hidden)
            if noise is not None:
                place = LAYER_PLACE + 64 * self.hop + layer
                kept = noise.keep(rates, nodes[: hidden.shape[1]], hidden.shape[2:], place)
                hidden = drop(hidden, kept, rates)
            adjacency = adjacencies[self.layers - 2 - layer]
            if adjacency.pattern.sum_first(*cast(Linear, linear).weight.shape[1:]):
                hidden = torch.relu(linear(adjacency @ hidden))
            else:
                hidden = torch.relu(adjacency @ linear(hidden))
        return hidden


def token_names(hops: int) -> tuple[str, ...]:
    """Return what each token of the encoder sees."""
    return ("own features, linear", "own features, MLP", *(f"neighbours, hop {k + 1}" for k in range(hops)))
