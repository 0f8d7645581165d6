from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import H3GNN
from h3gnn.answers.anomalies import disagreement, edge_surprise, feature_surprise, find_anomalies
from h3gnn.answers.links import Neighbourhood
from h3gnn.graphs.checks import check_graph


def ring(nodes: int = 40) -> Any:
    """A ring of two halves with different features; node 7 has those of the other half."""
    random = np.random.default_rng(0)
    side = (np.arange(nodes) >= nodes // 2).astype(float)
    side[7] = 1
    features = np.stack([side, 1 - side], axis=1) * 3 + 0.1 * random.normal(size=(nodes, 2))
    here = np.arange(nodes)
    ends = np.concatenate([[here, (here + 1) % nodes], [here, (here + 2) % nodes]], axis=1)
    names = np.array([f"n{i}" for i in range(nodes)], dtype=object)
    return check_graph(features, ends, node_ids=names)


def test_edges_between_unlike_nodes_worked_by_hand() -> None:
    around = Neighbourhood(torch.tensor([[0, 0, 0], [1, 2, 3]]), 5)
    features = np.array([[1, 0], [1, 0], [0, 2], [-3, 0], [1, 1]], dtype=np.float32)
    np.testing.assert_allclose(edge_surprise(features, around), [0 + 1 + 2, 0, 1, 2, 0], atol=1e-6)


def test_a_node_with_features_unlike_its_neighbours_has_the_highest_score() -> None:
    graph = ring()
    around = Neighbourhood(graph.edge_index, 40)
    features = graph.features.numpy()
    surprise = feature_surprise(features, features, around)
    assert surprise.argmax() == 7
    table = find_anomalies(graph, features[:, None], ["teacher"])
    assert table["node"][0] == "n7"
    assert set(table) == {"node", "score", "features", "neighbours"}
    assert sorted(table["node"]) == sorted(graph.node_ids.tolist())


def test_nodes_without_neighbours_have_finite_scores() -> None:
    features = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    around = Neighbourhood(torch.tensor([[0, 1, 2], [1, 2, 0]]), 30)
    assert np.isfinite(feature_surprise(features, features, around)).all()
    assert edge_surprise(features, around)[5] == 0


def test_disagreement_is_highest_where_models_differ() -> None:
    random = np.random.default_rng(0)
    one = random.normal(size=(50, 5)).astype(np.float32)
    other = one.copy()
    other[3] = -one[3]
    found = disagreement(np.stack([one, other], axis=1), ["teacher", "edges"])
    assert found.argmax() == 3
    assert np.median(found) == pytest.approx(0, abs=0.05)
    three = np.stack([one, one, other], axis=1)
    assert disagreement(three, ["a", "a", "a"]).argmax() == 3


def test_the_score_is_the_largest_of_its_parts() -> None:
    graph = ring()
    table = find_anomalies(graph, graph.features.numpy()[:, None], ["teacher"], np.arange(40.0)[None])
    for _, row in table.iterrows():
        shares = [float((table[name] >= row[name]).mean()) for name in ("features", "neighbours")]
        assert row["score"] == pytest.approx(-np.log10(min(shares)))
    assert table["difficulty"].max() == 1


def test_a_model_reports_difficulty_and_disagreement() -> None:
    options: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 2, "device": "cpu"}
    model = H3GNN.from_settings(options).fit(ring())
    table = model.anomalies()
    assert {"difficulty", "disagreement"} <= set(table)
    assert table["node"][:3].isin(["n7"]).any()
    untrained = H3GNN.from_settings({**options, "epochs": 0}).fit(ring()).anomalies()
    assert "difficulty" not in untrained
