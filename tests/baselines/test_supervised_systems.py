"""GPR-GNN, FAGCN, GraphSAGE and G² against their formulas, worked with dense matrices and loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from h3gnn.baselines.classics import MLP, SAGE, SAGESettings
from h3gnn.baselines.heterophilous import (
    FAGCN,
    G2,
    GPRGNN,
    FAGCNSettings,
    G2Settings,
    GPRGNNSettings,
    start_weights,
)
from h3gnn.baselines.registry import systems
from h3gnn.baselines.stacks import GridPoint, Member
from h3gnn.baselines.supervised import Classifier, predict
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects

CPU = torch.device("cpu")
POINT = GridPoint(width=8, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]
NAMES = ("sage", "fagcn", "gprgnn", "g2")


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
def test_it_learns(small_mixed: Graph, name: str) -> None:
    system = systems()[name]
    point = GridPoint(32, 0.3, 0.01, 5e-4)
    settings = replace(system.settings, epochs=30)
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
    with rejects("invalid-setting"):
        start_weights("page", 2, 0.1)


def test_gprgnn_that_stays_at_home_is_an_mlp(small_mixed: Graph) -> None:
    stack = stack_on(GPRGNN, small_mixed, GPRGNNSettings(restart=1.0))
    alone = stack_on(MLP, small_mixed, GPRGNNSettings())
    torch.testing.assert_close(stack.logits(None), alone.logits(None))
    assert stack.weights.factors["steps"].decay == 0


def test_fagcn_by_hand(path_graph: Graph) -> None:
    stack = stack_on(FAGCN, path_graph, FAGCNSettings(layers=2, keep=0.25))
    weights = own(stack, 1)
    near = path_matrix()
    start = hidden = (weights["first"] + weights["first bias"]).relu()
    for layer in range(2):
        to, source, bias = (weights[f"gate {layer} {end}"][0] for end in ("to", "from", "bias"))
        following = 0.25 * start
        for v, u in near.nonzero().tolist():
            gate = torch.tanh(hidden[v] @ to + hidden[u] @ source + bias[0])
            following[v] += gate / (near[v].sum() * near[u].sum()).sqrt() * hidden[u]
        hidden = following
    expected = hidden @ weights["second"] + weights["second bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_fagcns_gates_add_neighbours_or_take_them_away(path_graph: Graph, sign: float) -> None:
    stack = stack_on(FAGCN, path_graph, FAGCNSettings(layers=1, keep=1.0))
    with torch.no_grad():
        stack.weights["gate 0 bias"].fill_(50 * sign)
    weights = own(stack, 0)
    start = (weights["first"] + weights["first bias"]).relu()
    expected = (start + sign * scaled(path_matrix()) @ start) @ weights["second"] + weights["second bias"]
    torch.testing.assert_close(stack.logits(None)[:, 0], expected)


@pytest.mark.parametrize("norm", ["none", "unit"])
def test_sage_is_pygs_sage(small_mixed: Graph, norm: str) -> None:
    from torch_geometric.nn import SAGEConv

    stack = stack_on(SAGE, small_mixed, SAGESettings(norm=norm, scale_features="none"))
    weights = own(stack, 1)
    hidden = small_mixed.dense_features()
    for layer in range(2):
        convolution = SAGEConv(hidden.shape[1], 8)
        near, itself = torch.split(weights[f"{layer}"], 8, dim=1)
        convolution.lin_l.weight.data, convolution.lin_r.weight.data = near.t(), itself.t()
        convolution.lin_l.bias.data = weights[f"{layer} bias"][0]
        hidden = convolution(hidden, small_mixed.edge_index).relu()
        hidden = torch.nn.functional.normalize(hidden) if norm == "unit" else hidden
    expected = hidden @ weights["classify"] + weights["classify bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_is_torchs() -> None:
    graph = check_graph(torch.eye(6), torch.tensor([[0, 1], [1, 0]]), labels=[0, 1, 0, 1, 0, 1])
    stack = stack_on(SAGE, graph, SAGESettings(norm="batch"))
    assert isinstance(stack, SAGE)
    layers = [torch.nn.BatchNorm1d(8) for _ in MEMBERS]
    with torch.no_grad():
        stack.weights["0 scale"].copy_(torch.linspace(0.5, 2, 16).view(1, 2, 8))
        stack.weights["0 shift"].copy_(torch.linspace(-1, 1, 16).view(1, 2, 8))
    for model, layer in enumerate(layers):
        layer.weight.data, layer.bias.data = (
            own(stack, model)[f"0 {part}"][0] for part in ("scale", "shift")
        )
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        x = torch.randn(6, 2, 8, generator=generator) * (step + 1)
        found = stack.batch_norm(x, 0, training=step < 3)
        for model, layer in enumerate(layers):
            layer.train(step < 3)
            torch.testing.assert_close(found[:, model], layer(x[:, model]))


@pytest.mark.parametrize("inner", ["sage", "gcn"])
def test_g2_by_hand(path_graph: Graph, inner: str) -> None:
    settings = G2Settings(layers=2, inner=inner, exponent=2.5, own_gate=True)
    stack = stack_on(G2, path_graph, settings)
    weights = own(stack, 1)
    near = path_matrix()
    mixing = near / near.sum(dim=1, keepdim=True) if inner == "sage" else scaled(near + torch.eye(5))
    hidden = (weights["first"] + weights["first bias"]).relu()
    for _ in range(2):
        made = {}
        for name in ("inner", "gate"):
            total = mixing @ hidden @ weights[f"{name} near"] + weights[f"{name} bias"]
            made[name] = (total + hidden @ weights[f"{name} own"] if inner == "sage" else total).relu()
        rate = torch.zeros(5, 8)
        for v, u in near.nonzero().tolist():
            rate[v] += (made["gate"][u] - made["gate"][v]).abs() ** 2.5 / near[v].sum()
        rate = rate.tanh()
        hidden = (1 - rate) * hidden + rate * made["inner"]
    expected = hidden @ weights["second"] + weights["second bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected)


def test_g2_keeps_what_agrees_with_its_neighbours() -> None:
    """0 – 1 have the same features, and 2 has no neighbours: nothing moves; 3 – 4 differ, and move."""
    features = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    graph = check_graph(features, torch.tensor([[0, 1, 3, 4], [1, 0, 4, 3]]), labels=[0, 0, 1, 1, 0])
    still, moved = (stack_on(G2, graph, G2Settings(layers=layers)).logits(None) for layers in (0, 3))
    torch.testing.assert_close(still[:3], moved[:3])
    assert not torch.allclose(still[3:], moved[3:])


def test_settings_that_cannot_be_are_refused(path_graph: Graph) -> None:
    for kind, settings in (
        (SAGE, SAGESettings(norm="layer")),
        (G2, G2Settings(inner="gat")),
        (G2, G2Settings(exponent=0.5)),
    ):
        with rejects("invalid-setting"):
            kind.on(path_graph, CPU, settings)
