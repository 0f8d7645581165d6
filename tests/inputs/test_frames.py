"""Data frames are read as the files of them: nodes by id, the same roles of columns, the same types."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

from h3gnn import H3GNN, Graph, NodeClassifier, as_graph, read_graph
from tests.inputs.tables import repairs, save
from tests.rejects import rejects

ACCOUNTS = pd.DataFrame({"id": [30, 10, 20], "size": [3.0, 1.0, 2.0]})
NAMES = pd.DataFrame({"id": ["c", "a", "b"], "size": [3.0, 1.0, 2.0]})
ENDS = pd.DataFrame({"source": [10, 20], "target": [20, 30]})
NAMED_ENDS = pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})


class Polars:
    """What Polars offers of a data frame; it is not a dependency of the tests."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._table = pa.Table.from_pandas(frame, preserve_index=False)
        self.columns, self.shape = self._table.column_names, self._table.shape

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_pandas(self) -> Any:
        return self._table.to_pandas()


def by_name(graph: Graph) -> tuple[dict[Any, float], set[tuple[Any, Any]]]:
    """Return the first feature of each node and the edges, by id."""
    ids = graph.node_ids.tolist()
    sizes = dict(zip(ids, graph.dense_features()[:, 0].tolist(), strict=True))
    return sizes, {(ids[start], ids[end]) for start, end in graph.edge_index.T.tolist()}


