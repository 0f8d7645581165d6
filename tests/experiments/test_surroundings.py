from __future__ import annotations

import numpy as np
import pytest

from h3gnn.experiments.report_data import edge_changes, nearest_nodes, neighbor_weights

# 1 hears 0 and 2; 2 hears 0; 3 hears 0, 1 and 2.
RECEIVERS, SOURCES = np.array([1, 1, 2, 3, 3, 3]), np.array([0, 2, 0, 0, 1, 2])
START = np.full(6, 0.5)
WEIGHT = np.array([0.6, 0.4, 0.5, 0.55, 0.3, 0.5])


def test_nearest_nodes_agree_with_the_plain_formula() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6))
    found, similarity = nearest_nodes(rows, 4)
    centred = rows - rows.mean(axis=0)
    for node in range(50):
        cosine = centred @ centred[node] / np.linalg.norm(centred, axis=1) / np.linalg.norm(centred[node])
        cosine[node] = -np.inf
        best = np.argsort(-cosine)[:4]
        assert found[node].tolist() == best.tolist()
        np.testing.assert_allclose(similarity[node], cosine[best], atol=1e-5)


def test_a_node_alone_has_no_nearest() -> None:
    found, similarity = nearest_nodes(np.ones((1, 3)))
    assert found.shape == similarity.shape == (1, 0)


def test_everybody_hears_whom_the_graph_says() -> None:
    heard = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.arange(5))
    assert heard.crow.tolist() == [0, 0, 2, 3, 6, 6]
    assert heard.sources.tolist() == SOURCES.tolist()
    assert heard.total.tolist() == [0, 2, 1, 3, 0]


def test_of_some_nodes_only_edges_between_them_are_kept() -> None:
    heard = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.array([1, 2, 3]))
    assert heard.crow.tolist() == [0, 1, 1, 3]
    assert heard.sources.tolist() == [1, 0, 1]  # new numbers: 1 hears 2; 3 hears 1 and 2
    assert heard.weight.tolist() == [0.4, 0.3, 0.5]
    assert heard.total.tolist() == [2, 1, 3]


def test_where_not_all_fit_the_most_changed_stay() -> None:
    heard = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.arange(4), most=5)
    assert heard.crow.tolist() == [0, 0, 2, 3, 5]
    assert heard.sources.tolist() == [0, 2, 0, 0, 1]  # node 3 lets go of the edge that did not change
    assert heard.total.tolist() == [0, 2, 1, 3]
    turned = np.array([*WEIGHT[:5], -0.5])  # as large as it was, the other way round
    heard = neighbor_weights(RECEIVERS, SOURCES, turned, START, np.arange(4), most=5)
    assert heard.sources.tolist() == [0, 2, 0, 1, 2]


def test_changes_by_kind_of_edge() -> None:
    every, within, between = edge_changes(RECEIVERS, SOURCES, WEIGHT, START, np.array([0, 0, 1, -1]))
    assert (every.edges, within.edges, between.edges) == (6, 1, 2)
    assert within.mean_change == pytest.approx(0.2)
    assert between.mean_change == pytest.approx(-0.1)
    assert between.turned_down == 0.5
    assert [one.kind for one in edge_changes(RECEIVERS, SOURCES, WEIGHT, START, None)] == ["all edges"]
