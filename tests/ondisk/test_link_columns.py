"""Link columns of graphs on disk are those of the same tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, read_graph
from h3gnn.graphs.link_columns import LinkColumns
from h3gnn.ondisk import prepare
from h3gnn.ondisk.mapped import MappedGraph, open_mapped
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.tables import files
from tests.inputs.tables import save
from tests.rejects import rejects

NODES = 50
ACCOUNTS = pd.DataFrame({"id": [f"n{at}" for at in range(NODES)], "age": np.arange(NODES) % 7 + 0.5})


def transfers(rows: int = 500) -> pd.DataFrame:
    """Return a table of transfers with gaps between accounts."""
    draw = np.random.default_rng(3)
    ids = np.array([f"n{at}" for at in range(NODES - 5)])
    amount = draw.normal(50, 20, rows).round(2)
    amount[::7] = np.nan
    kinds = np.array(["wire", "card", "it's", None])
    return pd.DataFrame(
        {
            "from_account": draw.choice(ids, rows),
            "to_account": draw.choice(ids, rows),
            "amount": amount,
            "kind": kinds[draw.integers(0, 4, rows)],
            "paid": draw.integers(0, 2, rows).astype(bool),
            "booked": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 90, rows), "D"),
            "weight": draw.random(rows) + 0.5,
        }
    )


def links_of(graph: Any) -> LinkColumns:
    """Return the link columns of a graph that has some."""
    assert graph.link_columns is not None
    return graph.link_columns  # type: ignore[no-any-return]


def both(folder: Path, table: pd.DataFrame, form: str = "csv", **options: Any) -> tuple[Any, MappedGraph]:
    """Return the graph in memory and on disk."""
    folder.mkdir(exist_ok=True)
    edges, nodes = save(table, folder / "edges", form), save(ACCOUNTS, folder / "accounts", form)
    mapped = prepare_graph(edges, nodes, folder / "graph", **options)
    return read_graph(edges, features=nodes, **options), mapped


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("small", [False, True])
def test_on_disk_as_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, small: bool
) -> None:
    if small:  # many blocks
        monkeypatch.setattr(prepare, "RANGE_ROWS", 100)
        monkeypatch.setattr(files, "BLOCK_ROWS", 120)
        monkeypatch.setattr(files, "BLOCK_BYTES", 8000)
    memory, mapped = both(tmp_path, transfers(), form)
    wanted, found = links_of(memory), links_of(mapped)
    assert found.names == wanted.names
    assert [one.log for one in found.plan.scales] == [one.log for one in wanted.plan.scales]
    np.testing.assert_allclose(found.values, wanted.values, atol=1e-5)
    again = links_of(open_mapped(mapped.folder))
    assert again.plan == found.plan
    assert np.array_equal(again.values, found.values)


def test_columns_decide_on_disk_too(tmp_path: Path) -> None:
    plain = transfers(60)[["from_account", "to_account"]].drop_duplicates()
    assert both(tmp_path / "a", plain)[1].link_columns is None
    for name, table, wanted in (("b", plain, True), ("c", transfers(), "auto")):
        ends = table[["from_account", "to_account"]]
        memory, mapped = both(tmp_path / name, ends, link_columns=wanted)
        assert links_of(mapped).names == links_of(memory).names
        np.testing.assert_allclose(links_of(mapped).values, links_of(memory).values, atol=1e-5)
    assert both(tmp_path / "d", transfers(), link_columns="no")[1].link_columns is None
    with rejects("column-missing"):
        both(tmp_path / "e", transfers(), columns={"nothing": "number"})


def test_negative_ratings_and_declared_kinds(tmp_path: Path) -> None:
    table = transfers().assign(weight=np.arange(500) % 21 - 10.0, zip=np.arange(500) % 3)
    memory, mapped = both(tmp_path, table, columns={"zip": "category"})
    assert mapped.rows.weight is None
    assert "weights-negative" in [one.code for one in mapped.provenance.repairs]
    assert {"edges.out.weight.min", "edges.in.zip=1.share"} <= {*links_of(mapped).names}
    np.testing.assert_allclose(links_of(mapped).values, links_of(memory).values, atol=1e-5)


def test_columns_that_contain_the_class_are_left_out(tmp_path: Path) -> None:
    table = transfers()
    labels = pd.DataFrame({"id": ACCOUNTS.id, "label": np.where(np.arange(NODES) % 2, "good", "bad")})
    bad = {*labels.id[labels.label == "bad"]}
    table["flag"] = [float(one in bad) for one in table.from_account]
    path = save(labels, tmp_path / "labels")
    memory, mapped = both(tmp_path, table, labels=path)
    assert "label-leak" in [one.code for one in mapped.provenance.repairs]
    assert links_of(mapped).names == links_of(memory).names
    assert not [one for one in links_of(mapped).names if "flag" in one]


def test_embeddings_of_graphs_on_disk_have_the_block(tmp_path: Path) -> None:
    memory, mapped = both(tmp_path, transfers())
    settings = {
        "epochs": 0,
        "channels": 8,
        "n_models": 1,
        "heads": 2,
        "objective": "teacher",
        "batch_size": 16,
    }
    wanted = H3GNN.from_settings(settings).fit(memory).embedding_
    model = H3GNN.from_settings(settings).fit(mapped)
    found = np.concatenate([*model.embedding_chunks()])
    width = 2 * len(links_of(mapped).names)
    np.testing.assert_allclose(found[:, -width:], wanted[:, -width:], atol=1e-4)
    model.save(tmp_path / "model")
    loaded = H3GNN.load(tmp_path / "model")
    assert links_of(loaded.graph_).plan == links_of(mapped).plan
    np.testing.assert_allclose(np.concatenate([*loaded.embedding_chunks()]), found, atol=1e-5)


def test_cells_of_later_blocks_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 8000)
    table = transfers().astype({"amount": object})
    table.loc[450, "amount"] = "much"
    with rejects("cell-unreadable") as caught:
        both(tmp_path, table)
    assert "line 452" in caught.message
