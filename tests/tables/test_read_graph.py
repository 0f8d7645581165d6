"""Read edges, features and labels from files: the right graph, or an error with file, line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from h3gnn.errors import GraphError
from h3gnn.graphs.structural import NO_FEATURES
from h3gnn.tables import files
from h3gnn.tables.read import read_graph
from h3gnn.tables.reader import Table
from tests.rejects import rejects
from tests.tables.written import named_edges, repairs, weights, write

EDGES = "source,target,weight\nann,bob,1\nbob,cid,2.5\ncid,ann,3\n"
FEATURES = "id,f0,f1\nann,1,0\nbob,2,1\ncid,3,0\neve,4,1\n"
LABELS = "id,label,split_0,split_1\nann,red,train,test\nbob,blue,val,train\ncid,,test,\n"


def test_three_files_with_text_ids(tmp_path: Path) -> None:
    paths = write(tmp_path, edges=EDGES, features=FEATURES, labels=LABELS)
    graph = read_graph(**paths)
    assert graph.node_ids.tolist() == ["ann", "bob", "cid", "eve"]
    assert weights(graph) == {("ann", "bob"): 1, ("bob", "cid"): 2.5, ("cid", "ann"): 3}
    assert graph.features.tolist() == [[1, 0], [2, 1], [3, 0], [4, 1]]
    assert graph.class_names == ("blue", "red")
    assert graph.labels is not None
    assert graph.labels.tolist() == [1, 0, -1, -1]
    assert graph.num_splits == 2
    assert graph.train_mask is not None
    assert graph.train_mask.tolist() == [[True, False], [False, True], [False, False], [False, False]]
    assert graph.provenance.source == "edges.csv, features.csv, labels.csv"


def test_parquet_gives_the_same_graph_as_csv(tmp_path: Path) -> None:
    paths = write(tmp_path, edges=EDGES, features=FEATURES, labels=LABELS)
    expected = read_graph(**paths)
    for name, path in paths.items():
        pd.read_csv(path).to_parquet(tmp_path / f"{name}.parquet")
    graph = read_graph(**{name: path.with_suffix(".parquet") for name, path in paths.items()})
    assert graph.provenance.sha256 == expected.provenance.sha256
    assert graph.node_ids.tolist() == expected.node_ids.tolist()


def test_a_parquet_column_of_lists_is_a_table_of_features(tmp_path: Path) -> None:
    edges = write(tmp_path, edges="0,1\n1,2\n")["edges"]
    vectors: Any = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    pd.DataFrame({"id": [0, 1, 2], "vector": vectors}).to_parquet(tmp_path / "f.parquet")
    assert read_graph(edges, features=tmp_path / "f.parquet").features.tolist() == [[1, 2], [3, 4], [5, 6]]
    vectors = [[1.0], [2.0], [3.0, 4.0]]
    pd.DataFrame({"id": [0, 1, 2], "vector": vectors}).to_parquet(tmp_path / "ragged.parquet")
    with rejects("cell-unreadable") as caught:
        read_graph(edges, features=tmp_path / "ragged.parquet")
    assert "ragged.parquet, row 3, column 2 (vector)" in caught.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.csv", "0,1\n1,2\n"),
        ("e.csv", "a,b\n0,1\n1,2\n"),
        ("e.tsv", "from\tto\n0\t1\n1\t2\n"),
        ("e.csv", "0;1\n1;2\n"),
        ("e.txt", "# a comment\n# another\n0 1\n1 2\n"),
        ("e.csv", "\ufeffsource,target\n0,1\n\n1,2\n\n"),
        ("e.csv", "source,target\r\n0,1\r\n1,2\r\n"),
        ("e.csv", "source,target\r0,1\r\r1,2\r"),
        ("e.csv", '"source","target"\n"0","1"\n"1","2"\n'),
        ("e.csv", "source, target\n0, 1\n1, 2\n"),
    ],
)
def test_ways_of_writing_the_same_edges(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    graph = read_graph(tmp_path / name)
    assert named_edges(graph) == {(0, 1), (1, 2)}
    assert graph.node_ids.dtype == np.int64
    assert graph.provenance.structural
    assert NO_FEATURES in graph.provenance.repairs


def test_ids_that_look_like_numbers_but_are_not_stay_apart(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, edges="source,target\n007,7\n7,07\n")["edges"])
    assert sorted(graph.node_ids.tolist()) == ["007", "07", "7"]


def test_columns_by_name_and_by_position(tmp_path: Path) -> None:
    text = "when,who,whom,strength\n9,0,1,2\n8,1,2,4\n"
    path = write(tmp_path, edges=text)["edges"]
    by_name = read_graph(path, source_column="who", target_column="whom", weight_column="strength")
    by_position = read_graph(path, source_column=2, target_column=3, weight_column="4")
    assert weights(by_name) == {(0, 1): 2, (1, 2): 4}
    assert by_position.provenance.sha256 == by_name.provenance.sha256
    plain = read_graph(path, source_column="who", target_column="whom", link_columns=False)
    unused = (("when", "strength"), "edge-columns-unused")
    assert unused in [(one.fields, one.code) for one in plain.provenance.repairs]
    with rejects("column-missing"):
        read_graph(path, source_column=9)
    with rejects("column-missing"):
        read_graph(path, source_column="who", target_column="nobody")


def test_a_header_can_be_declared(tmp_path: Path) -> None:
    path = write(tmp_path, edges="person,friend\nann,bob\nbob,cid\n")["edges"]
    with rejects("header-ambiguous"):
        read_graph(path)
    assert named_edges(read_graph(path, header=True)) == {("ann", "bob"), ("bob", "cid")}
    assert ("person", "friend") in named_edges(read_graph(path, header=False))


def test_a_first_row_that_is_half_a_header_is_not_guessed(tmp_path: Path) -> None:
    paths = write(tmp_path, edges="0,1\n", features="0,1.0,x2\n1,2.0,3.0\n")
    with rejects("header-ambiguous"):
        read_graph(**paths)


def test_blocks_of_one_line_make_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an id looks like a number in one block and like a text in the next."""
    edges = "source,target,weight\r\n7,8,1\r\n8,ann,2.5\r\n\r\nann,7,3"
    paths = write(tmp_path, edges=edges, labels="id,label\n7,1\n8,\nann,0\n")
    whole = read_graph(**paths)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1)
    parts = read_graph(**paths)
    assert parts.node_ids.tolist() == whole.node_ids.tolist() == ["7", "8", "ann"]
    assert parts.class_names == whole.class_names == ("0", "1")
    assert parts.provenance == whole.provenance


