"""Profiles of graphs: figures computed by hand, and the verdict."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.profile import Homophily, measure_homophily, profile, simple_edges, verdict


def undirected(*pairs: tuple[int, int]) -> np.ndarray:
    edges = np.array(pairs).T
    return np.concatenate([edges, edges[::-1]], axis=1)


def square_with_tail() -> Graph:
    """0-1, 1-2, 2-3, 3-0 with classes a a b b, and 4 (class a) alone, with a self-loop."""
    edges = np.concatenate([undirected((0, 1), (1, 2), (2, 3), (3, 0)), [[4], [4]]], axis=1)
    features = np.array([[1.0], [1.0], [-1.0], [-1.0], [0.0]])
    return check_graph(features, edges, labels=np.array([0, 0, 1, 1, 0]), class_names=("a", "b"))


def test_figures_of_a_square() -> None:
    measured = profile(square_with_tail())
    assert (measured.nodes, measured.edges, measured.features, measured.classes) == (5, 9, 1, 2)
    assert not measured.directed
    assert (measured.self_loops, measured.isolated, measured.components) == (1, 1, 2)
    assert measured.largest_component == 4
    assert (measured.degrees.mean, measured.degrees.median) == (1.6, 2)
    assert (measured.degrees.minimum, measured.degrees.maximum) == (0, 2)
    assert measured.feature_density == 0.8
    # fᵀLf: the edges 1-2 and 3-0 differ by 2/√2 each, so 2 · 2 = 4; fᵀf = 4
    assert measured.smoothness == pytest.approx(1.0)
    assert measured.edge_homophily == pytest.approx(5 / 9)  # four of eight, and the loop
    assert measured.node_homophily == pytest.approx((4 * 0.5 + 1) / 5)
    assert measured.adjusted_homophily == pytest.approx(0.0)  # 1/2 of the edges, as chance would have it
    assert measured.label_informativeness == pytest.approx(0.0)
    assert measured.class_homophily is not None
    assert [measured.class_homophily[name] for name in "ab"] == pytest.approx([3 / 5, 2 / 4])
    assert measured.node_homophily_histogram == (0, 0, 0, 0, 0, 4, 0, 0, 0, 0)
    assert measured.mixed_share == 1.0


def test_perfect_homophily_and_perfect_heterophily() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    alike = measure_homophily(torch.from_numpy(undirected((0, 1), (2, 3))), labels, 2)
    assert (alike.edge, alike.adjusted, alike.label_informativeness) == (1.0, 1.0, 1.0)
    apart = measure_homophily(torch.from_numpy(undirected((0, 2), (1, 3))), labels, 2)
    assert (apart.edge, apart.adjusted, apart.label_informativeness) == (0.0, -1.0, 1.0)
    assert apart.of_nodes.tolist() == [0, 0, 0, 0]


def test_nodes_without_label_do_not_count() -> None:
    edges = undirected((0, 1), (1, 2), (2, 3))
    known = measure_homophily(torch.from_numpy(edges), torch.tensor([0, 0, -1, 1]), 2)
    assert known.edge == 1.0
    assert [math.isnan(one) for one in known.of_nodes.tolist()] == [False, False, True, True]
    assert math.isnan(known.by_class[1])


def test_simple_edges_go_both_ways_once() -> None:
    edges = torch.tensor([[2, 0, 0, 1], [0, 2, 1, 1]])
    assert simple_edges(edges, 3).tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert simple_edges(edges[:, :0], 0).shape == (2, 0)


def test_smoothness_is_the_laplacian_form_for_dense_and_sparse_features() -> None:
    random = np.random.default_rng(0)
    edges = undirected(
        *{tuple(sorted(pair)) for pair in random.integers(0, 30, (60, 2)).tolist() if pair[0] != pair[1]}
    )
    values = (random.random((30, 600)) < 0.02).astype(np.float32)
    adjacency = np.zeros((30, 30))
    adjacency[edges[0], edges[1]] = 1
    degree = adjacency.sum(1)
    assert degree.min() > 0
    laplacian = np.eye(30) - adjacency / np.sqrt(np.outer(degree, degree))
    expected = np.trace(values.T @ laplacian @ values) / (values**2).sum()
    centred = values - values.mean(0)
    expected_centred = np.trace(centred.T @ laplacian @ centred) / (centred**2).sum()
    for features in (values, sp.csr_matrix(values)):
        measured = profile(check_graph(features, edges))
        assert measured.smoothness == pytest.approx(expected, rel=1e-5)
        assert measured.centred_smoothness == pytest.approx(expected_centred, rel=1e-5)
        assert measured.feature_density == pytest.approx((values != 0).mean())


def test_a_graph_without_labels_edges_or_features_has_no_such_figures() -> None:
    measured = profile(check_graph(np.zeros((2, 1)), np.empty((2, 0), dtype=np.int64)))
    assert measured.smoothness is None
    assert measured.edge_homophily is None
    assert measured.class_homophily is None
    assert "No edge joins two nodes" in measured.verdict
    assert json.loads(json.dumps(measured.as_dict()))["edge_homophily"] is None
    lonely = check_graph(np.ones((2, 1)), np.empty((2, 0), dtype=np.int64), labels=np.array([0, 1]))
    assert profile(lonely).adjusted_homophily is None
    one_class = check_graph(np.ones((2, 1)), undirected((0, 1)), labels=np.array([0, 0]))
    assert profile(one_class).adjusted_homophily is None


def test_directed_and_undirected_graphs_are_distinguished() -> None:
    assert profile(check_graph(np.eye(3), np.array([[0, 1], [1, 2]]))).directed
    assert not profile(check_graph(np.eye(3), undirected((0, 1), (1, 2)))).directed


@pytest.mark.parametrize(
    ("figures", "smoothness", "beginning"),
    [
        ((0.77, 0.59), 0.89, "Neighbours mostly share a class"),
        ((0.29, 0.47), 1.0, "Neighbours share a class more often than chance"),
        ((-0.29, 0.19), 0.98, "Neighbours rarely share a class, but"),
        ((0.0, 0.0), 1.0, "A neighbour's class is almost uninformative"),
        (None, 0.85, "There are no labels, but neighbours have similar features"),
        (None, 1.0, "There are no labels, and neighbours"),
        (None, None, "There are no labels, and all features are equal"),
    ],
)
def test_the_verdict_follows_the_figures(
    figures: tuple[float, float] | None, smoothness: float | None, beginning: str
) -> None:
    measured = None
    if figures is not None:
        measured = Homophily(0.5, 0.5, 0.5, *figures, (), torch.tensor([0.0, 0.5]))
    sentence = verdict(measured, edges=9, smoothness=smoothness)
    assert sentence.startswith(beginning)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def community_graph(nodes: int, labelled: int, seed: int = 0) -> Graph:
    """Return two classes with few edges between them; the first nodes have labels."""
    random = np.random.default_rng(seed)
    classes = np.arange(nodes) % 2
    pairs = {tuple(sorted(pair)) for pair in random.integers(0, nodes, (12 * nodes, 2)).tolist()}
    between = ((a, b) for a, b in sorted(pairs) if a != b)
    kept = [(a, b) for a, b in between if classes[a] == classes[b] or random.random() < 0.08]
    labels = np.where(np.arange(nodes) < labelled, classes, -1)
    features = random.normal(size=(nodes, 4))
    return check_graph(features, undirected(*kept), labels=labels, class_names=("a", "b"))


def test_the_verdict_needs_enough_labels() -> None:
    whole = profile(community_graph(200, 200))
    assert whole.adjusted_homophily_interval is None
    assert "95 %" not in whole.verdict
    few = profile(community_graph(200, 12))
    assert few.verdict.startswith("There are too few labels to tell whether neighbours share a class: ")
    assert f"{few.labelled_pairs} edges join two labelled nodes" in few.verdict
    many = profile(community_graph(200, 150))
    assert many.verdict.startswith("Neighbours mostly share a class (adjusted homophily")
    assert "(95 %: " in many.verdict
    for measured in (few, many):
        low, high = measured.adjusted_homophily_interval or (0, 0)
        assert whole.adjusted_homophily is not None
        assert low <= whole.adjusted_homophily <= high
        assert json.loads(json.dumps(measured.as_dict()))["adjusted_homophily_interval"] == [low, high]


def test_the_interval_of_three_equal_edges_is_exact() -> None:
    edges = undirected((0, 1), (2, 3), (4, 5), (5, 6))
    graph = check_graph(np.eye(7), edges, labels=np.array([0, 0, 1, 1, 0, 0, -1]), class_names=("a", "b"))
    measured = profile(graph)
    assert measured.adjusted_homophily == 1.0
    assert measured.labelled_pairs == 3
    low, high = measured.adjusted_homophily_interval or (0, 0)
    # Clopper and Pearson: three of three may be a share of 0.025^(1/3) = 0.292; chance has 5/9
    assert low == pytest.approx((0.025 ** (1 / 3) - 5 / 9) / (1 - 5 / 9), abs=1e-6)
    assert high == 1.0
    assert "3 edges join two labelled nodes" in measured.verdict


def test_a_single_labelled_pair_and_none() -> None:
    known: dict[str, Any] = {"labels": np.array([0, 1, -1]), "class_names": ("a", "b")}
    one = profile(check_graph(np.eye(3), undirected((0, 1), (1, 2)), **known))
    assert "1 edge joins two labelled nodes" in one.verdict
    none = profile(check_graph(np.eye(3), undirected((0, 2), (1, 2)), **known))
    assert none.adjusted_homophily_interval is None
    assert none.labelled_pairs == 0
    assert none.verdict.startswith("No edge joins two labelled nodes, and neighbours have")
