from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import H3GNN, Graph
from h3gnn.answers.links import Neighbourhood, find_links, hide_edges, unique_pairs
from h3gnn.graphs.checks import check_graph
from tests.rejects import rejects

KITE = torch.tensor([[0, 0, 1, 2, 3], [1, 2, 2, 3, 4]])  # a triangle with a tail


def groups(nodes: int = 60, seed: int = 0) -> Graph:
    """Two groups with edges inside each group only."""
    random = np.random.default_rng(seed)
    side = np.arange(nodes) % 2
    ends = random.integers(0, nodes, (2, 40 * nodes))
    ends = ends[:, (side[ends[0]] == side[ends[1]]) & (ends[0] < ends[1])][:, : 5 * nodes]
    features = random.normal(size=(nodes, 4)) + 2 * side[:, None]
    return check_graph(features, ends, node_ids=np.array([f"n{i}" for i in range(nodes)], dtype=object))


def test_pairs_worked_by_hand() -> None:
    around = Neighbourhood(KITE, 5)
    assert around.pairs().T.tolist() == [[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]]
    asked = np.array([[0, 1, 0, 4], [3, 3, 1, 0]])
    assert around.connected(asked).tolist() == [False, False, True, False]
    count, adamic = around.shared(asked)
    assert count.tolist() == [1, 1, 1, 0]
    assert adamic[0] == pytest.approx(1 / np.log(3))  # node 2 has three neighbours
    assert unique_pairs(around.two_hop(np.arange(5), 5)).T.tolist() == [[0, 3], [1, 3], [2, 4]]
    far = around.negatives(around.pairs(), np.random.default_rng(0))
    assert not around.connected(far).any()


def test_edges_are_hidden_in_both_directions() -> None:
    graph = groups()
    both = check_graph(
        graph.features, torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1), node_ids=graph.node_ids
    )
    around = Neighbourhood(both.edge_index, 60)
    seen, hidden = hide_edges(both, around, 0)
    left = Neighbourhood(seen.edge_index, 60)
    assert hidden.shape[1] == around.pairs().shape[1] // 10
    assert not left.connected(hidden).any()
    assert left.pairs().shape[1] + hidden.shape[1] == around.pairs().shape[1]
    assert seen.node_ids.tolist() == both.node_ids.tolist()


def test_the_second_fit_does_not_see_the_hidden_edges() -> None:
    graph, seen = groups(), []

    def refit(less: Graph) -> Any:
        seen.append(less)
        return less.features.numpy()[:, None]

    found = find_links(graph, graph.features.numpy()[:, None], refit, top=30)
    assert len(seen) == 1
    assert seen[0].num_edges < graph.num_edges
    assert found.scores["random pairs"]["auc"] > 0.7
    assert f"{found.counts['hidden'] // 2:,} edges hidden" in found.how
    side = {f"n{i}": i % 2 for i in range(60)}
    same = [side[a] == side[b] for a, b in zip(found.table["source"], found.table["target"], strict=True)]
    assert np.mean(same) > 0.9
    assert (found.table["score"].diff().dropna() <= 0).all()
    known = set(map(tuple, graph.node_ids[graph.edge_index.T.numpy()].tolist()))
    assert not known & set(zip(found.table["source"], found.table["target"], strict=True))


def test_random_edges_score_as_chance() -> None:
    random = np.random.default_rng(0)
    graph = check_graph(random.normal(size=(150, 5)), random.integers(0, 150, (2, 900)))
    found = find_links(
        graph,
        random.normal(size=(150, 2, 6)).astype(np.float32),
        lambda _: random.normal(size=(150, 2, 6)).astype(np.float32),
    )
    assert abs(found.scores["random pairs"]["auc"] - 0.5) < 0.2


def test_a_model_predicts_links_of_given_nodes() -> None:
    options: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 2, "device": "cpu"}
    model = H3GNN.from_settings(options).fit(groups())
    found = model.links(["n3", "n4"], top=5)
    assert all(
        {a, b} & {"n3", "n4"} for a, b in zip(found.table["source"], found.table["target"], strict=True)
    )
    plain = model.links(top=5, check=False)
    assert plain.scores == {}
    assert "not checked" in plain.how


def test_too_few_edges_to_hide_are_rejected(path_graph: Graph) -> None:
    model = H3GNN(channels=8, encoder__heads=2, epochs=0, n_models=1, device="cpu").fit(path_graph)
    with rejects("too-few-edges-to-hide"):
        model.links()
    assert len(model.links(top=3, check=False).table) == 3
