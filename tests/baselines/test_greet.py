"""GREET: return probabilities, filters and losses by hand, and training of the discriminator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from h3gnn.baselines.allpairs import LeftOut
from h3gnn.baselines.embedder import forked_rng
from h3gnn.baselines.greet import (
    GREET,
    GREETSettings,
    among,
    contrast,
    pivot_ranking,
    positives_of,
    return_probabilities,
    sample_edge_weights,
)
from h3gnn.baselines.layers import Features, adjacency
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, model_on

SMALL = GREETSettings(width=8, epochs=4, neighbours=3)


def test_return_probabilities_are_the_diagonals_of_powers(small_mixed: Graph) -> None:
    matrix = adjacency(small_mixed, self_loops=False)
    dense = matrix.csr().to_dense().double().numpy()
    walk = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1e-12)
    expected = [np.linalg.matrix_power(walk, steps).diagonal() for steps in range(1, 17)]
    np.testing.assert_allclose(return_probabilities(matrix), np.stack(expected, axis=1), atol=1e-6)


def test_the_contrastive_loss_by_loops() -> None:
    """Nodes 0 and 1 have the same features, and so have 2 and 3; 4 is as near to all."""
    features = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3], [1, 1]])
    positives = positives_of(Features(features, CPU), 1)
    assert [positives.cols[2 * i : 2 * i + 2].tolist() for i in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    first, second = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    sets = [set(positives.cols[2 * i : 2 * i + 2].tolist()) for i in range(5)]
    a, b = (functional.normalize(rows).double().numpy() for rows in (first, second))
    losses = []
    for one, other in ((a, b), (b, a)):
        for i in range(5):
            below = sum(np.exp(one[i] @ other[k] / 0.2) for k in range(5) if k not in sets[i])
            losses.append(-np.mean([np.log(np.exp(one[i] @ other[j] / 0.2) / below) for j in sets[i]]))
    value = contrast(first, second, positives, LeftOut.of(positives), 0.2)
    assert float(value) == pytest.approx(np.mean(losses), rel=1e-5)
    part = among(positives, torch.tensor([0, 2, 3]))
    assert part.csr().to_dense().tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]


def test_the_ranking_loss_by_hand() -> None:
    weights, alike, pivot = torch.tensor([[0.9, 0.6, 0.2, 0.5], [0.1, 0.9, 0.4, 1.0], [0.3, 0.1, 0.2, 0.0]])
    # 0.4 · 0.7, 0.1 · 0 (nearer than the pivot by more than the margin), 0.3 · 0.5, and weight 0.5
    expected = (0.4 * 0.7 + 0.3 * 0.5) / 4 / 2
    assert float(pivot_ranking(weights, alike, pivot, (0.5, 0.3))) == pytest.approx(expected)


def test_filters_by_hand(path_graph: Graph) -> None:
    model = model_on(GREET, path_graph, width=4, sharpening=0.3)
    low, high = (matrix.csr().to_dense() for matrix in model.filters(torch.full((13,), 0.8)))
    linked = torch.diag(torch.ones(4), 1) + torch.diag(torch.ones(4), -1)
    for weight, matrix in ((0.8, low), (0.2, (torch.eye(5) - high) / 0.3)):
        degree = 1 + weight * linked.sum(dim=1)
        expected = weight * linked / (degree[:, None] * degree).sqrt()
        torch.testing.assert_close(matrix - matrix.diag().diag(), expected)
    torch.testing.assert_close(low.diagonal(), 1 / (1 + 0.8 * linked.sum(dim=1)))
    torch.testing.assert_close(high.diagonal(), torch.ones(5))


def test_scores_are_symmetric_and_edge_weights_follow_them(path_graph: Graph) -> None:
    model = GREET(path_graph, SMALL, CPU)
    hidden = torch.relu(
        model.discriminator.described(torch.cat([model.features.dense(), model.return_probabilities], dim=1))
    )
    layer = model.discriminator.scored
    rows, cols = model.entries.rows, model.entries.cols
    orders = [layer(torch.cat([hidden[u], hidden[v]], dim=1)) for u, v in ((rows, cols), (cols, rows))]
    torch.testing.assert_close(model.scores(), (orders[0] + orders[1]).squeeze(1) / 2)
    with forked_rng(CPU, 0):
        coins = sample_edge_weights(torch.full((20_000,), 1.5))
    assert float((coins > 0.5).float().mean()) == pytest.approx(torch.tensor(1.5).sigmoid().item(), abs=0.01)


def test_the_discriminator_learns_which_edges_are_homophilous() -> None:
    """Nodes of group 0 are linked within the group, those of group 1 with group 2."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(60) // 20
    features = functional.one_hot(group * 4 + torch.randint(4, (60,), generator=generator), 12).float()
    low, high = torch.randint(20, (2, 160), generator=generator)
    within = torch.arange(160) < 80
    graph = check_graph(
        features, torch.stack([torch.where(within, low, low + 20), torch.where(within, high, high + 40)])
    )
    settings = GREETSettings(width=16, epochs=40, neighbours=5, learning_rate=0.01)
    with forked_rng(CPU, 0):
        model = GREET(graph, settings, CPU)
        model.begin()
        for epoch in range(settings.epochs):
            model.step(epoch)
    weights = torch.sigmoid(model.scores().detach()[model.edges])
    alike = group[model.ends[0]] == group[model.ends[1]]
    assert weights[alike].mean() > weights[~alike].mean() + 0.2
