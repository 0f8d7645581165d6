"""Sparse matrices, encoders, views, untrained features and moving averages, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from h3gnn.baselines.classics import raw_features, smoothed_features
from h3gnn.baselines.embedder import frozen_copy, set_learning_rate, update_average
from h3gnn.baselines.layers import (
    Convolution,
    Features,
    GraphEncoder,
    Neighbours,
    SparseMatrix,
    Views,
    adjacency,
    edge_ends,
    gcn_adjacency,
    linear_layers,
    pairs_of,
)
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, check_moving_average


@pytest.mark.parametrize("columns", [5, 200])
def test_an_encoder_by_its_layers_with_all_or_some_columns(path_graph: Graph, columns: int) -> None:
    """Two hundred columns are stored as a sparse matrix."""
    dense = torch.zeros(5, columns)
    dense[:, :5] = torch.arange(25.0).view(5, 5)
    features = Features(dense, CPU)
    assert isinstance(features.matrix, SparseMatrix) == (columns == 200)
    encoder = GraphEncoder(features, [4, 3], [nn.ELU(), nn.Identity()])
    nn.init.normal_(encoder.first.bias)
    matrix = gcn_adjacency(path_graph, CPU)
    kept = torch.arange(columns) != 2
    whole = matrix.csr().to_dense()
    for given, seen in ((None, dense), (kept, dense * kept)):
        hidden = nn.functional.elu(whole @ seen @ encoder.first.weight + encoder.first.bias)
        second = encoder.others[0]
        assert isinstance(second, Convolution)
        torch.testing.assert_close(encoder(matrix, given), whole @ hidden @ second.weight + second.bias)
    assert not torch.allclose(encoder(matrix), encoder(matrix, kept))


def test_linear_layers_have_activations_between_them() -> None:
    layers = linear_layers(4, 3, 3, 2, activation=nn.ELU)
    assert [type(part) for part in layers] == [nn.Linear, nn.ELU, nn.Linear, nn.ELU, nn.Linear]
    assert [part.weight.shape for part in layers if isinstance(part, nn.Linear)] == [(3, 4), (3, 3), (2, 3)]
    assert len(linear_layers(4, 2)) == 1


def test_edges_by_their_ends_and_pairs() -> None:
    """0 – 1, 1 – 2 and a loop at 1; each entry is an edge to its row."""
    rows, cols = torch.tensor([[0, 1], [1, 0], [1, 1], [1, 2], [2, 1]]).t()
    matrix = SparseMatrix(rows, cols, torch.arange(1.0, 6), (3, 3))
    assert torch.equal(matrix.transposed().csr().to_dense(), matrix.csr().to_dense().t())
    count, pair_of = pairs_of(matrix)
    assert (count, pair_of.tolist()) == (3, [0, 0, 1, 2, 2])
    ends = edge_ends(matrix, matrix.values)
    at_nodes = torch.tensor([[1.0], [10.0], [100.0]])
    assert (ends["source"] @ at_nodes).flatten().tolist() == [10, 1, 10, 100, 10]
    assert (ends["target"] @ at_nodes).flatten().tolist() == [1, 10, 10, 10, 100]
    assert (ends["sum"] @ torch.ones(5, 1)).flatten().tolist() == [1, 9, 5]
    assert (edge_ends(matrix)["sum"] @ torch.ones(5, 1)).flatten().tolist() == [1, 3, 1]


def test_smoothing_by_hand() -> None:
    """0 → 1, 1 → 2 and a loop at 0: edges are undirected, without the loop; node 3 is isolated."""
    features = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    graph = check_graph(features, torch.tensor([[0, 1, 0], [1, 2, 0]]))
    unit = np.array([[0.6, 0.8], [0, 1], [1, 0], [0, 0]])
    once = np.array([[0, 1], [0.8, 0.4], [0, 1], [0, 0]])
    twice = np.array([once[1], [0, 1], once[1], [0, 0]])
    np.testing.assert_allclose(smoothed_features(graph, 2), np.hstack([unit, once, twice]), atol=1e-6)
    np.testing.assert_allclose(smoothed_features(graph, 1), np.hstack([unit, once]), atol=1e-6)
    np.testing.assert_array_equal(raw_features(graph), features.numpy())


def test_smoothing_without_edges_gives_zeros() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64))
    np.testing.assert_array_equal(smoothed_features(graph, 1), np.hstack([np.eye(3), np.zeros((3, 3))]))


def test_a_view_drops_both_directions_and_recomputes_degrees(path_graph: Graph) -> None:
    torch.manual_seed(2)
    view = Views(path_graph, CPU).draw(0.5, 0.5)
    dense = view.matrix.csr().to_dense()
    assert torch.equal(dense, dense.t())
    linked = (dense > 0).float()
    assert linked.sum() < 13  # five loops and eight directions
    assert torch.equal(linked.diagonal(), torch.ones(5))
    degree = linked.sum(dim=1)
    torch.testing.assert_close(dense, linked / (degree[:, None] * degree[None]).sqrt())


def test_a_rate_is_set_for_all_parameters() -> None:
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in (0.1, 0.2)]
    optimizer = torch.optim.Adam(groups)
    set_learning_rate(optimizer, 0.05)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_a_frozen_copy_shares_features_and_follows() -> None:
    encoder = GraphEncoder(Features(torch.eye(3), CPU), [2], [torch.nn.PReLU()])
    average = frozen_copy(encoder)
    assert average.features is encoder.features
    check_moving_average(average, encoder, lambda: update_average(average, encoder, 0.75))


def test_neighbours_are_sampled_without_replacement_if_possible(small_mixed: Graph) -> None:
    matrix = adjacency(small_mixed, self_loops=False)
    linked = matrix.csr().to_dense() > 0
    torch.manual_seed(0)
    drawn = Neighbours(matrix).draw(4)
    for node in range(small_mixed.num_nodes):
        found = drawn[node].tolist()
        degree = int(linked[node].sum())
        assert all(bool(linked[node, one]) for one in found)
        assert len(set(found)) == min(4, degree)
