"""Supervised systems for heterophily against their formulas, worked with dense matrices and loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classics import MLP, SAGE
from h3gnn.baselines.heterophilous import (
    AEROGNN,
    FAGCN,
    G2,
    GPRGNN,
    AEROGNNSettings,
    PCNet,
    series,
    start_weights,
)
from h3gnn.baselines.registry import Sizes, systems
from h3gnn.baselines.supervised import GridPoint, predict
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, normalized, path_matrix, stack_on, weights_of
from tests.rejects import rejects

AERO = {"iterations": 3, "fading": 0.7, "scale_features": "none"}
NAMES = ("sage", "fagcn", "gprgnn", "g2")


@pytest.mark.parametrize("name", NAMES)
def test_a_system_learns(small_mixed: Graph, name: str) -> None:
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
    stack = stack_on(GPRGNN, path_graph, steps=3, start="random")
    step = normalized(path_matrix() + torch.eye(5))
    for model in range(2):
        weights = weights_of(stack, model)
        hidden = (weights["first"] + weights["first bias"]).relu()  # the features are one-hot
        predicted = hidden @ weights["second"] + weights["second bias"]
        expected = sum(weights["steps"][k] * torch.linalg.matrix_power(step, k) @ predicted for k in range(4))
        torch.testing.assert_close(stack.logits(None)[:, model], expected)
        torch.testing.assert_close(weights["steps"].abs().sum(), torch.tensor(1.0))


def test_gprgnns_initial_weights_by_hand() -> None:
    torch.testing.assert_close(start_weights("ppr", 3, 0.2), torch.tensor([0.2, 0.16, 0.128, 0.512]))
    torch.testing.assert_close(start_weights("ppr", 2, 1.0), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(start_weights("nppr", 2, -0.5), torch.tensor([4.0, -2.0, 1.0]) / 7)
    assert start_weights("sgc", 2, 0.1).tolist() == [0, 0, 1]
    with rejects("invalid-setting"):
        start_weights("page", 2, 0.1)


def test_gprgnn_without_propagation_is_an_mlp(small_mixed: Graph) -> None:
    stack = stack_on(GPRGNN, small_mixed, restart=1.0)
    alone = stack_on(MLP, small_mixed)
    torch.testing.assert_close(stack.logits(None), alone.logits(None))
    assert stack.weights.factors["steps"].decay == 0


def test_fagcn_by_hand(path_graph: Graph) -> None:
    stack = stack_on(FAGCN, path_graph, layers=2, keep=0.25)
    weights = weights_of(stack, 1)
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
def test_fagcns_gates_add_or_subtract_neighbours(path_graph: Graph, sign: float) -> None:
    stack = stack_on(FAGCN, path_graph, layers=1, keep=1.0)
    with torch.no_grad():
        stack.weights["gate 0 bias"].fill_(50 * sign)
    weights = weights_of(stack, 0)
    start = (weights["first"] + weights["first bias"]).relu()
    expected = (start + sign * normalized(path_matrix()) @ start) @ weights["second"] + weights["second bias"]
    torch.testing.assert_close(stack.logits(None)[:, 0], expected)


@pytest.mark.parametrize("inner", ["sage", "gcn"])
def test_g2_by_hand(path_graph: Graph, inner: str) -> None:
    stack = stack_on(G2, path_graph, layers=2, inner=inner, exponent=2.5, own_gate=True)
    weights = weights_of(stack, 1)
    near = path_matrix()
    mixing = near / near.sum(dim=1, keepdim=True) if inner == "sage" else normalized(near + torch.eye(5))
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


def test_g2_keeps_nodes_that_equal_their_neighbours() -> None:
    """0 – 1 have the same features, and 2 has no neighbours: they stay; 3 – 4 differ, and change."""
    features = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    graph = check_graph(features, torch.tensor([[0, 1, 3, 4], [1, 0, 4, 3]]), labels=[0, 0, 1, 1, 0])
    still, moved = (stack_on(G2, graph, layers=layers).logits(None) for layers in (0, 3))
    torch.testing.assert_close(still[:3], moved[:3])
    assert not torch.allclose(still[3:], moved[3:])


def test_invalid_settings_are_rejected(path_graph: Graph) -> None:
    for kind, settings in ((SAGE, {"norm": "layer"}), (G2, {"inner": "gat"}), (G2, {"exponent": 0.5})):
        with rejects("invalid-setting"):
            stack_on(kind, path_graph, **settings)


def aerognn_by_hand(stack: AEROGNN, graph: Graph, model: int) -> Tensor:
    """Compute the paper's equations, an edge at a time."""
    own = weights_of(stack, model)
    elu = functional.elu
    hidden = elu(graph.dense_features() @ own["map 0"] + own["map 0 bias"]) @ own["map 1"] + own["map 1 bias"]
    found = hidden * ((elu(hidden) @ own["first hop"][0]) + own["hop start"][0])[:, None]
    nodes = graph.num_nodes
    linked = torch.eye(nodes)
    linked[graph.edge_index[0], graph.edge_index[1]] = linked[graph.edge_index[1], graph.edge_index[0]] = 1
    for k in range(1, 4):
        faded = math.log(0.7 / k + 1 + 1e-6) * found
        alpha = torch.zeros(nodes, nodes)
        for i, j in linked.nonzero().tolist():
            score = elu(faded[i] + faded[j]) @ own["edge"][k - 1]
            alpha[i, j] = functional.softplus(score) + 1e-6
        degree = alpha.sum(1)
        hidden = (alpha / (degree[:, None] * degree[None]).sqrt()) @ hidden
        gamma = elu(torch.cat([hidden, faded], 1)) @ own["hop"][k - 1] + own["hop start"][k]
        found = found + gamma[:, None] * hidden
    return elu(found) @ own["classify"] + own["bias"]


