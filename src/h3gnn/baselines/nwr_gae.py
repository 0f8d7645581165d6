"""NWR-GAE (Tang et al., 2022): an auto-encoder of neighbourhoods, compared by the Wasserstein distance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import linear_layers
from h3gnn.baselines.layers import Convolution, adjacency, gcn_adjacency, scaled_features, to_device
from h3gnn.baselines.neighbours import Neighbours
from h3gnn.baselines.systems import Sizes, System
from h3gnn.graphs.graph import Graph

ALL_ORDERS = 6
"""Up to so many points all orders are tried, 720 of them; more are matched by the Hungarian algorithm."""


@dataclass(frozen=True)
class NWRGAESettings(EmbedderSettings):
    """Settings of NWR-GAE.

    Attributes:
        width: of every layer.
        layers: of the encoder.
        samples: how many neighbours and how many predicted points are compared.
        degree_weight, feature_weight, neighbour_weight: of the three parts of the loss.
        norm_scale: how long the rows are between layers, by PairNorm.
    """

    width: int = 256
    epochs: int = 100
    learning_rate: float = 0.001
    weight_decay: float = 3e-4
    layers: int = 2
    samples: int = 5
    degree_weight: float = 0.01
    feature_weight: float = 1.0
    neighbour_weight: float = 1.0
    norm_scale: float = 20.0


class NWRGAE(Embedder):
    r"""From each node's embedding: its degree, its features, and at each layer its neighbours' distribution.

    With :math:`h^0 = X W_0`, l layers, and :math:`N^k(v) = \{h_u^k: u \in N(v)\}`, whose gradient is stopped,

    .. math:: \mathcal L = \tfrac1n \sum_v \lambda_d \big(d_v - \psi_d(h_v^l)\big)^2
        + \lambda_s \|x_v - \psi_s(h_v^l)\|^2
        + \lambda_n \sum_{k<l} W_2^2\big(N^k(v),
        \psi_n^k(\mathcal N(\mu(h_v^{k+1}), \sigma(h_v^{k+1})^2))\big)

    The distance is taken between q drawn neighbours and q drawn points: the mean squared error in the best of
    all ways to match them, :math:`\min_\pi \frac1q \sum_i \|a_i - b_{\pi(i)}\|^2 / D`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count the drawn points of every layer, the rebuilt features, and the dense ones."""
        points = sizes.nodes * settings.samples * settings.width * settings.layers
        numbers: int = 10 * points + 6 * sizes.nodes * sizes.features
        return super().bytes_for(sizes, settings) + 4 * numbers

    def build(self, graph: Graph) -> None:
        """Make the encoder and the decoders."""
        from torch_geometric.nn import PairNorm

        width, layers = self.settings.width, range(self.settings.layers)
        self.features = scaled_features(graph, self.device, self.settings.scale_features)
        self.goal = self.features.dense()
        self.matrix = gcn_adjacency(graph, self.device)
        self.neighbours = Neighbours(to_device(adjacency(graph, self_loops=False), self.device))
        self.linked = (self.neighbours.degree > 0).nonzero().squeeze(1)
        self.start = nn.Linear(graph.num_features, width)
        self.norm = PairNorm(self.settings.norm_scale, scale_individually=True)
        self.convolutions = nn.ModuleList(Convolution(width, width) for _ in layers)
        self.mean, self.spread = nn.Linear(width, width), nn.Linear(width, width)
        self.points = nn.ModuleList(linear_layers(width, width, width) for _ in layers)
        self.degree = linear_layers(width, width, 1)
        self.content = linear_layers(width, width, graph.num_features)

    def encode(self) -> list[Tensor]:
        """Return what every layer says of the nodes, the projected features first."""
        found = [self.norm(self.features @ self.start.weight.t() + self.start.bias)]
        for layer in self.convolutions:
            hidden = layer(found[-1] if len(found) == 1 else found[-1].relu(), self.matrix)
            found.append(self.norm(hidden))
        return found

    def loss(self, epoch: int) -> Tensor:
        """Decode degrees, features and neighbourhoods."""
        layers = self.encode()
        settings, last = self.settings, layers[-1]
        degree = functional.mse_loss(self.degree(last).squeeze(1).relu(), self.neighbours.degree.float())
        content = functional.mse_loss(self.content(last), self.goal)
        loss: Tensor = settings.degree_weight * degree + settings.feature_weight * content
        if not self.linked.numel():
            return loss
        for lower, upper, decoder in zip(layers, layers[1:], self.points, strict=False):
            near = self.neighbours.draw(settings.samples)[self.linked]
            loss = loss + settings.neighbour_weight * wasserstein(
                self.imagine(upper[self.linked], decoder), lower.detach()[near]
            )
        return loss

    def imagine(self, rows: Tensor, decoder: nn.Module) -> Tensor:
        """Draw points that stand for the neighbours of nodes, `[nodes, samples, width]`."""
        mean, spread = self.mean(rows)[:, None], self.spread(rows).clamp(-5, 2).exp()[:, None]
        noise = torch.randn(len(rows), self.settings.samples, rows.shape[1], device=rows.device)
        points: Tensor = decoder(mean + spread * noise)
        return points

    def embedding(self) -> Tensor:
        """Return what the last layer says."""
        return self.encode()[-1]


def wasserstein(points: Tensor, others: Tensor) -> Tensor:
    """Return the mean squared error of the best matching of points `[sets, count, width]` with others."""
    squares = points.square().sum(dim=2)[:, :, None] + others.square().sum(dim=2)[:, None]
    cost = (squares - 2 * points @ others.transpose(1, 2)) / points.shape[2]
    return cost.gather(2, match(cost.detach())[:, :, None]).mean()


def match(cost: Tensor) -> Tensor:
    """Return each row's column `[sets, count]`, so that the costs `[sets, count, count]` add up to least."""
    count = cost.shape[1]
    if count > ALL_ORDERS:
        from scipy.optimize import linear_sum_assignment

        found = [torch.from_numpy(linear_sum_assignment(one)[1]) for one in cost.cpu().numpy()]
        return torch.stack(found).to(cost.device)
    orders = torch.tensor(list(permutations(range(count))), device=cost.device)
    totals = cost[:, 0].index_select(1, orders[:, 0])
    for row in range(1, count):
        totals = totals + cost[:, row].index_select(1, orders[:, row])
    return orders[totals.argmin(dim=1)]


SYSTEM = System(
    name="nwr-gae",
    title="NWR-GAE",
    estimator="NWRGAE",
    group="self-supervised",
    paper="Tang et al.: Graph Auto-Encoder via Neighborhood Wasserstein Reconstruction. ICLR",
    year=2022,
    sees=("features", "edges"),
    kind=NWRGAE,
    settings=NWRGAESettings(),
    cost="a matching of a few neighbours of every node in every layer, and the dense features, per epoch",
    ranges={
        "layers": (2, 3, 4),
        "neighbour_weight": (1.0, 0.1, 0.01),
        "degree_weight": (0.01, 0.1, 0.001),
        "feature_weight": (1.0, 0.1, 10.0),
        "learning_rate": (0.001, 0.0001, 0.005),
        "samples": (5, 3, 8),
    },
    published={
        "texas": {
            **{"width": 1500, "layers": 4, "learning_rate": 5e-5, "neighbour_weight": 0.01},
            **{"degree_weight": 0.01, "feature_weight": 0.01, "scale_features": "none"},
        },
    },
    source="the public code's settings for Texas, with the layers of its encoder; none found for others",
)