def test_ids_of_nineteen_digits_stay_whole_numbers_and_longer_ones_are_texts(tmp_path: Path) -> None:
    path = write(tmp_path, edges=f"source,target\n{2**63 - 1},{-(2**63)}\n")["edges"]
    assert read_graph(path).node_ids.tolist() == [-(2**63), 2**63 - 1]
    path = write(tmp_path, edges=f"source,target\n{2**63},7\n")["edges"]
    assert read_graph(path).node_ids.tolist() == ["7", str(2**63)]


def test_a_column_may_be_id_and_feature_and_names_may_occur_twice(tmp_path: Path) -> None:
    paths = write(tmp_path, edges="0,1\n", features="id,f\n0,5\n1,6\n")
    graph = read_graph(**paths, feature_columns=["f", "id"])
    assert graph.features.tolist() == [[5, 0], [6, 1]]
    columns = [pa.array([0, 1]), pa.array([5.0, 6.0]), pa.array([7.0, 8.0])]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "f", "f"]), tmp_path / "f.parquet")
    graph = read_graph(paths["edges"], features=tmp_path / "f.parquet")
    assert graph.features.tolist() == [[5, 7], [6, 8]]


@pytest.mark.parametrize("kind", ["npy", "dense npz", "sparse npz"])
def test_features_by_row_number(tmp_path: Path, kind: str) -> None:
    values = np.array([[1.0, 0], [0, 2], [0, 0]], dtype=np.float32)
    path = tmp_path / ("f.npy" if kind == "npy" else "f.npz")
    if kind == "npy":
        np.save(path, values)
    elif kind == "dense npz":
        np.savez(path, other=np.ones(2), features=values)
    else:
        sp.save_npz(path, sp.csc_matrix(values))
    graph = read_graph(write(tmp_path, edges="0,1\n1,2\n")["edges"], features=path)
    np.testing.assert_array_equal(graph.dense_features(), values)
    assert not graph.has_ids
    with rejects("node-unknown") as caught:
        read_graph(write(tmp_path, bad="0,1\n3,1\n")["bad"], features=path)
    assert "bad.csv, line 2: node 3" in caught.message


