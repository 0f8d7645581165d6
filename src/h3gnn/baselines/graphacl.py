"""GraphACL (Xiao et al., 2023): each node predicts its neighbours' slow embeddings, apart from all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, log_sums
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder, linear_layers
from h3gnn.baselines.layers import adjacency, scaled_features, symmetric, to_device
from h3gnn.baselines.moving import follow, slow_copy
from h3gnn.baselines.neighbours import Neighbours
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class GraphACLSettings(EmbedderSettings):
    """Settings of GraphACL; by default about the authors' for heterophilous graphs, six of the nine here.

    Attributes:
        width: of every layer.
        layers: of the encoder.
        linear: whether the encoder has no activation between its layers.
        self_loops: whether a node is its own neighbour, in the encoder and in the loss.
        samples: how many neighbours to predict and how many others to stay apart from, drawn for each node
            in each epoch; 0 for all of them.
        predictor_layers: of the predictor, with ReLU between.
        temperature: of the cosines.
        momentum: of the slow copy of the encoder.
    """

    width: int = 1024
    epochs: int = 50
    learning_rate: float = 0.0005
    weight_decay: float = 3e-4
    layers: int = 2
    linear: bool = True
    self_loops: bool = False
    samples: int = 5
    predictor_layers: int = 1
    temperature: float = 0.5
    momentum: float = 0.97


class GraphACL(Embedder):
    r"""A predictor g of a node's neighbourhood: what is alike are nodes whose neighbourhoods are.

    With z of the encoder, t of the target (its moving average) and cosines divided by the temperature,

    .. math:: \mathcal L = \frac1n \sum_v \frac1{|N(v)|} \sum_{u \in N(v)} -\log
        \frac{e^{\cos(g(z_v), t_u)}}{e^{\cos(g(z_v), t_u)} + \sum_w e^{\cos(z_v, z_w)}}

    Nothing makes neighbours alike themselves, since g stands between them. On homophilous graphs the authors
    take all neighbours, the node itself among them, and all nodes w; on heterophilous ones a linear encoder
    without self-loops, and a few drawn u and w.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count messages along edges, or drawn pairs, and all pairs of nodes up to a chunk."""
        pairs = 2 * sizes.nodes * settings.samples or sizes.edges + sizes.nodes
        crowd = 0 if settings.samples else bytes_for_pairs(sizes.nodes, 0)
        weights = settings.width**2 * (2 * settings.layers + settings.predictor_layers)
        numbers: int = 6 * pairs * settings.width + 4 * weights
        return super().bytes_for(sizes, settings) + 4 * numbers + crowd

    def build(self, graph: Graph) -> None:
        """Make the encoder, its slow copy, and the predictor."""
        width, settings = self.settings.width, self.settings
        links = to_device(adjacency(graph, self_loops=self.settings.self_loops), self.device)
        if not links.cols.numel():
            raise InputError("GraphACL predicts neighbours, and there is no edge; set self_loops=True")
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.neighbours = Neighbours(links)
        self.matrix = symmetric(links)
        between = nn.Identity() if settings.linear else nn.ReLU()
        after = [*[between] * (settings.layers - 1), nn.Identity()]
        self.online = GraphEncoder(features, [width] * settings.layers, after)
        self.target = slow_copy(self.online)
        self.predictor = linear_layers(*[width] * (settings.predictor_layers + 1))

    def loss(self, epoch: int) -> Tensor:
        """Predict neighbours, apart from others."""
        embedding = self.online(self.matrix)
        with torch.no_grad():
            target = functional.normalize(self.target(self.matrix), dim=1)
        predicted = functional.normalize(self.predictor(embedding), dim=1)
        return self.asymmetric(predicted, target, functional.normalize(embedding, dim=1))

    def asymmetric(self, predicted: Tensor, target: Tensor, embedding: Tensor) -> Tensor:
        """Return the loss of rows of length 1: a node's prediction, a neighbour's target, embeddings."""
        samples, temperature = self.settings.samples, self.settings.temperature
        here, there = self._pairs()
        alike = (predicted[here] * target[there]).sum(dim=1) / temperature
        if samples:
            others = torch.randint(len(embedding), (len(embedding), samples), device=embedding.device)
            crowd = torch.einsum("nd,nsd->ns", embedding, embedding[others]).div(temperature).logsumexp(dim=1)
        else:
            crowd = log_sums(embedding, temperature)
        each = torch.logaddexp(alike, crowd[here]) - alike
        count = torch.bincount(here, minlength=len(embedding))
        mean: Tensor = (each / count[here]).sum() / (count > 0).sum()
        return mean

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Return nodes and their neighbours, all or drawn; a node without any has no pair."""
        near = self.neighbours
        if not self.settings.samples:
            return near.rows, near.cols
        linked = (near.degree > 0).nonzero().squeeze(1)
        there = near.draw(self.settings.samples)[linked]
        return linked.repeat_interleave(self.settings.samples), there.flatten()

    def after(self, epoch: int) -> None:
        """Move the target towards the encoder."""
        follow(self.target, self.online, self.settings.momentum)

    def embedding(self) -> Tensor:
        """Encode the graph."""
        rows: Tensor = self.online(self.matrix)
        return rows


_HOMOPHILOUS = {"linear": False, "self_loops": True, "samples": 0}
_HETEROPHILOUS = {"width": 4096, "learning_rate": 0.0001}

SYSTEM = System(
    name="graphacl",
    title="GraphACL",
    estimator="GraphACL",
    group="self-supervised",
    paper="Xiao et al.: Simple and Asymmetric Graph Contrastive Learning without Augmentations. NeurIPS",
    year=2023,
    sees=("features", "edges"),
    kind=GraphACL,
    settings=GraphACLSettings(),
    cost="two encodings and a few drawn pairs of every node, or with samples=0 all pairs, per epoch",
    ranges={
        "temperature": (0.5, 1.0, 0.75, 0.25),
        "momentum": (0.97, 0.9, 0.99),
        "samples": (5, 0),
        "self_loops": (False, True),
        "linear": (True, False),
        "epochs": (50, 20, 100),
    },
    published={
        ANY: {"scale_features": "sums"},
        "cora": {**_HOMOPHILOUS, "width": 2048, "weight_decay": 1e-6, "temperature": 1.0},
        "citeseer": {
            **_HOMOPHILOUS,
            **{"width": 2048, "layers": 1, "epochs": 15, "learning_rate": 0.001, "weight_decay": 1e-4},
            **{"temperature": 0.99, "momentum": 0.95},
        },
        "pubmed": {
            **_HOMOPHILOUS,
            **{"epochs": 60, "weight_decay": 0.0, "temperature": 0.75, "momentum": 0.99},
        },
        "cornell": {**_HETEROPHILOUS, "momentum": 0.95},
        "texas": {**_HETEROPHILOUS, "momentum": 0.95, "width": 2048, "temperature": 0.75},
        "wisconsin": _HETEROPHILOUS,
        "actor": {**_HETEROPHILOUS, "momentum": 0.95, "temperature": 1.0, "predictor_layers": 2},
        "chameleon-filtered": {
            **_HETEROPHILOUS,
            **{"momentum": 0.999, "epochs": 30, "scale_features": "none"},
        },
        "squirrel-filtered": {
            **_HETEROPHILOUS,
            **{"width": 8192, "epochs": 40, "samples": 10, "temperature": 0.25, "scale_features": "none"},
        },
    },
    source="homo/run.sh and hete/run.sh of the public code; its Chameleon and Squirrel were not yet filtered",
)
