"""PyG's HeteroData as a relational graph, and the graph of one of its node types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import h3gnn
from h3gnn.graphs.libraries import import_pyg
from h3gnn.graphs.relational import UNKNOWN_TIME
from h3gnn.tables.database import read_database
from h3gnn.tables.schema import Link, Schema, TableSchema
from tests.rejects import rejects

PAPERS, AUTHORS = 6, 3
CITES = torch.tensor([[0, 1, 2, 5], [1, 2, 0, 3]])
WRITES = torch.tensor([[0, 0, 1, 2, 2, 1], [0, 1, 2, 3, 4, 5]])


def hetero() -> Any:
    """Papers with features, classes, splits and years; authors without anything; who wrote what, and when."""
    data = import_pyg().data.HeteroData()
    data["paper"].x = torch.arange(2.0 * PAPERS).reshape(PAPERS, 2)
    data["paper"].y = torch.tensor([0, 1, 0, 1, -1, 0])
    data["paper"].train_mask = torch.tensor([True, True, False, False, False, False])
    data["paper"].val_mask = torch.tensor([False, False, True, False, False, False])
    data["paper"].test_mask = torch.tensor([False, False, False, True, False, True])
    data["author"].num_nodes = AUTHORS
    data["paper", "cites", "paper"].edge_index = CITES
    data["author", "writes", "paper"].edge_index = WRITES
    data["author", "writes", "paper"].time = torch.tensor([2001, 2002, 2003, 2004, 2005, 2006])
    return data


def test_types_relations_and_times() -> None:
    data = hetero()
    data["paper", "rev_writes", "author"].edge_index = WRITES.flip(0)
    graph = h3gnn.from_hetero_data(data)
    assert {name: one.nodes for name, one in graph.types.items()} == {"paper": PAPERS, "author": AUTHORS}
    assert np.array_equal(graph.types["paper"].features, data["paper"].x.numpy())
    assert [one.name for one in graph.relations] == ["paper.cites", "author.writes"]
    writes = graph.relations[1]
    assert (writes.source, writes.target) == ("author", "paper")
    assert np.array_equal(writes.ends, WRITES.numpy())
    assert writes.time is not None
    assert np.array_equal(
        writes.time.astype("datetime64[ns]").astype("datetime64[Y]").astype(int), range(31, 37)
    )
    assert [one.code for one in graph.repairs] == ["relations-reversed"]


def test_a_reversed_relation_with_other_edges_stays() -> None:
    data = hetero()
    data["paper", "rev_writes", "author"].edge_index = WRITES.flip(0)[:, 1:]
    assert len(h3gnn.from_hetero_data(data).relations) == 3


def test_the_view_of_a_type_has_its_labels_and_splits() -> None:
    view = h3gnn.type_view(h3gnn.from_hetero_data(hetero()), "paper", label="y", label_time="now")
    assert view.labels is not None
    assert view.labels.tolist() == [0, 1, 0, 1, -1, 0]
    assert view.train_mask is not None
    assert view.train_mask.flatten().tolist() == hetero()["paper"].train_mask.tolist()
    assert np.array_equal(view.features, hetero()["paper"].x)
    linked = {*map(tuple, view.edge_index.T.tolist())}
    assert {*map(tuple, CITES.T.tolist())} <= linked
    assert h3gnn.type_view(h3gnn.from_hetero_data(hetero()), "paper").train_mask is None


def test_edges_with_attributes_are_rows_of_a_link_table() -> None:
    """The same graph as that of tables."""
    data = hetero()
    amounts = torch.tensor([[1.0, 5], [2, 4], [3, 3], [4, 2], [5, 1], [6, 0]])
    data["author", "writes", "paper"].edge_attr = amounts
    graph = h3gnn.from_hetero_data(data)
    assert graph.link_types == {"author.writes"}
    assert np.array_equal(graph.types["author.writes"].features, amounts)
    tables = {
        "author": pd.DataFrame({"id": range(AUTHORS)}),
        "paper": pd.DataFrame({"id": range(PAPERS)}),
        "writes": pd.DataFrame({"author": WRITES[0].numpy(), "paper": WRITES[1].numpy()}),
    }
    links = tuple(Link((one,), one) for one in ("author", "paper"))
    ends = [TableSchema(name, ("id",)) for name in ("author", "paper")]
    schema = Schema({one.name: one for one in (*ends, TableSchema("writes", (), links))})
    expected = [one.ends.tolist() for one in read_database(tables, schema).relations]
    assert [one.ends.tolist() for one in graph.relations[1:]] == expected


def test_missing_labels_and_numbers() -> None:
    data = hetero()
    data["paper"].y = torch.tensor([0.5, 1.25, float("nan"), 2.0, 3.5, 4.0])
    view = h3gnn.type_view(
        h3gnn.from_hetero_data(data), "paper", label="y", task="regression", label_time="now"
    )
    assert view.targets is not None
    assert np.array_equal(view.targets.isnan(), [False, False, True, False, False, False])


def test_nodes_without_times_have_none() -> None:
    data = hetero()
    data["author"].time = torch.tensor([0, 86_400, 86_400 * 15_000])
    times = h3gnn.from_hetero_data(data).types["author"].time
    assert times is not None
    assert times.tolist() == [0, 86_400 * 10**9, 86_400 * 15_000 * 10**9]
    assert h3gnn.from_hetero_data(data).types["paper"].time is None
    assert UNKNOWN_TIME not in times


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data["paper"].update({"y": torch.zeros(PAPERS, 3)}), "labels-shape"),
        (lambda data: data["paper"].update({"x": torch.full((PAPERS, 2), torch.nan)}), "feature-not-finite"),
        (
            lambda data: data["author", "writes", "paper"].update({"edge_index": WRITES + 5}),
            "edge-out-of-range",
        ),
        (lambda data: data["author", "knows", "author"].update({"since": 1}), "edges-missing"),
    ],
)
def test_what_is_damaged_is_one_sentence(change: Any, code: str) -> None:
    data = hetero()
    change(data)
    with rejects(code):
        h3gnn.from_hetero_data(data)


def test_other_objects_are_refused() -> None:
    with rejects("not-a-graph"):
        h3gnn.from_hetero_data(import_pyg().data.Data())
    with rejects("not-a-graph"):
        h3gnn.as_graph(hetero())
