"""Who chooses what in a database: the ends of the rows of a table, strengths, times and baskets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn.answers.interactions import Interactions, LinkRows, interactions
from h3gnn.errors import GraphError
from h3gnn.graphs.relational import RelationalGraph
from h3gnn.tables.database import read_database
from h3gnn.tables.schema import Link, Schema, TableSchema
from tests.rejects import rejects


def shop(*, owners: int = 1) -> RelationalGraph:
    """Three customers, four orders with seven lines, and products in two groups."""
    frames = {
        "customers": pd.DataFrame({"id": ["x", "y", "z"]}),
        "clerks": pd.DataFrame({"id": [1, 2]}),
        "groups": pd.DataFrame({"id": ["g", "h"]}),
        "products": pd.DataFrame({"id": [10, 20, 30], "group": ["g", "g", "h"]}),
        "orders": pd.DataFrame(
            {
                "id": [1, 2, 3, 4],
                "customer": ["x", "y", "x", "y"],
                "clerk": [1, 2, 2, 1],
                "day": ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"],
            }
        ),
        "lines": pd.DataFrame(
            {
                "order": [1, 1, 2, 3, 3, 4, 9],
                "product": [10, 20, 10, 20, 30, 30, 10],
                "pieces": [1, 2, 3, 4, 0, 6, 7],
            }
        ),
    }
    links = {
        "products": (Link(("group",), "groups"),),
        "orders": (Link(("customer",), "customers"), Link(("clerk",), "clerks"))[:owners],
        "lines": (Link(("order",), "orders"), Link(("product",), "products")),
    }
    return read_database(frames, schema_of(frames, links, {"orders": "day"}), label="lines.pieces")


def schema_of(frames: dict[str, pd.DataFrame], links: dict[str, Any], times: dict[str, str]) -> Schema:
    """Declare the links and times of tables; `id` is a key."""
    tables = {
        name: TableSchema(name, ("id",) if "id" in one else (), links.get(name, ()), times.get(name))
        for name, one in frames.items()
    }
    return Schema(tables)


def pairs(data: Interactions) -> list[tuple[Any, Any]]:
    """The links by ids."""
    return sorted(zip(data.user_ids[data.users], data.item_ids[data.items], strict=True))


LINES = [("x", 10), ("x", 20), ("x", 20), ("x", 30), ("y", 10), ("y", 30)]


def test_lines_of_orders_lead_to_customers() -> None:
    data = interactions(shop(), "lines")
    assert pairs(data) == LINES
    assert (data.user_type, data.item_type, data.shape) == ("customers", "products", (3, 3))
    days = pd.DatetimeIndex(np.asarray(data.time)).day.to_numpy()
    baskets = np.asarray(data.baskets)
    assert sorted(zip(data.item_ids[data.items], days, baskets, strict=True)) == [
        *[(10, 1, 0), (10, 2, 1), (20, 1, 0), (20, 3, 2), (30, 3, 2), (30, 4, 3)]
    ]
    assert any(note.startswith("1 of 7 rows") for note in data.notes)  # the order 9 does not exist


def test_an_order_with_two_references_is_asked_about() -> None:
    graph = shop(owners=2)
    with rejects("ends-ambiguous") as caught:
        interactions(graph, "lines")
    assert "customers" in caught.message
    assert "clerks" in caught.message
    assert pairs(interactions(graph, "lines", users="customers")) == LINES
    assert interactions(graph, "lines", users="clerk").user_type == "clerks"


def test_ends_by_name_near_and_far() -> None:
    graph = shop()
    groups = interactions(graph, "lines", users="orders", items="groups")
    assert pairs(groups) == [(1, "g"), (1, "g"), (2, "g"), (3, "g"), (3, "h"), (4, "h")]
    assert groups.baskets is None
    with rejects("ends-ambiguous"):
        interactions(graph, "lines", users="nobody")
    with rejects("type-unknown"):
        interactions(graph, "nothing")


def test_a_relation_links_its_two_ends() -> None:
    data = interactions(shop(), "products.group")
    assert pairs(data) == [(10, "g"), (20, "g"), (30, "h")]


def test_only_strong_links_are_choices() -> None:
    graph = shop()
    data = interactions(graph, "lines", weight="pieces", at_least=3)
    chosen = data.part(data.chosen)
    assert pairs(chosen) == [("x", 20), ("y", 10), ("y", 30)]
    assert sorted(np.asarray(chosen.strength)) == [3, 4, 6]
    assert any(note.startswith("ignored: ") for note in data.notes)
    assert pairs(data) == LINES  # the others are known
    assert int((~interactions(graph, "lines", weight="pieces").chosen).sum()) == 1  # no pieces
    with rejects("value-invalid"):
        interactions(graph, "lines", at_least=3)
    with rejects("column-missing"):
        interactions(graph, "lines", weight="price")


def follows(values: list[int]) -> RelationalGraph:
    """Who follows whom: both columns hold members."""
    frames = {
        "members": pd.DataFrame({"id": ["a", "b", "c"]}),
        "follows": pd.DataFrame({"who": ["a", "a", "b", "c"], "whom": ["b", "c", "b", "a"], "trust": values}),
    }
    links = {"follows": (Link(("who",), "members"), Link(("whom",), "members"))}
    return read_database(frames, schema_of(frames, links, {}), label="follows.trust")


def test_nobody_chooses_itself() -> None:
    data = interactions(follows([1, 2, 3, 4]), "follows")
    assert pairs(data) == [("a", "b"), ("a", "c"), ("c", "a")]
    assert data.user_type == data.item_type == "members"
    diagonal = data.excluded(repeats=True).toarray()
    np.testing.assert_array_equal(diagonal, np.eye(3))
    np.testing.assert_array_equal(data.excluded(repeats=False).toarray(), [[1, 1, 1], [0, 1, 0], [1, 0, 1]])


def test_negative_strengths_need_a_least_one() -> None:
    graph = follows([5, -1, 1, 2])
    with rejects("edge-weight-not-positive"):
        interactions(graph, "follows", weight="trust")
    data = interactions(graph, "follows", weight="trust", at_least=1)
    assert pairs(data.part(data.chosen)) == [("a", "b"), ("c", "a")]
    excluded = data.excluded(repeats=True)  # a does not get c, whom it distrusts
    assert excluded[0, 2] == 1
    assert excluded[0, 1] == 0


def test_rows_through_a_link_table() -> None:
    frames = {
        "users": pd.DataFrame({"id": [1, 2]}),
        "films": pd.DataFrame({"id": [5, 6]}),
        "actors": pd.DataFrame({"id": ["p", "q"]}),
        "cast": pd.DataFrame({"film": [5, 5, 6], "actor": ["p", "q", "q"]}),
        "views": pd.DataFrame({"user": [1, 2], "film": [5, 6]}),
    }
    links = {
        "cast": (Link(("film",), "films"), Link(("actor",), "actors")),
        "views": (Link(("user",), "users"), Link(("film",), "films")),
    }
    graph = read_database(frames, schema_of(frames, links, {}))
    assert [end.type for end in LinkRows(graph, "views").ends()] == ["users", "films", "actors"]
    assert pairs(interactions(graph, "views", items="actors")) == [(1, "p"), (1, "q"), (2, "q")]


ONE = np.array([0])


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("too-few-nodes", {"item_ids": np.array([], dtype=object)}),
        ("edge-out-of-range", {"items": np.array([2])}),
        ("edge-shape", {"time": np.array([1, 2])}),
        ("edge-weight-not-positive", {"strength": np.array([np.nan])}),
        ("no-edges", {"strength": np.array([0.0])}),
        ("no-edges", {"users": ONE[:0], "items": ONE[:0]}),
    ],
)
def test_invalid_links_are_rejected(code: str, given: dict[str, Any]) -> None:
    with rejects(code, GraphError):
        Interactions(**{"users": ONE, "items": ONE, "user_ids": ONE, "item_ids": np.array([7, 8]), **given})


def test_links_in_order_of_ids() -> None:
    data = Interactions(
        np.array([1, 0, 1]), np.array([0, 0, 1]), np.array([9, 3]), np.array(["b", "a"], dtype=object)
    )
    found, users, items = data.in_order()
    assert found.user_ids.tolist() == [3, 9]
    assert found.item_ids.tolist() == ["a", "b"]
    assert (users.tolist(), items.tolist()) == ([1, 0], [1, 0])
    assert (found.users.tolist(), found.items.tolist()) == ([0, 0, 1], [0, 1, 1])
    assert pairs(found) == pairs(data)


def test_strength_of_links_by_hand() -> None:
    data = Interactions(
        np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.arange(2), np.arange(2), np.array([1.0, 3, 2, 0])
    )
    np.testing.assert_allclose(
        data.matrix().toarray(), [[np.log1p(4 / 3), 0], [np.log1p(2 / 3), 0]], rtol=1e-6
    )
