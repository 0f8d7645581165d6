"""Stacks of two small models, plain matrices of the path graph, and a check of moving averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from h3gnn.baselines.embedder import Embedder, train, values_of
from h3gnn.baselines.supervised import Classifier, GridPoint, Member
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
POINT = GridPoint(width=8, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]
Model = TypeVar("Model", bound=Embedder)
Stack = TypeVar("Stack", bound=Classifier)


def model_on(kind: type[Model], graph: Graph, /, **settings: Any) -> Model:
    return kind(graph, kind.settings_class(**settings), CPU)


def embed_on(kind: type[Embedder], graph: Graph, /, **settings: Any) -> npt.NDArray[np.float32]:
    return values_of(train(kind, graph, 0, CPU, kind.settings_class(**settings)))


def stack_on(kind: type[Stack], graph: Graph, /, **settings: Any) -> Stack:
    """Return a stack whose biases are random."""
    stack = kind(kind.on(graph, CPU, kind.settings_class(**settings)), MEMBERS, CPU)
    for name, tensor in stack.weights.tensors.items():
        if name.endswith("bias"):
            nn.init.normal_(tensor, generator=torch.Generator().manual_seed(len(name)))
    return stack


def weights_of(stack: Classifier, model: int) -> dict[str, Tensor]:
    return {name: tensor[:, model].detach() for name, tensor in stack.weights.tensors.items()}


def path_matrix() -> Tensor:
    """Return the adjacency of 0 – 1 – 2 – 3 – 4."""
    return torch.diag(torch.ones(4), 1) + torch.diag(torch.ones(4), -1)


def normalized(matrix: Tensor) -> Tensor:
    degree = matrix.sum(dim=1)
    return matrix / (degree[:, None] * degree[None]).sqrt()


def check_moving_average(average: nn.Module, module: nn.Module, update: Callable[[], None]) -> None:
    """Check that an update with momentum 0.75 moves the average a quarter of the way."""
    assert not any(parameter.requires_grad for parameter in average.parameters())
    before = [slow.clone() for slow in average.parameters()]
    with torch.no_grad():
        for fast in module.parameters():
            fast.add_(1)
    update()
    for slow, start in zip(average.parameters(), before, strict=True):
        torch.testing.assert_close(slow, start + 0.25)
