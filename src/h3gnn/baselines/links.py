"""Systems that learn to tell edges from pairs without one: held-out edges say which epoch is the best."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import (
    Convolution,
    Features,
    SparseMatrix,
    adjacency,
    gcn_adjacency,
    scaled_features,
    symmetric,
    to_device,
)
from h3gnn.baselines.systems import Sizes
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

LARGEST_NORM = 1.0
"""Longer gradients are made as short as this."""


@dataclass(frozen=True)
class LinkSettings(EmbedderSettings):
    """Settings of a system that learns from edges and pairs without one.

    Attributes:
        layers: of the encoder; the embedding holds all of them side by side.
        drop: dropout of what goes into each layer of the encoder.
        decoder_width, decoder_drop: of what says from two embeddings whether they are linked.
        held_out: the share of edges that is not trained on; where they are told best from pairs without an
            edge is the epoch that counts. 0 for the last epoch.
        look_every: so many epochs lie between two looks at them.
        look_patience: stop after so many looks without a better one; 0 to go on to the end.
    """

    learning_rate: float = 0.01
    weight_decay: float = 5e-5
    layers: int = 2
    drop: float = 0.8
    decoder_width: int = 32
    decoder_drop: float = 0.2
    held_out: float = 0.15
    look_every: int = 10
    look_patience: int = 0


class LinkEmbedder(Embedder):
    """Holds out some edges, trains on the others, and goes back to the epoch that knew the former best.

    A subclass gives the widths of its encoder, what its decoder says, and its loss. The encoder sees
    `looped`, the trained edges both ways and a loop at each node; `links` are those without the loops.
    """

    outputs = 1
    """How many numbers the decoder says of a pair; the first is large for an edge."""

    def widths(self) -> list[int]:
        """Return how wide each layer of the encoder is."""
        return [self.settings.width] * self.settings.layers

    def build(self, graph: Graph) -> None:
        """Hold out edges, and make the encoder and the decoder."""
        entries = adjacency(graph, self_loops=True)
        is_pair = entries.rows < entries.cols
        if not bool(is_pair.any()):
            raise InputError(
                f"{type(self).__name__} learns from edges, and this graph has none: take a system that needs "
                "features alone"
            )
        settings, nodes = self.settings, graph.num_nodes
        pairs = torch.stack([entries.rows[is_pair], entries.cols[is_pair]])
        pairs = pairs[:, torch.randperm(pairs.shape[1])]
        held = pairs[:, : min(int(settings.held_out * pairs.shape[1]), pairs.shape[1] - 1)]
        low, high = torch.minimum(entries.rows, entries.cols), torch.maximum(entries.rows, entries.cols)
        kept = ~torch.isin(low * nodes + high, held[0] * nodes + held[1])
        looped = SparseMatrix(entries.rows[kept], entries.cols[kept], entries.values[kept], entries.shape)
        self.looped, self.whole = to_device(looped, self.device), gcn_adjacency(graph, self.device)
        self.trained = symmetric(self.looped)
        self.keys = self.looped.rows * nodes + self.looped.cols  # sorted
        self.places = torch.nonzero(self.looped.rows != self.looped.cols).flatten()
        self.links = torch.stack([self.looped.rows[self.places], self.looped.cols[self.places]])
        self.held = held.to(self.device)
        self.unheld = self.unlinked(held.shape[1])
        self.features = scaled_features(graph, self.device, settings.scale_features)
        self.encoder = Convolutions(self.features, self.widths(), settings.drop)
        self.decoder = PairDecoder(
            self.widths()[-1], settings.decoder_width, self.outputs, settings.decoder_drop
        )

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add what lies on the edges, and as much on pairs without one."""
        pair = 4 * settings.width + 4 * settings.decoder_width + 16
        return super().bytes_for(sizes, settings) + int(4 * 2 * sizes.edges * pair * settings.layers)

    def unlinked(self, count: int) -> Tensor:
        """Draw about so many pairs of two nodes `[2, count]` that have no trained edge between them."""
        nodes = self.looped.shape[0]
        drawn = torch.randint(nodes * nodes, (2 * count,), device=self.device)
        place = torch.searchsorted(self.keys, drawn).clamp_max(self.keys.numel() - 1)
        drawn = drawn[self.keys[place] != drawn][:count]
        return torch.stack([drawn // nodes, drawn % nodes])

    def optimizer(self) -> torch.optim.Optimizer:
        """Return Adam, which shortens long gradients first."""
        optimiser = super().optimizer()
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        optimiser.register_step_pre_hook(
            lambda *_: (nn.utils.clip_grad_norm_(parameters, LARGEST_NORM), None)[1]
        )
        return optimiser

    def begin(self) -> None:
        """Get ready to keep the best epoch."""
        super().begin()
        self.best, self.worse, self.ended = 0.0, 0, False
        self.kept: dict[str, Any] | None = None
        self.last = torch.zeros(())

    def step(self, epoch: int) -> Tensor:
        """Train for one epoch; once the looks have run out of patience, rest on the best one."""
        if self.ended:
            return self.last
        self.last = super().step(epoch)
        if (epoch + 1) % self.settings.look_every == 0 and self.held.shape[1] and self.unheld.shape[1]:
            self.look()
        self.ended = epoch + 1 == self.settings.epochs or 0 < self.settings.look_patience <= self.worse
        if self.ended and self.kept is not None:
            self.load_state_dict(self.kept)
        return self.last

    @torch.no_grad()
    def look(self) -> None:
        """Keep the weights if held-out edges are told from other pairs better than before."""
        self.eval()
        hidden = self.encoder([self.trained] * self.settings.layers)[-1]
        area = area_under_curve(*(self.decoder(hidden, pairs)[:, 0] for pairs in (self.held, self.unheld)))
        self.train()
        if area > self.best:
            self.best, self.kept, self.worse = area, copy.deepcopy(self.state_dict()), 0
        else:
            self.worse += 1

    def embedding(self) -> Tensor:
        """Encode the whole graph, held-out edges too, and join all layers."""
        return torch.cat(self.encoder([self.whole] * self.settings.layers), dim=1)


class Convolutions(nn.Module):
    """Graph convolutions over constant features, each with dropout before, batch norm and an ELU after."""

    def __init__(self, features: Features, widths: list[int], drop: float) -> None:
        super().__init__()
        self.features, self.rate = features, drop
        sizes = zip([features.shape[1], *widths], widths, strict=False)
        self.convolutions = nn.ModuleList(Convolution(rows, columns) for rows, columns in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths)

    def forward(self, matrices: Iterable[SparseMatrix]) -> list[Tensor]:
        """Return what each layer makes of the graph, given the matrix that it is convolved with."""
        hidden: list[Tensor] = []
        rate = self.rate if self.training else 0.0
        for convolution, norm, matrix in zip(self.convolutions, self.norms, matrices, strict=True):
            assert isinstance(convolution, Convolution)
            shown = functional.dropout(hidden[-1], rate) if hidden else self.features.dropped(rate)
            hidden.append(functional.elu(norm(matrix @ (shown @ convolution.weight) + convolution.bias)))
        return hidden


class PairDecoder(nn.Module):
    """What is said of a pair, from the product of its two embeddings."""

    def __init__(self, width: int, hidden: int, outputs: int, drop: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(drop), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, hidden: Tensor, pairs: Tensor) -> Tensor:
        """Return `[pairs, outputs]` for pairs `[2, pairs]`."""
        result: Tensor = self.layers(hidden.index_select(0, pairs[0]) * hidden.index_select(0, pairs[1]))
        return result


def area_under_curve(high: Tensor, low: Tensor) -> float:
    """Return how likely one of `high` is above one of `low`, a tie being half of that."""
    high, ranked = high.contiguous(), low.sort().values
    below = [torch.searchsorted(ranked, high, right=right).double().mean() for right in (False, True)]
    return float((below[0] + below[1]) / (2 * low.numel()))


def mean(values: Tensor) -> Tensor:
    """Return the mean; of nothing, zero."""
    return values.sum() / max(1, values.numel())
