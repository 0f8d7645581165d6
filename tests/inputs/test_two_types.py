"""Graphs with several types of nodes: tables of users and films, whose ids may be the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn import Graph, read_graph
from h3gnn.answers.extend import add_nodes, read_new_nodes
from h3gnn.storage.graphs import graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.schema import FieldError
from h3gnn.tables.node_types import type_name, types_of_ends
from tests.inputs.tables import repairs, save
from tests.rejects import rejects


def shop(folder: Path, **options: Any) -> Graph:
    """Return a graph of three users and four items, whose tables of features differ."""
    users = pd.DataFrame({"id": ["u1", "u2", "u3"], "age": [31.5, 44.0, 27.0]})
    items = pd.DataFrame({"id": ["i1", "i2", "i3", "i4"], "price": [5.5, 7.0, 3.25, 9.0]})
    bought = pd.DataFrame(
        {"user_id": ["u1", "u1", "u2", "u3", "u3"], "item_id": ["i1", "i2", "i2", "i3", "i4"]}
    )
    tables = [save(users, folder / "users"), save(items, folder / "items")]
    return read_graph(save(bought, folder / "bought"), features=tables, undirected=True, **options)


def types_of(graph: Any) -> dict[str, str]:
    assert graph.node_types is not None
    names = [*graph.type_names, "?"]
    return {str(one): names[at] for one, at in zip(graph.node_ids, graph.node_types.tolist(), strict=True)}


def test_each_table_of_features_is_a_type(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    assert graph.node_types is not None
    assert graph.node_types.dtype == torch.int16
    assert graph.type_names == ("users", "items")
    assert types_of(graph) == {f"u{i}": "users" for i in (1, 2, 3)} | {f"i{i}": "items" for i in (1, 2, 3, 4)}


def test_nodes_without_features_are_of_unknown_type(tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("user_id,item_id\nu1,i9\n")
    shop(tmp_path)
    tables = [tmp_path / "users.csv", tmp_path / "items.csv"]
    edges = [tmp_path / "bought.csv", tmp_path / "more.csv"]
    assert types_of(read_graph(edges, features=tables, unknown_nodes="add"))["i9"] == "?"


def test_types_are_stored_and_graphs_without_them_load(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    again = graph_from_tensors(graph_tensors(graph), graph_description(graph))
    assert types_of(again) == types_of(graph)
    old, words = graph_tensors(graph), graph_description(graph)
    del old["node_types"], words["type_names"]
    loaded = graph_from_tensors(old, words)
    assert loaded.node_types is None
    assert loaded.type_names == ()


@pytest.mark.parametrize("damage", [5, -2])
def test_a_stored_type_without_name_is_rejected(tmp_path: Path, damage: int) -> None:
    graph = shop(tmp_path)
    stored = graph_tensors(graph)
    stored["node_types"] = torch.full_like(stored["node_types"], damage)
    with pytest.raises(FieldError) as caught:
        graph_from_tensors(stored, graph_description(graph))
    assert caught.value.field == "node_types"


@pytest.mark.parametrize(("name", "kind"), [("items", "items"), ("later", "items"), ("later", "users")])
def test_new_nodes_have_the_type_of_their_table_or_of_their_edges(
    tmp_path: Path, name: str, kind: str
) -> None:
    graph = shop(tmp_path)
    row = pd.DataFrame({"id": ["new"], "age": [30.0], "price": [4.5], "table": [kind]})
    (tmp_path / "new").mkdir()
    new = save(row, tmp_path / "new" / name)
    ends = (
        {"user_id": ["u1"], "item_id": ["new"]}
        if kind == "items"
        else {"user_id": ["new"], "item_id": ["i1"]}
    )
    joined = save(pd.DataFrame(ends), tmp_path / "joined")
    extended = add_nodes(graph, *read_new_nodes(graph, new, [(None, joined)], {}))[0]
    assert types_of(extended) == types_of(graph) | {"new": kind}


RATINGS = pd.DataFrame({"userId": [1, 1, 2, 3, 3], "movieId": [1, 2, 2, 3, 4]})
"""Three users and four films; as one type, these would be four nodes and three self-loops."""


def ratings(folder: Path, table: pd.DataFrame = RATINGS, form: str = "csv", **options: Any) -> Graph:
    return read_graph(save(table, folder / "ratings", form), **options)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        *[("userId", "user"), ("user_id", "user"), ("USER ID", "user"), ("movie", "movie")],
        *[("customerAccountNumber", "customer_account"), ("source", ""), ("target_id", ""), ("u", "")],
        *[("node1", ""), ("column 2", ""), ("nameOrig", ""), ("cited", ""), ("friendId", "")],
    ],
)
def test_a_column_names_a_type(column: str, name: str) -> None:
    assert type_name(column) == name


DIFFERENT = [
    *[
        ("userId", "movieId"),
        ("user", "item"),
        ("user_id", "item_id"),
        ("reader", "book"),
        ("gene", "disease"),
    ],
    *[("customer_id", "product_code"), ("author", "paper"), ("CustomerKey", "StoreKey"), ("uid", "film_no")],
]
ALIKE = [
    *[("source", "target"), ("from", "to"), ("sender", "receiver"), ("citing", "cited"), ("u", "v")],
    *[("src", "dst"), ("node1", "node2"), ("from_user", "to_user"), ("userId", "friendId"), ("head", "tail")],
    *[("payer", "payee"), ("buyer_id", "seller_id"), ("follower", "followee"), ("id1", "id2"), ("a", "b")],
    *[("author", "coauthor"), ("account_from", "account_to"), ("origin_airport", "dest_airport")],
    *[("column 1", "column 2"), ("parent_id", "child_id"), ("caller", "callee"), ("paper", "cites")],
]


@pytest.mark.parametrize("columns", DIFFERENT, ids="-".join)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_of_two_types_that_share_ids_are_asked_about(
    tmp_path: Path, columns: tuple[str, str], form: str
) -> None:
    table = RATINGS.set_axis([*columns], axis=1)
    with rejects("node-types-ambiguous") as caught:
        ratings(tmp_path, table, form)
    assert all(word in caught.message for word in (*columns, "3 ids", "--two-types", "--one-type"))


@pytest.mark.parametrize("columns", ALIKE, ids="-".join)
def test_columns_of_one_type_are_not_asked_about(tmp_path: Path, columns: tuple[str, str]) -> None:
    graph = ratings(tmp_path, RATINGS.set_axis([*columns], axis=1), header=True)
    assert graph.num_nodes == 4
    assert graph.node_types is None
    assert types_of_ends(columns)[0] == types_of_ends(columns)[1]


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_two_types_make_two_nodes_of_one_number(tmp_path: Path, form: str) -> None:
    if form == "frame":
        graph = read_graph(RATINGS, bipartite=True)
    else:
        graph = ratings(tmp_path, form=form, bipartite=True)
    users, films = [f"user:{i}" for i in (1, 2, 3)], [f"movie:{i}" for i in (1, 2, 3, 4)]
    assert sorted(graph.node_ids) == sorted(users + films)
    assert types_of(graph) == dict.fromkeys(users, "user") | dict.fromkeys(films, "movie")
    assert repairs(graph)["node-types"].fields == ("user", "movie")
    ends = graph.node_ids[graph.edge_index.numpy()]
    assert {*zip(*ends, strict=True)} == {
        (f"user:{user}", f"movie:{film}") for user, film in RATINGS.itertuples(index=False)
    }
    assert "self-loops" not in repairs(graph)


def test_one_type_makes_one_node_of_one_number(tmp_path: Path) -> None:
    graph = ratings(tmp_path, bipartite=False)
    assert graph.node_ids.tolist() == [1, 2, 3, 4]
    assert graph.node_types is None
    assert repairs(graph)["self-loops"].count == 3


def test_columns_without_names_are_source_and_target(tmp_path: Path) -> None:
    table = RATINGS.set_axis(["source", "target"], axis=1)
    graph = ratings(tmp_path, table, bipartite=True)
    assert graph.type_names == ("source", "target")
    assert graph.num_nodes == 7


@pytest.mark.parametrize("bipartite", [None, True])
def test_ids_that_differ_are_no_question(tmp_path: Path, bipartite: bool | None) -> None:
    table = RATINGS.assign(userId=["ann", "ann", "bob", "cem", "cem"])
    graph = ratings(tmp_path, table, bipartite=bipartite)
    start = "user:" if bipartite else ""
    assert types_of(graph)[f"{start}ann"] == "user"
    assert graph.type_names == ("user", "movie")
    assert "node-types" in repairs(graph)
    assert ratings(tmp_path, table, bipartite=False).node_types is None


def test_friends_of_users_are_users(tmp_path: Path) -> None:
    friends = save(pd.DataFrame({"userId": [1, 2], "friendId": [2, 5]}), tmp_path / "friends")
    graph = read_graph([save(RATINGS, tmp_path / "ratings"), friends], bipartite=True)
    assert [name for name, kind in types_of(graph).items() if kind == "user"] == [
        f"user:{i}" for i in (1, 2, 3, 5)
    ]
    assert sum(kind == "movie" for kind in types_of(graph).values()) == 4


USERS = pd.DataFrame({"userId": [1, 2, 3], "age": [31.5, 44.0, 27.0]})
FILMS = pd.DataFrame({"movieId": [1, 2, 3, 4], "year": [1994.5, 1999.0, 2003.0, 2010.0]})


@pytest.mark.parametrize(
    ("users", "films", "names"),
    [
        ("userId", "movieId", ("a", "b")),
        ("id", "id", ("users", "movies")),
        ("id", "id", ("user", "movie_data")),
        ("user_id", "id", ("x", "movies")),
    ],
)
def test_tables_of_features_are_joined_by_type(
    tmp_path: Path, users: str, films: str, names: tuple[str, str]
) -> None:
    tables = [
        save(USERS.rename(columns={"userId": users}), tmp_path / names[0]),
        save(FILMS.rename(columns={"movieId": films}), tmp_path / names[1]),
    ]
    graph = read_graph(save(RATINGS, tmp_path / "ratings"), features=tables, bipartite=True)
    assert graph.node_ids.tolist() == [
        *(f"user:{i}" for i in (1, 2, 3)),
        *(f"movie:{i}" for i in (1, 2, 3, 4)),
    ]
    assert graph.num_edges == 5
    assert types_of(graph)["user:3"] == "user"
    assert graph.plan is not None


def test_features_of_an_unclear_type_are_asked_about(tmp_path: Path) -> None:
    table = save(USERS.rename(columns={"userId": "id"}), tmp_path / "nodes")
    with rejects("node-type-unknown"):
        ratings(tmp_path, features=table, bipartite=True)
    written = USERS.assign(userId="user:" + USERS["userId"].astype(str)).rename(columns={"userId": "id"})
    table = save(written, tmp_path / "nodes")
    graph = ratings(tmp_path, features=table, bipartite=True, unknown_nodes="add")
    assert graph.num_nodes == 7


@pytest.mark.parametrize(("column", "count"), [("movieId", 4), ("user_id", 3)])
def test_labels_are_joined_by_type(tmp_path: Path, column: str, count: int) -> None:
    known = list(range(1, count + 1))
    labels = save(
        pd.DataFrame({column: known, "label": ["a", "b"] * (count // 2) + ["a"] * (count % 2)}),
        tmp_path / "y",
    )
    graph = ratings(tmp_path, labels=labels, bipartite=True)
    kind = type_name(column)
    assert {str(one) for one in graph.node_ids[graph.labelled]} == {f"{kind}:{i}" for i in known}


@pytest.mark.parametrize("bipartite", [None, True])
def test_new_nodes_and_edges_are_read_as_two_types(tmp_path: Path, bipartite: bool | None) -> None:
    films = FILMS.assign(movieId=FILMS["movieId"] + 100) if bipartite is None else FILMS
    table = RATINGS.assign(movieId=RATINGS["movieId"] + 100) if bipartite is None else RATINGS
    tables = [save(USERS, tmp_path / "users"), save(films, tmp_path / "movies")]
    graph = read_graph(save(table, tmp_path / "ratings"), features=tables, bipartite=bipartite)
    assert graph.edge_plan is not None
    assert graph.edge_plan.rules.bipartite is bool(bipartite)
    row = pd.DataFrame({"userId": [4], "age": [30.0], "year": [np.nan], "table": ["users"]})
    (tmp_path / "new").mkdir()
    new = save(row, tmp_path / "new" / "users")
    joined = save(pd.DataFrame({"userId": [4], "movieId": [4 if bipartite else 104]}), tmp_path / "joined")
    extended = add_nodes(graph, *read_new_nodes(graph, new, [(None, joined)], {}))[0]
    ids = ("user:4", "movie:4") if bipartite else (4, 104)
    assert extended.node_ids[-1] == ids[0]
    assert types_of(extended)[str(ids[0])] == graph.type_names[0]
    ends = extended.edge_index.numpy()
    assert ids in {*zip(*extended.node_ids[ends], strict=True)}
    with rejects("plan-differs"):
        read_new_nodes(graph, new, [(None, joined)], {"bipartite": not bipartite})


def test_types_of_ids_are_stored(tmp_path: Path) -> None:
    graph = ratings(tmp_path, bipartite=True)
    again = graph_from_tensors(graph_tensors(graph), graph_description(graph))
    assert types_of(again) == types_of(graph)
    assert again.edge_plan == graph.edge_plan
