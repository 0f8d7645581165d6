"""Ids that look alike stay different nodes or are rejected, wherever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from h3gnn import Graph, NodeClassifier, as_graph, read_graph
from h3gnn.answers.similarity import find_nodes
from h3gnn.experiments.report_columns import read_columns
from tests.inputs.tables import outcome, repairs, save
from tests.rejects import rejects

LARGE = 2**53 + 1
HASHES = [2**63 + 5, 2**64 - 1, 7]


def edges_of(graph: Graph) -> set[tuple[Any, Any]]:
    """Return the edges by id."""
    ids = graph.node_ids.tolist()
    return {(ids[start], ids[end]) for start, end in graph.edge_index.T.tolist()}


def read_text(folder: Path, edges: str, features: str | None = None, labels: str | None = None) -> Graph:
    """Return the graph of tables given as text."""
    paths: dict[str, Any] = {}
    for name, text in (("edges", edges), ("features", features), ("labels", labels)):
        if text is not None:
            paths[name] = folder / f"{name}.csv"
            paths[name].write_text(text)
    return read_graph(**paths)


ALIKE = [
    ["001", "1", "01"],
    ["1e5", "100000", "1E5"],
    [str(LARGE), str(LARGE - 1), str(LARGE + 1)],
    [str(one) for one in HASHES],
    ["a", "A", "á"],
    ["+1", "1", "-1"],
    ["0x10", "16", "10"],
    ["1_000", "1000", "1 000"],
    ["1,5", "1.5", "15"],
]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("ids", ALIKE, ids=" ".join)
def test_written_ids_stay_distinct(tmp_path: Path, ids: list[str], suffix: str) -> None:
    table = pd.DataFrame({"source": ids, "target": [*ids[1:], ids[0]]})
    path = tmp_path / f"e.{suffix}"
    table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    graph = read_graph(path)
    assert {str(one) for one in graph.node_ids.tolist()} == {*ids}
    features = pd.DataFrame({"id": ids[::-1], "size": [1.0, 2.0, 3.0]})
    joined = read_graph(path, features=save(features, tmp_path / "f"))
    assert [str(one) for one in joined.node_ids.tolist()] == ids[::-1]
    assert {tuple(map(str, one)) for one in edges_of(joined)} == {*table.itertuples(index=False, name=None)}


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        (HASHES, "uint64"),
        ([LARGE, LARGE - 1, 7], "int64"),
        ([1, 2, 3], "uint64"),
        ([-1, -2, 3], "int32"),
        ([1, 2, 3], "float64"),
        ([1, 2, 3], "Int64"),
        (["001", "1", "1.0"], object),
        (["001", "1", "1.0"], "str"),
        (["001", "1", "1.0"], "category"),
    ],
)
def test_ids_of_frames_and_parquet_stay_distinct(tmp_path: Path, ids: list[Any], dtype: Any) -> None:
    column = pd.Series(ids).astype(dtype)
    edges = pd.DataFrame({"source": column, "target": column.iloc[[1, 2, 0]].to_numpy()})
    edges["target"] = edges["target"].astype(column.dtype)
    features = pd.DataFrame({"id": column, "size": [1.0, 2.0, 3.0]})
    wanted = {(str(ids[at]), str(ids[(at + 1) % 3])) for at in range(3)}
    stored = read_graph(
        save(edges, tmp_path / "e", "parquet"), features=save(features, tmp_path / "f", "parquet")
    )
    for graph in (stored, as_graph(features, edges=edges), as_graph(features.set_index("id"), edges=edges)):
        assert {tuple(map(str, one)) for one in edges_of(graph)} == wanted
        assert find_nodes(graph, column.to_numpy()).tolist() == [0, 1, 2]
        assert find_nodes(graph, ids[::-1]).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ([float(LARGE), 1.0, 2.0], "id-type-invalid"),
        ([0.5, 1.5, 2.5], "id-type-invalid"),
        ([1.0, np.inf, 2.0], "id-type-invalid"),
        ([True, False, True], "id-type-invalid"),
        ([1.0, np.nan, 2.0], "id-missing"),
        (["a", None, "b"], "id-missing"),
        (["a", "", "b"], "id-missing"),
        ([1, "1", 2], "id-ambiguous"),
        ([1, 1, 2], "id-duplicate"),
    ],
)
def test_ids_that_are_not_exact_or_missing_are_rejected(tmp_path: Path, cells: list[Any], code: str) -> None:
    features = pd.DataFrame({"id": pd.Series(cells), "size": [1.0, 2.0, 3.0]})
    edges = pd.DataFrame({"source": ["a"], "target": ["b"]})
    with rejects(code):
        as_graph(features, edges=edges)
    if code != "id-duplicate":
        with rejects(code):
            read_graph(pd.DataFrame({"source": ["a"] * 3, "target": cells}))
    if code != "id-ambiguous":  # Parquet has no columns of several types
        with rejects(code):
            read_graph(save(edges, tmp_path / "e"), features=save(features, tmp_path / "f", "parquet"))


@pytest.mark.parametrize("written", ["1.0", "001", "1e0", "+1"])
def test_text_and_integers_are_one_clear_error(tmp_path: Path, written: str) -> None:
    with rejects("node-unknown") as caught:
        read_text(tmp_path, f"source,target\n{written},2\n", "id,size\n1,5\n2,6\n3,7\n")
    assert "which has 1" in caught.message
    with rejects("node-unknown"):
        read_text(tmp_path, "source,target\n1,2\n", "id,size\n1,5\n2,6\n", f"id,label\n{written},x\n2,y\n")
    with rejects("node-unknown"):
        as_graph(
            pd.DataFrame({"id": [1, 2], "size": [1.0, 2.0]}),
            edges=pd.DataFrame({"source": [written], "target": ["2"]}),
        )


def test_text_that_writes_integers_canonically_joins_them(tmp_path: Path) -> None:
    features = pd.DataFrame({"id": [2, 1], "size": [2.0, 1.0]})
    edges = pd.DataFrame({"source": ["1"], "target": ["2"]})
    assert edges_of(as_graph(features, edges=edges)) == {(1, 2)}
    text = features.assign(id=["2", "1"])
    assert edges_of(as_graph(text, edges=edges.astype(int))) == {(1, 2)}


@pytest.mark.parametrize("labels", [None, "id,label\n1.0,x\n3,y\n"])
def test_one_and_one_point_zero_in_edges_are_asked_about(tmp_path: Path, labels: str | None) -> None:
    edges = "source,target\n1,2\n2,3\n" if labels else "source,target\n1,2.0\n2,3.0\n"
    with rejects("id-ambiguous"):
        read_text(tmp_path, edges, labels=labels)


@pytest.mark.parametrize("word", ["NA", "NaN", "null", "None", "#N/A", "\\N", "<NA>"])
def test_words_for_missing_values_are_asked_about_in_edges(tmp_path: Path, word: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(f"source,target\na,b\nb,{word}\nc,{word}\nc,a\n")
    with rejects("id-missing-word"):
        read_graph(path)
    without = read_graph(path, unknown_nodes="drop")
    assert edges_of(without) == {("a", "b"), ("c", "a")}
    assert repairs(without)["edges-of-unknown-nodes"].count == 2
    assert edges_of(read_graph(path, unknown_nodes="add")) >= {("b", word), ("c", word)}


def test_a_row_of_the_features_makes_such_a_word_an_id(tmp_path: Path) -> None:
    graph = read_text(tmp_path, "source,target\nDE,NA\n", "id,size\nNA,1\nDE,2\n")
    assert edges_of(graph) == {("DE", "NA")}


def test_nodes_of_other_objects(tmp_path: Path) -> None:
    with rejects("node-id-duplicate"):
        as_graph(nx.Graph([(1, "1")]))
    with rejects("id-type-invalid"):
        as_graph(nx.Graph([(1.0, float(LARGE))]))
    graph = as_graph(nx.Graph([(one, 0) for one in HASHES]))
    assert {*graph.node_ids.tolist()} == {"0", *map(str, HASHES)}


def test_a_classifier_finds_large_and_padded_ids() -> None:
    for ids in ([LARGE, LARGE + 1, LARGE + 2], HASHES, ["001", "1", "01"]):
        frame = pd.DataFrame({"id": ids, "size": [1.0, 2.0, 3.0]})
        nodes = NodeClassifier(graph=frame, edges=pd.DataFrame({"source": ids[:2], "target": ids[1:]}))
        nodes.graph_ = as_graph(nodes.graph, edges=nodes.edges)
        for given in (ids, np.array(ids, dtype=object), pd.Series(ids)):
            assert nodes._positions(given).tolist() == [0, 1, 2]
    with rejects("id-type-invalid"):
        nodes._positions([float(LARGE), 1.0])
    with rejects("unknown-node"):
        nodes._positions([1.5])


@pytest.mark.parametrize(
    "ids", [["001", "1", "1.0"], [str(LARGE), str(LARGE - 1), "7"], ["NA", "1e5", "100000"]], ids=" ".join
)
def test_columns_of_a_report_are_joined_by_the_same_ids(tmp_path: Path, ids: list[str]) -> None:
    (tmp_path / "own.csv").write_text("who,size\n" + "".join(f"{one},{at}\n" for at, one in enumerate(ids)))
    nodes = np.array(ids[::-1], dtype=object)
    (size,) = read_columns(tmp_path / "own.csv", nodes).measures
    assert size.values.tolist() == [2, 1, 0]


MISSING = ["NaN", "NA", "null", "None", "#N/A", "\\N", "n/a", ""]


@pytest.mark.parametrize("word", MISSING)
def test_missing_words_are_missing_in_every_column(tmp_path: Path, word: str) -> None:
    assert outcome(tmp_path, ["1.5", word, "30"]) == [1.5, None, 30]
    (tmp_path / "own.csv").write_text(f"who,town,size\na,Ulm,1\nb,{word},{word}\nc,Ulm,2\nd,Bonn,3\n")
    own = read_columns(tmp_path / "own.csv", np.array(list("abcd"), dtype=object))
    assert own.categories[0].values.tolist() == [0, -1, 0, 1]
    np.testing.assert_array_equal(own.measures[0].values, [1, np.nan, 2, 3])
    towns = pd.DataFrame({"id": list("abcd"), "town": ["Ulm", word, "Ulm", "Bonn"], "size": range(4)})
    edges = pd.DataFrame({"source": list("abc"), "target": list("bcd")})
    missing = towns.assign(town=pd.Series(["Ulm", None, "Ulm", "Bonn"], dtype=object))
    stored = read_graph(save(edges, tmp_path / "e"), features=save(towns, tmp_path / "f"))
    for frame in (towns, missing):
        graph = as_graph(frame, edges=edges)
        assert graph.feature_names == stored.feature_names
        np.testing.assert_array_equal(graph.dense_features(), stored.dense_features())
    labels = towns.rename(columns={"town": "label"}).assign(label=["x", word, "x", "y"])
    for source in (save(labels[["id", "label"]], tmp_path / "y"), labels[["id", "label"]]):
        graph = read_graph(edges, features=towns, labels=source)
        assert graph.class_names == ("x", "y")
        assert graph.labels is not None
        assert graph.labels.tolist() == [0, -1, 0, 1]


@pytest.mark.parametrize(("node", "row"), [("056", "56"), ("56", "056"), ("56.0", "056"), ("1e2", "100")])
def test_an_unknown_node_names_the_row_that_is_written_in_another_way(
    tmp_path: Path, node: str, row: str
) -> None:
    (tmp_path / "n.csv").write_text(f"id,x\n{row},1\nabc,2\n")
    (tmp_path / "e.csv").write_text(f"source,target\n{node},abc\n")
    with rejects("node-unknown") as found:
        read_graph(tmp_path / "e.csv", features=tmp_path / "n.csv")
    assert f"which has {row}:" in found.message
