from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn import H3GNN, as_graph
from h3gnn.answers.similarity import (
    NeighbourIndex,
    mean_row,
    nearest,
    nearest_among,
    searches_exactly,
    similar_nodes,
)
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.link_columns import JoinedColumn, LinkColumns, LinkPlan
from h3gnn.graphs.type_view import PathColumns
from tests.rejects import rejects

NAMES = np.array(["ann", "bob", "cid", "dan", "eve"], dtype=object)
BAG = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=np.float32)
ENDS = np.array([[0, 1, 0, 3], [2, 2, 1, 4]])


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(1, 50), st.integers(0, 2**32 - 1), st.booleans())
def test_blocks_give_the_nearest_of_the_full_matrix(
    nodes: int, k: int, rows: int, seed: int, tied: bool
) -> None:
    random = np.random.default_rng(seed)
    embedding = random.normal(size=(nodes, 3)).astype(np.float32)
    if tied:
        embedding = np.round(embedding)
    queries = random.integers(0, nodes, 4)
    found, near = nearest(embedding, queries, k, rows_at_once=rows, queries_at_once=3)
    centred = embedding - embedding.mean(axis=0, dtype=np.float64).astype(np.float32)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    for one, others, cosines in zip(queries, found, near, strict=True):
        cosine = (unit @ unit[one]).astype(np.float64)
        cosine[one] = -np.inf
        np.testing.assert_allclose(cosines, np.sort(cosine)[::-1][: min(k, nodes - 1)], atol=1e-5)
        np.testing.assert_allclose(cosine[others], cosines, atol=1e-5)
        assert one not in others
        assert len(set(others.tolist())) == len(others)


def test_explanations_worked_by_hand() -> None:
    graph = check_graph(BAG, ENDS, node_ids=NAMES)
    embedding = np.array([[1, 0], [0.9, 0.1], [-1, 0.2], [0, 1], [0, 0.9]], dtype=np.float32)
    table = similar_nodes(graph, embedding, np.array([0]), 1, feature_names=["jazz", "rock", "chess", "go"])
    (row,) = table.to_dict("records")
    assert (row["node"], row["similar"], row["rank"]) == ("ann", "bob", 1)
    assert row["linked"] is True
    assert (row["shared_neighbours"], row["neighbours"]) == (1, ["cid"])
    assert row["features"] == ["jazz", "rock"]


def test_among_few_nodes_a_node_is_never_its_own_neighbour() -> None:
    graph = check_graph(BAG, ENDS, node_ids=NAMES)
    table = similar_nodes(graph, BAG, np.array([3]), 5, candidates=np.array([3, 4]))
    assert table["similar"].tolist() == ["eve"]
    assert table["features"].tolist() == [["feature 3"]]


def test_measurements_are_shared_if_both_are_unusual() -> None:
    rows = np.array([[9, 0.1], [8.5, -0.1], [-1, 0.2], [0, -3], [0.5, 0.9]], dtype=np.float32)
    graph = check_graph(rows, ENDS, node_ids=NAMES)
    table = similar_nodes(graph, rows, np.array([0]), 1, feature_names=["age", "debt"])
    assert table["similar"].tolist() == ["bob"]
    assert table["features"][0][0] == "age (9, 8.5)"


def test_a_model_reports_tokens_and_attention() -> None:
    options: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 2, "device": "cpu"}
    model = H3GNN.from_settings({**options, "smoothing": 0.0}).fit(check_graph(BAG, ENDS, node_ids=NAMES))
    table = model.similar("ann", 3)
    assert table["node"].tolist() == ["ann"] * 3
    agree = [str(name) for name in table if str(name).startswith("agree: ")]
    assert len(agree) == 4
    listens = table[[str(name) for name in table if str(name).startswith("listens: ")]]
    np.testing.assert_allclose(listens.sum(axis=1), 1, atol=1e-5)
    centred = model.by_model() - model.by_model().mean(axis=0)
    by_model = centred.reshape(5, 2, 4, 8)[:, :, 2].reshape(5, -1)
    other = NAMES.tolist().index(table["similar"][0])
    cosine = by_model[0] @ by_model[other] / np.linalg.norm(by_model[0]) / np.linalg.norm(by_model[other])
    np.testing.assert_allclose(table["agree: neighbours, hop 1"][0], cosine, atol=1e-5)
    assert model.similar(["bob", "eve"], 1, among=["ann", "dan"])["similar"].isin(["ann", "dan"]).all()
    with rejects("unknown-node"):
        model.similar("zoe")


