"""GraphACL, DSSL and NWR-GAE: their losses against plain loops, and what each is about."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.baselines.autoencoders import NWRGAE, NWRGAESettings, wasserstein
from h3gnn.baselines.embedder import train, values_of
from h3gnn.baselines.heterophilous_ssl import DSSL, DSSLSettings, GraphACL, GraphACLSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency
from h3gnn.baselines.sampling import Neighbours
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects

CPU = torch.device("cpu")


def unit_rows(rows: int, width: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


def without_edges() -> Graph:
    return check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64))


def test_drawn_neighbours_are_neighbours_and_new_while_there_are_any(small_mixed: Graph) -> None:
    matrix = adjacency(small_mixed, self_loops=False)
    linked = matrix.csr().to_dense() > 0
    torch.manual_seed(0)
    drawn = Neighbours(matrix).draw(4)
    for node in range(small_mixed.num_nodes):
        found = drawn[node].tolist()
        degree = int(linked[node].sum())
        assert all(bool(linked[node, one]) for one in found)
        assert len(set(found)) == min(4, degree)


def test_graphacl_is_its_formula(path_graph: Graph) -> None:
    model = GraphACL(path_graph, GraphACLSettings(width=3, temperature=0.5, samples=0, self_loops=True), CPU)
    predicted, target, embedding = (unit_rows(5, 3, seed) for seed in range(3))
    expected = 0.0
    for v in range(5):
        crowd = sum(math.exp(float(embedding[v] @ embedding[w]) / 0.5) for w in range(5))
        near = [u for u in (v - 1, v, v + 1) if 0 <= u < 5]
        for u in near:
            alike = math.exp(float(predicted[v] @ target[u]) / 0.5)
            expected -= math.log(alike / (alike + crowd)) / len(near) / 5
    assert float(model.asymmetric(predicted, target, embedding)) == pytest.approx(expected, rel=1e-5)


def test_graphacl_with_drawn_pairs_is_its_formula(path_graph: Graph) -> None:
    """With all embeddings equal, every drawn node w counts e^(1/τ)."""
    settings = GraphACLSettings(width=2, temperature=0.5, samples=4, self_loops=False)
    model = GraphACL(path_graph, settings, CPU)
    same = torch.tensor([[0.6, 0.8]]).expand(5, 2)
    other = torch.tensor([[0.8, -0.6]]).expand(5, 2)
    expected = math.log(1 + 4 * math.exp(2))
    assert float(model.asymmetric(same, other, same)) == pytest.approx(expected, rel=1e-5)


def test_graphacls_target_follows_and_shares_what_is_constant(path_graph: Graph) -> None:
    model = GraphACL(path_graph, GraphACLSettings(width=3, momentum=0.75), CPU)
    assert model.target.features is model.online.features
    before = [slow.clone() for slow in model.target.parameters()]
    with torch.no_grad():
        for fast in model.online.parameters():
            fast.add_(1)
    model.after(0)
    for slow, start in zip(model.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, start + 0.25)


def test_graphacl_needs_neighbours() -> None:
    settings = GraphACLSettings(width=4, epochs=2, self_loops=True)
    assert np.isfinite(values_of(train(GraphACL, without_edges(), 0, CPU, settings))).all()
    with rejects("no-edges"):
        values_of(train(GraphACL, without_edges(), 0, CPU, replace(settings, self_loops=False)))


def test_dssls_divergence_is_its_formula(path_graph: Graph) -> None:
    model = DSSL(path_graph, DSSLSettings(width=4, prototypes=3, temperature=0.5), CPU)
    embedding = unit_rows(5, 4, 0)
    scores = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))
    expected = 0.0
    for v in range(5):
        links = [[math.exp(float(one)) for one in scores[v, u]] for u in range(2)]
        prior = [math.exp(float(embedding[v] @ row) / 0.5) for row in model.prototypes]
        for k in range(3):
            chance = sum(link[k] / sum(link) for link in links) / 2
            expected += chance * math.log(chance / (prior[k] / sum(prior))) / 5
    assert float(model.divergence(embedding, scores)) == pytest.approx(expected, rel=1e-4)


def test_a_prototype_is_where_its_nodes_are(path_graph: Graph) -> None:
    model = DSSL(path_graph, DSSLSettings(width=2, prototypes=3), CPU)
    before = model.prototypes.clone()
    embedding = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8], [0.6, 0.8]])
    model.gather(embedding, torch.tensor([0, 0, 0, 2, 2]))
    root = math.sqrt(5)
    torch.testing.assert_close(model.prototypes[0], torch.tensor([2 / root, 1 / root]))
    torch.testing.assert_close(model.prototypes[2], torch.tensor([0.6, 0.8]))
    assert torch.equal(model.prototypes[1], before[1])


class Fixed(torch.nn.Module):
    """An encoder that has made up its mind."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, matrix: SparseMatrix) -> Tensor:
        return self.rows


