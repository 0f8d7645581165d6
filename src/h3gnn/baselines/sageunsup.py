"""GraphSAGE without labels (Hamilton et al., 2017): encodings of nodes that meet on short walks are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import (
    adjacency,
    neighbour_mean,
    row_sums,
    scaled_features,
    to_device,
)
from h3gnn.baselines.skipgram import ENDED, Walker, meeting_loss
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class SageSettings(EmbedderSettings):
    """Settings of GraphSAGE without labels; an epoch is one walk from each node.

    Attributes:
        width: of a node's own half of each layer, and of its neighbours' half.
        samples: neighbours drawn for a node in the first and in the second layer; 0 for all.
        walk_length: steps of a walk; its start meets all others on it.
        negatives: nodes drawn for an epoch, each counting as much as one that was met.
    """

    width: int = 128
    epochs: int = 200
    learning_rate: float = 0.001
    samples: tuple[int, int] = (0, 0)
    walk_length: int = 5
    negatives: int = 20


class SageUnsupervised(Embedder):
    r"""Two layers that join a node and the mean of its neighbours, and skip-gram on their outputs.

    .. math:: h_v' = \big[W_1 h_v \,\|\, W_2\, \tfrac{1}{|N(v)|} \textstyle\sum_{u \in N(v)} h_u\big], \quad
        \mathcal L = -\log \sigma(z_v^\top z_u) - k\, \mathbb E_{n \sim d^{3/4}} \log \sigma(-z_v^\top z_n)

    for u on a walk from v. ReLU stands between the layers, and rows of Z have length 1. While training,
    neighbours may be drawn; the embedding hears all of them.
    """

    frequency: Tensor

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return weights, rows of both layers, drawn neighbours, and the pairs of an epoch."""
        width = settings.width
        rows = 24 * width + sizes.features + max(settings.samples) * 3 * width
        pairs = 4 * settings.walk_length * 2 * width + 4 * settings.negatives
        return 4 * int(sizes.features * width * 8 + sizes.nodes * (rows + pairs) + 16 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Make both layers, and the edges to hear and to walk along."""
        width = self.settings.width
        self.features = scaled_features(graph, self.device, self.settings.scale_features)
        matrix = to_device(adjacency(graph, self_loops=False), self.device)
        self.walker, self.mean = Walker(matrix), neighbour_mean(matrix)
        self.everyone = torch.arange(graph.num_nodes, device=self.device)
        self.first = nn.Parameter(torch.empty(graph.num_features, 2, width))
        self.second = nn.Parameter(torch.empty(2 * width, 2, width))
        for weight in (self.first, self.second):
            bound = (6 / (weight.shape[0] + width)) ** 0.5
            nn.init.uniform_(weight, -bound, bound)
        degree = row_sums(matrix)
        self.register_buffer("frequency", torch.where(degree.sum() > 0, degree, torch.ones_like(degree)))

    def encode(self, samples: tuple[int, int]) -> Tensor:
        """Return the encoding of all nodes `[nodes, 2 width]`."""
        hidden = torch.relu(self.heard(self.features.product(self.first), samples[0]))
        said = torch.einsum("ni,ijo->njo", hidden, self.second)
        return functional.normalize(self.heard(said, samples[1]), dim=1)

    def heard(self, said: Tensor, samples: int) -> Tensor:
        """Join what each node says, `[nodes, 2, width]`, of itself with the mean over its neighbours."""
        own, others = said[:, 0], said[:, 1]
        if not samples:
            return torch.cat([own, self.mean @ others], dim=1)
        drawn = self.walker.step(self.everyone.repeat_interleave(samples))
        known = (drawn != ENDED).float()
        mean = (functional.embedding(drawn.clamp_min(0), others) * known[:, None]).view(len(own), samples, -1)
        return torch.cat([own, mean.mean(dim=1)], dim=1)

    def loss(self, epoch: int) -> Tensor:
        """Bring the start of each walk near to those on it, and away from drawn nodes."""
        walks = self.walker.walks(self.everyone, self.settings.walk_length + 1)
        drawn = torch.multinomial(self.frequency**0.75, self.settings.negatives, replacement=True)
        return self.meetings(self.encode(self.settings.samples), walks, drawn)

    def meetings(self, rows: Tensor, walks: Tensor, drawn: Tensor) -> Tensor:
        """Return the loss of encodings, given walks `[nodes, length]` and drawn nodes."""
        starts, others = walks[:, :1], walks[:, 1:]
        weight = ((others != ENDED) & (others != starts)).float()[:, None]
        company = functional.embedding(others.clamp_min(0), rows)
        return meeting_loss(rows[starts], company, rows[drawn], weight, self.settings.negatives)

    def embedding(self) -> Tensor:
        """Encode all nodes with all of their neighbours."""
        return self.encode((0, 0))


SYSTEM = System(
    name="sage-unsupervised",
    title="GraphSAGE (unsupervised)",
    estimator="SageUnsupervised",
    group="clustering",
    paper="Hamilton et al.: Inductive Representation Learning on Large Graphs. NeurIPS",
    year=2017,
    sees=("features", "edges"),
    kind=SageUnsupervised,
    settings=SageSettings(),
    cost="two layers over all nodes and edges, and a short walk from each node, per epoch",
    ranges={
        "width": (128, 64, 256),
        "learning_rate": (0.001, 0.0001, 0.01),
        "walk_length": (5, 2),
        "samples": ((0, 0), (25, 10)),
        "epochs": (200, 50),
    },
    published={ANY: {"samples": (25, 10)}},
    source="the paper's section 4 and its public code: 25 and 10 neighbours, walks of 5, 20 negatives",
)
