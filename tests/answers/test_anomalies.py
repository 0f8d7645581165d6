from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from h3gnn import H3GNN, as_graph
from h3gnn.answers.anomalies import (
    disagreement,
    edge_surprise,
    feature_surprise,
    find_anomalies,
    unusual_columns,
)
from h3gnn.answers.links import Neighbourhood
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.link_columns import JoinedColumn, LinkColumns, LinkPlan
from h3gnn.tables.encoders import NumberEncoder


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
    assert set(table) == {"node", "score", "features", "neighbours", "reason"}
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


def test_reasons_are_unusual_values_in_the_units_of_the_table() -> None:
    rows = np.arange(200)
    frame = pd.DataFrame(
        {
            "quantity": 1 + rows % 3,
            "amount": 10.0 ** (4 + rows % 3),
            "paid": np.where(rows == 80, "cheque", np.where(rows % 2, "cash", "card")),
            "opened": pd.Timestamp("2020-01-01") + pd.to_timedelta(rows % 50, "D"),
            "level": (rows // 100) * 10.0 + rows % 2,
        },
        index=[f"n{row}" for row in rows],
    ).astype({"quantity": float})
    frame.loc["n0", "quantity"] = 100
    frame.loc["n20", "amount"] = 375
    frame.loc["n40", "opened"] = pd.Timestamp("2002-05-01")
    frame.loc["n60", "level"] = 10.0  # as half of the rows, but none of its neighbours
    ends = np.stack([rows, np.where(rows % 100 < 99, rows + 1, rows - 99)])
    graph = as_graph(frame, ends)
    around = Neighbourhood(graph.edge_index, 200)
    wanted = [graph.node_ids.tolist().index(one) for one in ("n0", "n20", "n40", "n60", "n80", "n50")]
    found = unusual_columns(graph, np.array(wanted), around)
    assert found[0].startswith("quantity 100 (usual: 1 to 3)")
    assert found[1].startswith("amount 375 (usual: 10,000 to 1,000,000)")
    assert found[2].startswith("opened 2002-05-01 (usual: 2020-01-03 to 2020-02-17)")
    assert found[3].startswith("level 10 (its neighbours: ")
    assert "paid=cheque (0.5% of all)" in found[4]
    assert not any(one in found[5] for one in ("quantity", "paid", "level"))
    table = find_anomalies(graph, graph.dense_features().numpy()[:, None], ["teacher"])
    assert set(table["reason"][table["node"] == "n0"]) == {found[0]}


def test_sparse_features_and_link_columns_have_reasons() -> None:
    features = np.zeros((60, 3), np.float32)
    features[:, 0], features[7, 1] = np.arange(60) % 2, 1
    ends = np.stack([np.arange(60), (np.arange(60) + 1) % 60])
    dense = check_graph(features, ends, feature_names=["common", "rare", "never"])
    sparse = check_graph(sp.csr_array(features), ends, feature_names=["common", "rare", "never"])
    around = Neighbourhood(dense.edge_index, 60)
    for graph in (dense, sparse):
        assert unusual_columns(graph, np.array([7, 8]), around) == [
            "rare 1 (1.7% of all)",
            "no single column is unusual",
        ]
    values = np.zeros((60, 1), np.float32)
    values[8] = 9
    plan = LinkPlan(
        (), (NumberEncoder(0, 5, 1, log=False, gaps=False),), (JoinedColumn("a.n", "a", "count", "a"),)
    )
    linked = replace(dense, link_columns=LinkColumns(values, plan))
    assert unusual_columns(linked, np.array([7, 8]), around) == [
        "rare 1 (1.7% of all)",
        "a.n 14 (1.7% of all)",
    ]
