"""BGRL (Thakoor et al., 2022): predict a slow copy's view of the graph from another view of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.layers import (
    Convolution,
    Features,
    SparseMatrix,
    adjacency,
    scaled_features,
    symmetric,
    to_device,
)
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class BootstrapSettings:
    """Settings of BGRL.

    Attributes:
        width: of the embedding; the hidden layer and the predictor are twice and as wide.
        epochs: how many.
        learning_rate, weight_decay: of AdamW; the rate rises over the first tenth, then falls as a cosine.
        momentum: of the slow copy at the start; it rises to 1 as a cosine.
        feature_drop, edge_drop: shares dropped in the first and in the second view.
    """

    width: int = 256
    epochs: int = 300
    learning_rate: float = 0.0005
    weight_decay: float = 1e-5
    momentum: float = 0.99
    feature_drop: tuple[float, float] = (0.3, 0.4)
    edge_drop: tuple[float, float] = (0.3, 0.4)


@dataclass(frozen=True, eq=False)
class View:
    """A graph with some feature columns and some edges gone."""

    kept_columns: Tensor | None
    matrix: SparseMatrix


class ViewMaker:
    """Draws views: columns are dropped for all nodes, an edge in both directions, degrees counted anew."""

    def __init__(self, graph: Graph, device: torch.device, generator: torch.Generator) -> None:
        loops = to_device(adjacency(graph, self_loops=True), device)
        low, high = torch.minimum(loops.rows, loops.cols), torch.maximum(loops.rows, loops.cols)
        pairs, pair_of = torch.unique(low * graph.num_nodes + high, return_inverse=True)
        self.loops, self.pairs, self.pair_of = loops, pairs.numel(), pair_of
        self.is_loop = loops.rows == loops.cols
        self.columns, self.generator, self.device = graph.num_features, generator, device

    def full(self) -> View:
        """Return the whole graph."""
        return View(None, symmetric(self.loops))

    def draw(self, feature_drop: float, edge_drop: float) -> View:
        """Return a view with these shares dropped."""
        columns = torch.rand(self.columns, generator=self.generator, device=self.device) >= feature_drop
        coins = torch.rand(self.pairs, generator=self.generator, device=self.device) >= edge_drop
        kept = coins[self.pair_of] | self.is_loop
        return View(columns, symmetric(self.loops.with_values(self.loops.values * kept)))


class BootstrapEncoder(nn.Module):
    """Two graph convolutions, each with batch norm and a PReLU."""

    def __init__(self, features: Features, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.features = features
        self.first = Convolution(features.shape[1], 2 * width, generator)
        self.second = Convolution(2 * width, width, generator)
        self.norms = nn.ModuleList(
            [nn.BatchNorm1d(2 * width, momentum=0.01), nn.BatchNorm1d(width, momentum=0.01)]
        )
        self.activations = nn.ModuleList([nn.PReLU(), nn.PReLU()])

    def forward(self, view: View) -> Tensor:
        """Return the embedding of a view."""
        hidden = self.first.of_features(self.features, view.matrix, view.kept_columns)
        hidden = self.activations[0](self.norms[0](hidden))
        embedding: Tensor = self.activations[1](self.norms[1](self.second(hidden, view.matrix)))
        return embedding


class Bootstrap(nn.Module):
    """The online encoder, its predictor, and the target, a moving average of the encoder."""

    def __init__(self, features: Features, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.online = BootstrapEncoder(features, width, generator)
        layers = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.predictor = nn.Sequential(layers[0], nn.PReLU(), layers[1])
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.target = BootstrapEncoder(features, width, generator).requires_grad_(False)

    def forward(self, first: View, second: View) -> Tensor:
        r"""Return :math:`2 - \cos(p(z_1), \bar z_2) - \cos(p(z_2), \bar z_1)`, averaged over nodes."""
        with torch.no_grad():
            targets = self.target(second), self.target(first)
        predicted = self.predictor(self.online(first)), self.predictor(self.online(second))
        alike = [functional.cosine_similarity(p, t, dim=1) for p, t in zip(predicted, targets, strict=True)]
        return 2 - (alike[0] + alike[1]).mean()

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move the target towards the online encoder."""
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 1 - momentum)


def bootstrap_embedding(
    graph: Graph,
    seed: int,
    device: torch.device,
    settings: BootstrapSettings,
    watch: Progress = unwatched,
) -> npt.NDArray[np.float32]:
    """Train BGRL on a graph and return the online encoder's embedding of all of it, `[nodes, width]`."""
    views = ViewMaker(graph, device, torch.Generator(device).manual_seed(seed))
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their starts before ours replace them
        start = torch.Generator().manual_seed(seed)
        model = Bootstrap(scaled_features(graph, device), settings.width, start).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    for epoch in range(settings.epochs):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm_cosine(epoch, settings.epochs)
        optimizer.zero_grad()
        first, second = (
            views.draw(*shares) for shares in zip(settings.feature_drop, settings.edge_drop, strict=True)
        )
        model(first, second).backward()
        optimizer.step()
        model.follow(1 - (1 - settings.momentum) * _cosine(epoch / settings.epochs))
        watch((epoch + 1) / settings.epochs)
    model.eval()
    with torch.no_grad():
        embedding: npt.NDArray[np.float32] = model.online(views.full()).cpu().numpy()
    return embedding


def warm_cosine(epoch: int, epochs: int) -> float:
    """Return the share of the learning rate: a line up over the first tenth, then half a cosine down."""
    warm = max(1, epochs // 10)
    if epoch < warm:
        return (epoch + 1) / warm
    return _cosine((epoch - warm) / max(1, epochs - warm))


def _cosine(share: float) -> float:
    return (1 + math.cos(math.pi * share)) / 2
