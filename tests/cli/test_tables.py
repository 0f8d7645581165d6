"""From raw tables of mixed columns to embeddings, on the command line and in Python."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, read_graph
from h3gnn.cli.options import parse_columns
from tests.program import call
from tests.rejects import rejects

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY: dict[str, Any] = {"n_models": 1, "epochs": 2, "channels": 8}
QUICK = ("--preset", "single", "--epochs", "2", "--channels", "8")


def make(name: str, folder: Path, *arguments: str) -> Path:
    before = sys.argv
    sys.argv = [name, "--out", str(folder), *arguments]
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = before
    return folder


@pytest.fixture
def people() -> pd.DataFrame:
    chance = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": [None if row % 7 == 0 else float(chance.integers(18, 80)) for row in range(40)],
            "town": chance.choice(["Ulm", "Bonn", "Jena"], 40),
            "since": pd.date_range("2020-01-01", periods=40, freq="W").strftime("%Y-%m-%d"),
            "memo": [
                f"likes {a} and {b} a lot" for a in ("tea", "chess", "rain", "bread") for b in range(10)
            ],
            "mail": [f"p{row}@x.de" for row in range(40)],
        },
        index=[f"p{row}" for row in range(40)],
    )


RING = np.array([np.arange(40), np.roll(np.arange(40), -1)])


def test_new_rows_are_encoded_by_the_plan_of_the_fit(people: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="mail is left out"):
        model = H3GNN.from_settings(TINY).fit(people, edge_index=RING)
    assert model.scaler_.kind == "none"
    assert any(repair.fields == ("mail",) for repair in model.graph_.provenance.repairs)
    model.save(tmp_path / "run")
    loaded = H3GNN.load(tmp_path / "run")
    shuffled = people[["memo", "since", "town", "age"]]  # another order, and one column that is not needed
    for one in (model, loaded):
        np.testing.assert_allclose(one.transform(shuffled, edge_index=RING), model.embedding_, atol=1e-5)
    other = loaded.transform(people.assign(town="Ulm"), edge_index=RING)
    assert np.abs(other - model.embedding_).max() > 1e-3
    with rejects("column-missing"):
        loaded.transform(people.drop(columns="town"), edge_index=RING)


def test_a_table_without_edges_may_have_mixed_columns(people: pd.DataFrame) -> None:
    with pytest.warns(UserWarning, match="mail is left out"):
        model = H3GNN.from_settings({**TINY, "n_neighbors": 3}).fit(people)
    np.testing.assert_allclose(model.transform(people.iloc[:5]), model.embedding_[:5], atol=1e-5)
    new = people.iloc[:1].assign(age=33.0, memo="likes chess and rain a lot")
    assert np.isfinite(model.transform(new)).all()


def test_features_of_another_plan_are_rejected(people: pd.DataFrame, tmp_path: Path) -> None:
    people.to_csv(tmp_path / "f.csv", index_label="id")
    people.assign(age=1.5 * people["age"]).to_csv(tmp_path / "g.csv", index_label="id")
    (tmp_path / "e.csv").write_text("source,target\np0,p1\np1,p2\n")
    model = H3GNN.from_settings(TINY).fit(read_graph(tmp_path / "e.csv", features=tmp_path / "f.csv"))
    with rejects("plan-differs"):
        model.transform(read_graph(tmp_path / "e.csv", features=tmp_path / "g.csv"))
    graph = read_graph(tmp_path / "e.csv", features=tmp_path / "g.csv", plan=model.graph_.plan)
    assert model.transform(graph).shape == model.embedding_.shape


def test_inspect_fit_and_embed_the_fraud_tables(tmp_path: Path) -> None:
    folder = make("make_fraud", tmp_path, "--accounts", "150")
    again = make("make_fraud", tmp_path / "again", "--accounts", "150")
    assert (folder / "accounts.csv").read_bytes() == (again / "accounts.csv").read_bytes()
    graph = ("--edges", folder / "transactions.csv", "--features", folder / "accounts.csv")
    printed = call("inspect", *graph)
    lines = [line for line in printed.splitlines() if " -> " in line]
    assert [line.split()[0] for line in lines] == [
        *("country", "opened", "balance", "account_type", "memo", "is_fraud", "transactions"),
        *("transactions.tx_id", "transactions.amount", "transactions.booked"),
    ]
    assert "edges run from from_account to to_account" in printed
    profile = call("inspect", *graph, "--repeated", "count", "--json")
    kinds = {column["name"]: column["kind"] for column in profile["columns"]}
    assert (kinds["memo"], kinds["is_fraud"]) == ("text", "label")
    assert (profile["classes"], profile["weighted"]) == (2, True)
    call("fit", *graph, "--out", tmp_path / "run", *QUICK)
    rows = (folder / "accounts.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([rows[0], *rows[1:61]]) + "\n")
    arguments = ("--edges", folder / "transactions.csv", "--features", tmp_path / "new.csv")
    call("embed", tmp_path / "run", *arguments, "--unknown-nodes", "drop", "--out", tmp_path / "z.csv")
    assert len(pd.read_csv(tmp_path / "z.csv")) == 60


def test_fit_the_products_with_text(tmp_path: Path) -> None:
    folder = make("make_products", tmp_path, "--products", "120")
    graph = ("--edges", folder / "purchases.csv", "--features", folder / "products.csv")
    call("fit", *graph, "--label-column", "category", "--out", tmp_path / "run", *QUICK)
    model = H3GNN.load(tmp_path / "run")
    assert {column.name: column.kind for column in model.graph_.plan.columns} == {
        **{"title": "text", "description": "text", "brand": "category", "price": "number"},
        **{"listed": "date", "tags": "list", "category": "label"},
    }


def test_types_of_columns_are_given_as_options(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    (tmp_path / "f.csv").write_text("id,zip,day\na,10115,1/2/2020\nb,80331,3/4/2020\nc,10115,5/6/2020\n")
    graph = ("--edges", tmp_path / "e.csv", "--features", tmp_path / "f.csv")
    with pytest.raises(ValueError, match="day=date:dmy"):
        call("inspect", *graph)
    profile = call("inspect", *graph, "--columns", "zip=category,day=date:dmy", "--json")
    assert [one["kind"] for one in profile["columns"]] == ["category", "date"]
    profile = call("inspect", *graph, "--column", "zip=category", "--column", "day=date:mdy", "--json")
    assert profile["columns"][0]["why"] == "as you declared"
    assert parse_columns(["a=b=text", "c = number,"]) == {"a=b": "text", "c": "number"}
    with rejects("value-invalid"):
        parse_columns(["zip"])


def test_several_tables_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text("caller,callee\na,b\nb,c\n")
    (tmp_path / "mails.csv").write_text("sender,receiver\na,c\n")
    edges = ("--edges", tmp_path / "calls.csv", "--edges", tmp_path / "mails.csv")
    assert call("inspect", *edges, "--json")["edges"] == 3