def test_constant_columns_are_not_shared_features() -> None:
    rows = np.array(
        [[9, -1.5e-8, 7, 0], [8.5, -1.4e-8, 7, 0], [-1, 2e-9, 7, 1], [0, 3e-9, 7, 1], [2, 1e-9, 7, 1]]
    ).astype(np.float32)
    rows = np.column_stack([rows, -rows[:, 0]])
    graph = check_graph(rows, ENDS, node_ids=NAMES)
    table = similar_nodes(
        graph, rows, np.array([0]), 1, feature_names=["age", "noise", "same", "vip", "debt"]
    )
    assert table["features"][0] == ["age (9, 8.5)", "debt (-9, -8.5)"]


def test_a_text_is_one_feature_with_its_similarity() -> None:
    memos: list[str | None] = [
        "rent and food for two",
        "food and rent for two",
        "invoices to many suppliers every month",
    ]
    memos += ["invoices to few suppliers every month", "payroll at the end of the year", None]
    frame = pd.DataFrame({"memo": memos, "town": ["Ulm", "Ulm", "Bonn", "Bonn", "Jena", "Jena"]})
    frame.index = pd.Index([f"n{row}" for row in range(6)])
    graph = as_graph(frame, np.array([[0, 2, 4], [1, 3, 5]]), columns={"memo": "text", "town": "category"})
    near = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [-1, 0], [-1, -0.1]], dtype=np.float32)
    table = similar_nodes(graph, near, np.array([0, 2, 4]), 1, feature_names=graph.feature_names)
    assert sorted(table["features"][0]) == ["memo (100% alike)", "town=Ulm"]
    assert [one.split("=")[0].split(" (")[0] for one in sorted(table["features"][1])] == ["memo", "town"]
    assert table["features"][2] == ["town=Jena"]  # a missing text is similar to none


def test_scaled_columns_are_described_as_low_or_high() -> None:
    frame = pd.DataFrame(
        {
            "debt": [9000.0, 8000.0, 10.0, None, 12.0, 11.0],
            "since": pd.to_datetime(
                ["2024-05-01", "2024-06-01", "2001-01-01", "2002-03-01", "2003-02-01", "NaT"]
            ),
            "town": ["Ulm", "Bonn", "Ulm", "Bonn", "Jena", "Jena"],
        },
        index=[f"n{row}" for row in range(6)],
    )
    graph = as_graph(frame, np.array([[0, 2, 4], [1, 3, 5]]))
    names: Any = np.array(graph.feature_names, dtype=object)  # as `feature_names_in_` has them
    near = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [-1, 0], [-1, -0.1]], dtype=np.float32)
    table = similar_nodes(graph, near, np.array([0]), 1, feature_names=names)
    assert set(table["features"][0]) == {"debt (both high)", "since (both late)"}
    table = similar_nodes(graph, near, np.array([2]), 1, feature_names=names)
    assert table["similar"].tolist() == ["n3"]
    assert table["features"][0] == ["since (both early)"]  # an imputed debt does not count


def test_the_first_reason_is_what_random_pairs_have_least_in_common() -> None:
    side, group = np.arange(100) % 2, np.arange(100) // 10
    rows = np.hstack([np.eye(2)[side], np.eye(10)[group], np.zeros((100, 1))]).astype(np.float32)
    graph = check_graph(np.ones((100, 1)), np.array([[0], [1]]))
    tokens = {"side": np.arange(2), "group": np.arange(2, 12), "none": np.array([12])}
    table = similar_nodes(graph, rows, np.array([0]), 1, tokens=tokens)
    assert table["similar"].tolist() == [2]
    reasons = [one.split(" (")[0] for one in table["reasons"][0]]
    assert reasons == ["group", "side"]  # a tenth of all pairs, and half of them
    np.testing.assert_allclose(table[["agree: side", "agree: group"]], 1, atol=1e-6)


