"""Objects of other libraries become the same checked graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from h3gnn import H3GNN
from h3gnn.errors import GraphError
from h3gnn.graphs.convert import as_graph, is_graph
from h3gnn.graphs.libraries import import_pyg
from h3gnn.graphs.structural import NO_FEATURES
from h3gnn.tables.read import read_graph
from tests.graphs.helpers import edge_set, listed
from tests.rejects import rejects

Data = import_pyg().data.Data

FEATURES = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], dtype=np.float32)
EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def test_a_graph_is_returned_unchanged() -> None:
    graph = as_graph(FEATURES, EDGES)
    assert as_graph(graph) is graph


@pytest.mark.parametrize("features", [FEATURES, torch.from_numpy(FEATURES), sp.csr_matrix(FEATURES)])
@pytest.mark.parametrize(
    "edges",
    [
        EDGES,
        torch.from_numpy(EDGES),
        sp.coo_matrix((np.ones(3), (EDGES[0], EDGES[1])), shape=(3, 3)),
        pd.DataFrame({"from": EDGES[0], "to": EDGES[1]}),
    ],
)
def test_features_with_edges_in_every_form(features: Any, edges: Any) -> None:
    graph = as_graph(features, edges)
    assert edge_set(graph) == {(0, 1), (1, 2), (2, 0)}
    assert graph.edge_weight is None
    assert not graph.has_ids
    np.testing.assert_array_equal(graph.dense_features(), FEATURES)


def test_the_index_of_a_frame_names_the_nodes_and_the_third_column_weighs_the_edges() -> None:
    features = pd.DataFrame(FEATURES, index=["ann", "bob", "cid"])
    edges = pd.DataFrame({"a": ["cid", "ann"], "b": ["ann", "bob"], "w": [0.5, 2.0]})
    graph = as_graph(features, edges)
    assert graph.node_ids.tolist() == ["ann", "bob", "cid"]
    assert graph.has_ids
    assert edge_set(graph) == {(2, 0), (0, 1)}
    assert listed(graph.edge_weight) == [0.5, 2.0]  # sorted by target: into ann, then into bob


def test_pyg_data_with_masks_of_both_shapes_and_one_column_of_edge_attributes() -> None:
    several = torch.tensor([[True, False], [False, True], [False, False]])
    data = Data(
        x=torch.from_numpy(FEATURES),
        edge_index=torch.from_numpy(EDGES),
        edge_attr=torch.tensor([[1.0], [2.0], [3.0]]),
        y=torch.tensor([[0], [1], [0]]),
        train_mask=several,
        test_mask=torch.tensor([False, False, True]),
    )
    graph = as_graph(data)
    assert listed(graph.labels) == [0, 1, 0]
    assert graph.num_splits == 2
    assert listed(graph.test_mask) == [[False, False], [False, False], [True, True]]
    assert sorted(listed(graph.edge_weight)) == [1.0, 2.0, 3.0]


def test_pyg_data_with_edges_alone_gets_structural_features() -> None:
    graph = as_graph(Data(edge_index=torch.from_numpy(EDGES)))
    assert graph.num_nodes == 3
    assert graph.num_features >= 8
    assert graph.provenance.structural
    assert NO_FEATURES in graph.provenance.repairs


class Citations(Data):  # type: ignore[misc,valid-type]
    """A user's own kind of `Data`, whose class is not of PyG's modules."""


class Roads(nx.DiGraph):  # type: ignore[misc]
    """A user's own kind of networkx graph."""


def test_subclasses_are_converted_and_fitted_as_their_base_class() -> None:
    data = Citations(x=torch.from_numpy(FEATURES), edge_index=torch.from_numpy(EDGES))
    roads = Roads([(0, 1), (1, 2), (2, 0)])
    for given in (data, roads):
        assert is_graph(given)
        assert edge_set(as_graph(given)) == {(0, 1), (1, 2), (2, 0)}
        model = H3GNN.from_preset("single", epochs=1, channels=4, device="cpu").fit(given)
        assert model.embedding_.shape[0] == 3


def test_a_table_of_features_is_no_graph_and_a_square_sparse_matrix_is() -> None:
    assert is_graph(sp.csr_array(np.eye(3)))
    for table in (FEATURES, torch.from_numpy(FEATURES), sp.csr_array(FEATURES), pd.DataFrame(FEATURES)):
        assert not is_graph(table)


