"""Random walks, skip-gram, node2vec, LINE and unsupervised GraphSAGE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.baselines.embedder import Embedder, forked_rng
from h3gnn.baselines.layers import adjacency
from h3gnn.baselines.walks import ENDED, LINE, Node2Vec, SageUnsupervised, SkipGram, Walker
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, embed_on, model_on


def two_cliques() -> Graph:
    """Return two cliques of six nodes with one edge between them, and constant features."""
    edges = [(i, j) for block in (0, 6) for i in range(block, block + 6) for j in range(i + 1, block + 6)]
    return check_graph(torch.ones(12, 1), torch.tensor([*edges, (0, 6)]).t())


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_walks_follow_edges_by_weight() -> None:
    """0 – 1 with weight 3, 0 – 2 with weight 1; node 3 has no edge."""
    edges, weight = torch.tensor([[0, 0], [1, 2]]), torch.tensor([3.0, 1.0])
    walker = Walker(adjacency(check_graph(torch.eye(4), edges, edge_weight=weight), self_loops=False))
    with forked_rng(CPU, 0):
        met = walker.step(torch.zeros(4000, dtype=torch.int64))
        walks = walker.walks(torch.tensor([1, 2, 3]), 3)
        drawn = walker.edges(4000)
    assert abs(float((met == 1).float().mean()) - 0.75) < 0.03
    assert set(met.tolist()) == {1, 2}
    assert walks[:, 0].tolist() == [1, 2, 3]
    assert walks[:, 1].tolist() == [0, 0, ENDED]
    assert walks[2, 2] == ENDED
    assert abs(float(((drawn == 1).any(dim=1)).float().mean()) - 0.75) < 0.03


def test_walks_are_biased_by_the_previous_node() -> None:
    """From 0 at 1: back to 0 weighs 1/p, to 2, a neighbour of 0, 1, and to 3 1/q."""
    graph = check_graph(torch.eye(4), torch.tensor([[0, 0, 1, 1], [1, 2, 2, 3]]))
    walker = Walker(adjacency(graph, self_loops=False), back=4.0, away=0.5)
    with forked_rng(CPU, 0):
        walks = walker.walks(torch.zeros(30_000, dtype=torch.int64), 3)
    third = walks[walks[:, 1] == 1, 2]
    share = [float((third == node).float().mean()) for node in (0, 2, 3)]
    np.testing.assert_allclose(share, np.array([0.25, 1, 2]) / 3.25, atol=0.015)


def test_skipgram_by_loops() -> None:
    with forked_rng(CPU, 1):
        model = SkipGram(5, 3, window=2, negatives=4)
        torch.nn.init.normal_(model.centres)
        torch.nn.init.normal_(model.company)
    walks, negatives = torch.tensor([[0, 1, 2, 3], [4, 1, ENDED, ENDED]]), torch.tensor([2, 4, 4])
    total, weights = 0.0, 0.0
    for walk in walks.tolist():
        for place, node in enumerate(walk):
            for other, met in enumerate(walk):
                apart = abs(place - other)
                if ENDED in (node, met) or not 1 <= apart <= 2:
                    continue
                u, v = model.centres[node].detach(), model.company.detach()
                loss = -math.log(sigmoid(float(u @ v[met])))
                loss -= 4 / 3 * sum(math.log(sigmoid(-float(u @ v[one]))) for one in negatives.tolist())
                weight = {1: 1.0, 2: 0.5}[apart]
                total, weights = total + weight * loss, weights + weight
    assert float(model.loss(walks, negatives).detach()) == pytest.approx(total / weights, rel=1e-5)


def test_lines_first_order_has_one_vector_per_node(path_graph: Graph) -> None:
    model = model_on(LINE, path_graph, width=4)
    assert model.first.company is model.first.centres
    assert model.second.company is not model.second.centres
    assert model.second.frequency.tolist() == [1, 2, 2, 2, 1]
    torch.testing.assert_close(model.embedding().norm(dim=1), torch.full((5,), math.sqrt(2)))


@pytest.mark.parametrize(
    ("kind", "settings"), [(Node2Vec, {"width": 8, "walk_length": 20, "window": 3}), (LINE, {"width": 8})]
)
def test_nodes_of_a_clique_have_similar_embeddings(kind: type[Embedder], settings: dict[str, Any]) -> None:
    rows = embed_on(kind, two_cliques(), **settings)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    alike = unit @ unit.T
    within = (alike[:6, :6].mean() + alike[6:, 6:].mean()) / 2
    assert within > alike[:6, 6:].mean() + 0.3


def test_sage_by_hand(path_graph: Graph) -> None:
    model = model_on(SageUnsupervised, path_graph, width=2, negatives=2, scale_features="none")
    first, second = model.first.detach().numpy(), model.second.detach().numpy()
    links = np.eye(5, k=1) + np.eye(5, k=-1)
    mean = links / links.sum(axis=1, keepdims=True)
    hidden = np.maximum(np.hstack([first[:, 0], mean @ first[:, 1]]), 0)
    rows = np.hstack([hidden @ second[:, 0], mean @ hidden @ second[:, 1]])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(model.encode((0, 0)).detach().numpy(), rows, atol=1e-5)
    walks = torch.tensor([[0, 1, 0], [1, 2, 3], [2, 3, ENDED]])
    losses = []
    for start, other in [(0, 1), (1, 2), (1, 3), (2, 3)]:  # no node is paired with itself
        loss = -math.log(sigmoid(rows[start] @ rows[other]))
        losses.append(loss - sum(math.log(sigmoid(-rows[start] @ rows[one])) for one in (4, 0)))
    found = model.meetings(torch.tensor(rows), walks, torch.tensor([4, 0]))
    assert float(found) == pytest.approx(np.mean(losses), rel=1e-4)
