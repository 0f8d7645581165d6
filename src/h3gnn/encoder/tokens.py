"""The tokens of a node: its own features twice (linear, MLP) and one token per hop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.features import FeatureMatrix, project
from h3gnn.encoder.layers import BatchNorm, Generators, Linear, add_bias, uniform_
from h3gnn.encoder.noise import Noise, drop
from h3gnn.encoder.sparse import Adjacency, Pattern, propagate, stack_models
from h3gnn.encoder.support import Support
from h3gnn.encoder.triton import kernels_for

ATTENTION_DROPOUT, TOKEN_DROPOUT, GCN_DROPOUT = 0, 1, 2
"""Dropout layers, as `Noise.keep` distinguishes them; those of the GCN layers follow `GCN_DROPOUT`."""


@dataclass(frozen=True, eq=False)
class Part:
    """Seed nodes and their neighbourhoods; the whole graph is the part in which every node is a seed.

    Nodes are ordered by distance: the first `counts[h]` are within h hops of the seeds. A hop-k token needs
    the features of the first `counts[k]` nodes, and its layers shrink towards the seeds.

    `nodes` are numbers in the whole graph. `blocks[h]` carries messages from within h + 1 hops to within h
    hops; if `whole`, every block is the whole support, so that one product serves all hops. `relations` are
    factors `[relations, weights]` that turn the edge weights into those of one relation. `paths` are the
    seeds' means of features along paths to other node types, `[seeds, columns]`.
    """

    nodes: Tensor
    counts: Sequence[int]
    blocks: Sequence[Pattern]
    features: FeatureMatrix
    whole: bool = False
    relations: Tensor | None = None
    paths: Tensor | None = None

    @property
    def seeds(self) -> Tensor:
        """Node numbers of the seeds."""
        return self.nodes[: self.counts[0]]

    def rows_of(self, values: Tensor) -> Tensor:
        """Select this part's nodes from values `[models, nodes of the whole graph]`."""
        return values if self.whole else values[:, self.nodes]


def whole_graph(features: FeatureMatrix, support: Support, hops: int, paths: Tensor | None = None) -> Part:
    """Return the part in which every node is a seed."""
    nodes = torch.arange(support.nodes, device=features.device)
    counts, blocks = [support.nodes] * (hops + 1), [support.pattern] * hops
    return Part(nodes, counts, blocks, features, whole=True, relations=support.relations, paths=paths)


