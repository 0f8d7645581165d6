"""H2GCN (Zhu et al., 2020): ego, one-hop and two-hop neighbourhoods apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import Classifier, ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, symmetric, two_hop_adjacency
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import ANY, System
from h3gnn.graphs.graph import Graph


class H2GCN(Classifier):
    r"""Ego, one-hop and two-hop neighbourhoods apart, all rounds side by side (Zhu et al., 2020).

    .. math:: r_0 = \mathrm{ReLU}(X W_e), \quad r_k = [\bar A_1 r_{k-1} \,|\, \bar A_2 r_{k-1}], \quad
        \hat y = \mathrm{softmax}([r_0 | r_1 | r_2] W_c)

    :math:`\bar A_i` joins nodes that are exactly i steps apart, without self-loops, symmetrically normalised.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return both adjacencies."""
        near = adjacency(graph, self_loops=False)
        return {"near": symmetric(near), "far": symmetric(two_hop_adjacency(near))}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add the rounds."""
        return super().values_each(ground, width) + ground.features.shape[0] * 30 * width

    def build(self) -> None:
        """Add the embedding and the classifier."""
        self.weights.glorot("embed", self.in_channels, self.width)
        self.weights.glorot("classify", 7 * self.width, self.ground.classes)
        self.weights.zeros("bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        """Embed, look around twice, classify all that was seen."""
        near, far = self.ground.matrices["near"], self.ground.matrices["far"]
        rounds = [functional.relu(self.ground.features.product(self.weights["embed"], noise))]
        if noise is None:
            return self.classified(rounds[0]) + self.weights["bias"]
        for _ in range(2):
            rounds.append(torch.cat([near @ rounds[-1], far @ rounds[-1]], dim=2))
        joined = noise.drop(torch.cat(rounds, dim=2))
        return self.dense(joined, "classify") + self.weights["bias"]

    def classified(self, start: Tensor) -> Tensor:
        """Classify first and look around then, which is the same where nothing is dropped, in few columns."""
        near, far = self.ground.matrices["near"], self.ground.matrices["far"]
        maps = torch.split(self.weights["classify"], self.width)
        parts = torch.stack(maps, dim=2).flatten(2)  # [in, models, 7 · out]
        said = torch.einsum("nmc,cmk->nmk", start, parts)
        own, one, two, one_one, one_two, two_one, two_two = said.chunk(7, dim=2)
        near_ones = one + near @ one_one + far @ one_two
        return own + near @ near_ones + far @ (two + near @ two_one + far @ two_two)


SYSTEM = System(
    name="h2gcn",
    title="H2GCN",
    estimator="H2GCN",
    group="supervised",
    paper="Zhu et al.: Beyond Homophily in Graph Neural Networks. NeurIPS",
    year=2020,
    sees=("features", "edges", "labels"),
    kind=H2GCN,
    settings=ClassifierSettings(),
    cost="the two-hop neighbourhoods of all nodes",
    published={
        ANY: {
            "width": 64,
            "dropout": 0.5,
            "learning_rate": 0.01,
            "weight_decay": 5e-4,
            "scale_features": "sums",
        }
    },
    source="the defaults of the public code",
)
