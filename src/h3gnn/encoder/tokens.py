"""The tokens of a node: its own features twice (linear, MLP) and its neighbourhood hop by hop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from h3gnn.encoder.layers import BatchNorm, Dropout, Generators, Linear, drop, uniform_
from h3gnn.encoder.propagation import Adjacency, FeatureMatrix, project
from h3gnn.encoder.support import Support


class Projected(NamedTuple):
    """What the first maps make of the features and of the mask token, each `[models, rows, widths]`."""

    nodes: Tensor
    token: Tensor

    def masked(self, mask: Tensor | None) -> Tensor:
        """Return the nodes' rows, those of masked nodes (bool `[models, nodes]`) replaced by the token's.

        Products with 0 and 1 choose exactly and, unlike `where`, collect the token's gradient in one product.
        """
        if mask is None:
            return self.nodes
        hidden = mask.unsqueeze(-1).to(self.nodes.dtype)
        return (self.nodes * (1 - hidden)).baddbmm_(hidden, self.token)


class InputProjection(nn.Module):
    r"""Every map that touches the raw features, side by side, with the learnable mask token.

    A masked node's features are replaced by the mask token. Because a linear map acts row by row,

    .. math:: \mathrm{where}(\mathcal M, t, X)\, W = \mathrm{where}(\mathcal M, t W, X W),

    the features stay constant, one product :math:`XW` serves all tokens, and masking happens behind it.
    """

    def __init__(
        self, models: int, in_channels: int, widths: Sequence[int], mask_token: str, *, side_by_side: bool
    ) -> None:
        super().__init__()
        self.widths = list(widths)
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

    def forward(self, features: FeatureMatrix) -> Projected:
        """Multiply everything with every first-layer weight; nothing is masked yet."""
        return Projected(*project(features, self.weight, self.mask_token))


class EdgeWeights(nn.Module):
    r"""One learnable weight per entry of Ã, bounded by a sigmoid, shared by all layers and hops.

    .. math:: \tilde{\mathbb A}_{uv} = \sigma(w_{uv}) \cdot c_{uv}, \qquad \tilde A_{uv} \neq 0

    with :math:`c_{uv} = \tilde A_{uv}` under symmetric normalisation and 1 without it.
    """

    def __init__(self, models: int, entries: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.empty(models, entries))

    def reset_parameters(self, start: Tensor) -> None:
        """Start every model at the support's start values."""
        with torch.no_grad():
            self.logit.copy_(torch.logit(start).expand_as(self.logit))

    def forward(self, support: Support) -> Tensor:
        """Return the weights `[models, entries]`."""
        return torch.sigmoid(self.logit) * support.factor


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
        hidden: Tensor = self.output(nn.functional.gelu(projected + self.bias))
        return hidden


class WeightedGCN(nn.Module):
    r"""A weighted GCN of `hops` layers; its output has heard exactly `hops` steps of the graph.

    .. math:: H^{(l+1)} = \sigma(\tilde{\mathbb A} H^{(l)} W^{(l)})

    The first layer, :math:`H^{(1)} = \sigma(\tilde{\mathbb A} X W^{(0)})`, is made before, with those of the
    other hops: it is the same product for all of them.
    """

    def __init__(self, models: int, hops: int, hidden_channels: int, channels: int, batch_norm: bool) -> None:
        super().__init__()
        widths = [hidden_channels] * (hops - 1) + [channels]
        self.linears = nn.ModuleList(
            Linear(models, width_in, width_out, bias=False) for width_in, width_out in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm(models, width) for width in widths[:-1] if batch_norm)

    def reset_parameters(self, generators: Generators) -> None:
        """Start all layers anew."""
        for layer in (*self.linears, *self.norms):
            layer.reset_parameters(generators)

    def forward(
        self,
        hidden: Tensor,
        adjacency: Adjacency,
        rates: Sequence[float],
        dropout: Dropout | None,
    ) -> Tensor:
        """From the first layer `[models, nodes, hidden]` to the last `[models, nodes, channels]`."""
        for layer, linear in enumerate(self.linears):
            if len(self.norms):
                hidden = self.norms[layer](hidden)
            if dropout is not None:
                hidden = drop(hidden, dropout.keep(rates, hidden.shape[1:], hidden.device), rates)
            hidden = torch.relu(adjacency @ linear(hidden))
        return hidden