@pytest.mark.parametrize("unknown", ["error", "add"])
def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str) -> None:
    reads: list[str] = []
    read = Table._arrow_blocks

    def counted(table: Table, *arguments: Any) -> Any:
        reads.append(table.path.name)
        return read(table, *arguments)

    monkeypatch.setattr(Table, "_arrow_blocks", counted)
    features = "account_id,town,f\nann,Ulm,1\nbob,Ulm,\ncid,Bonn,3\n"
    read_graph(**write(tmp_path, edges=EDGES, features=features, labels=LABELS), unknown_nodes=unknown)
    assert sorted(reads) == ["edges.csv", "features.csv", "labels.csv"]


def test_undirected_adds_the_opposite_of_every_edge_but_a_loop(tmp_path: Path) -> None:
    path = write(tmp_path, edges="source,target,weight\na,b,2\nb,b,1\nb,c,3\n")["edges"]
    graph = read_graph(path, undirected=True)
    assert weights(graph) == {("a", "b"): 2, ("b", "a"): 2, ("b", "b"): 1, ("b", "c"): 3, ("c", "b"): 3}


def test_repairs_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, edges="source,target,weight\na,b,1\na,b,2\nb,b,1\n")["edges"]
    graph = read_graph(path)
    assert weights(graph) == {("a", "b"): 3, ("b", "b"): 1}
    assert (repairs(graph)["duplicate-edges"], repairs(graph)["self-loops"]) == (1, 1)


def test_number_labels_keep_their_order_and_a_negative_one_is_a_class(tmp_path: Path) -> None:
    paths = write(tmp_path, edges="0,1\n1,2\n2,3\n", labels="node,class\n0,10\n1,9\n2,-1\n3,\n")
    graph = read_graph(**paths)
    assert graph.class_names == ("-1", "9", "10")
    assert graph.labels is not None
    assert graph.labels.tolist() == [2, 1, 0, -1]


def test_nodes_of_labels_alone_are_isolated_nodes(tmp_path: Path) -> None:
    graph = read_graph(**write(tmp_path, edges="0,1\n", labels="id,label\n7,x\n"))
    assert graph.node_ids.tolist() == [0, 1, 7]