class Projected(NamedTuple):
    """Products of the first-layer weights with features and mask token, each `[models, rows, widths]`."""

    nodes: Tensor
    token: Tensor

    def masked(self, mask: Tensor | None, donors: Tensor | None = None) -> Tensor:
        """Return the rows of the nodes, with those of masked nodes replaced by the mask token's.

        `mask` is bool `[models, nodes or more]`; `donors` is the node whose row each node gets. Products with
        0 and 1 select exactly and, unlike `where`, sum the token's gradient in one product.
        """
        nodes = self._swapped(donors)
        if mask is None:
            return nodes
        hidden = mask[:, : nodes.shape[1], None].to(nodes.dtype)
        return (nodes * (1 - hidden)).baddbmm_(hidden, self.token)

    def pieces(
        self, widths: Sequence[int], mask: Tensor | None, donors: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return `masked`, split into columns of the given widths."""
        kernels = None if mask is None else kernels_for(self.nodes)
        if mask is None or kernels is None:
            return torch.split(self.masked(mask, donors), list(widths), dim=-1)
        nodes = self._swapped(donors)
        made: tuple[Tensor, ...] = kernels.mask_rows(nodes, self.token, mask[:, : nodes.shape[1]], widths)
        return made

    def _swapped(self, donors: Tensor | None) -> Tensor:
        if donors is None:
            return self.nodes
        return self.nodes.gather(1, donors[:, : self.nodes.shape[1], None].expand_as(self.nodes))


class Unprojected(NamedTuple):
    r"""Features, mask token and first-layer weight W, where summing before the product with W is cheaper.

    .. math:: \mathbb A\, \mathrm{where}(\mathcal M, t, X)\, W = (\mathbb A_{\bar{\mathcal M}} X)\, W
        + (\mathbb A_{\mathcal M} 1)\, t W

    where :math:`\mathbb A_{\mathcal M}` keeps the columns of masked nodes and
    :math:`\mathbb A_{\bar{\mathcal M}}` the others.
    """

    features: FeatureMatrix
    weight: Tensor
    token: Tensor
    bfloat16: bool = False

    def aggregate(self, adjacency: Adjacency, mask: Tensor | None, donors: Tensor | None) -> Tensor:
        """Return the aggregated rows `[models, targets, width]`; mask and donors as in `Projected.masked`."""
        pattern, values = adjacency.pattern, adjacency.values
        senders = pattern.cols.expand(len(values), -1)  # [models, entries]
        if mask is not None:
            values = values * ~mask.gather(1, senders)
        if donors is not None:
            senders = donors.gather(1, senders)
        weight, token, rows = self.weight, self.token, self.features.dense
        if self.bfloat16:
            weight, token, rows = weight.bfloat16(), token.bfloat16(), rows.bfloat16()
        summed = stack_models(
            [
                propagate(one, rows, Pattern(pattern.crow, sender, pattern.sources))
                for one, sender in zip(values, senders, strict=True)
            ]
        )
        if mask is None:
            return torch.bmm(summed, weight)
        masked = adjacency @ mask.unsqueeze(-1).to(summed.dtype)  # [models, targets, 1]
        return torch.baddbmm(masked * torch.bmm(token, weight), summed, weight)


class InputProjection(nn.Module):
    r"""All first-layer weights side by side, and the learnable mask token.

    Because a linear map acts row by row,

    .. math:: \mathrm{where}(\mathcal M, t, X)\, W = \mathrm{where}(\mathcal M, t W, X W),

    one product :math:`XW` with constant features serves all tokens, and masking and swapping of features
    happen to its rows. Dropped feature columns are dropped rows of W,
    :math:`X\,\mathrm{diag}(m)\,W = X\,(\mathrm{diag}(m)\,W)`.

    `widths` are those of the linear token, the MLP, each hop's first layer, and the scores of computed edges;
    `reaches` are the hops from the seeds within which features are needed, for the two own tokens together
    and for each of the others.
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
        self.widths, self.reaches, self.hops, self.mask_start = list(widths), list(reaches), hops, mask_token
        weight = torch.empty(models, in_channels, sum(widths))
        if side_by_side:
            weight = torch.empty(in_channels, models, sum(widths)).transpose(0, 1)
        self.weight = nn.Parameter(weight)
        self.mask_token = nn.Parameter(torch.empty(models, 1, in_channels))

    def reset_parameters(self, generators: Generators) -> None:
        """Draw the weights uniform in ±1/√in, and the mask token from N(0, 1) or as zero."""
        uniform_(self.weight, 1 / math.sqrt(self.weight.shape[1]), generators)
        with torch.no_grad():
            for token, generator in zip(self.mask_token, generators, strict=True):
                token.normal_(generator=generator) if self.mask_start == "normal" else token.zero_()

    def forward(
        self, part: Part, columns_kept: Tensor | None = None, *, bfloat16: bool = False
    ) -> list[Projected | Unprojected]:
        """Multiply the features with all first-layer weights, without masking.

        In the whole graph one product serves all tokens. In a batch there is one for the own tokens and one
        for each other width, over the nodes that it needs. `columns_kept` has a factor for each feature
        column `[models, in]`.
        """
        weight = self.weight if columns_kept is None else self.weight * columns_kept[:, :, None]
        if part.whole:
            return [Projected(*project(part.features, weight, self.mask_token, bfloat16=bfloat16))]
        own, others = self.widths[0] + self.widths[1], self.widths[2:]
        pieces = torch.split(weight, [own, *others], dim=2)
        made: list[Projected | Unprojected] = []
        for place, (reach, piece) in enumerate(zip(self.reaches, pieces, strict=True)):
            features = part.features.rows(0, part.counts[reach])
            is_hop = 0 < place <= self.hops
            can_sum = is_hop and features.storage == "dense" and not features.requires_grad
            if can_sum and part.blocks[reach - 1].sum_first(*piece.shape[1:]):
                made.append(Unprojected(features, piece, self.mask_token, bfloat16))
            else:
                made.append(Projected(*project(features, piece, self.mask_token, bfloat16=bfloat16)))
        return made


class EdgeWeights(nn.Module):
    r"""The weight of each edge, shared by all layers and hops.

    `"free"` (paper) and `"learned"` have one parameter per entry of Ã, used directly or through a sigmoid:

    .. math:: \tilde{\mathbb A}_{uv} = e_{uv} \cdot c_{uv} \quad\text{or}\quad
        \tilde{\mathbb A}_{uv} = \sigma(w_{uv}) \cdot c_{uv}, \qquad \tilde A_{uv} \neq 0

    with :math:`c_{uv} = \tilde A_{uv}` under symmetric normalisation and 1 without it. `"fixed"` keeps the
    initial weights. `"computed"` multiplies these with a signed gate, a function of the features at both ends
    that also applies to edges not seen in training:

    .. math:: g_{uv} = \tanh(1 + a^\top x_u + b^\top x_v) \,/ \tanh(1)

    The parameters `logit`, `[models, entries]`, are w, or e itself for `"free"`.
    """

    def __init__(self, models: int, entries: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.logit = nn.Parameter(torch.empty(models, entries if self.learns else 0))

    @property
    def learns(self) -> bool:
        """Whether every entry has a parameter."""
        return self.kind in ("free", "learned")

    def to_weight(self, logit: Tensor) -> Tensor:
        """Return the weights of parameters."""
        return logit if self.kind == "free" else torch.sigmoid(logit)

    def to_logit(self, weight: Tensor) -> Tensor:
        """Return the parameters of weights."""
        return weight if self.kind == "free" else torch.logit(weight)

    def reset_parameters(self, start: Tensor) -> None:
        """Set every model to the support's initial weights."""
        if self.learns:
            with torch.no_grad():
                self.logit.copy_(self.to_logit(start).expand_as(self.logit))

    def forward(self, factor: Tensor, start: Tensor | None) -> Tensor:
        """Return the weights `[models, entries]` from the factor and the initial weight of each entry."""
        if self.learns:
            return self.to_weight(self.logit) * factor
        assert start is not None
        return (start * factor).expand(len(self.logit), -1)

    def gates(self, pattern: Pattern, ends: Tensor) -> Tensor:
        """Return the gates `[models, entries]` from each node's two scores `[models, nodes, 2]`."""
        sent, received = ends.unbind(dim=2)
        return torch.tanh(1 + sent[:, pattern.cols] + received[:, pattern.rows]) / math.tanh(1)


class NodeMLP(nn.Module):
    r"""The MLP token :math:`W_3\,\mathrm{GELU}(W_2 f(v) + b_2) + b_3`, given :math:`W_2 f(v)`."""

    def __init__(self, models: int, hidden_channels: int, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(models, 1, hidden_channels))
        self.output = Linear(models, hidden_channels, channels)

    def reset_parameters(self, generators: Generators, in_channels: int) -> None:
        """Initialise as `torch.nn.Linear`."""
        uniform_(self.bias, 1 / math.sqrt(in_channels), generators)
        self.output.reset_parameters(generators)

    def forward(self, projected: Tensor) -> Tensor:
        """`[models, nodes, hidden]` to `[models, nodes, channels]`."""
        if (kernels := kernels_for(projected)) is not None:
            active: Tensor = kernels.activate(projected, self.bias, "gelu")
        else:
            active = nn.functional.gelu(add_bias(projected, self.bias))
        hidden: Tensor = self.output(active)
        return hidden


class WeightedGCN(nn.Module):
    r"""A hop token: a weighted GCN with as many layers as hops, or more.

    .. math:: H^{(l+1)} = \sigma(\tilde{\mathbb A} H^{(l)} W^{(l)})

    The first layer :math:`H^{(1)} = \sigma(\tilde{\mathbb A} X W^{(0)})` is an input: in the whole graph one
    product computes it for all hops. The order of the products with W and 𝔸 follows `Pattern.sum_first`.
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
        """Reinitialise all layers."""
        for layer in (*self.linears, *self.norms):
            layer.reset_parameters(generators)

    def width_after(self, layer: int) -> int:
        """Return the width of the messages after a layer."""
        return cast(Linear, self.linears[layer]).weight.shape[2]

    def messages(self, layer: int, hidden: Tensor) -> Tensor:
        """Return the messages after a layer, `[models, nodes, channels]`."""
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
        """From the first layer `[models, nodes, hidden]` to the token `[models, seeds, channels]`.

        The first layer is that of the nodes within `layers - 1` hops; `adjacencies` lead to those within 0,
        1, … hops.
        """
        for layer, linear in enumerate(self.linears):
            if len(self.norms):
                hidden = self.norms[layer](hidden)
            if noise is not None:
                dropout = GCN_DROPOUT + 64 * self.hop + layer
                kept = noise.keep(rates, nodes[: hidden.shape[1]], hidden.shape[2:], dropout)
                hidden = drop(hidden, kept, rates)
            adjacency = adjacencies[self.layers - 2 - layer]
            if adjacency.pattern.sum_first(*cast(Linear, linear).weight.shape[1:]):
                hidden = torch.relu(linear(adjacency @ hidden))
            else:
                hidden = torch.relu(adjacency @ linear(hidden))
        return hidden


class PathTokens(nn.Module):
    r"""One token for each path of relations to another node type.

    .. math:: H^{(p)}(v) = \sigma\big((m_p(v) + b_p)\, W_p\big), \qquad
        m_p = \bar A_{r_1} \cdots \bar A_{r_k} X_{\tau(p)}

    The means :math:`m_p` along the path are inputs (`graphs.relational`); :math:`b_p` is 0 at first, and
    is the whole token where a path is hidden from the student.

    Args:
        models: number of models.
        widths: number of columns of each path's means.
        channels: width of a token.
    """

    def __init__(self, models: int, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.widths = list(widths)
        self.token = nn.Parameter(torch.empty(models, 1, sum(widths)))
        self.weight = nn.Parameter(torch.empty(models, sum(widths), channels))

    def reset_parameters(self, generators: Generators) -> None:
        """Draw the weights of each path uniform in ±1/√columns."""
        with torch.no_grad():
            self.token.zero_()
            for piece in torch.split(self.weight, self.widths, dim=1):
                uniform_(piece, max(1, piece.shape[1]) ** -0.5, generators)

    def forward(self, means: Tensor, kept: Tensor | None = None) -> list[Tensor]:
        """Return the token of each path `[models, nodes, channels]`.

        `means` is `[nodes, columns]`, which may end with those of paths without a token; `kept`,
        `[models, nodes, paths]`, has a factor for the means of each path.
        """
        found = []
        means = means[..., : sum(self.widths)]
        pieces = (torch.split(one, self.widths, dim=-1) for one in (means, self.token))
        weights = torch.split(self.weight, self.widths, dim=1)
        for at, (mean, token, weight) in enumerate(zip(*pieces, weights, strict=True)):
            sent = torch.matmul(mean * weight.shape[1] ** 0.5, weight)  # from rows of length 1
            sent = sent if kept is None else sent * kept[:, :, at, None]
            found.append(torch.relu(sent + torch.bmm(token, weight)))
        return found


def relation_paths(relations: int, hops: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Return the paths of relations that have a token each, the last relation first: short ones, then others.

    Of equally long paths, those that repeat one relation come first.
    """
    found: list[tuple[int, ...]] = []
    for length in range(1, hops + 1):
        every = list(product(range(relations), repeat=length))
        found += sorted(every, key=lambda path: (len({*path}), path))
    return tuple(found[:most])


def token_names(
    hops: int,
    relations: Sequence[str] = (),
    paths: Sequence[Sequence[int]] = (),
    to_types: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return a description of each token: of hops or, with relations, of paths; then of other types."""
    names = [f"neighbours, hop {k + 1}" for k in range(hops)]
    if relations:
        names = [" > ".join(relations[at] for at in path) for path in paths]
    return ("own features, linear", "own features, MLP", *names, *to_types)
