"""Convolutions and linear layers in a row, against plain torch; features that are sparse or dense."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from h3gnn.baselines.layers import (
    Convolution,
    Features,
    GraphEncoder,
    SparseMatrix,
    edge_ends,
    gcn_adjacency,
    linear_layers,
    pairs_of,
)
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")


@pytest.mark.parametrize("columns", [5, 200])
def test_an_encoder_is_its_layers_and_sees_the_columns_that_are_kept(path_graph: Graph, columns: int) -> None:
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


def test_linear_layers_have_activations_between_them_alone() -> None:
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
