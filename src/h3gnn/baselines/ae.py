"""AE (Hinton and Salakhutdinov, 2006): tell the features of a node from a few numbers; no edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import BatchEmbedder, EmbedderSettings, shuffled_batches
from h3gnn.baselines.layers import scaled_features
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class AESettings(EmbedderSettings):
    """Settings of AE; those with which SDCN begins.

    Attributes:
        width: of the embedding.
        hidden: widths of the layers before it; behind it they stand the other way round.
        batch: nodes per step of the optimiser.
    """

    width: int = 10
    hidden: tuple[int, ...] = (500, 500, 2000)
    epochs: int = 30
    batch: int = 256


class AE(BatchEmbedder):
    r"""Layers down to a few numbers and up again, with ReLU between them.

    .. math:: \mathcal L = \tfrac1{n d} \lVert X - g(f(X)) \rVert^2, \quad Z = f(X)
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return the weights with Adam's moments, dense features, and the layers for all nodes."""
        return autoencoder_bytes(sizes, settings) + 4 * int(sizes.nodes * 3 * max(settings.hidden, default=0))

    def build(self, graph: Graph) -> None:
        """Make the layers."""
        self.features = scaled_features(graph, self.device, self.settings.scale_features).dense()
        self.coder = Autoencoder(graph.num_features, self.settings.hidden, self.settings.width)

    def batches(self) -> Iterator[Tensor]:
        """Give the nodes in a new order, some at a time."""
        yield from shuffled_batches(len(self.features), self.settings.batch, self.device)

    def batch_loss(self, batch: Tensor) -> Tensor:
        """Return how far the features are from what they were."""
        return self.coder.error(self.features[batch])

    def embedding(self) -> Tensor:
        """Return the narrowest layer."""
        return self.coder.encode(self.features)[-1]


class Autoencoder(nn.Module):
    """An encoder and a decoder of linear layers with ReLU between them."""

    def __init__(self, features: int, hidden: tuple[int, ...], width: int) -> None:
        super().__init__()
        widths = (features, *hidden, width)
        steps = list(pairwise(widths))
        self.encoder = nn.ModuleList([nn.Linear(low, high) for low, high in steps])
        self.decoder = nn.ModuleList([nn.Linear(high, low) for low, high in reversed(steps)])

    def encode(self, rows: Tensor) -> list[Tensor]:
        """Return what each layer says; the last is the embedding."""
        return _layers(self.encoder, rows)

    def decode(self, rows: Tensor) -> Tensor:
        """Return features from embeddings."""
        return _layers(self.decoder, rows)[-1]

    def error(self, rows: Tensor) -> Tensor:
        """Return how far features are from what is told of them."""
        return functional.mse_loss(self.decode(self.encode(rows)[-1]), rows)


def _layers(layers: nn.ModuleList, rows: Tensor) -> list[Tensor]:
    """Return what each layer says, with ReLU after all but the last."""
    said = []
    for place, layer in enumerate(layers, start=1):
        rows = layer(rows) if place == len(layers) else torch.relu(layer(rows))
        said.append(rows)
    return said


def autoencoder_bytes(sizes: Sizes, settings: Any) -> int:
    """Return what an autoencoder's weights, with gradients and Adam's moments, and the features take."""
    widths = (sizes.features, *settings.hidden, settings.width)
    weights = 2 * sum(low * high for low, high in pairwise(widths))
    return 4 * int(4 * weights + 2 * sizes.nodes * sizes.features)


SYSTEM = System(
    name="ae",
    title="AE",
    estimator="AE",
    group="clustering",
    paper="Hinton and Salakhutdinov: Reducing the Dimensionality of Data with Neural Networks. Science",
    year=2006,
    sees=("features",),
    kind=AE,
    settings=AESettings(),
    cost="eight dense layers over all nodes per epoch",
    ranges={
        "width": (10, 64),
        "hidden": ((500, 500, 2000), (512, 256)),
        "learning_rate": (0.001, 0.0001),
        "epochs": (30, 100),
    },
    published={ANY: {"scale_features": "none"}},
    source="the layers and the public code with which Bo et al. (2020) begin SDCN: 30 epochs, batches of 256",
)