def test_networkx_keeps_names_and_doubles_undirected_edges_but_not_loops() -> None:
    network = nx.Graph()
    network.add_node("a", x=[1.0, 2.0], y="red", split="train")
    network.add_node("b", x=[3.0, 4.0], y="blue", split="val")
    network.add_node("c", x=[5.0, 6.0], split="test")
    network.add_edge("a", "b", weight=2.0)
    network.add_edge("c", "c")
    graph = as_graph(network)
    assert edge_set(graph) == {(0, 1), (1, 0), (2, 2)}
    assert graph.node_ids.tolist() == ["a", "b", "c"]
    assert graph.class_names == ("blue", "red")
    assert listed(graph.labels) == [1, 0, -1]
    assert graph.train_mask is not None
    assert graph.train_mask[:, 0].tolist() == [True, False, False]
    assert sorted(listed(graph.edge_weight)) == [1.0, 2.0, 2.0]


def test_directed_networkx_keeps_its_direction() -> None:
    assert edge_set(as_graph(nx.DiGraph([(0, 1), (1, 2)]))) == {(0, 1), (1, 2)}


def test_an_adjacency_of_ones_has_no_weights_and_any_other_has() -> None:
    ones = sp.csr_array(np.array([[0, 1], [1, 0]]))
    assert as_graph(ones).edge_weight is None
    weighted = as_graph(sp.csr_array(np.array([[0, 2.5], [1, 0]])))
    assert sorted(listed(weighted.edge_weight)) == [1.0, 2.5]


class ShapedLikeDgl:
    """The attributes of a DGL graph, without DGL."""

    def __init__(self) -> None:
        self.ndata = {"feat": torch.from_numpy(FEATURES), "label": torch.tensor([0, 1, 1])}
        self.edata = {"weight": torch.tensor([1.0, 2.0, 3.0])}

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(EDGES[0]), torch.from_numpy(EDGES[1])

    def num_nodes(self) -> int:
        return 3


def test_objects_shaped_like_a_dgl_graph_are_read_without_dgl() -> None:
    graph = as_graph(ShapedLikeDgl())
    assert edge_set(graph) == {(0, 1), (1, 2), (2, 0)}
    assert graph.num_classes == 2


def test_sparse_features_of_torch_stay_sparse() -> None:
    wide = torch.zeros(3, 50)
    wide[1, 7] = 2.0
    graph = as_graph(wide.to_sparse(), EDGES)
    assert graph.features.layout == torch.sparse_csr
    assert torch.equal(graph.dense_features(), wide)


FRAME = pd.DataFrame(FEATURES, index=["a", "b", "c"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((FEATURES,), "not-a-graph"),
        (("texas",), "not-a-graph"),
        ((object(), EDGES), "features-not-a-table"),
        ((FEATURES[:, 0], EDGES), "features-not-a-table"),
        (([[1.0], [2.0, 3.0]], EDGES), "not-an-array"),
        ((FEATURES, EDGES[:1]), "edge-index-shape"),
        ((FEATURES, np.array([[0], [3]])), "edge-node-unknown"),
        ((FEATURES, EDGES.astype(float)), "edge-index-not-integers"),
        ((np.array([[np.nan]]), np.empty((2, 0), dtype=int)), "feature-not-finite"),
        ((np.array([[1e300]]), np.empty((2, 0), dtype=int)), "feature-not-finite"),
        ((np.empty((0, 2)), EDGES), "graph-empty"),
        ((FRAME, pd.DataFrame({"a": ["a"], "b": ["zed"]})), "node-unknown"),
        ((FRAME, pd.DataFrame({"a": ["a"]})), "column-missing"),
        ((FRAME[0], EDGES), "features-not-a-table"),
        ((as_graph(FEATURES, EDGES), EDGES), "two-graphs"),
        ((sp.csr_array(np.ones((2, 3))),), "adjacency-not-square"),
        ((FEATURES, sp.csr_array(-np.eye(3))), "edge-weight-not-positive"),
        ((import_pyg().data.HeteroData(),), "not-a-graph"),
        ((Data(x=torch.ones(2, 1)),), "edges-missing"),
        (
            (
                Data(
                    x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([float("inf"), 1])
                ),
            ),
            "labels-not-integers",
        ),
    ],
)
def test_invalid_input_is_rejected(arguments: tuple[Any, ...], code: str) -> None:
    with rejects(code, GraphError):
        as_graph(*arguments)


