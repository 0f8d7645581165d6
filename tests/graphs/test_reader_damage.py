"""Random damage in every format gives an error message or a correct graph."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h3gnn.errors import InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.formats import read_graph_file
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.libraries import import_pyg
from h3gnn.tables.read import read_graph
from tests.fuzz.mutations import byte_changes
from tests.rejects import rejects

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

FEATURE_VALUES = np.array([[1.0, 0.0], [0.5, 2.0], [0.0, 0.0], [3.0, 1.0]])


def assert_trustworthy(graph: Graph) -> None:
    """Check all that other code assumes of a graph."""
    nodes, edges = graph.num_nodes, graph.edge_index
    assert nodes > 0
    assert graph.features.dtype == torch.float32
    assert torch.isfinite(graph.dense_features()).all()
    assert edges.dtype == torch.int64
    assert ((edges >= 0) & (edges < nodes)).all()
    keys = edges[1] * nodes + edges[0]
    assert (keys.diff() > 0).all()  # sorted by target, and no edge twice
    if graph.edge_weight is not None:
        assert graph.edge_weight.shape == (graph.num_edges,)
        assert torch.isfinite(graph.edge_weight).all()
        assert (graph.edge_weight > 0).all()
    if graph.labels is not None:
        assert graph.labels.shape == (nodes,)
        assert int(graph.labels.max()) < graph.num_classes
    if graph.train_mask is not None:
        assert graph.val_mask is not None
        assert graph.test_mask is not None
        assert graph.train_mask.shape[0] == nodes
        parts = graph.train_mask.int() + graph.val_mask.int() + graph.test_mask.int()
        assert int(parts.max()) <= 1
    assert len(set(graph.node_ids.tolist())) == nodes


CSV_EDGES = b"source,target,weight\nann,bob,1\nbob,cid,2.5\ncid,ann,3\ndan,ann,1\n"
CSV_FEATURES = b"id,f0,f1\nann,1,0\nbob,0.5,2\ncid,0,0\ndan,3,1\n"
CSV_LABELS = b"id,label,split\nann,red,train\nbob,blue,val\ncid,red,test\n"


def parquet(table: bytes) -> bytes:
    return saved(lambda file: pd.read_csv(io.BytesIO(table)).to_parquet(file, index=False))


def saved(save: Callable[[Any], None]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def network() -> nx.Graph:
    graph = nx.Graph([("ann", "bob"), ("bob", "cid")])
    for name, row in zip(graph.nodes, FEATURE_VALUES, strict=False):
        graph.nodes[name].update(x0=float(row[0]), x1=float(row[1]), y="red")
    return graph


def pt_file() -> bytes:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data = import_pyg().data.Data(
        x=torch.from_numpy(FEATURE_VALUES), edge_index=edges, y=torch.tensor([0, 1, 0, 1])
    )
    return saved(lambda file: torch.save(data, file))


def npz_graph() -> bytes:
    masks = np.array([[True, False, False, False]])
    parts: dict[str, Any] = {"edges": np.array([[0, 1], [2, 3]]), "node_features": FEATURE_VALUES}
    parts |= {"node_labels": np.array([0, 1, 1, 0]), "train_masks": masks}
    parts |= {"val_masks": np.roll(masks, 1), "test_masks": np.roll(masks, 2)}
    return saved(lambda file: np.savez(file, **parts))


Reader = Callable[[Path], Graph]


def with_fixed(part: str) -> Reader:
    """Read a damaged part together with sound others."""

    def read(path: Path) -> Graph:
        numbered = path.suffix in (".npy", ".npz")
        edges = path.parent / "sound_edges.csv"
        edges.write_bytes(b"0,1\n1,2\n3,0\n" if numbered else CSV_EDGES)
        features = path.parent / "sound_features.csv"
        features.write_bytes(CSV_FEATURES)
        if part == "edges":
            return read_graph(path, features=features)
        if part == "lone edges":
            return read_graph(path)
        if part == "features":
            return read_graph(edges, features=path)
        return read_graph(edges, features=features, labels=path)

    return read


SOUND: dict[str, tuple[str, Callable[[], bytes], Reader]] = {
    "csv edges": ("e.csv", lambda: CSV_EDGES, with_fixed("edges")),
    "lone csv edges": ("e.csv", lambda: CSV_EDGES, with_fixed("lone edges")),
    "csv features": ("f.csv", lambda: CSV_FEATURES, with_fixed("features")),
    "csv labels": ("y.csv", lambda: CSV_LABELS, with_fixed("labels")),
    "parquet edges": ("e.parquet", lambda: parquet(CSV_EDGES), with_fixed("lone edges")),
    "parquet features": ("f.parquet", lambda: parquet(CSV_FEATURES), with_fixed("features")),
    "npy": ("f.npy", lambda: saved(lambda file: np.save(file, FEATURE_VALUES)), with_fixed("features")),
    "npz": ("f.npz", lambda: saved(lambda file: np.savez(file, x=FEATURE_VALUES)), with_fixed("features")),
    "sparse npz": (
        "f.npz",
        lambda: saved(lambda file: sp.save_npz(file, sp.csr_matrix(FEATURE_VALUES), compressed=False)),
        with_fixed("features"),
    ),
    "graphml": ("g.graphml", lambda: saved(lambda file: nx.write_graphml(network(), file)), read_graph_file),
    "gml": ("g.gml", lambda: saved(lambda file: nx.write_gml(network(), file)), read_graph_file),
    "pt": ("g.pt", pt_file, read_graph_file),
    "npz graph": ("g.npz", npz_graph, read_graph_file),
}


@pytest.mark.parametrize("kind", SOUND)
def test_valid_files_are_read(kind: str, tmp_path: Path) -> None:
    name, content, read = SOUND[kind]
    (tmp_path / name).write_bytes(content())
    assert_trustworthy(read(tmp_path / name))


@pytest.mark.filterwarnings("ignore:.* attributes not used")  # a damaged name is that of another attribute
@pytest.mark.parametrize("kind", SOUND)
@QUICK
@given(damage=byte_changes())
def test_damaged_files_give_an_error_or_a_valid_graph(kind: str, damage: Callable[[bytes], bytes]) -> None:
    name, content, read = SOUND[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(damage(content()))
        try:
            graph = read(path)
        except InputError:
            return
        assert_trustworthy(graph)


def test_a_quotation_mark_that_opens_in_the_header_is_rejected(tmp_path: Path) -> None:
    """Two marks on the line, of which the first is inside a cell: the second would swallow all rows."""
    (tmp_path / "e.csv").write_bytes(CSV_EDGES.replace(b"target,weight", b't"arget,"weight'))
    with rejects("file-damaged"):
        read_graph(tmp_path / "e.csv", source_column=1, target_column=2, header=True, delimiter=",")


@settings(max_examples=200, deadline=None)
@given(damage=byte_changes())
def test_damaged_edges_are_read_as_by_the_csv_module_or_rejected(damage: Callable[[bytes], bytes]) -> None:
    content = damage(CSV_EDGES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e.csv"
        path.write_bytes(content)
        try:
            graph = read_graph(path, source_column=1, target_column=2, header=True, delimiter=",")
        except InputError:
            return
    text = content.decode("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    expected = {(row[0].strip(), row[1].strip()) for row in rows[1:]}
    ends = graph.edge_index.numpy()
    ids = [str(one) for one in graph.node_ids.tolist()]
    assert {(ids[start], ids[end]) for start, end in ends.T} == expected


NODE = st.text(
    st.characters(codec="utf-8", exclude_characters='",;\t\r\n\0#', exclude_categories=["Z", "C"]), min_size=1
)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=6, unique=True),
        st.lists(NODE, min_size=2, max_size=6, unique=True),
    ),
    chosen=st.data(),
    delimiter=st.sampled_from([",", "\t", ";"]),
    parquet_too=st.booleans(),
)
def test_any_valid_table_is_read_completely(
    ids: list[Any], chosen: st.DataObject, delimiter: str, parquet_too: bool
) -> None:
    pick = st.integers(0, len(ids) - 1)
    pairs = chosen.draw(st.lists(st.tuples(pick, pick), min_size=1, max_size=8))
    values = chosen.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=len(ids), max_size=len(ids)))
    edges = pd.DataFrame([(ids[start], ids[end]) for start, end in pairs], columns=["source", "target"])
    features = pd.DataFrame({"id": ids, "value": values})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges.to_csv(folder / "e.csv", index=False, sep=delimiter)
        features_path = folder / ("f.parquet" if parquet_too else "f.csv")
        if parquet_too:
            features.to_parquet(features_path)
        else:
            features.to_csv(features_path, index=False, sep=delimiter)
        graph = read_graph(folder / "e.csv", features=features_path)
    assert [str(one) for one in graph.node_ids.tolist()] == [str(one) for one in ids]
    assert {(int(start), int(end)) for start, end in graph.edge_index.t()} == set(pairs)
    np.testing.assert_array_equal(graph.features[:, 0], np.array(values, dtype=np.float32))


ANYTHING = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-5, 5), st.floats(), st.text(max_size=2), st.none()), max_size=4),
    st.lists(st.lists(st.floats(), max_size=3), max_size=4),
)


@pytest.mark.filterwarnings("ignore:edges. not used")  # rows of source, target and something else
@settings(max_examples=150, deadline=None)
@given(features=ANYTHING, edges=ANYTHING)
def test_random_objects_give_an_error_or_a_valid_graph(features: Any, edges: Any) -> None:
    with contextlib.suppress(InputError):
        assert_trustworthy(as_graph(features, edges))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    "begins", [[0, 6 * 10**18, -6 * 10**18, 2], [0, 2, 1, 2], [0, -1, 1, 2], [0, 9, 9, 2]]
)
def test_row_pointers_outside_a_sparse_matrix_are_rejected(
    tmp_path: Path, form: str, begins: list[int]
) -> None:
    """Differences of the first overflow to positive ones, and scipy would read other memory."""
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n")
    np.savez(
        tmp_path / "f.npz",
        format=np.array(form.encode()),
        shape=np.array([3, 3]),
        data=np.ones((2, 1, 1) if form == "bsr" else 2, np.float32),
        indices=np.array([0, 1]),
        indptr=np.array(begins),
    )
    with rejects("file-damaged"):
        read_graph(tmp_path / "e.csv", features=tmp_path / "f.npz")