def test_dssl_meets_neighbours_of_two_kinds_by_the_reason_of_the_link(path_graph: Graph) -> None:
    """All nodes are (1, 1) / √2, their neighbours (1, 0) or (0, 1): by itself, a node is 45° off."""
    root = math.sqrt(0.5)
    kinds = torch.eye(2)[torch.tensor([0, 1, 1, 0, 1])]
    settings = DSSLSettings(width=2, prototypes=2, prior_weight=0)
    for shift, expected in ((1.0, 0.0), (0.0, 2 - 2 * root)):
        model = DSSL(path_graph, replace(settings, shift=shift), CPU)
        model.online, model.target = Fixed(torch.full((5, 2), root)), Fixed(kinds)  # type: ignore[assignment]
        model.inference = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        model.inference[0].weight.data = 200 * torch.eye(2)
        model.shift = torch.nn.Sequential()
        model.predictor = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        model.predictor[0].weight.data = (1 - shift) * torch.eye(2)
        assert float(model.loss(0).detach()) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_matching_is_the_cheapest_of_all(count: int) -> None:
    points, others = (torch.randn(2, count, 3, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    cost = torch.cdist(points, others).square() / 3
    best = [
        min(sum(float(cost[one, i, j]) for i, j in enumerate(order)) for order in permutations(range(count)))
        for one in range(2)
    ]
    assert float(wasserstein(points, others)) == pytest.approx(sum(best) / 2 / count, rel=1e-4)


def test_a_neighbourhood_has_no_order() -> None:
    points = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    assert float(wasserstein(points, points[:, torch.tensor([3, 1, 4, 0, 2])])) == pytest.approx(0, abs=1e-6)


def test_nwr_gae_adds_up_its_three_parts(path_graph: Graph) -> None:
    """Points that are all the bias of the decoder: only the mean over drawn neighbours is left."""
    settings = NWRGAESettings(width=4, layers=1, samples=2, degree_weight=2, feature_weight=3)
    torch.manual_seed(0)
    model = NWRGAE(path_graph, replace(settings, neighbour_weight=5, norm_scale=1), CPU)
    biases = []
    for decoder in (model.degree, model.content, model.points[0]):
        last = list(decoder.children())[-1]
        assert isinstance(last, torch.nn.Linear)
        torch.nn.init.zeros_(last.weight)
        biases.append(last.bias.detach())
    biases[0].fill_(1.5)
    rows, bias = model.encode()[0].detach(), biases[2]
    drawn = [[1, 1], [0, 2], [1, 3], [2, 4], [3, 3]]  # both neighbours, or the only one twice
    apart = sum(float((rows[u] - bias).square().mean()) for two in drawn for u in two) / 10
    rebuilt = float((model.goal - biases[1]).square().mean())
    degree = 0.25  # all five are half a neighbour off
    assert float(model.loss(0).detach()) == pytest.approx(2 * degree + 3 * rebuilt + 5 * apart, rel=1e-4)