SIZES = {10: 1.0, 20: 2.0, 30: 3.0}
EDGES = {(10, 20), (20, 30)}
FRAMES = {
    "column id": ACCOUNTS,
    "column account_id": ACCOUNTS.rename(columns={"id": "account_id"}),
    "column id last": ACCOUNTS[["size", "id"]],
    "named index": ACCOUNTS.set_index("id"),
    "unnamed index": ACCOUNTS.set_index("id").rename_axis(None),
    "filtered rows": ACCOUNTS.set_axis([7, 5, 2]),
    "Int64": ACCOUNTS.astype({"id": "Int64"}),
    "category": ACCOUNTS.astype({"id": "category"}),
    "objects": ACCOUNTS.astype({"id": object}),
    "Arrow": pa.Table.from_pandas(ACCOUNTS, preserve_index=False),
    "Polars": Polars(ACCOUNTS),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_joined_by_id_and_not_by_position(name: str) -> None:
    graph = as_graph(FRAMES[name], edges=ENDS)
    assert by_name(graph) == (SIZES, EDGES)
    assert graph.num_features == 1


@pytest.mark.parametrize("kind", ["pandas", "Arrow", "Polars"])
def test_edges_in_every_kind_of_frame(kind: str) -> None:
    kinds: dict[str, Any] = {
        "pandas": lambda one: one,
        "Arrow": lambda one: pa.Table.from_pandas(one, preserve_index=False),
        "Polars": Polars,
    }
    make = kinds[kind]
    assert by_name(as_graph(make(ACCOUNTS), edges=make(ENDS))) == (SIZES, EDGES)
    assert by_name(as_graph(make(ACCOUNTS), make(ENDS))) == (SIZES, EDGES)
    names, ends = by_name(as_graph(make(NAMES), edges=make(NAMED_ENDS)))
    assert (names, ends) == ({"a": 1.0, "b": 2.0, "c": 3.0}, {("a", "b"), ("b", "c")})


def test_the_ends_are_found_by_name_as_in_a_file(tmp_path: Path) -> None:
    payments = pd.DataFrame(
        {"amount": [5.0, 6.0], "to_account": [20, 30], "from_account": [10, 20], "weight": [1.0, 2.0]}
    )
    graph = as_graph(ACCOUNTS, edges=payments)
    assert graph.link_columns is not None
    assert "edges.out.amount.mean" in graph.link_columns.names
    stored = read_graph(save(payments, tmp_path / "e"), features=save(ACCOUNTS, tmp_path / "f"))
    assert by_name(graph) == by_name(stored) == (SIZES, EDGES)
    assert graph.edge_weight is not None
    assert stored.edge_weight is not None
    assert graph.edge_weight.tolist() == stored.edge_weight.tolist()
    assert repairs(graph).keys() == repairs(stored).keys()
    assert graph.provenance.sha256 == stored.provenance.sha256


MIXED = pd.DataFrame(
    {
        "account_id": [30, 10, 20, 40],
        "town": ["Ulm", "Bonn", None, "Ulm"],
        "opened": pd.to_datetime(["2020-01-01", "2021-06-01", "NaT", "2022-01-01"]),
        "size": [3.0, np.nan, 2.0, 8.0],
        "label": ["x", "y", None, "x"],
    }
)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_of_a_frame_are_encoded_as_those_of_a_file(tmp_path: Path, form: str) -> None:
    with pytest.warns(UserWarning, match="the column label is the label"):
        graph = as_graph(MIXED, edges=ENDS)
    stored = read_graph(save(ENDS, tmp_path / "e", form), features=save(MIXED, tmp_path / "f", form))
    assert graph.feature_names == stored.feature_names
    np.testing.assert_allclose(graph.dense_features(), stored.dense_features(), atol=1e-6)
    assert graph.class_names == stored.class_names == ("x", "y")
    assert graph.labels is not None
    assert graph.labels.tolist() == [0, 1, -1, 0]


def test_the_class_column_of_numbers_is_no_feature_of_a_frame() -> None:
    for edges in ({"edges": ENDS}, {"edge_index": np.array([[1, 2], [2, 0]])}):
        with pytest.warns(UserWarning, match="the column is_fraud is the label"):
            graph = as_graph(ACCOUNTS.assign(is_fraud=[1, 0, 0]), **edges)
        assert graph.feature_names == ("size",)
        assert graph.labels is not None
        assert graph.labels.tolist() == [1, 0, 0]


def test_edges_by_position_count_rows_whatever_the_ids() -> None:
    graph = as_graph(ACCOUNTS, np.array([[1, 2], [2, 0]]))
    assert by_name(graph) == (SIZES, EDGES)
    numbered = as_graph(ACCOUNTS[["size"]], edges=pd.DataFrame({"source": [1, 2], "target": [2, 0]}))
    assert not numbered.has_ids
    assert by_name(numbered)[1] == {(1, 2), (2, 0)}


@pytest.mark.parametrize("features", [np.eye(3), sp.csr_array(np.eye(3)), np.eye(3).tolist()], ids=type)
def test_rows_of_an_array_are_numbered(features: Any) -> None:
    graph = as_graph(features, edges=pd.DataFrame({"source": [1, 2], "target": [2, 0]}))
    assert by_name(graph)[1] == {(1, 2), (2, 0)}
    assert not graph.has_ids


def test_the_index_or_a_column_is_asked_about() -> None:
    with rejects("id-column-ambiguous"):
        as_graph(ACCOUNTS.set_axis(["x", "y", "z"]), edges=ENDS)
    with rejects("id-column-ambiguous"):
        as_graph(ACCOUNTS.rename_axis("account"), edges=ENDS)
    graph = read_graph(ENDS, features=ACCOUNTS.rename_axis("account"), id_column="id")
    assert by_name(graph) == (SIZES, EDGES)


@pytest.mark.parametrize(
    ("features", "edges", "code"),
    [
        (ACCOUNTS, NAMED_ENDS, "node-unknown"),
        (NAMES, ENDS, "node-unknown"),
        (ACCOUNTS, ENDS.assign(source=[10, 99]), "node-unknown"),
        (ACCOUNTS, ENDS.assign(source=[10, np.nan]), "id-missing"),
        (ACCOUNTS.assign(id=[30, 10, 10]), ENDS, "id-duplicate"),
        (ACCOUNTS.assign(id=[30, np.nan, 10]), ENDS, "id-missing"),
        (ACCOUNTS, ENDS[["source"]], "column-missing"),
        (ACCOUNTS.set_axis(["id", "id"], axis=1), ENDS, "column-duplicate"),
        (ACCOUNTS["size"], ENDS, "features-not-a-table"),
        (ACCOUNTS.iloc[:0], ENDS, "table-empty"),
        (ACCOUNTS, ENDS.iloc[:0], "table-empty"),
    ],
)
def test_frames_that_do_not_fit_are_rejected(features: Any, edges: Any, code: str) -> None:
    with rejects(code):
        as_graph(features, edges=edges)


def test_edges_are_given_once() -> None:
    with rejects("two-edges"):
        as_graph(ACCOUNTS, ENDS, edges=ENDS)
    with rejects("edges-not-a-table"):
        read_graph(SimpleNamespace())


def tiny() -> H3GNN:
    return H3GNN.from_preset("single", epochs=1, channels=4, device="cpu")


def test_fit_transform_and_extend_take_frames_by_id() -> None:
    model = tiny().fit(ACCOUNTS, edges=ENDS)
    assert by_name(model.graph_) == (SIZES, EDGES)
    shuffled = ACCOUNTS.iloc[[2, 0, 1]]
    again = model.transform(shuffled, edges=ENDS)
    np.testing.assert_allclose(again, model.embedding_[[2, 0, 1]], atol=1e-5)
    np.testing.assert_array_equal(model.transform(ACCOUNTS), model.embedding_)
    new = pd.DataFrame({"id": [50], "size": [4.0]})
    joining = pd.DataFrame({"source": [50], "target": [10]})
    assert model.extend(new, joining).node_ids.tolist() == [50]


def test_a_classifier_takes_frames_by_id() -> None:
    ids = np.arange(100, 130)
    frame = pd.DataFrame({"id": ids[::-1], "size": np.tile([0.0, 1.0], 15)})
    ring = pd.DataFrame({"source": ids, "target": np.roll(ids, 1)})
    classes = np.where(ids % 2, "odd", "even")
    nodes = NodeClassifier(tiny(), frame, edges=ring, allow_leaks=True).fit(ids, classes)
    assert nodes.graph_.node_ids.tolist() == ids[::-1].tolist()
    assert nodes.predict(ids[:2]).tolist() == classes[:2].tolist()


def test_a_table_alone_has_no_ids_and_classes_among_its_features() -> None:
    frame = pd.DataFrame({"id": range(100, 112), "size": np.arange(12.0), "is_fraud": [0, 1] * 6})
    with pytest.warns(UserWarning, match="is_fraud is the label"):
        model = tiny().set_params(n_neighbors=2).fit(frame)
    assert model.feature_names_in_.tolist() == ["size"]
    assert model.graph_.node_ids.tolist() == list(range(100, 112))
    np.testing.assert_array_equal(model.transform(frame), model.embedding_)
