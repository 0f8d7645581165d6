"""Graphs with several types of nodes: tables of users and films, whose ids may be the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from h3gnn import Graph, read_graph
from h3gnn.answers.extend import add_nodes, read_new_nodes
from h3gnn.storage.graphs import graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.schema import FieldError
from tests.inputs.tables import save


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