def test_aerognn_by_hand(path_graph: Graph) -> None:
    stack = stack_on(AEROGNN, path_graph, **AERO)
    for model in range(2):
        torch.testing.assert_close(stack.logits(None)[:, model], aerognn_by_hand(stack, path_graph, model))


def test_aerognn_with_self_loops_and_isolated_nodes() -> None:
    features = torch.eye(4)
    plain = check_graph(features, torch.tensor([[0, 1], [1, 2]]), labels=[0, 1, 0, 1])
    looped = check_graph(features, torch.tensor([[0, 1, 1, 0], [1, 2, 0, 0]]), labels=[0, 1, 0, 1])
    stack = stack_on(AEROGNN, plain, **AERO)
    torch.testing.assert_close(stack.logits(None), stack_on(AEROGNN, looped, **AERO).logits(None))
    torch.testing.assert_close(stack.logits(None)[:, 0], aerognn_by_hand(stack, plain, 0))


def test_aerognns_attention_has_its_own_weight_decay(path_graph: Graph) -> None:
    stack = stack_on(AEROGNN, path_graph, attention_decay=0.1)
    for name in stack.weights.tensors:
        apart = name in ("edge", "first hop", "hop", "hop start")
        assert stack.weights.factors[name].decay == (0.1 if apart else 1.0), name


def test_aerognns_memory_estimate_grows_with_depth() -> None:
    sizes = Sizes(1000, 5000, 100)
    shallow, deep = (AEROGNN.bytes_for(sizes, AEROGNNSettings(iterations=k)) for k in (4, 32))
    assert deep > 3 * shallow


def charlier(n: int, k: int, heat: float) -> float:
    """Return Σ_i (n over i) (-t)^(n-i) k (k-1) … (k-i+1), the polynomials' plain form."""
    falling = [math.prod(range(k - i + 1, k + 1)) for i in range(n + 1)]
    return sum(math.comb(n, i) * (-heat) ** (n - i) * falling[i] for i in range(n + 1))


def test_pcnet_by_hand(path_graph: Graph) -> None:
    settings = {"filters": 3, "terms": 4, "heat": 0.7, "diagonal": 1.3, "power": 0.4}
    stack = stack_on(PCNet, path_graph, **settings, scale_features="none")
    with torch.no_grad():
        stack.weights["shares"].normal_(generator=torch.Generator().manual_seed(0))
    linked = torch.eye(5) + path_matrix()
    degree = linked.sum(1)
    laplacian = 1.3 * torch.eye(5) - linked * (degree[:, None] * degree[None]) ** -0.4
    for model in range(2):
        own = weights_of(stack, model)
        scores = (own["first"] + own["first bias"]) @ own["second"] + own["second bias"]  # one-hot features
        expected = own["shares"][0] * scores
        for k in (1, 2, 3):
            for n in range(4):
                power = torch.linalg.matrix_power(-laplacian, n)
                factor = charlier(n, k, 0.7) / math.factorial(n)
                expected = expected + own["shares"][k] * factor * (power @ scores)
        torch.testing.assert_close(stack.logits(None)[:, model], expected)


def test_pcnets_series_converges_to_heat_and_averaging() -> None:
    table, values = series(3, 40, 0.6).double(), torch.linspace(0, 0.9, 4, dtype=torch.float64)
    powers = torch.stack([(-values) ** n for n in range(40)])
    for k in (1, 2, 3):
        torch.testing.assert_close(
            table[:, k] @ powers, (0.6 * values).exp() * (1 - values) ** k, rtol=1e-5, atol=1e-6
        )


def test_pcnets_parts_have_their_own_rates(path_graph: Graph) -> None:
    stack = stack_on(PCNet, path_graph, second_rate=2.0, filter_rate=3.0, filter_decay=0.0)
    rates = {name: factors.rate for name, factors in stack.weights.factors.items()}
    assert rates == {"first": 1, "first bias": 1, "second": 2, "second bias": 2, "shares": 3}
    assert stack.weights.factors["shares"].decay == 0


def test_pcnet_without_edges_is_two_linear_maps() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64), labels=[0, 1, 0])
    stack = stack_on(PCNet, graph, scale_features="none")
    row = stack.logits(None)[:, 0]
    own = weights_of(stack, 0)
    scores = (own["first"] + own["first bias"]) @ own["second"] + own["second bias"]
    table = series(5, 4, 1.0).sum(1)  # all shares are equal, and -L is 1 - b
    torch.testing.assert_close(row, 0.5 * sum(table[n] * (-0.5) ** n for n in range(4)) * scores)
