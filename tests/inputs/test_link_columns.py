"""Link columns of files and data frames: what is used, asked, left out, stored, and given to new nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from h3gnn import H3GNN, Graph, read_graph
from h3gnn.answers.learning import LINKS, NEIGHBOURS, NodeColumns
from h3gnn.cli.app import app
from h3gnn.graphs.link_columns import LinkColumns
from h3gnn.tables.leaks import check_leaks
from tests.inputs.tables import QUICK, command, save
from tests.rejects import rejects

NODES = 60
ACCOUNTS = pd.DataFrame({"id": [f"n{at}" for at in range(NODES)], "age": np.arange(NODES) % 7 + 0.5})
SMALL = {"epochs": 0, "channels": 8, "n_models": 1, "heads": 2, "objective": "teacher"}


def transfers(rows: int = 400, seed: int = 0, nodes: range = range(NODES)) -> pd.DataFrame:
    """Return a table of transfers between accounts."""
    draw = np.random.default_rng(seed)
    ids = np.array([f"n{at}" for at in nodes])
    return pd.DataFrame(
        {
            "from_account": draw.choice(ids, rows),
            "to_account": draw.choice(ids, rows),
            "amount": draw.normal(50, 20, rows).round(2),
            "kind": draw.choice(["wire", "card"], rows),
            "booked": (pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 90, rows), "D")),
        }
    )


def links_of(graph: Graph) -> LinkColumns:
    """Return the link columns of a graph that has some."""
    assert graph.link_columns is not None
    return graph.link_columns


def codes(graph: Graph) -> set[str]:
    """Return the codes of the repairs of a graph."""
    return {one.code for one in graph.provenance.repairs}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_and_frames_give_the_same_link_columns(tmp_path: Path, form: str) -> None:
    table = transfers()
    frame = links_of(read_graph(table, features=ACCOUNTS))
    paths = save(table, tmp_path / "edges", form), save(ACCOUNTS, tmp_path / "accounts", form)
    read = links_of(read_graph(paths[0], features=paths[1]))
    assert read.names == frame.names
    np.testing.assert_allclose(read.values, frame.values, atol=1e-5)
    assert {"edges.out.amount.mean", "edges.in.kind=wire.share", "edges.out.booked.rate"} <= {*read.names}


def test_columns_decide_and_the_option_overrides() -> None:
    plain, twice = transfers(rows=40)[["from_account", "to_account"]].drop_duplicates(), transfers()
    assert read_graph(plain).link_columns is None
    counted = links_of(read_graph(plain, link_columns=True)).names
    assert counted == ("edges.out.links", "edges.out.partners", "edges.in.links", "edges.in.partners")
    assert links_of(read_graph(twice[["from_account", "to_account"]])).names == counted
    assert read_graph(twice, link_columns=False).link_columns is None
    unused = read_graph(twice, link_columns="no").provenance.repairs
    assert ("amount", "kind", "booked") in [one.fields for one in unused]
    both = links_of(read_graph(plain, link_columns=True, undirected=True)).names
    assert both == ("edges.links", "edges.partners")
    with rejects("value-invalid"):
        read_graph(plain, link_columns="perhaps")


def test_graphs_without_link_columns_are_as_before() -> None:
    """The content hash, on which results depend, is that of the same graph without the option."""
    plain = transfers(rows=40)[["from_account", "to_account"]].drop_duplicates()
    wanted = read_graph(plain, link_columns=False)
    assert read_graph(plain).provenance.sha256 == wanted.provenance.sha256
    with_links = read_graph(plain, link_columns=True)
    assert with_links.provenance.sha256 != wanted.provenance.sha256
    assert with_links.features.equal(wanted.features)


def test_ids_texts_and_constants_are_left_out_and_reported() -> None:
    table = transfers()
    table["tx_id"] = np.arange(len(table)) + 5000
    table["row"] = np.arange(len(table))[::-1]
    table["note"] = [f"payment number {at} for something else" for at in range(len(table))]
    table["bank"] = "one"
    graph = read_graph(table, features=ACCOUNTS)
    [unused] = [one for one in graph.provenance.repairs if one.code == "edge-columns-unused"]
    assert {*unused.fields} == {"tx_id", "row", "note", "bank"}
    assert {one.name for one in links_of(graph).plan.tables[0].used} == {"amount", "kind", "booked"}


def test_the_kinds_of_edge_columns_can_be_declared(tmp_path: Path) -> None:
    table = transfers().assign(booked="03/04/2024", zip=np.arange(400) % 3 + 1)
    table.loc[::2, "booked"] = "05/06/2024"
    with rejects("column-ambiguous"):
        read_graph(table, features=ACCOUNTS)
    names = links_of(read_graph(table, features=ACCOUNTS, columns={"booked": "date:dmy", "zip": "category"}))
    assert {"edges.out.booked.first", "edges.in.zip=2.share"} <= {*names.names}
    with rejects("column-missing"):
        read_graph(table, features=ACCOUNTS, columns={"booked": "date:dmy", "nothing": "category"})
    amounts = transfers().assign(amount="1,200")
    with rejects("number-ambiguous"):
        read_graph(amounts, features=ACCOUNTS)


RATINGS = pd.DataFrame(
    {"source": list("aabc"), "target": list("bcaa"), "weight": [-10, 5, 3, -2], "time": [1.5, 2.5, 4.0, 9.0]}
)


def test_a_negative_rating_is_a_value_and_no_weight() -> None:
    graph = read_graph(RATINGS)
    assert graph.edge_weight is None
    assert "weights-negative" in codes(graph)
    links = links_of(graph)
    table = links.plan.tables[0]
    ends = np.array([[0, 0, 1, 2], [1, 2, 0, 0]])
    values = {"weight": np.array([-10.0, 5, 3, -2]), "time": RATINGS.time.to_numpy()}
    names = [name for name, _, _ in table.entries]
    summaries = table.summarize(ends, values, 3)
    assert summaries[0, names.index("edges.out.weight.min")] == -10
    np.testing.assert_allclose(links.values, links.plan.encode(summaries), atol=1e-6)
    with rejects("edge-weight-not-positive"):
        read_graph(RATINGS, weight_column="weight")
    with rejects("edge-weight-not-positive"):
        read_graph(RATINGS, link_columns=False)


def test_weights_are_a_link_column_too() -> None:
    graph = read_graph(RATINGS.assign(weight=[1.0, 5, 3, 2]))
    assert graph.edge_weight is not None
    assert "edges.in.weight.max" in links_of(graph).names
    equal = read_graph(RATINGS.assign(weight=2.0))
    assert not [one for one in links_of(equal).names if "weight" in one]
    assert "edge-columns-unused" not in codes(equal)


def test_a_column_that_determines_the_class_is_left_out() -> None:
    table = transfers(rows=800)
    accounts = ACCOUNTS.assign(label=np.where(np.arange(NODES) % 3 == 0, "bad", "good"))
    bad = {*accounts.id[accounts.label == "bad"]}
    table["flag"] = [float(one in bad) for one in table.from_account]
    graph = read_graph(table, features=accounts, label_column="label")
    assert "label-leak" in codes(graph)
    assert not [name for name in links_of(graph).names if "flag" in name]
    assert [name for name in links_of(graph).names if "amount" in name]
    kept = read_graph(table, features=accounts, label_column="label", columns={"flag": "number"})
    assert "label-leak-kept" in codes(kept)
    assert "edges.out.flag.mean" in links_of(kept).names
    unlabelled = read_graph(table, features=ACCOUNTS)
    labels = np.where(accounts.label == "bad", 1, 0)
    with rejects("label-leak") as caught:
        check_leaks(unlabelled, labels, "label")
    assert "'flag'" in caught.message
    assert "'amount'" not in caught.message


def test_a_column_with_the_name_of_the_class_is_left_out() -> None:
    table = transfers().rename(columns={"kind": "is_mule"})
    accounts = ACCOUNTS.assign(mule=np.where(np.arange(NODES) % 3 == 0, "bad", "good"))
    graph = read_graph(table, features=accounts, label_column="mule")
    assert "label-leak" in codes(graph)
    assert not [name for name in links_of(graph).names if "is_mule" in name]


NEW = pd.DataFrame({"id": ["new0", "new1"], "age": [3.5, 4.5]})


def new_edges() -> pd.DataFrame:
    """Return edges of two new nodes."""
    table = transfers(rows=24, seed=5)
    table.loc[::2, "from_account"] = "new0"
    table.loc[1::2, "to_account"] = "new1"
    return table


def test_new_nodes_have_the_values_that_a_fit_on_their_edges_has() -> None:
    known, more = transfers(), new_edges()
    model = H3GNN.from_settings(SMALL).fit(ACCOUNTS, edges=known)
    extended = links_of(model.extend(NEW, edges=more).graph)
    fitted = links_of(model.graph_)
    assert np.array_equal(extended.values[:NODES], fitted.values)
    everything = pd.concat([ACCOUNTS, NEW], ignore_index=True)
    alone = read_graph(more, features=everything, link_columns=fitted.plan)
    np.testing.assert_allclose(extended.values[NODES:], links_of(alone).values[NODES:], atol=1e-6)
    assert extended.names == fitted.names
    again = read_graph(more.assign(extra=1.5), features=everything, link_columns=fitted.plan)
    assert ("extra",) in [one.fields for one in again.provenance.repairs]
    with rejects("column-missing"):
        model.extend(NEW, edges=more.drop(columns="amount"))
    with rejects("column-missing"):
        model.extend(NEW[["age"]].set_index(NEW.id), edges=np.array([[0], [NODES]]))


def test_the_embedding_has_a_block_of_link_columns_for_new_nodes_too() -> None:
    known, more = transfers(), new_edges()
    model = H3GNN.from_settings(SMALL).fit(ACCOUNTS, edges=known)
    links = links_of(model.graph_)
    width = 2 * len(links.names)
    assert model.inference_.block_widths[2] == width
    block = model.embedding_[:, -width:]
    rows = model.graph_.adjacency(undirected=True, self_loops=False)
    wanted = np.concatenate([links.values, rows.mean(links.values)], axis=1)
    ratio = np.sqrt((wanted**2).sum() / (block**2).sum())
    np.testing.assert_allclose(block * ratio, wanted, atol=1e-4)
    extension = model.extend(NEW, edges=more)
    values = links_of(extension.graph).values
    around = extension.graph.adjacency(undirected=True, self_loops=False).mean(values, NODES)
    wanted = np.concatenate([values[NODES:], around], axis=1)
    np.testing.assert_allclose(extension.embedding[:, -width:] * ratio, wanted, atol=1e-4)
    same = model.transform(ACCOUNTS, edges=known)
    np.testing.assert_allclose(same, model.embedding_, atol=1e-4)
    with rejects("plan-differs"):
        model.transform(read_graph(known, features=ACCOUNTS, link_columns=False))
    without = H3GNN.from_settings({**SMALL, "input_weight": 0.0}).fit(ACCOUNTS, edges=known)
    plain = read_graph(known, features=ACCOUNTS, link_columns=False)
    assert np.array_equal(
        without.embedding_, H3GNN.from_settings({**SMALL, "input_weight": 0.0}).fit(plain).embedding_
    )


def test_models_store_link_columns_and_their_plan(tmp_path: Path) -> None:
    model = H3GNN.from_settings(SMALL).fit(ACCOUNTS, edges=transfers())
    model.save(tmp_path / "model")
    loaded = H3GNN.load(tmp_path / "model")
    assert links_of(loaded.graph_).plan == links_of(model.graph_).plan
    assert np.array_equal(links_of(loaded.graph_).values, links_of(model.graph_).values)
    assert np.array_equal(loaded.embedding_, model.embedding_)
    wanted = model.extend(NEW, edges=new_edges()).embedding
    np.testing.assert_allclose(loaded.extend(NEW, edges=new_edges()).embedding, wanted, atol=1e-6)
    path = tmp_path / "model" / "model.json"
    stored = json.loads(path.read_text())
    stored["links"]["scales"].pop()
    path.write_text(json.dumps(stored))
    with rejects("file-damaged"):
        H3GNN.load(tmp_path / "model")


def test_several_tables_have_link_columns_of_their_own() -> None:
    calls, mails = transfers(seed=1), transfers(seed=2)[["from_account", "to_account", "kind"]]
    graph = read_graph([calls, mails], features=ACCOUNTS)
    names = links_of(graph).names
    assert {"edges.out.amount.sum", "edges-2.in.kind=wire.share", "edges-2.out.links"} <= {*names}
    assert "edges-2.out.amount.sum" not in names
    alone = links_of(read_graph(calls, features=ACCOUNTS))
    np.testing.assert_allclose(links_of(graph).values[:, : len(alone.names)], alone.values, atol=1e-6)


def test_trees_see_link_columns_under_their_part() -> None:
    graph = read_graph(transfers(), features=ACCOUNTS)
    columns = NodeColumns.fit(graph, np.eye(NODES, 4, dtype=np.float32))
    own = columns.positions(LINKS)
    names = list(links_of(graph).names)
    assert [columns.columns[at].name for at in own] == sorted(names)
    expected = links_of(graph).values[:, np.argsort(names)]
    np.testing.assert_allclose(columns.values[:, own], expected, atol=5e-4)  # values for trees are rounded
    around = [
        at for at, one in enumerate(columns.columns) if one.name == "edges.out.links, mean of neighbours"
    ]
    assert columns.columns[around[0]].part == NEIGHBOURS
    mean = graph.adjacency(undirected=True, self_loops=False).mean(links_of(graph).values[:, :1])
    np.testing.assert_allclose(columns.values[:, around], mean, atol=5e-4)


def run(*arguments: Any) -> str:
    """Run a command and return what it prints."""
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == 0, found.output
    return found.output


def test_the_commands_show_store_and_repeat_link_columns(tmp_path: Path) -> None:
    edges, accounts = save(transfers(), tmp_path / "transfers"), save(ACCOUNTS, tmp_path / "accounts")
    own = ("--edges", edges, "--features", accounts)
    shown = run("inspect", *own)
    assert "link columns (26 numbers for each node)" in shown
    assert "transfers.amount" in shown
    assert "link columns" not in run("inspect", *own, "--link-columns", "no")
    links = json.loads(run("inspect", *own, "--json"))["links"]
    assert "transfers.out.amount.mean" in links["names"]
    run("fit", *own, *QUICK, "--out", tmp_path / "run")
    output = tmp_path / "again.parquet"
    run("embed", tmp_path / "run", *own, "--out", output)
    new = save(NEW, tmp_path / "new"), save(new_edges(), tmp_path / "new-edges")
    run("embed", tmp_path / "run", "--new-features", new[0], "--new-edges", new[1], "--out", output)
    assert len(pd.read_parquet(output)) == len(NEW)
    more = ("--new-features", new[0], "--new-edges", new[1], "--link-columns", "no", "--out", output)
    assert command("embed", tmp_path / "run", *more)[1]["error"]["code"] == "plan-differs"


def test_rows_that_are_no_edges_are_not_counted() -> None:
    table = pd.DataFrame({"source": list("aab"), "target": list("bcz"), "amount": [1.5, 5.0, 9.0]})
    accounts = pd.DataFrame({"id": list("abc"), "age": [1.0, 2.0, 4.0]})
    found = links_of(read_graph(table, features=accounts, unknown_nodes="drop"))
    wanted = links_of(read_graph(table[:2], features=accounts))
    assert np.array_equal(found.values, wanted.values)
    weighted = table[:2].assign(weight=[2.0, -1.0])
    dropped = links_of(read_graph(weighted, features=accounts, weights="drop"))
    assert np.array_equal(dropped.values, links_of(read_graph(weighted[:1], features=accounts)).values)
    kept = read_graph(weighted, features=accounts, weights="absolute")
    assert kept.edge_weight is not None
    assert kept.edge_weight.tolist() == [2, 1]
    links = links_of(kept)
    at = links.names.index("edges.in.weight.mean")  # the sign stays: 2 at b, -1 at c
    np.testing.assert_allclose(links.values[1:, at], [1, -1], atol=1e-6)


def test_new_ratings_are_read_as_ratings() -> None:
    rated = transfers().assign(weight=np.arange(400) % 21 - 10.0)
    more = new_edges().assign(weight=-3.0)
    model = H3GNN.from_settings(SMALL).fit(read_graph(rated, features=ACCOUNTS))
    assert model.graph_.edge_weight is None
    extended = model.extend(NEW, edges=more).graph
    assert extended.edge_weight is None
    links = links_of(extended)
    name = "edges.out.weight.min"
    scale = links.plan.scales[links.names.index(name)]
    assert links.values[NODES, links.names.index(name)] == pytest.approx(
        (-3 - scale.mean) / scale.scale, 1e-4
    )
