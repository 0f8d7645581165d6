"""PCNet against dense matrices, against the heat equation it comes from, and against torch's Adam groups."""

from __future__ import annotations

import math

import torch

from h3gnn.baselines.heterophilous import PCNet, PCNetSettings, series
from h3gnn.baselines.stacks import GridPoint, Member, Noise
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
POINT = GridPoint(width=6, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]


def stack_on(graph: Graph, settings: PCNetSettings) -> PCNet:
    return PCNet(PCNet.on(graph, CPU, settings), MEMBERS, CPU)


def charlier(n: int, k: int, heat: float) -> float:
    """Σ_i (n over i) (-t)^(n-i) k (k-1) … (k-i+1): the polynomials' plain form."""
    falling = [math.prod(range(k - i + 1, k + 1)) for i in range(n + 1)]
    return sum(math.comb(n, i) * (-heat) ** (n - i) * falling[i] for i in range(n + 1))


def test_pcnet_by_hand(path_graph: Graph) -> None:
    settings = PCNetSettings(filters=3, terms=4, heat=0.7, diagonal=1.3, power=0.4, scale_features="none")
    stack = stack_on(path_graph, settings)
    with torch.no_grad():
        stack.weights["shares"].normal_(generator=torch.Generator().manual_seed(0))
    linked = torch.eye(5)
    for i in range(4):
        linked[i, i + 1] = linked[i + 1, i] = 1
    degree = linked.sum(1)
    laplacian = 1.3 * torch.eye(5) - linked * (degree[:, None] * degree[None]) ** -0.4
    for model in range(2):
        own = {name: tensor[:, model].detach() for name, tensor in stack.weights.tensors.items()}
        scores = (own["first"] + own["first bias"]) @ own["second"] + own["second bias"]  # one-hot features
        expected = own["shares"][0] * scores
        for k in (1, 2, 3):
            for n in range(4):
                power = torch.linalg.matrix_power(-laplacian, n)
                expected = expected + own["shares"][k] * charlier(n, k, 0.7) / math.factorial(n) * (
                    power @ scores
                )
        torch.testing.assert_close(stack.logits(None)[:, model], expected)


def test_many_terms_are_heat_that_flows_back_and_averaging() -> None:
    table, values = series(3, 40, 0.6).double(), torch.linspace(0, 0.9, 4, dtype=torch.float64)
    powers = torch.stack([(-values) ** n for n in range(40)])
    for k in (1, 2, 3):
        torch.testing.assert_close(
            table[:, k] @ powers, (0.6 * values).exp() * (1 - values) ** k, rtol=1e-5, atol=1e-6
        )


def test_parts_have_their_own_rates(path_graph: Graph) -> None:
    stack = stack_on(path_graph, PCNetSettings(second_rate=2.0, filter_rate=3.0, filter_decay=0.0))
    rates = {name: factors.rate for name, factors in stack.weights.factors.items()}
    assert rates == {"first": 1, "first bias": 1, "second": 2, "second bias": 2, "shares": 3}
    assert stack.weights.factors["shares"].decay == 0


def test_noise_at_another_rate_has_the_same_coins() -> None:
    values = torch.ones(1000, 2, 1)
    some, more = (Noise(MEMBERS, CPU).at(rate).drop(values) for rate in (0.2, 0.6))
    assert bool(((more > 0) <= (some > 0)).all())
    torch.testing.assert_close(more.mean(), torch.tensor(1.0), rtol=0.1, atol=0)
    assert torch.equal(Noise(MEMBERS, CPU).at(0.5).drop(values), Noise(MEMBERS, CPU).drop(values))


def test_a_graph_without_edges_is_two_linear_maps() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64), labels=[0, 1, 0])
    stack = stack_on(graph, PCNetSettings(scale_features="none"))
    row = stack.logits(None)[:, 0]
    own = {name: tensor[:, 0].detach() for name, tensor in stack.weights.tensors.items()}
    scores = (own["first"] + own["first bias"]) @ own["second"] + own["second bias"]
    table = series(5, 4, 1.0).sum(1)  # all shares are alike, and -L is 1 - b
    torch.testing.assert_close(row, 0.5 * sum(table[n] * (-0.5) ** n for n in range(4)) * scores)
