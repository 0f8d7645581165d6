"""SDCN (Bo et al., 2020): an autoencoder's layers enter a GCN, and both learn the same clusters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.ae import Autoencoder, autoencoder_bytes
from h3gnn.baselines.embedder import Embedder, EmbedderSettings, shuffled_batches
from h3gnn.baselines.layers import Convolution, gcn_adjacency, scaled_features
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph

CLUSTERS = 8
"""How many clusters, where neither the settings nor classes of the graph say it."""
STARTS = 20
"""k-means places the first centres, as the best of so many starts."""


@dataclass(frozen=True)
class SDCNSettings(EmbedderSettings):
    """Settings of SDCN.

    Attributes:
        width: of the autoencoder's narrowest layer.
        hidden: widths of the layers before it.
        clusters: how many; 0 for as many as the graph has classes, or eight.
        first_epochs: in which the autoencoder learns alone, with a learning rate of `first_rate`.
        first_rate: of Adam, then.
        batch: nodes per step, then; later all nodes are in one.
        share: σ, of the autoencoder in what the next convolution reads.
        centre_weight: α, of the divergence between target and the autoencoder's clusters.
        graph_weight: β, of the divergence between target and the GCN's clusters.
    """

    width: int = 10
    hidden: tuple[int, ...] = (500, 500, 2000)
    epochs: int = 50
    learning_rate: float = 0.001
    clusters: int = 0
    first_epochs: int = 30
    first_rate: float = 0.001
    batch: int = 256
    share: float = 0.5
    centre_weight: float = 0.1
    graph_weight: float = 0.01


class SDCN(Embedder):
    r"""An autoencoder with layers H, a GCN with layers Z that reads both, and a target P for both.

    .. math:: Z^{l+1} = \mathrm{ReLU}\big(\tilde A ((1 - \sigma) Z^l + \sigma H^l) W^l\big), \quad
        q_{vk} \propto \frac{1}{1 + \lVert h_v - \mu_k \rVert^2}, \quad
        p_{vk} \propto \frac{q_{vk}^2}{\sum_u q_{uk}}

    .. math:: \mathcal L = \lVert X - \hat X \rVert^2 + \alpha\, \mathrm{KL}(P \,\|\, Q)
        + \beta\, \mathrm{KL}(P \,\|\, Z)

    The last Z are the shares of each node in the clusters. P is made anew in each epoch, a constant in it.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return weights, dense features and all layers of all nodes."""
        layers = 12 * sum(settings.hidden) + 20 * settings.width + 3 * sizes.features
        return 2 * autoencoder_bytes(sizes, settings) + 4 * int(sizes.nodes * layers + 12 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Make the autoencoder, the convolutions and the centres."""
        settings = self.settings
        self.constant = scaled_features(graph, self.device, settings.scale_features)
        self.features = self.constant.dense()
        self.matrix = gcn_adjacency(graph, self.device)
        self.count = min(settings.clusters or graph.num_classes or CLUSTERS, graph.num_nodes)
        self.coder = Autoencoder(graph.num_features, settings.hidden, settings.width)
        widths = (graph.num_features, *settings.hidden, settings.width, self.count)
        self.first, *others = (Convolution(low, high) for low, high in pairwise(widths))
        self.others = nn.ModuleList(others)
        for convolution in (self.first, *others):
            convolution.bias.requires_grad_(False)
        self.centres = nn.Parameter(torch.zeros(self.count, settings.width))

    def begin(self) -> None:
        """Train the autoencoder alone, and place the centres by k-means."""
        from sklearn.cluster import KMeans

        first = torch.optim.Adam(self.coder.parameters(), lr=self.settings.first_rate)
        for _ in range(self.settings.first_epochs):
            for nodes in shuffled_batches(len(self.features), self.settings.batch, self.device):
                first.zero_grad()
                self.coder.error(self.features[nodes]).backward()  # type: ignore[no-untyped-call]
                first.step()
        with torch.no_grad():
            rows = self.coder.encode(self.features)[-1]
            seed = int(torch.randint(2**31, ()))
            means = KMeans(self.count, n_init=STARTS, random_state=seed).fit(rows.cpu().numpy())
            self.centres.copy_(torch.from_numpy(means.cluster_centers_))
        super().begin()

    def loss(self, epoch: int) -> Tensor:
        """Tell the features, and bring both kinds of clusters to the target."""
        layers = self.coder.encode(self.features)
        near = student(layers[-1], self.centres)
        goal = target(near.detach())
        graph = functional.log_softmax(self.convolve(layers)[1], dim=1)
        told = functional.mse_loss(self.coder.decode(layers[-1]), self.features)
        of_centres = functional.kl_div(near.log(), goal, reduction="batchmean")
        of_graph = functional.kl_div(graph, goal, reduction="batchmean")
        loss: Tensor = told + self.settings.centre_weight * of_centres + self.settings.graph_weight * of_graph
        return loss

    def convolve(self, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the last convolution reads, and what it says."""
        said: Tensor = self.first.of_features(self.constant, self.matrix)
        for convolution, layer in zip(self.others, layers, strict=True):
            read = (1 - self.settings.share) * torch.relu(said) + self.settings.share * layer
            said = convolution(read, self.matrix)
        return read, said

    def embedding(self) -> Tensor:
        """Return what the last convolution reads: the autoencoder and the GCN together."""
        return self.convolve(self.coder.encode(self.features))[0]

    def clusters(self) -> Tensor:
        """Return the cluster in which the GCN sees each node most."""
        return self.convolve(self.coder.encode(self.features))[1].argmax(dim=1)


def student(rows: Tensor, centres: Tensor) -> Tensor:
    """Return how near each row is to each centre, `[nodes, clusters]`: by Student's t, adding up to 1."""
    near = 1 / (1 + (rows[:, None] - centres[None]).square().sum(dim=2))
    return near / near.sum(dim=1, keepdim=True)


def target(near: Tensor) -> Tensor:
    """Return clusters that are clearer, and large ones less so."""
    clear = near.square() / near.sum(dim=0)
    return clear / clear.sum(dim=1, keepdim=True)


SYSTEM = System(
    name="sdcn",
    title="SDCN",
    estimator="SDCN",
    group="clustering",
    paper="Bo et al.: Structural Deep Clustering Network. WWW",
    year=2020,
    sees=("features", "edges"),
    kind=SDCN,
    settings=SDCNSettings(),
    cost="thirteen dense layers over all nodes per epoch, after an autoencoder's training",
    ranges={
        "learning_rate": (0.001, 0.0001),
        "share": (0.5, 0.1, 0.9),
        "first_epochs": (30, 100),
        "epochs": (50, 200),
    },
    published={
        ANY: {"epochs": 200, "scale_features": "none"},
        "citeseer": {"learning_rate": 0.0001},
    },
    source="the paper's section 4.1 and its public code",
)
