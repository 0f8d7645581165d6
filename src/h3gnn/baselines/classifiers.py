"""A supervised classifier: a whole stack of models over one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.layers import Features, SparseMatrix, scaled_features, to_device
from h3gnn.baselines.stacks import Member, Noise, Weights
from h3gnn.baselines.systems import Sizes
from h3gnn.graphs.graph import Graph

USUAL_WIDTH = 64
"""The width by which a model's memory is judged before there is one."""


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings that every classifier has; a subclass adds those of its structure, the same for a whole stack.

    Width, dropout, learning rate and weight decay are points of a grid, see `stacks.GridPoint`.

    Attributes:
        epochs: at most so many.
        patience: a model whose validation score has not risen for so many epochs is finished.
        scale_features: as `H3GNN` has it, or "sums": each row adds up to 1.
    """

    epochs: int = 400
    patience: int = 100
    scale_features: str = "auto"


@dataclass(frozen=True, eq=False)
class Ground:
    """What all models of a method share.

    Attributes:
        features: of the nodes.
        classes: how many.
        matrices: adjacencies by name, as the method needs them.
        settings: of the method.
    """

    features: Features
    classes: int
    matrices: dict[str, SparseMatrix] = field(default_factory=dict)
    settings: Any = ClassifierSettings()


class Classifier:
    """A stack of models over one graph; a subclass adds its weights and says how they give logits.

    Args:
        ground: what the models share, from `on`.
        members: the models.
        device: where they train.
    """

    def __init__(self, ground: Ground, members: Sequence[Member], device: torch.device) -> None:
        self.ground = ground
        self.width = members[0].point.width
        self.weights = Weights(members, device)
        self.build()

    @classmethod
    def on(cls, graph: Graph, device: torch.device, settings: Any = ClassifierSettings()) -> Ground:  # noqa: B008
        """Return what all models share on a graph, its features scaled."""
        made = cls.matrices(graph, settings)
        matrices = {name: to_device(matrix, device) for name, matrix in made.items()}
        features = scaled_features(graph, device, settings.scale_features)
        return Ground(features, graph.num_classes, matrices, settings)

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return the adjacencies that the models need, by name; none by default."""
        return {}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return about how much memory a training of one model takes, before anything is built."""
        weights, rows = 6 * sizes.features * USUAL_WIDTH, sizes.nodes * (12 * USUAL_WIDTH + sizes.features)
        return 4 * (weights + rows + 10 * sizes.edges)

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Return about how many values the backward pass of one model keeps."""
        return ground.features.shape[0] * (10 * width + 12 * ground.classes)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        """Return about how much memory one model takes: weights, Adam, and what backward needs."""
        return 4 * (6 * ground.features.shape[1] * width + cls.values_each(ground, width))

    def build(self) -> None:
        """Add the weights."""
        raise NotImplementedError

    def logits(self, noise: Noise | None) -> Tensor:
        """Return the scores before the softmax, `[nodes, models, classes]`; with noise, in training."""
        raise NotImplementedError

    @staticmethod
    def dropped(x: Tensor, noise: Noise | None) -> Tensor:
        """Return values after dropout; without noise, as they are."""
        return x if noise is None else noise.drop(x)

    def dense(self, x: Tensor, name: str) -> Tensor:
        """Return `x W` for each model's own rows `[nodes, models, in]`."""
        return torch.einsum("nmc,cmk->nmk", x, self.weights[name])

    @property
    def settings(self) -> Any:
        """Settings of the method."""
        return self.ground.settings

    @property
    def in_channels(self) -> int:
        """Number of features."""
        return self.ground.features.shape[1]
