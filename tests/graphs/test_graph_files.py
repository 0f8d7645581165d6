"""Graph files, including malicious ones."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from h3gnn.errors import GraphError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.formats import read_graph_file
from h3gnn.graphs.libraries import import_pyg
from h3gnn.graphs.structural import NO_FEATURES
from h3gnn.tables.read import read_graph
from tests.graphs.helpers import edge_set, listed
from tests.rejects import rejects

Data = import_pyg().data.Data


def small_data(**more: Any) -> Any:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    return Data(x=torch.tensor([[1.0], [2.0], [3.0]]), edge_index=edges, y=torch.tensor([0, 1, 0]), **more)


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
def test_graphml_and_gml_keep_names_classes_weights_and_numbered_features(
    tmp_path: Path, suffix: str
) -> None:
    network = nx.Graph()
    network.add_node("ann", x0=1.0, x1=2.0, y="red", age=40)
    network.add_node("bob", x0=3.0, x1=4.0, y="blue", age=50)
    network.add_edge("ann", "bob", weight=2.0)
    path = tmp_path / f"g.{suffix}"
    {"graphml": nx.write_graphml, "gml": nx.write_gml}[suffix](network, path)
    with pytest.warns(UserWarning, match="node attributes not used: age") as said:
        graph = read_graph_file(path)
    assert graph.node_ids.tolist() == ["ann", "bob"]
    assert graph.features.tolist() == [[1, 2], [3, 4]]
    assert graph.class_names == ("blue", "red")
    assert edge_set(graph) == {(0, 1), (1, 0)}
    assert graph.edge_weight is not None
    assert [repair.message for repair in graph.provenance.repairs] == [str(said[0].message)]
    assert "features=['age'] of as_graph or read_graph_file (--feature-columns age)" in str(said[0].message)


def test_attributes_are_chosen_by_name_and_a_warning_names_the_others(tmp_path: Path) -> None:
    network = nx.Graph()
    network.add_node("ann", a=1.0, b=2, label="red", word="x")
    network.add_node("bob", a=3.0, b=4, label="blue", word="y")
    network.add_edge("ann", "bob", since=1999)
    path = tmp_path / "g.graphml"
    nx.write_graphml(network, path)
    with pytest.warns(UserWarning, match="not used") as said:
        bare = read_graph_file(path)
    assert "edge attributes not used: since" in {str(one.message) for one in said}
    assert bare.labels is None
    assert bare.num_features >= 8
    assert (
        "node attributes not used: a, b, label, word; use them by features=['a', 'b'], labels='label' "
        "of as_graph or read_graph_file (--feature-columns a,b --label-column label)"
    ) in {str(one.message) for one in said}
    for read in (partial(read_graph_file, path), partial(as_graph, network)):
        with pytest.warns(UserWarning, match="not used") as said:
            graph = read(features=["b", "a"], labels="label")
        assert graph.features.tolist() == [[2, 1], [4, 3]]
        assert graph.feature_names == ("b", "a")
        assert graph.class_names == ("blue", "red")
        assert "node attributes not used: word" in {str(one.message) for one in said}
        with rejects("attribute-unknown"):
            read(features="age")
        with rejects("attribute-unknown"):
            read(labels="age")
        with rejects("not-numbers"):
            read(features="word")
    with rejects("attributes-unsupported"):
        as_graph(bare, features="a")
    torch.save(small_data(), tmp_path / "d.pt")
    with rejects("attributes-unsupported"):
        read_graph_file(tmp_path / "d.pt", features="a")


def test_an_attribute_with_few_words_is_offered_as_the_class() -> None:
    with pytest.warns(UserWarning, match=r"not used: club; use them by labels='club' of as_graph"):
        as_graph(nx.karate_club_graph())


def test_lists_and_numbers_are_combined_as_columns() -> None:
    network = nx.path_graph(2)
    nx.set_node_attributes(network, {0: [1.0, 2.0], 1: [3.0, 4.0]}, "place")
    nx.set_node_attributes(network, {0: 5, 1: 6}, "age")
    graph = as_graph(network, features=["place", "age"])
    assert graph.features.tolist() == [[1, 2, 5], [3, 4, 6]]
    assert graph.feature_names == ("place[0]", "place[1]", "age")
    del network.nodes[1]["age"]
    with rejects("attribute-missing"):
        as_graph(network, features="age")


def test_gml_without_labels_and_graphml_with_numbers_in_a_text(tmp_path: Path) -> None:
    (tmp_path / "g.gml").write_text(
        "graph [\n node [ id 5 ]\n node [ id 7 ]\n edge [ source 5 target 7 ]\n]\n"
    )
    graph = read_graph_file(tmp_path / "g.gml")
    assert graph.node_ids.tolist() == [5, 7]
    assert graph.provenance.structural
    assert NO_FEATURES in graph.provenance.repairs
    network = nx.DiGraph([("a", "b")])
    nx.set_node_attributes(network, {"a": "[1.5, 2]", "b": "3 4"}, "x")
    nx.write_graphml(network, tmp_path / "g.graphml")
    assert read_graph_file(tmp_path / "g.graphml").features.tolist() == [[1.5, 2], [3, 4]]


def test_data_and_a_dict_of_its_parts_are_read_from_pt(tmp_path: Path) -> None:
    data = small_data(train_mask=torch.tensor([True, False, False]))
    torch.save(data, tmp_path / "data.pt")
    torch.save(data.to_dict(), tmp_path / "dict.pt")
    first, second = (read_graph_file(tmp_path / name) for name in ("data.pt", "dict.pt"))
    assert edge_set(first) == {(0, 1), (1, 2), (2, 0)}
    assert first.num_splits == 1
    assert first.provenance.sha256 == second.provenance.sha256


def test_a_saved_pyg_dataset_of_one_graph_is_read(tmp_path: Path) -> None:
    import_pyg().data.InMemoryDataset.save([small_data()], str(tmp_path / "saved.pt"))
    assert read_graph_file(tmp_path / "saved.pt").num_nodes == 3


class Payload:
    """An object that writes a file while it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_pt_files_that_would_execute_code_are_rejected(tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    hidden = small_data()
    hidden["extra"] = Payload(marker)
    for number, content in enumerate(
        (Payload(marker), {"edge_index": Payload(marker)}, hidden, [Payload(marker)])
    ):
        path = tmp_path / f"{number}.pt"
        torch.save(content, path)
        with rejects("file-damaged"):
            read_graph_file(path)
        (tmp_path / "old.pt").write_bytes(pickle.dumps(content))
        with rejects("file-damaged"):
            read_graph_file(tmp_path / "old.pt")
        assert not marker.exists()
        torch.load(path, weights_only=False)  # the proof that the file was armed
        assert marker.exists()
        marker.unlink()


def test_numpy_files_that_would_execute_code_are_rejected(tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    armed = np.array([[Payload(marker)]], dtype=object)
    np.save(tmp_path / "f.npy", armed)
    np.savez(tmp_path / "f.npz", features=armed)
    np.savez(tmp_path / "graph.npz", edges=armed)
    (tmp_path / "e.csv").write_text("0,0\n")
    marker.unlink(missing_ok=True)
    for name in ("f.npy", "f.npz"):
        with rejects("file-damaged"):
            read_graph(tmp_path / "e.csv", features=tmp_path / name)
    with rejects("file-damaged"):
        read_graph_file(tmp_path / "graph.npz")
    assert not marker.exists()


def test_npz_of_the_heterophilous_benchmark(tmp_path: Path) -> None:
    masks = np.array([[True, False, False], [False, True, False]])
    np.savez(
        tmp_path / "g.npz",
        edges=np.array([[0, 1], [2, 1]]),
        node_features=np.eye(3, dtype=np.float32),
        node_labels=np.array([0, 1, 1]),
        train_masks=masks,
        val_masks=np.roll(masks, 1, axis=1),
        test_masks=np.roll(masks, 2, axis=1),
    )
    graph = read_graph_file(tmp_path / "g.npz")
    assert edge_set(graph) == {(0, 1), (1, 0), (2, 1), (1, 2)}
    assert graph.num_splits == 2
    assert listed(graph.train_mask) == masks.T.tolist()


def test_a_sparse_matrix_with_indices_out_of_range_is_rejected(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.eye(3))
    parts: dict[str, Any] = {
        "indices": np.array([0, 1, 999_999]),
        "indptr": matrix.indptr,
        "data": matrix.data,
    }
    np.savez(tmp_path / "f.npz", format=b"csr", shape=np.array([3, 3]), **parts)
    (tmp_path / "e.csv").write_text("0,1\n")
    with rejects("file-damaged"):
        read_graph(tmp_path / "e.csv", features=tmp_path / "f.npz")


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("g.graphml", b"<graphml>", "file-damaged"),
        ("g.graphml", b"", "file-empty"),
        ("g.gml", b"graph [ node [ id ] ]", "file-damaged"),
        ("g.gml", b"graph [ ]", "graph-empty"),
        ("g.pt", b"PK nonsense", "file-damaged"),
        ("g.npz", b"PK\x03\x04", "file-damaged"),
        ("g.json", b"{}", "file-suffix-unknown"),
    ],
)
def test_damaged_and_unknown_files_are_rejected(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(content)
    with rejects(code, GraphError) as caught:
        read_graph_file(tmp_path / name)
    assert str(tmp_path / name) in caught.message


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        ({"x": torch.ones(2, 2)}, "edges-missing"),
        (torch.ones(2, 2), "not-a-graph"),
        (Data(x=torch.ones(2, 2), edge_index=torch.tensor([[0], [5]])), "edge-node-unknown"),
    ],
    ids=["no edges", "no graph", "unknown node"],
)
def test_pt_files_without_a_graph_are_rejected(tmp_path: Path, stored: Any, code: str) -> None:
    torch.save(stored, tmp_path / "g.pt")
    with rejects(code):
        read_graph_file(tmp_path / "g.pt")


def test_errors_inside_a_graph_file_name_the_file(tmp_path: Path) -> None:
    network = nx.path_graph(["a", "b"])
    network.nodes["a"]["x0"] = 1.0
    nx.write_graphml(network, tmp_path / "g.graphml")
    with rejects("attribute-missing") as caught:
        read_graph_file(tmp_path / "g.graphml")
    assert "g.graphml: node 'b'" in caught.message
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 5]]), node_labels=np.array([0, 1]))
    with rejects("edge-node-unknown"):
        read_graph_file(tmp_path / "g.npz")
    (tmp_path / "e.csv").write_text("0,1\n")
    np.save(tmp_path / "f.npy", np.empty((0, 3)))
    with rejects("features-empty"):
        read_graph(tmp_path / "e.csv", features=tmp_path / "f.npy")
