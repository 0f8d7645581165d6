"""GPR-GNN, FAGCN, GraphSAGE and G² against their formulas, worked with dense matrices and loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from h3gnn.baselines.classifiers import Classifier
from h3gnn.baselines.gprgnn import GPRGNN, GPRGNNSettings, start_weights
from h3gnn.baselines.mlp import MLP
from h3gnn.baselines.registry import systems
from h3gnn.baselines.stacks import GridPoint, Member, Noise
from h3gnn.baselines.supervised import predict
from h3gnn.errors import InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
POINT = GridPoint(width=8, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]
NAMES = ("gprgnn",)


def stack_on(kind: type[Classifier], graph: Graph, settings: Any) -> Classifier:
    stack = kind(kind.on(graph, CPU, settings), MEMBERS, CPU)
    for name, tensor in stack.weights.tensors.items():
        if name.endswith("bias"):
            torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(len(name)))
    return stack


def own(stack: Classifier, model: int) -> dict[str, Tensor]:
    return {name: tensor[:, model].detach() for name, tensor in stack.weights.tensors.items()}


def path_matrix() -> Tensor:
    """Return the adjacency of 0 – 1 – 2 – 3 – 4."""
    matrix = torch.zeros(5, 5)
    for i in range(4):
        matrix[i, i + 1] = matrix[i + 1, i] = 1
    return matrix


def scaled(matrix: Tensor) -> Tensor:
    degree = matrix.sum(dim=1)
    return matrix / (degree[:, None] * degree[None]).sqrt()


@pytest.mark.parametrize("name", NAMES)
def test_seeds_repeat_and_the_callers_generator_is_untouched(small_mixed: Graph, name: str) -> None:
    system = systems()[name]
    settings = replace(system.settings, epochs=3)
    torch.manual_seed(11)
    before = torch.get_rng_state()

    def scores(seed: int) -> Tensor:
        found = predict(
            system.kind, small_mixed, [seed], device=CPU, memory=2**28, grid=[POINT], settings=settings
        )
        return found[0].scores

    first = scores(1)
    assert torch.equal(first, scores(1))
    assert not torch.equal(first, scores(2))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_has_a_gradient(small_mixed: Graph, name: str) -> None:
    system = systems()[name]
    stack = system.kind(system.kind.on(small_mixed, CPU, system.settings), MEMBERS, CPU)
    assert stack.logits(None).shape == (100, 2, small_mixed.num_classes)
    stack.logits(Noise(MEMBERS, CPU)).square().sum().backward()
    for weight, tensor in stack.weights.tensors.items():
        assert tensor.grad is not None, weight
        assert bool((tensor.grad.abs().sum(dim=(0, 2)) > 0).all()), weight


@pytest.mark.parametrize("name", NAMES)
def test_nodes_without_neighbours_and_graphs_without_edges_are_classified(name: str) -> None:
    system = systems()[name]
    for edges in (torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0, 1], [1, 0]])):
        graph = check_graph(torch.eye(4), edges, labels=[0, 1, 0, 1])
        stack = system.kind(system.kind.on(graph, CPU, system.settings), MEMBERS, CPU)
        logits = stack.logits(Noise(MEMBERS, CPU))
        logits.square().sum().backward()
        assert bool(torch.isfinite(logits).all())
        for weight, tensor in stack.weights.tensors.items():
            assert tensor.grad is None or bool(torch.isfinite(tensor.grad).all()), weight


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(small_mixed: Graph, name: str) -> None:
    system = systems()[name]
    point = GridPoint(32, 0.3, 0.01, 5e-4)
    settings = replace(system.settings, epochs=80)
    (found,) = predict(
        system.kind, small_mixed, [0], device=CPU, memory=2**28, grid=[point], settings=settings
    )
    assert small_mixed.test_mask is not None
    right = (found.scores.argmax(dim=-1) == small_mixed.labels) & small_mixed.test_mask.t()
    assert float(right.sum() / small_mixed.test_mask.sum()) > 0.45


def test_gprgnn_is_a_polynomial_of_the_adjacency(path_graph: Graph) -> None:
    stack = stack_on(GPRGNN, path_graph, GPRGNNSettings(steps=3, start="random"))
    step = scaled(path_matrix() + torch.eye(5))
    for model in range(2):
        weights = own(stack, model)
        hidden = (weights["first"] + weights["first bias"]).relu()  # the features are one-hot
        predicted = hidden @ weights["second"] + weights["second bias"]
        expected = sum(weights["steps"][k] * torch.linalg.matrix_power(step, k) @ predicted for k in range(4))
        torch.testing.assert_close(stack.logits(None)[:, model], expected)
        torch.testing.assert_close(weights["steps"].abs().sum(), torch.tensor(1.0))


def test_gprgnn_starts_by_hand() -> None:
    torch.testing.assert_close(start_weights("ppr", 3, 0.2), torch.tensor([0.2, 0.16, 0.128, 0.512]))
    torch.testing.assert_close(start_weights("ppr", 2, 1.0), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(start_weights("nppr", 2, -0.5), torch.tensor([4.0, -2.0, 1.0]) / 7)
    assert start_weights("sgc", 2, 0.1).tolist() == [0, 0, 1]
    with pytest.raises(InputError, match="ppr, nppr"):
        start_weights("page", 2, 0.1)


def test_gprgnn_that_stays_at_home_is_an_mlp(small_mixed: Graph) -> None:
    stack = stack_on(GPRGNN, small_mixed, GPRGNNSettings(restart=1.0))
    alone = stack_on(MLP, small_mixed, GPRGNNSettings())
    torch.testing.assert_close(stack.logits(None), alone.logits(None))
    assert stack.weights.factors["steps"].decay == 0