def test_the_message_names_a_cell_that_is_not_a_number() -> None:
    with pytest.raises(GraphError, match="'word': 'x' is not a number"):
        as_graph(FRAME.assign(word=["1", "2", "x"]), EDGES)


def test_networkx_nodes_with_different_features_are_rejected() -> None:
    network = nx.path_graph(["a", "b"])
    network.nodes["a"]["x"] = [1.0]
    with rejects("attribute-missing"):
        as_graph(network)
    network.nodes["b"]["x"] = [1.0, 2.0]
    with rejects("attribute-length"):
        as_graph(network)


def test_large_label_numbers_become_class_names() -> None:
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([10**12, 7, -1]))
    graph = as_graph(data)
    assert graph.class_names == ("7", "1000000000000")
    assert listed(graph.labels) == [1, 0, -1]


TIMES = pd.date_range("2024-01-01", periods=3)
FOUR = pd.DataFrame({"time": TIMES, "from": EDGES[0], "to": EDGES[1], "weight": [1.0, 2.0, 3.0]})


def test_a_table_of_edges_is_read_as_the_command_line_reads_it(tmp_path: Path) -> None:
    FOUR.to_csv(tmp_path / "e.csv", index=False)
    pd.DataFrame(FEATURES).to_csv(tmp_path / "f.csv")
    wanted = read_graph(tmp_path / "e.csv", features=tmp_path / "f.csv")
    graph = as_graph(FEATURES, FOUR)
    assert torch.equal(graph.edge_index, wanted.edge_index)
    assert listed(graph.edge_weight) == listed(wanted.edge_weight)
    with pytest.warns(UserWarning, match="edges: not used: 2"):  # without names: source, target
        graph = as_graph(FEATURES, pd.DataFrame({0: EDGES[0], 1: EDGES[1], 2: [5, 5, 5], 3: [6, 7, 8]}))
    assert graph.edge_weight is None
    with pytest.warns(UserWarning, match="not used: amount"):
        assert as_graph(FEATURES, FOUR[["from", "to"]].assign(amount=9.0)).edge_weight is None


def test_rows_of_source_and_target_are_transposed() -> None:
    assert edge_set(as_graph(FEATURES, EDGES.T)) == {(0, 1), (1, 2), (2, 0)}
    assert edge_set(as_graph(FEATURES, EDGES.T.tolist())) == {(0, 1), (1, 2), (2, 0)}
    rows = np.column_stack([EDGES.T, [5.0, 6.0, 7.0], [0, 0, 0]])
    with pytest.warns(UserWarning, match="edges: not used: column 3, column 4"):
        graph = as_graph(FEATURES, rows)
    assert edge_set(graph) == {(0, 1), (1, 2), (2, 0)}
    assert graph.edge_weight is None
    assert edge_set(as_graph(FRAME, [["a", "b"], ["b", "c"], ["c", "a"]])) == {(0, 1), (1, 2), (2, 0)}
    two = np.array([[0, 1], [1, 2]])  # [2, edges]: 0 -> 1 and 1 -> 2
    assert edge_set(as_graph(FEATURES, two)) == {(0, 1), (1, 2)}
    with rejects("edge-index-not-integers"):
        as_graph(FEATURES, rows + 0.5)


def test_a_dense_adjacency_matrix_as_edges_is_rejected() -> None:
    ring = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    for matrix in (ring, pd.DataFrame(ring), pd.DataFrame(ring, index=list("abc"), columns=list("abc"))):
        with rejects("edges-or-adjacency"):
            as_graph(FRAME, matrix)
    with rejects("edges-or-adjacency"):
        as_graph(np.ones((6, 2)), np.ones((6, 6)))


def test_edge_attributes_of_several_columns_are_not_used_with_a_warning() -> None:
    data = Data(x=torch.from_numpy(FEATURES), edge_index=torch.from_numpy(EDGES), edge_attr=torch.ones(3, 2))
    with pytest.warns(UserWarning, match="edge_attr has more than one column and is not used"):
        assert as_graph(data).edge_weight is None
