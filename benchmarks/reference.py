"""The method as a good engineer would write it with PyG in an hour: plain, obvious, and slow.

Every fast path of `h3gnn` is tested against this file and measured against it. One model, dense features,
the mask written into the features, PyG's own convolution, autograd for everything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


class WeightedConv(MessagePassing):  # type: ignore[misc]
    """`A H W` with given edge weights."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="sum")
        self.linear = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Transform, then sum the weighted messages."""
        received: Tensor = self.propagate(edge_index, x=self.linear(x), edge_weight=edge_weight)
        return received

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """Scale each neighbour's message."""
        return edge_weight.unsqueeze(-1) * x_j


class Block(nn.Module):
    """A Transformer block over each node's tokens, with the norm where it is asked for."""

    def __init__(self, channels: int, heads: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.attention = nn.MultiheadAttention(channels, heads, dropout=dropout, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def attend(self, x: Tensor) -> Tensor:
        """Let the tokens of each node attend to one another."""
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended

    def forward(self, x: Tensor) -> Tensor:
        """`[nodes, tokens, channels]` to the same shape."""
        if self.norm == "pre":
            x = x + self.attend(self.norm1(x))
            return cast(Tensor, x + self.mlp(self.norm2(x)))
        if self.norm == "post":
            x = self.norm1(x + self.attend(x))
            return cast(Tensor, self.norm2(x + self.mlp(x)))
        x = x + self.norm1(self.attend(x))
        return cast(Tensor, x + self.norm2(self.mlp(x)))


class ReferenceEncoder(nn.Module):
    """Linear, MLP and one weighted GCN per hop, fused by attention."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        edge_index: Tensor,
        edge_init: Tensor,
        *,
        hops: int = 2,
        heads: int = 4,
        norm: str = "residual-post",
        output: str = "flatten",
        batch_norm: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.edge_index, self.output = edge_index, output
        self.edge_logit = nn.Parameter(torch.logit(edge_init))
        self.mask_token = nn.Parameter(torch.randn(in_channels))
        self.linear = nn.Linear(in_channels, channels)
        self.mlp = nn.Sequential(
            nn.Linear(in_channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )
        self.hops = nn.ModuleList(
            nn.ModuleList(WeightedConv(in_channels if i == 0 else channels, channels) for i in range(hop))
            for hop in range(1, hops + 1)
        )
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm1d(channels) if batch_norm else nn.Identity() for _ in range(hop - 1))
            for hop in range(1, hops + 1)
        )
        self.dropout = nn.Dropout(dropout)
        self.block = Block(channels, heads, norm, attention_dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode all nodes; masked nodes show the mask token instead of their features."""
        if mask is not None:
            x = torch.where(mask.unsqueeze(-1), self.mask_token, x)
        weight = torch.sigmoid(self.edge_logit)
        tokens = [self.linear(x), self.mlp(x)]
        layers: Any = zip(self.hops, self.norms, strict=True)
        for convs, norms in layers:
            h = x
            for conv, norm in zip_longest(convs, norms):
                h = torch.relu(conv(h, self.edge_index, weight))
                if norm is not None:
                    h = self.dropout(norm(h))
            tokens.append(h)
        fused: Tensor = self.block(self.dropout(torch.stack(tokens, dim=1)))
        return fused.flatten(1) if self.output == "flatten" else fused[:, 0]


class ReferenceTrainer:
    """Student, teacher and optimiser; `step` is one epoch."""

    def __init__(
        self,
        student: ReferenceEncoder,
        features: Tensor,
        *,
        learning_rate: float,
        momentum: float,
        weight_decay: float = 0.0,
        schedule: Callable[[int], float] = lambda step: 1.0,
    ) -> None:
        self.student, self.features, self.momentum = student, features, momentum
        self.teacher = copy.deepcopy(student).requires_grad_(False).eval()
        self.adam = torch.optim.Adam(student.parameters(), lr=learning_rate, weight_decay=weight_decay)
        self.learning_rate, self.schedule, self.epoch = learning_rate, schedule, 0

    def step(self, mask: Tensor) -> Tensor:
        """Train on one mask; return each node's difficulty."""
        self.student.train()
        prediction = self.student(self.features, mask)
        with torch.no_grad():
            target = self.teacher(self.features)
        difficulty: Tensor = (prediction - target).square().sum(dim=-1)
        self.adam.zero_grad()
        difficulty.mean().backward()  # type: ignore[no-untyped-call]
        for group in self.adam.param_groups:
            group["lr"] = self.learning_rate * self.schedule(self.epoch)
        self.adam.step()
        with torch.no_grad():
            averaged = [*self.teacher.parameters(), *self.teacher.buffers()]
            current = [*self.student.parameters(), *self.student.buffers()]
            for mine, theirs in zip(averaged, current, strict=True):
                if mine.is_floating_point():
                    mine.mul_(self.momentum).add_(theirs, alpha=1 - self.momentum)
        self.epoch += 1
        return difficulty.detach()


def random_mask(nodes: int, ratio: float) -> Tensor:
    """Hide ⌊N·R⌋ nodes at random."""
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[torch.randperm(nodes)[: int(nodes * ratio)]] = True
    return mask


def probability_mask(difficulty: Tensor, ratio: float, exploit: float) -> Tensor:
    """Hide each node with the paper's probability; draw again while fewer than half are hidden."""
    probability = (1 - exploit) * ratio + exploit * ratio * difficulty / difficulty.max()
    mask = torch.bernoulli(probability).bool()
    while mask.sum() < int(len(mask) * ratio) / 2:
        mask |= torch.bernoulli(probability).bool()
    return mask
