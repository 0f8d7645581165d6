"""GraphACL (Xiao et al., 2023): each node predicts its neighbours' slow embeddings, apart from all others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import (
    Convolution,
    Features,
    SparseMatrix,
    adjacency,
    scaled_features,
    symmetric,
    to_device,
)
from h3gnn.baselines.neighbours import Neighbours
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

CHUNK = 2**26
"""So many inner products of all pairs are in memory at once, 256 MiB; more are made twice instead of kept."""


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
        crowd = 0 if settings.samples else min(sizes.nodes**2, CHUNK)
        weights = settings.width**2 * (2 * settings.layers + settings.predictor_layers)
        numbers: int = 6 * pairs * settings.width + 4 * crowd + 4 * weights
        return super().bytes_for(sizes, settings) + 4 * numbers

    def build(self, graph: Graph) -> None:
        """Make the encoder, its slow copy, and the predictor."""
        width, depth = self.settings.width, self.settings.predictor_layers
        links = to_device(adjacency(graph, self_loops=self.settings.self_loops), self.device)
        if not links.cols.numel():
            raise InputError("GraphACL predicts neighbours, and there is no edge; set self_loops=True")
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.neighbours = Neighbours(links)
        self.online = _Encoder(features, symmetric(links), self.settings)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        steps: list[nn.Module] = [nn.Linear(width, width)]
        for _ in range(depth - 1):
            steps += [nn.ReLU(), nn.Linear(width, width)]
        self.predictor = nn.Sequential(*steps)

    def loss(self, epoch: int) -> Tensor:
        """Predict neighbours, apart from others."""
        embedding = self.online()
        with torch.no_grad():
            target = functional.normalize(self.target(), dim=1)
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
            crowd = log_crowd(embedding, temperature)
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
        there = near.draw(self.settings.samples).nodes[linked]
        return linked.repeat_interleave(self.settings.samples), there.flatten()

    @torch.no_grad()
    def after(self, epoch: int) -> None:
        """Move the target towards the encoder."""
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.settings.momentum)

    def embedding(self) -> Tensor:
        """Encode the graph."""
        rows: Tensor = self.online()
        return rows


class _Encoder(nn.Module):
    """Graph convolutions, with ReLU between them or nothing."""

    def __init__(self, features: Features, matrix: SparseMatrix, settings: GraphACLSettings) -> None:
        super().__init__()
        self.features, self.matrix, self.linear = features, matrix, settings.linear
        sizes = [features.shape[1]] + [settings.width] * settings.layers
        self.layers = nn.ModuleList(Convolution(*pair) for pair in pairwise(sizes))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Encoder:
        """Copy the layers; what is constant is shared."""
        other = copy.copy(self)
        other._modules = {"layers": copy.deepcopy(self.layers, memo)}
        return other

    def forward(self) -> Tensor:
        """Return the embedding of the graph."""
        hidden: Tensor = self.layers[0].of_features(self.features, self.matrix)  # type: ignore[operator]
        for layer in list(self.layers)[1:]:
            hidden = layer(hidden if self.linear else hidden.relu(), self.matrix)
        return hidden


def log_crowd(rows: Tensor, temperature: float) -> Tensor:
    r"""Return :math:`\log \sum_w e^{z_v^\top z_w / \tau}` of every row, in chunks of rows."""
    step = max(1, CHUNK // len(rows))
    if step >= len(rows):
        return _log_sums(rows, rows, temperature)
    parts = [rows[first : first + step] for first in range(0, len(rows), step)]
    return torch.cat([checkpoint(_log_sums, part, rows, temperature, use_reentrant=False) for part in parts])


def _log_sums(some: Tensor, rows: Tensor, temperature: float) -> Tensor:
    return (some @ rows.t() / temperature).logsumexp(dim=1)


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
