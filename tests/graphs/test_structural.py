"""Structural features: computed by hand on small graphs, compared with networkx on a larger one."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.graphs import structural
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.structural import count_triangles, structural_features, transfer_structural_features


def both_ways(network: nx.Graph) -> torch.Tensor:
    pairs = np.array(network.edges(), dtype=np.int64).reshape(-1, 2).T
    return torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1))


def test_a_triangle_with_a_tail() -> None:
    network = nx.Graph([(0, 1), (1, 2), (2, 0), (2, 3)])
    columns = structural_features(both_ways(network), 4).numpy()
    degree = np.log1p([2, 2, 3, 1])
    np.testing.assert_allclose(columns[:, 0], degree / degree.max(), rtol=1e-6)
    np.testing.assert_allclose(columns[:, 1], columns[:, 0])
    mean = np.array(
        [(degree[1] + degree[2]) / 2, (degree[0] + degree[2]) / 2, np.mean(degree[[0, 1, 3]]), degree[2]]
    )
    np.testing.assert_allclose(columns[:, 2], mean / mean.max(), rtol=1e-6)
    np.testing.assert_allclose(columns[:, 5] > 0, [True, True, True, False])  # node 3 has one neighbour
    np.testing.assert_allclose(columns[:, 6], [1, 1, 1, 0])  # one triangle each, but for the tail
    np.testing.assert_allclose(columns[:, 7], [1, 1, 1 / 3, 0], rtol=1e-6)


def test_in_degree_and_out_degree_differ() -> None:
    columns = structural_features(torch.tensor([[0, 0], [1, 2]]), 3)
    assert columns[:, 0].tolist() == [0, 1, 1]
    assert columns[:, 1].tolist() == [1, 0, 0]


def test_tiny_and_empty_graphs() -> None:
    nothing = torch.empty(2, 0, dtype=torch.long)
    loop, edge = torch.tensor([[0], [0]]), torch.tensor([[0], [1]])
    for edges, nodes in ((nothing, 1), (loop, 1), (nothing, 7), (edge, 2)):
        columns = structural_features(edges, nodes)
        assert columns.shape == (nodes, 8)
        assert torch.isfinite(columns).all()


def test_triangles_against_networkx_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nx.gnm_random_graph(200, 1500, seed=3)
    adjacency = sp.csr_array(nx.to_scipy_sparse_array(network, dtype=float))
    expected = list(nx.triangles(network).values())
    assert count_triangles(adjacency).tolist() == expected
    monkeypatch.setattr(structural, "BLOCK_ROWS", 17)
    assert count_triangles(adjacency).tolist() == expected


def test_eigenvectors_solve_their_equation_in_each_component() -> None:
    network = nx.disjoint_union(nx.gnm_random_graph(40, 150, seed=0), nx.path_graph(6))
    nodes = network.number_of_nodes()
    columns = structural_features(both_ways(network), nodes).numpy()[:, 8:].astype(np.float64)
    assert columns.shape[1] == 32
    adjacency = nx.to_numpy_array(network)
    scale = 1 / np.sqrt(adjacency.sum(1))
    normalised = scale[:, None] * adjacency * scale[None, :]
    for part in (slice(0, 40), slice(40, 46)):
        vectors = columns[part][:, :4]  # four that no clipping touches
        image = normalised[part, part] @ vectors
        value = (vectors * image).sum(0) / (vectors * vectors).sum(0)
        if np.abs(vectors).max() < 3:
            np.testing.assert_allclose(image, vectors * value, atol=1e-5)
        assert (np.diff(value) <= 1e-6).all()
        assert (value < 1).all()  # the first, which is the root of the degree, is left out
    assert (columns[40:, 4:] == 0).all()  # a path of six has four left


def test_the_same_graph_gives_the_same_features_in_the_iterative_case() -> None:
    network = nx.barabasi_albert_graph(900, 3, seed=1)
    first = structural_features(both_ways(network), 900)
    again = structural_features(both_ways(network), 900)
    assert torch.equal(first, again)
    assert first[:, 8:].abs().max() <= 3


def test_a_long_chain_without_convergence_gets_smooth_columns() -> None:
    columns = structural_features(both_ways(nx.path_graph(1200)), 1200)[:, 8:]
    assert columns.shape[1] == 32
    assert torch.isfinite(columns).all()
    steps = (columns[1:] - columns[:-1]).square().mean(0)
    assert (steps < 0.2 * columns.square().mean(0)).all()


def test_new_nodes_get_the_mean_position_of_their_neighbours() -> None:
    fitted = as_graph(nx.cycle_graph([f"n{number}" for number in range(6)]))
    bigger = nx.cycle_graph([f"n{number}" for number in range(6)])
    bigger.add_edges_from([("n0", "p"), ("n2", "p"), ("p", "q"), ("q", "r")])
    graph, same = transfer_structural_features(fitted, as_graph(bigger))
    old, new = fitted.dense_features().numpy(), graph.dense_features().numpy()
    assert same.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, -1]
    np.testing.assert_array_equal(new[:6], old)
    np.testing.assert_allclose(new[6:, 0], np.log1p([3, 2, 1]) / np.log1p(2), rtol=1e-6)  # largest: degree 2
    p = np.sqrt(3) * (old[0, 8:] / np.sqrt(3) + old[2, 8:] / np.sqrt(3)) / 2
    np.testing.assert_allclose(new[6, 8:], p, atol=1e-6)
    np.testing.assert_allclose(new[7, 8:], np.sqrt(2) * p / np.sqrt(3), atol=1e-6)
    np.testing.assert_allclose(new[8, 8:], p / np.sqrt(3), atol=1e-6)


def test_a_node_that_lost_its_neighbours_is_new_and_a_subgraph_is_known() -> None:
    names = [f"n{number}" for number in range(20)]
    fitted = as_graph(nx.cycle_graph(names))
    moved = nx.cycle_graph(names)
    moved.remove_edges_from([("n0", "n1"), ("n0", "n19")])
    moved.add_edge("n0", "n10")
    graph, same = transfer_structural_features(fitted, as_graph(moved))
    assert same.tolist() == [-1, *range(1, 20)]
    np.testing.assert_allclose(
        graph.features[0, 8:], fitted.features[10, 8:] / np.sqrt(3), atol=1e-6
    )  # as its one neighbour, which has degree 3 now
    part, same = transfer_structural_features(fitted, as_graph(nx.cycle_graph(names).subgraph(names[5:12])))
    assert sorted(same.tolist()) == list(range(5, 12))
    assert torch.equal(part.features, fitted.features[same])


@given(st.integers(0, 10**6), st.integers(8, 40), st.integers(0, 12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_added_nodes_do_not_change_known_ones(seed: int, nodes: int, new: int, named: bool) -> None:
    chance = np.random.default_rng(seed)
    network = nx.gnm_random_graph(nodes, 2 * nodes, seed=seed)
    bigger = nx.Graph(network)
    for node in range(nodes, nodes + new):
        bigger.add_edges_from((node, int(other)) for other in chance.integers(0, node, size=2))
    if named:
        network, bigger = (nx.relabel_nodes(one, lambda node: f"n{node}") for one in (network, bigger))
    fitted = as_graph(network)
    graph, same = transfer_structural_features(fitted, as_graph(bigger))
    assert same.tolist() == [*range(nodes), *[-1] * new]
    assert torch.equal(graph.features[:nodes], fitted.features)
    assert graph.features.shape[1] == fitted.num_features
    assert torch.isfinite(graph.features).all()
    assert (graph.features[:, 8:].abs() <= 3).all()
