"""Graphs with several types of nodes: tables of users and films, whose ids may be the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn import H3GNN, Graph, prepare_graph, read_graph
from h3gnn.answers.extend import add_nodes, read_new_nodes
from h3gnn.answers.links import Neighbourhood, find_links, hide_edges
from h3gnn.graphs.provenance import EdgePlan
from h3gnn.graphs.structural import structural_features
from h3gnn.storage.graphs import graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.schema import FieldError
from h3gnn.tables.edges import type_name, types_in_ids, types_of_ends
from h3gnn.tables.read import labels_of_nodes
from tests.inputs.tables import QUICK, command, repairs, save
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
    *[
        ("column 1", "column 2"),
        ("parent_id", "child_id"),
        ("caller", "callee"),
        ("what", "who"),
        ("paper", "cites"),
    ],
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


def taste(users: int = 30, films: int = 40, seed: int = 0) -> pd.DataFrame:
    """Return ratings of users of two tastes, who mostly see films of their own; all ids overlap."""
    draw = np.random.default_rng(seed)
    pairs = [(u, f) for u in range(users) for f in range(films)]
    kept = [pair for pair in pairs if draw.random() < (0.8 if (pair[0] % 2) == (pair[1] % 2) else 0.03)]
    return pd.DataFrame(kept, columns=["userId", "movieId"])


def positions(graph: Graph) -> Any:
    """Return an embedding that puts the nodes at random places."""
    return np.random.default_rng(1).normal(size=(graph.num_nodes, 1, 6)).astype(np.float32)


def kinds_of(table: pd.DataFrame) -> set[frozenset[str]]:
    return {
        frozenset((a.partition(":")[0], b.partition(":")[0]))
        for a, b in zip(table["source"], table["target"], strict=True)
    }


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("asked", [None, "user:3", "movie:5"])
def test_links_are_proposed_between_types_that_edges_connect(
    tmp_path: Path, undirected: bool, check: bool, asked: str | None
) -> None:
    graph = ratings(tmp_path, taste(), bipartite=True, undirected=undirected)
    queries = None if asked is None else np.flatnonzero(graph.node_ids == asked)
    found = find_links(graph, positions(graph), positions if check else None, queries=queries)
    assert kinds_of(found.table) == {frozenset(("user", "movie"))}
    assert "paths" in found.table
    if asked is not None:
        assert {asked} == {*found.table["source"]} & {*found.table["target"]} | {asked}
        assert all(asked in pair for pair in zip(found.table["source"], found.table["target"], strict=True))


def test_scores_are_measured_on_the_kind_of_pair_that_is_proposed(tmp_path: Path) -> None:
    graph = ratings(tmp_path, taste(), bipartite=True)
    around = Neighbourhood(graph.edge_index, graph.num_nodes, graph.node_types)
    assert graph.node_types is not None
    drawn = graph.node_types.numpy()[around.negatives(around.pairs(), np.random.default_rng(0))]
    assert (drawn[0] != drawn[1]).all()
    scores = find_links(graph, positions(graph), positions).scores
    assert set(scores) == {"random pairs", "pairs three steps apart"}
    assert scores["random pairs"]["auc_of_paths"] > 0.8  # users see films that alike users see
    assert 0.3 < scores["random pairs"]["auc_of_similarity"] < 0.7  # places are random


def test_negatives_have_the_shares_of_types_of_the_hidden_edges() -> None:
    draw = np.random.default_rng(0)
    types = torch.tensor([0] * 10 + [1] * 200 + [2] * 90, dtype=torch.int16)
    ends = [(draw.integers(10), 10 + draw.integers(200)) for _ in range(300)]
    ends += [(draw.integers(10), 210 + draw.integers(90)) for _ in range(100)]
    around = Neighbourhood(torch.tensor(ends).T, 300, types)
    drawn = types.numpy()[around.negatives(around.pairs(), draw)]
    assert (drawn.min(axis=0) == 0).all()
    of_pairs = types.numpy()[around.pairs()].max(axis=0) == 1
    assert abs((drawn.max(axis=0) == 1).mean() - of_pairs.mean()) < 0.1


def test_paths_of_three_steps_are_counted_by_hand() -> None:
    edges, types = torch.tensor([[0, 0, 1, 1, 2], [3, 4, 4, 5, 5]]), torch.tensor([0, 0, 0, 1, 1, 1])
    around = Neighbourhood(edges, 6, types)
    count, index = around.shared(np.array([[0, 2, 0], [5, 4, 3]]))
    assert count.tolist() == [1, 1, 1 + 1]  # 0-4-1-5; 2-5-1-4; 0-3-0-3 and 0-4-0-3
    assert index[0] == pytest.approx(1 / np.log(2) ** 2)
    assert around.two_hop(np.array([0]), 5).T.tolist() == [[0, 5]]


def test_several_kinds_of_edges_allow_several_kinds_of_pairs() -> None:
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 3, 4]])
    around = Neighbourhood(edges, 6, torch.tensor([0, 0, 0, 1, 1, 2]))
    pairs = np.array([[0, 0, 3, 0, 3], [2, 3, 4, 5, 5]])
    assert around.allowed(pairs).tolist() == [True, True, False, False, False]
    assert not around.between


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_a_column_that_matches_all_ends_is_named(tmp_path: Path, form: str, kind: str) -> None:
    count = 300
    new = [f"p{i}" if kind == "text" else 10_000 + i for i in range(count)]
    table = pd.DataFrame({"id": range(count), "new_id": new, "size": np.arange(count) / 8})
    features = save(table, tmp_path / "nodes", form)
    edges = pd.DataFrame({"source": new[:-1], "target": new[1:]})
    path = save(edges, tmp_path / "edges", form)
    with rejects("node-unknown") as caught:
        read_graph(path, features=features)
    assert f"column new_id of {features} matches all ends: --id-column new_id" in caught.message
    assert len(caught.message) < 500
    assert read_graph(path, features=features, id_column="new_id").num_nodes == count


def test_no_column_is_named_if_none_matches_all_ends(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": [1, 2, 3], "code": [11, 12, 13], "size": [1.5, 2.0, 2.5]})
    features = save(table, tmp_path / "nodes")
    path = save(pd.DataFrame({"source": [11, 12], "target": [12, 14]}), tmp_path / "edges")
    with rejects("node-unknown") as caught:
        read_graph(path, features=features)
    assert "matches all ends" not in caught.message


@pytest.mark.parametrize("bipartite", [None, True, False])
def test_a_graph_on_disk_has_one_type(tmp_path: Path, bipartite: bool | None) -> None:
    features = save(pd.DataFrame({"id": [1, 2, 3, 4], "size": [1.5, 2.0, 2.5, 4.0]}), tmp_path / "features")
    path = save(RATINGS, tmp_path / "ratings")
    if bipartite is not False:
        with rejects("node-types-ambiguous"):
            prepare_graph(path, features, tmp_path / "out", bipartite=bipartite)
    graph = prepare_graph(path, features, tmp_path / "out", bipartite=False)
    assert (graph.num_nodes, graph.num_edges) == (4, 5)


def test_different_ids_are_no_question_on_disk(tmp_path: Path) -> None:
    features = save(pd.DataFrame({"id": range(1, 8), "size": np.arange(7) / 4}), tmp_path / "features")
    path = save(RATINGS.assign(movieId=RATINGS["movieId"] + 3), tmp_path / "ratings")
    assert prepare_graph(path, features, tmp_path / "out").num_nodes == 7


@pytest.mark.parametrize("flag", ["--two-types", "--one-type"])
def test_the_question_of_a_command_is_answered_by_its_options(tmp_path: Path, flag: str) -> None:
    edges = save(taste(8, 9), tmp_path / "ratings")
    code, found, text = command("fit", "--edges", edges, *QUICK, "--out", tmp_path / "run")
    assert (code, found["error"]["code"]) == (1, "node-types-ambiguous")
    assert flag in text
    code, found, text = command("fit", "--edges", edges, flag, *QUICK, "--out", tmp_path / "run")
    assert code == 0, text
    model = H3GNN.load(tmp_path / "run")
    assert model.graph_.num_nodes == (17 if flag == "--two-types" else 9)
    assert (model.graph_.node_types is None) == (flag == "--one-type")
    if flag == "--two-types":
        code, _, text = command("links", tmp_path / "run", "--check", "none", "--out", tmp_path / "links.csv")
        assert code == 0, text
        assert kinds_of(pd.read_csv(tmp_path / "links.csv")) == {frozenset(("user", "movie"))}
        code, _, text = command("similar", tmp_path / "run", "movie:3", "--k", "2")
        assert code == 0, text


@pytest.mark.parametrize("bipartite", [False, True])
def test_labels_that_arrive_later_are_joined_by_type(tmp_path: Path, bipartite: bool) -> None:
    graph = ratings(tmp_path, bipartite=bipartite)
    labels = save(pd.DataFrame({"movieId": [1, 2, 3], "label": ["a", "b", "a"]}), tmp_path / "labels")
    ids, types = graph.node_ids, types_in_ids(graph)
    known, _ = labels_of_nodes(
        labels, ids, tmp_path, None, None, {"header": None, "delimiter": None}, types=types
    )
    wanted = ["movie:1", "movie:2", "movie:3"] if bipartite else [1, 2, 3]
    assert ids[known["labels"] >= 0].tolist() == wanted


def test_hidden_edges_are_not_in_structural_features(tmp_path: Path) -> None:
    graph = ratings(tmp_path, taste(), bipartite=True)
    seen, hidden = hide_edges(graph, Neighbourhood(graph.edge_index, graph.num_nodes), seed=0)
    assert hidden.shape[1] > 20
    assert torch.equal(seen.features, structural_features(seen.edge_index, graph.num_nodes))
    scores = find_links(graph, eigenvectors(graph), eigenvectors).scores["random pairs"]
    assert scores["auc"] < 0.95  # a third of the random pairs are as likely to be edges as the hidden ones


def eigenvectors(graph: Graph) -> Any:
    """Return the features as embedding."""
    return graph.dense_features().numpy()[:, None, :]


def test_predict_joins_labels_by_type(tmp_path: Path) -> None:
    edges = save(taste(), tmp_path / "ratings")
    code, _, text = command("fit", "--edges", edges, "--two-types", *QUICK, "--out", tmp_path / "run")
    assert code == 0, text
    known = pd.DataFrame({"movieId": range(30), "genre": ["odd" if i % 2 else "even" for i in range(30)]})
    labels, out = save(known, tmp_path / "genres"), tmp_path / "predictions.csv"
    code, found, text = command(
        "predict", tmp_path / "run", "--labels", labels, "--head", "logistic", "--out", out
    )
    assert code == 0, text
    assert found["labelled"] == 30
    table = pd.read_csv(out).set_index("node")["class"]
    assert {f"movie:{i}" for i in range(30, 40)} <= {*table.index}
    assert not {f"movie:{i}" for i in range(30)} & {*table.index}


def test_an_old_plan_of_edges_has_one_type(tmp_path: Path) -> None:
    plan = ratings(tmp_path, bipartite=False).edge_plan
    assert plan is not None
    stored = plan.as_dict()
    del stored["rules"]["bipartite"]
    assert EdgePlan.from_dict(stored) == plan