BAD_EDGES = [
    ("source,target\na,b\nc\n", "row-length-differs", "edges.csv, line 3: 1 cell(s)"),
    ("source,target\n\na,b\na,b,c\n", "row-length-differs", "edges.csv, line 4: 3 cell(s)"),
    ("source,target\na,b\n,b\n", "id-missing", "edges.csv, line 3, column 1 (source):"),
    ("source,target,weight\na,b,1\nb,a,heavy\n", "cell-unreadable", "line 3, column 3 (weight):"),
    ("source,target,weight\na,b,1\nb,a,0\n", "edge-weight-not-positive", "edges.csv, line 3:"),
    ("source,target,weight\na,b,1\nb,a,\n", "edge-weight-not-positive", "line 3: the edge weight nan"),
    ("source\na\n", "column-missing", "edges.csv"),
    ("source,target\n", "table-empty", "edges.csv"),
    ("", "file-empty", "edges.csv"),
    ("\n\n", "table-empty", "edges.csv"),
    ('source,target\na,"b\nb,c"\n', "text-invalid", "line 2: a quotation mark"),
    ("source,target\na,b\0\n", "text-invalid", "line 2: a zero byte"),
    ("# note\n\nsource,target\n\n\na,b\n\n,b\n", "id-missing", "edges.csv, line 8, column 1 (source)"),
]
BAD_FEATURES = [
    ("id,f\nann,1\nbob,2\n", "node-unknown", "edges.csv, line 4: node 'cid'"),
    ("id,f\nann,1\nbob,2\nann,3\n", "id-duplicate", "line 4: node 'ann'"),
    ("id,f\nann,1\nbob,x\ncid,1\n", "cell-unreadable", "line 3, column 2 (f):"),
    ("id,f\nann,1\nbob,inf\ncid,1\n", "feature-not-finite", "line 3, column 2 (f):"),
    ("id,f\nann,1\nbob,1e60\ncid,1\n", "feature-not-finite", "line 3, column 1:"),
    ("id\nann\n", "column-missing", "features.csv"),
    ("branch,account_id,f\n1,ann,1\n1,,2\n1,cid,2\n", "id-missing", "line 3, column 2 (account_id):"),
]
BAD_LABELS = [
    ("id,label\nann,1\nzoe,2\n", "node-unknown", "line 3: node 'zoe'"),
    ("id,label\nann,1\nann,2\n", "id-duplicate", "line 3: node 'ann'"),
    ("id,split\nann,train\nbob,maybe\n", "split-unknown", "line 3, column 2 (split): 'maybe'"),
    ("id\nann\n", "column-missing", "labels.csv"),
]
BAD: list[tuple[dict[str, str], str, str]] = [
    *(({"edges": text}, code, place) for text, code, place in BAD_EDGES),
    *(({"edges": EDGES, "features": text}, code, place) for text, code, place in BAD_FEATURES),
    *(
        ({"edges": EDGES, "features": FEATURES, "labels": text}, code, place)
        for text, code, place in BAD_LABELS
    ),
    ({"edges": EDGES, "labels": "who,what\nann,x\nbob,y\n"}, "header-ambiguous", "labels.csv, line 1: 'who'"),
]


@pytest.mark.parametrize(("texts", "code", "place"), BAD)
def test_invalid_tables_are_rejected_with_file_line_and_column(
    tmp_path: Path, texts: dict[str, str], code: str, place: str
) -> None:
    with rejects(code, GraphError) as caught:
        read_graph(**write(tmp_path, **texts))
    assert place in caught.message


def test_paths_that_are_no_tables_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    names = {".": "file-is-directory", "folder.csv": "file-is-directory", "none.csv": "file-missing"}
    for name, code in {**names, "edges.xlsx": "file-suffix-unknown"}.items():
        with rejects(code):
            read_graph(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("source,target\nzoë,b\n".encode("latin-1"), "line 2"),
        ("source,target\na,b\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_texts_that_are_not_utf8_are_rejected(tmp_path: Path, content: bytes, place: str) -> None:
    (tmp_path / "e.csv").write_bytes(content)
    with rejects("text-invalid") as caught:
        read_graph(tmp_path / "e.csv")
    assert place in caught.message


def test_parquet_types_that_are_no_ids_or_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"source": [0], "target": [1], "weight": [[1.0]]}).to_parquet(tmp_path / "e.parquet")
    with rejects("column-not-numeric"):
        read_graph(tmp_path / "e.parquet")
    edges = write(tmp_path, edges="0,1\n")["edges"]
    pd.DataFrame({"id": [0.5, 1.5], "f": [1, 2]}).to_parquet(tmp_path / "f.parquet")
    with rejects("id-type-invalid") as caught:
        read_graph(edges, features=tmp_path / "f.parquet")
    assert "f.parquet, column 1 (id): 0.5 is a float" in caught.message
    pd.DataFrame({"id": [0, 1], "f": ["x", "y"]}).to_parquet(tmp_path / "f.parquet")
    with rejects("no-usable-column"):
        read_graph(edges, features=tmp_path / "f.parquet")
    pd.DataFrame({"id": [0, 1], "f": [1.0, None]}).to_parquet(tmp_path / "f.parquet")
    assert read_graph(edges, features=tmp_path / "f.parquet").features.tolist() == [[0, 0], [0, 1]]
    pd.DataFrame({"id": [0, 1], "f": [1.0, 2.0]}).head(0).to_parquet(tmp_path / "f.parquet")
    with rejects("table-empty"):
        read_graph(edges, features=tmp_path / "f.parquet")
