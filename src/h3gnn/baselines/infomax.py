"""DGI (Veličković et al., 2019): node embeddings that can be told from those of a shuffled graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.layers import Convolution, Features, SparseMatrix, gcn_adjacency, scaled_features
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class InfomaxSettings:
    """Settings of DGI; those of the paper, but for an upper bound on the epochs.

    Attributes:
        width: of the embedding.
        epochs: at most so many.
        learning_rate: of Adam.
        patience: stop when the loss has not fallen for so many epochs.
    """

    width: int = 512
    epochs: int = 300
    learning_rate: float = 0.001
    patience: int = 20


class _Encoder(nn.Module):
    """One graph convolution and a PReLU, over the nodes' features in a given order.

    Shuffled features times weights are shuffled products: `(P X) W = P (X W)`.
    """

    def __init__(
        self, features: Features, matrix: SparseMatrix, width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.features, self.matrix = features, matrix
        self.convolution = Convolution(features.shape[1], width, generator)
        self.activation = nn.PReLU(width)

    def forward(self, order: Tensor) -> Tensor:
        product = self.features.product(self.convolution.weight.unsqueeze(1)).squeeze(1)
        spread = self.matrix @ product.index_select(0, order) + self.convolution.bias
        embedding: Tensor = self.activation(spread)
        return embedding


def infomax_embedding(
    graph: Graph,
    seed: int,
    device: torch.device,
    settings: InfomaxSettings,
    watch: Progress = unwatched,
) -> npt.NDArray[np.float32]:
    """Train PyG's `DeepGraphInfomax` on a graph and return its embedding `[nodes, width]`.

    The epoch with the smallest loss is kept.
    """
    start, noise = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed)
    features, matrix = scaled_features(graph, device), gcn_adjacency(graph, device)
    encoder = _Encoder(features, matrix, settings.width, start).to(device)
    model: Any = _infomax(encoder, settings.width, start, noise).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    order = torch.arange(graph.num_nodes, device=device)
    best, best_epoch = float("inf"), 0
    embedding = torch.empty(0)
    for epoch in range(settings.epochs):
        optimizer.zero_grad()
        positive, negative, summary = model(order)
        loss = model.loss(positive, negative, summary)
        if (value := float(loss.detach())) < best:
            best, best_epoch, embedding = value, epoch, positive.detach()
        loss.backward()
        optimizer.step()
        watch((epoch + 1) / settings.epochs)
        if epoch - best_epoch >= settings.patience:
            break
    kept: npt.NDArray[np.float32] = embedding.cpu().numpy()
    return kept


def _infomax(encoder: nn.Module, width: int, start: torch.Generator, noise: torch.Generator) -> nn.Module:
    """Wire PyG's class: the summary is the squashed mean, the corruption shuffles the nodes' features."""
    from torch_geometric.nn import DeepGraphInfomax

    def shuffle(order: Tensor) -> Tensor:
        return torch.randperm(order.numel(), generator=noise, device=order.device)

    with torch.random.fork_rng(devices=[]):  # PyG draws a start from the global generator
        model: nn.Module = DeepGraphInfomax(
            width, encoder, summary=lambda z, *_: torch.sigmoid(z.mean(dim=0)), corruption=shuffle
        )
    nn.init.uniform_(model.get_parameter("weight"), -(width**-0.5), width**-0.5, generator=start)
    return model