def test_link_columns_are_reasons_and_components_of_paths_are_none() -> None:
    values = np.zeros((20, 2), np.float32)
    values[:2, 1] = 1
    columns = tuple(JoinedColumn(one, "loan", "count", "loan") for one in ("loan.same", "loan.count"))
    links = LinkColumns(values, LinkPlan((), (), columns))
    rows = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    rows[1] = rows[0]
    graph = replace(
        check_graph(rows, np.array([[0], [1]])),
        link_columns=links,
        path_columns=PathColumns(rows, ("loan",), (2,), are_features=True),
    )
    table = similar_nodes(graph, rows, np.array([0]), 1, feature_names=["loan 1", "loan 2"])
    assert table["reasons"].tolist() == table["features"].tolist() == [["loan.count (both high)"]]


@pytest.fixture(scope="module")
def clustered() -> np.ndarray:
    """Rows of 200 columns around 40 centres, and one common direction."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(40, 200))
    rows = centres[random.integers(0, 40, 3000)] + 0.5 * random.normal(size=(3000, 200)) + 3
    return rows.astype(np.float32)


def test_the_index_finds_nearly_all_of_the_nearest(clustered: np.ndarray) -> None:
    pytest.importorskip("faiss")
    index = NeighbourIndex.build(clustered)
    queries = np.arange(0, 3000, 30)
    exact, cosine = nearest(clustered, queries, 10)
    found, near = nearest_among(
        clustered, queries, 10, index.candidates(clustered[queries], 500), mean_row(clustered)
    )
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(found, exact, strict=True)])
    assert recall > 0.95
    same = found == exact
    np.testing.assert_allclose(near[same], cosine[same], atol=2e-6)  # candidates are compared exactly
    assert not (found == queries[:, None]).any()
    again = NeighbourIndex.from_bytes(index.to_bytes())
    np.testing.assert_array_equal(again.candidates(clustered[:9], 50), index.candidates(clustered[:9], 50))
    np.testing.assert_array_equal(
        NeighbourIndex.build(clustered).candidates(clustered[queries], 20),
        index.candidates(clustered[queries], 20),
    )


def test_the_index_compares_centred_rows_in_principal_components(clustered: np.ndarray) -> None:
    """Without the centre, or with other components, the first candidate is another node."""
    faiss = pytest.importorskip("faiss")
    chain = NeighbourIndex.build(clustered).index
    mapped = np.ascontiguousarray(clustered[:5])
    for at in range(chain.chain.size()):
        mapped = faiss.downcast_VectorTransform(chain.chain.at(at)).apply(mapped)
    centred = clustered - clustered.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    assert chain.index.d == 128
    np.testing.assert_allclose(np.linalg.norm(mapped, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(mapped @ mapped.T, unit[:5] @ unit[:5].T, atol=0.05)


def test_fewer_candidates_than_asked_for_leave_gaps() -> None:
    rows = np.eye(5, dtype=np.float32)
    candidates = np.array([[0, 1, -1], [2, -1, -1]])
    found, near = nearest_among(rows, np.array([0, 3]), 2, candidates, rows.mean(axis=0))
    assert found[0].tolist() == [1, -1]  # the query itself does not count
    assert np.isinf(near[0, 1])
    assert found[1].tolist() == [2, -1]
    assert np.isinf(near[1, 1])


def test_search_is_exact_unless_there_is_an_index_of_a_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searches_exactly("exact", 10**9, indexed=True)
    assert not searches_exactly("approximate", 10)
    for installed in (object(), None):
        monkeypatch.setattr("h3gnn.answers.similarity.find_spec", lambda name, found=installed: found)
        assert searches_exactly("auto", 100_000, indexed=True)
        assert searches_exactly("auto", 100_001)
        assert searches_exactly("auto", 100_001, indexed=True) is (installed is None)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with rejects("missing-library"):
        NeighbourIndex.build(np.eye(3, dtype=np.float32))
    with rejects("value-invalid"):
        searches_exactly("fast", 3)
