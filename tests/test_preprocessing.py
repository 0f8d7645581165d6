"""Inputs of the estimator are read as intended, or rejected with the correct call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline

from h3gnn import H3GNN, GraphError, as_graph
from h3gnn.preprocessing import _pandas_output, column_order
from tests.rejects import rejects

SMALL: dict[str, Any] = {"n_models": 1, "epochs": 2, "channels": 8, "heads": 2, "device": "cpu"}
NODES = 40
X = np.random.default_rng(0).normal(size=(NODES, 5))
Y = (X[:, 0] > 0).astype(int)
EDGES = np.array(nx.gnm_random_graph(NODES, 120, seed=1).edges).T
ADJACENCY = sp.csr_array((np.ones(240), np.concatenate([EDGES, EDGES[::-1]], axis=1)), shape=(NODES, NODES))
FRAME = pd.DataFrame(X, columns=list("abcde"), index=[f"n{i}" for i in range(NODES)])
NAMED = pd.DataFrame({"source": FRAME.index[EDGES[0]], "target": FRAME.index[EDGES[1]]})


def small() -> H3GNN:
    return H3GNN.from_settings(SMALL)


@pytest.fixture(scope="module")
def of_graph() -> H3GNN:
    return small().fit(X, edge_index=EDGES)


@pytest.fixture(scope="module")
def of_frame() -> H3GNN:
    return small().fit(FRAME, edge_index=NAMED)


@pytest.fixture(scope="module")
def of_table() -> H3GNN:
    return small().fit(FRAME)


# only the rows of the fitted graph need no edges


def test_a_pipeline_fitted_with_edges_predicts_its_own_rows() -> None:
    pipeline = Pipeline([("g", small()), ("c", LogisticRegression())])
    pipeline.fit(X, Y, g__edge_index=EDGES)
    embedding = pipeline.named_steps["g"].embedding_
    np.testing.assert_array_equal(pipeline.predict(X), pipeline.named_steps["c"].predict(embedding))


@pytest.mark.parametrize("rows", [X[:20], X[::-1], X + 1, np.concatenate([X, X[:1]])])
def test_other_rows_without_edges_are_rejected(of_graph: H3GNN, rows: Any) -> None:
    with rejects("rows-without-edges") as caught:
        of_graph.transform(rows)
    assert "transform(X, edge_index=E)" in caught.message
    assert "set_transform_request" in caught.message
    assert of_graph.n_features_in_ == 5


def test_rows_of_the_fitted_graph_are_recognized_in_any_format(of_graph: H3GNN, of_frame: H3GNN) -> None:
    for rows in (X, X.tolist(), sp.csr_matrix(X), pd.DataFrame(X)):
        np.testing.assert_array_equal(of_graph.transform(rows), of_graph.embedding_)
    np.testing.assert_array_equal(of_frame.transform(FRAME[list("edcba")]), of_frame.embedding_)
    with rejects("rows-without-edges"):
        of_frame.transform(FRAME.set_axis([f"m{i}" for i in range(NODES)]))  # other ids, same features
    wide: Any = sp.random_array((NODES, 200), density=0.02, rng=1, format="csr")
    model = small().fit(wide, edge_index=EDGES)
    np.testing.assert_array_equal(model.transform(wide), model.embedding_)
    with rejects("rows-without-edges"):
        model.transform(wide + wide)


def test_metadata_routing_passes_the_edges() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        first = small().set_fit_request(edge_index=True).set_transform_request(edge_index=True)
        pipeline = make_pipeline(first, LogisticRegression()).fit(X, Y, edge_index=EDGES)
        fewer = EDGES[:, :60]
        assert pipeline.predict(X[:30], edge_index=fewer[:, (fewer < 30).all(axis=0)]).shape == (30,)
        with rejects("rows-without-edges"):
            pipeline.predict(X[:30])


# feature columns are matched by name


def test_columns_are_reordered(of_frame: H3GNN, of_table: H3GNN) -> None:
    assert of_frame.feature_names_in_.tolist() == list("abcde")
    mixed = FRAME[list("cabed")]
    np.testing.assert_array_equal(of_frame.transform(mixed, edge_index=NAMED), of_frame.embedding_)
    more, edges = pd.concat([mixed, mixed[:1].set_axis(["new"])]), NAMED[:50]
    np.testing.assert_array_equal(
        of_frame.transform(more, edge_index=edges), of_frame.transform(more[list("abcde")], edge_index=edges)
    )
    assert of_table.feature_names_in_.tolist() == list("abcde")
    np.testing.assert_array_equal(of_table.transform(mixed), of_table.embedding_)
    np.testing.assert_array_equal(of_table.transform(mixed + 1), of_table.transform(FRAME + 1))
    numbered = small().fit(pd.DataFrame(X))
    assert not hasattr(numbered, "feature_names_in_")
    np.testing.assert_array_equal(numbered.transform(pd.DataFrame(X)[[4, 2, 0, 1, 3]]), numbered.embedding_)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.rename(columns={"c": "z"}), "'c' is missing.*'z' is unknown"),
        (FRAME.drop(columns="c"), "'c' is missing"),
        (FRAME.assign(f=1.0), "'f' is unknown"),
    ],
)
def test_columns_that_do_not_match_are_rejected(
    of_frame: H3GNN, of_table: H3GNN, frame: Any, message: str
) -> None:
    for model, edges in ((of_frame, NAMED), (of_frame, None), (of_table, None)):
        with pytest.raises(GraphError, match=message):
            model.transform(frame, edge_index=edges)


def test_names_in_one_of_fit_and_transform_raise_the_warning_of_scikit_learn(
    of_frame: H3GNN, of_graph: H3GNN
) -> None:
    with pytest.warns(UserWarning, match="X does not have valid feature names, but H3GNN was fitted with"):
        of_frame.transform(X[:, ::-1].copy(), edge_index=EDGES)
    with pytest.warns(UserWarning, match="X has feature names, but H3GNN was fitted without"):
        of_graph.transform(FRAME, edge_index=NAMED)
    with pytest.raises(GraphError, match="'a' names more than one"):
        small().fit(FRAME.rename(columns={"b": "a"}), edge_index=NAMED)


def test_names_are_saved_and_removed_by_a_second_fit(of_frame: H3GNN, tmp_path: Path) -> None:
    of_frame.save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run")
    assert again.feature_names_in_.tolist() == list("abcde")
    mixed = FRAME[list("cabed")] * 2
    np.testing.assert_allclose(
        again.transform(mixed, edge_index=NAMED), of_frame.transform(FRAME * 2, edge_index=NAMED), atol=1e-5
    )
    assert not hasattr(again.fit(X, edge_index=EDGES), "feature_names_in_")


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8, unique=True), st.randoms())
@settings(max_examples=50, deadline=None)
def test_an_order_exists_for_any_equal_names(names: list[str], random: Any) -> None:
    given_names = random.sample(names, len(names))
    order = column_order(tuple(names), tuple(given_names))
    assert [given_names[one] for one in order or range(len(names))] == names
    for fitted, other in (((*names, "long name"), given_names), (names, (*given_names, "long name"))):
        with rejects("feature-columns-differ"):
            column_order(tuple(fitted), tuple(other))


def test_names_of_arrow_tables_are_used() -> None:
    table, mixed = (pa.Table.from_pandas(FRAME[list(c)], preserve_index=False) for c in ("abcde", "cabed"))
    for edges in (None, EDGES):
        model = small().fit(table, edge_index=edges)
        assert model.feature_names_in_.tolist() == list("abcde")
        np.testing.assert_array_equal(model.transform(mixed, edge_index=edges), model.embedding_)
    with rejects("target-is-edges"):
        small().fit(X, pa.Table.from_pandas(NAMED))


# edges in the place of features or labels


@pytest.mark.parametrize(
    "edges",
    [
        EDGES,
        EDGES.T,
        EDGES.T.tolist(),
        EDGES[:, :NODES].T,  # as many edges as nodes
        ADJACENCY,
        NAMED,
        NAMED[:NODES],
        nx.path_graph(3),
    ],
    ids=["2 rows", "2 columns", "list", "as many as nodes", "adjacency", "frame", "short frame", "networkx"],
)
def test_edges_as_y_are_rejected(edges: Any) -> None:
    for table in (X, FRAME):
        with rejects("target-is-edges"):
            small().fit_transform(table, edges)


@pytest.mark.parametrize(
    "y", [Y, Y.tolist(), np.stack([Y, 1 - Y], axis=1), pd.Series(Y), Y[:, None], ["a"] * 40]
)
def test_labels_as_y_are_ignored(of_graph: H3GNN, y: Any) -> None:
    model = small().fit(X, y, edge_index=EDGES)
    np.testing.assert_array_equal(model.embedding_, of_graph.embedding_)


DENSE = ADJACENCY.toarray()


@pytest.mark.parametrize(
    ("table", "code"),
    [
        pytest.param(EDGES, "features-are-edges", id="2 rows"),
        pytest.param(EDGES.T, "features-are-edges", id="2 columns"),
        pytest.param(NAMED.assign(weight=1.0), "features-are-edges", id="frame"),
        pytest.param(DENSE, "features-are-adjacency", id="dense"),
        pytest.param(np.triu(DENSE), "features-are-adjacency", id="dense, directed"),
        pytest.param(pd.DataFrame(DENSE), "features-are-adjacency", id="dense frame"),
        pytest.param(
            pd.DataFrame(DENSE, FRAME.index, FRAME.index), "features-are-adjacency", id="named frame"
        ),
    ],
)
def test_a_graph_in_the_place_of_a_table_is_rejected(table: Any, code: str) -> None:
    with rejects(code):
        small().fit(table)


@pytest.mark.parametrize("table", [ADJACENCY[:32], DENSE[np.arange(NODES) % 5 > 0]], ids=["sparse", "dense"])
def test_rows_of_an_adjacency_are_embedded_as_a_table_with_a_warning(table: Any) -> None:
    with pytest.warns(UserWarning, match="row subset of an adjacency matrix"):
        model = small().fit(table)
    assert model.embedding_.shape[0] == 32


def test_cross_validation_over_an_adjacency_warns_and_over_edges_is_rejected() -> None:
    pipeline, options = make_pipeline(small(), LogisticRegression()), {"cv": 4, "error_score": "raise"}
    with pytest.warns(UserWarning, match="row subset of an adjacency matrix"):
        cross_val_score(pipeline, ADJACENCY, Y, **options)
    with rejects("adjacency-not-square"):
        cross_val_score(pipeline, X, Y, **options, params={"h3gnn__edge_index": ADJACENCY})
    with rejects("edge-node-unknown"):
        cross_val_score(pipeline, X, Y, **options, params={"h3gnn__edge_index": EDGES})


@pytest.mark.parametrize("kind", ["normal", "counts", "words"])
@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50), (2, 30), (30, 2)])
def test_tables_of_features_are_not_taken_for_graphs(kind: str, shape: tuple[int, int]) -> None:
    if (kind, shape) in {("words", (50, 50)), ("counts", (2, 30))}:
        return  # a square sparse matrix is a graph, and two rows of integers are edges
    random = np.random.default_rng(3)
    table: Any = random.normal(size=shape)
    if kind == "counts":
        table = random.integers(0, 4, size=shape)
    if kind == "words":  # a few words are in many texts, most in few
        frequency = 1.2 / np.arange(1, shape[1] + 1)
        table = sp.csr_matrix((random.random(shape) < frequency).astype(float))
    assert small().fit(table).embedding_.shape[0] == shape[0]


# ids of nodes in the output


def test_pandas_output_of_a_networkx_graph_is_indexed_by_its_nodes() -> None:
    network = nx.relabel_nodes(nx.path_graph(6), dict(enumerate("uvwxyz")))
    model = small().set_output(transform="pandas")
    assert model.fit_transform(network).index.tolist() == list("uvwxyz")
    table = model.transform(network.subgraph("xyz"))
    assert table.index.tolist() == list(network.subgraph("xyz"))
    assert table.columns.tolist() == model.get_feature_names_out().tolist()
    with sklearn.config_context(transform_output="pandas"):
        assert small().fit_transform(network).index.tolist() == list("uvwxyz")


def test_the_output_format_follows_the_configuration() -> None:
    assert not _pandas_output(H3GNN())
    assert _pandas_output(H3GNN().set_output(transform="pandas"))
    with sklearn.config_context(transform_output="pandas"):
        assert _pandas_output(H3GNN())
        assert not _pandas_output(H3GNN().set_output(transform="default"))


def test_the_index_of_a_frame_is_kept_with_and_without_edges() -> None:
    for edges in (NAMED, None):
        model = small().set_output(transform="pandas")
        assert model.fit_transform(FRAME, edge_index=edges).index.equals(FRAME.index)
        assert model.transform(FRAME, edge_index=edges).index.equals(FRAME.index)
        assert model.graph_.node_ids.tolist() == FRAME.index.tolist()
    repeated = FRAME.set_axis(["same"] * NODES)  # as in bootstrap samples
    assert not small().fit(repeated).graph_.has_ids


DATES = pd.date_range("2024-01-01", periods=NODES)


@pytest.mark.parametrize(
    "table",
    [
        np.stack([DATES.to_numpy()] * 2, axis=1),
        np.stack([DATES.to_numpy().astype(object)] * 2, axis=1),
        [[one] for one in DATES],
        [[one] for one in DATES.to_numpy()],
    ],
    ids=["array", "objects", "list", "numpy list"],
)
@pytest.mark.parametrize("edges", [None, EDGES])
def test_dates_without_columns_are_rejected(table: Any, edges: Any) -> None:
    with rejects("dates", GraphError):
        small().fit(table, edge_index=edges)


@pytest.mark.parametrize("edges", [None, EDGES])
def test_dates_of_a_frame_are_encoded_as_dates(edges: Any) -> None:
    for table in (FRAME.assign(when=DATES), pd.DataFrame({0: DATES, 1: DATES})):
        graph = small().fit(table, edge_index=edges).graph_
        assert [column.kind for column in graph.plan.columns].count("date") in (1, 2)
        assert float(graph.features.abs().max()) < 10  # scaled, not nanoseconds
    durations = small().fit(FRAME.assign(since=DATES - DATES[0]), edge_index=edges).graph_
    assert float(durations.features.abs().max()) < 10


def test_dates_in_numeric_columns_are_rejected_by_a_fitted_model(of_frame: H3GNN, of_table: H3GNN) -> None:
    dated = pd.DataFrame(dict.fromkeys("abcde", DATES), index=FRAME.index)
    for model in (of_frame, of_table):
        with rejects("dates", GraphError):
            model.transform(dated)


def test_dates_as_weights_or_names() -> None:
    with rejects("column-not-numeric", GraphError):
        as_graph(FRAME, NAMED.assign(weight=DATES[0]))
    network = nx.path_graph(3)
    nx.set_edge_attributes(network, np.datetime64("2024-01-01"), "weight")
    with rejects("dates", GraphError):
        as_graph(network)
    graph = as_graph(FRAME.set_axis(DATES), EDGES)
    assert graph.node_ids[0] == "2024-01-01"
