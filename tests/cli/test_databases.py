"""Several linked tables on the command line: what is printed as JSON, files, time, new rows, and mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.make_shop import make_shop
from h3gnn import H3GNN
from tests.inputs.test_unfinished import interrupt
from tests.program import call, invoke
from tests.rejects import rejects

SMALL = ("--preset", "single", "--epochs", 2, "--set", "channels=8", "--set", "heads=2", "--device", "cpu")
FAST = ("--head", "logistic", "--device", "cpu")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small shop: tables/ and new/; only read it."""
    folder = tmp_path_factory.mktemp("shop")
    known, added, _ = make_shop(60, 0)
    for name, tables in (("tables", known), ("new", added)):
        (folder / name).mkdir()
        for table, frame in tables.items():
            frame.to_csv(folder / name / f"{table}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def models(shop: Path) -> Path:
    """A folder of models of customers, of what they subscribe to, and of returned orders."""
    out = shop / "models"
    call("fit", "--tables", shop / "tables", "--type", "customers", "--out", out, *SMALL)
    for target, when in (("customers.subscribes", "now"), ("orders.returned", "row")):
        call("predict", out, target, "--label-time", when, "--out", shop / "p.csv", *FAST)
    return out


def frame(shop: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(shop / "tables" / f"{name}.csv")


def test_each_model_is_a_run_of_its_own(shop: Path, models: Path) -> None:
    names = {one.name for one in models.iterdir() if one.is_dir()}
    assert {"customers", "customers.subscribes", "orders.returned"} <= names
    stored = json.loads((models / "database.json").read_text())
    assert Path(stored["source"]) == shop / "tables"
    again = invoke("fit", "--type", "customers", "--tables", shop / "tables", "--out", models)
    assert "already fitted" in again.stderr
    inside = call("embed", models / "customers", "--out", shop / "inside.csv", "--json")
    assert inside["nodes"] == len(frame(shop, "customers"))


def test_a_prediction_as_json_and_as_a_table(shop: Path, models: Path) -> None:
    out = shop / "returned.csv"
    found = call("predict", models, "orders.returned=yes", "--out", out, "--json", *FAST)
    table, orders = pd.read_csv(out), frame(shop, "orders")
    assert table["node"].tolist() == orders["order_id"].tolist()
    assert table["label"].eq("returned=yes").tolist() == orders["returned"].eq("yes").tolist()
    assert found["held_out"]["positive_class"] == "returned=yes"
    assert sum(found["classes"].values()) == len(orders)
    price = call("predict", models, "products.price", "--out", shop / "price.csv", "--json", *FAST)
    assert price["held_out"]["mean"]["coverage"] > 0.5
    prices = pd.read_csv(shop / "price.csv")
    assert prices["number"].between(prices["low"], prices["high"]).all()


def test_recommendations_as_json(shop: Path, models: Path) -> None:
    options = ("--weight", "stars", "--at-least", 4)
    found = call("links", models, "ratings", "--for", 1003, "--top", 5, *options, "--json")
    assert [row["rank"] for row in found["links"]] == [1, 2, 3, 4, 5]
    assert {row["user"] for row in found["links"]} == {1003}
    rated = frame(shop, "ratings").query("customer_id == 1003")["product_id"]
    assert not {row["item"] for row in found["links"]} & set(rated)
    assert found["held_out"]["known_users"]["how"]
    assert found["recommender"] == {"table": "ratings", "weight": "stars", "at_least": 4}
    assert call("links", models, "ratings", "--for", 1003, "--top", 5, "--json") == found
    name = frame(shop, "products")["title"][6]
    found = call("links", models, "order_lines", "--together", name, "--top", 3, "--json")
    assert {row["item"] for row in found["links"]} == {7}
    for arguments, code in (
        (("ratings", "--for", 1003, "--together", 7), "option-conflict"),
        (("ratings", "--weight", "price"), "column-missing"),
        ((), "type-missing"),
        (("customers", "--for", 1003), "ends-missing"),
    ):
        with rejects(code):
            call("links", models, *arguments)


def test_answers_about_rows(shop: Path, models: Path) -> None:
    name = frame(shop, "customers")["name"][3]
    found = call("similar", models, "customers", name, "--k", 2, "--accept", "all", "--json")
    assert [row["node"] for row in found] == [1003, 1003]
    assert found[0]["name"] == name
    lines = frame(shop, "order_lines")
    planted = lines[lines["quantity"] == 100]
    odd = call("anomalies", models, "order_lines", "--top", len(planted), "--json")
    assert {row["node"] for row in odd["anomalies"]} == {
        f"{one.order_id}/{one.product_id}" for one in planted.itertuples()
    }
    usual = lines["quantity"].quantile(0.95)
    assert {row["reason"].split(";")[0] for row in odd["anomalies"]} == {
        f"quantity 100 (usual: 1 to {usual:.0f})"
    }
    assert odd["nodes"] == len(lines)
    clusters = call("cluster", models, "--type", "customers", "--clusters", 3, "--json")
    assert sum(clusters["sizes"]) == len(frame(shop, "customers"))
    scores = call("evaluate", models, "--type", "customers.subscribes", "--json")
    assert scores["leading"] == "accuracy"
    assert scores["rare_class"] == "yes"


def test_files_for_other_programs(shop: Path, models: Path) -> None:
    out = shop / "e.parquet"
    found = call("export", models, "--type", "customers", "--to", "parquet", "--out", out, "--json")
    assert found["nodes"] == len(pd.read_parquet(out)) == len(frame(shop, "customers"))
    call("report", models, "--type", "customers.subscribes", "--map", "pca", "--out", shop / "r.html")
    assert "customers" in (shop / "r.html").read_text(encoding="utf-8")
    call("plot", models, "--type", "customers", "--map", "pca", "--out", shop / "m.png")


def test_new_rows_are_embedded_or_predicted(shop: Path, models: Path) -> None:
    new = ("--new-tables", shop / "new")
    added = pd.read_csv(shop / "new" / "customers.csv")["customer_id"].tolist()
    out = shop / "new.csv"
    assert call("embed", models, "--type", "customers", *new, "--out", out, "--json")["new_nodes"] == len(
        added
    )
    assert pd.read_csv(out)["node"].tolist() == added
    everyone = call("embed", models, "--type", "customers", *new, "--refresh", "--out", out, "--json")
    assert everyone["refreshed"]
    assert everyone["nodes"] == len(frame(shop, "customers")) + len(added)
    call("predict", models, "customers.subscribes", *new, "--out", out, *FAST)
    assert pd.read_csv(out)["node"].tolist() == added
    with rejects("new-nodes-missing"):
        call("predict", models, "products.price", *new, "--out", out, *FAST)
    with rejects("option-of-graph"):
        call("embed", models, "--type", "customers", "--new-features", out, "--out", out)


def test_rows_of_a_date(shop: Path, models: Path, tmp_path: Path) -> None:
    orders, out = frame(shop, "orders"), tmp_path / "p.csv"
    call("predict", models, "orders.returned", "--test-from", "2024-08-01", "--out", out, *FAST)
    assert pd.read_csv(out)["node"].tolist() == orders["order_id"][orders["day"] >= "2024-08-01"].tolist()
    asked = ("orders.returned", "--as-of", "2024-06-01", "--label-time", "row", "--out", out, *FAST)
    call("predict", tmp_path / "then", *asked, "--tables", shop / "tables", *SMALL[:-2])
    assert pd.read_csv(out)["node"].tolist() == orders["order_id"][orders["day"] <= "2024-06-01"].tolist()
    with rejects("already-fitted"):
        call("predict", models, *asked)


def test_tables_that_moved_or_changed(shop: Path, models: Path, tmp_path: Path) -> None:
    copied, moved = tmp_path / "models", tmp_path / "tables"
    shutil.copytree(models, copied)
    shutil.copytree(shop / "tables", moved)
    asked = ("anomalies", copied, "customers", "--top", 1)
    call(*asked, "--tables", moved)
    changed = frame(shop, "products").assign(price=1.0)
    changed.to_csv(moved / "products.csv", index=False)
    with rejects("tables-differ"):
        call(*asked, "--tables", moved)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("predict", "{}", "customer.subscribes"), "column-unknown"),
        (("predict", "{}", "customers.subscribe"), "column-missing"),
        (("predict", "{}", "customers.subscribes=maybe"), "class-unknown"),
        (("predict", "{}", "customers.subscribes>3"), "value-invalid"),
        (("predict", "{}", "customers.customer_id"), "label-has-role"),
        (("predict", "{}", "orders.channel"), "label-time-unclear"),
        (("predict", "{}"), "target-missing"),
        (("predict", "{}", "products.price", "--test-from", "2024-01-01"), "time-missing"),
        (("predict", "{}", "orders.returned", "--preset", "paper"), "already-fitted"),
        (("predict", "{}", "orders.returned", "--labels", "y.csv"), "option-of-graph"),
        (("predict", "none/", "a.b"), "option-needs-tables"),
        (("predict", "none/", "a.b", "--tables", "nowhere/"), "file-missing"),
        (("predict", "none/", "a.b", "--tables", "{}"), "source-is-no-tables"),
        (("similar", "{}", "customers", "Nobody"), "unknown-node"),
        (("similar", "{}", "customers"), "rows-not-named"),
        (("anomalies", "{}"), "type-missing"),
        (("anomalies", "{}", "order_line"), "type-unknown"),
        (("embed", "{}", "--type", "customers.city"), "label-time-unclear"),
        (("evaluate", "{}", "--type", "customers"), "no-labels"),
        (("report", "{}"), "type-missing"),
        (("tune", "{}/../tables"), "graph-is-tables"),
        (("fit", "{}/../tables", "--out", "none/"), "type-missing"),
        (("fit", "{}/../tables", "--type", "customers"), "no-output"),
        (("compare", "{}"), "target-missing"),
        (("compare", "a", "b", "--tables", "{}/../tables"), "two-graphs"),
    ],
)
def test_mistakes_have_codes(models: Path, arguments: tuple[str, ...], code: str) -> None:
    with rejects(code):
        call(*(one.format(models) for one in arguments))


def test_methods_are_compared_on_the_tables_of_a_folder_of_models(shop: Path, models: Path) -> None:
    how: tuple[Any, ...] = ("--label-time", "now", "--quick", "--methods", "raw,joined-boosting", "--json")
    found = call("compare", models, "customers.subscribes", *how)
    again = call("compare", "--tables", shop / "tables", "customers.subscribes", *how)
    assert {row["name"] for row in found["rows"]} == {"raw", "joined-boosting"}
    assert [row["probe"] for row in found["rows"]] == [row["probe"] for row in again["rows"]]


def test_the_condition_that_was_asked_last_is_scored(shop: Path, models: Path) -> None:
    out = shop / "copied"
    shutil.copytree(models, out)
    target = "orders.returned"
    for asked, said in ((target, "no, yes"), (f"{target}=yes", "returned=yes"), (target, "no, yes")):
        call("predict", out, asked, "--out", shop / "asked.csv", *FAST)
        found = invoke("evaluate", out, "--type", target, "--device", "cpu")
        assert found.exit_code == 0
        assert said in found.stderr


def test_new_rows_have_a_short_report(shop: Path, models: Path) -> None:
    before = (models / "customers.subscribes" / "predictions.json").read_bytes()
    options = ("--new-tables", shop / "new", "--out", shop / "short.csv", *FAST)
    printed = call("predict", models, "customers.subscribes", *options)
    assert len(printed.splitlines()) == 3  # the score, the rows, and the file
    assert (models / "customers.subscribes" / "predictions.json").read_bytes() == before


def test_inspect_says_what_dates_the_rows(shop: Path) -> None:
    found = call("inspect", shop / "tables", "--json")
    dated = {name: one["dated_by"] for name, one in found["tables"].items() if one["dated_by"]}
    assert dated == {"order_lines": ["orders.day"]}


def test_inspect_shows_what_becomes_of_each_column(shop: Path) -> None:
    found = call("inspect", shop / "tables", "--columns", "customers.city=identifier", "--json")["encoding"]
    customers = {one["column"]: one for one in found["customers"]}
    assert [*customers] == [*frame(shop, "customers")]
    share = 100 * frame(shop, "customers")["subscribes"].isna().mean()
    assert customers["subscribes"]["missing"] == pytest.approx(share)
    assert customers["subscribes"]["holds"].startswith("boolean")
    assert customers["city"]["becomes"] == "left out"
    assert [one["becomes"] for one in found["order_lines"]][:2] == ["link to orders", "link to products"]
    printed = call("inspect", shop / "tables", "--details")
    for name in {one["column"] for of in found.values() for one in of}:
        assert f"    {name} " in printed
    with rejects("option-needs-tables"):
        call("inspect", "synthetic", "--details")


def test_an_interrupted_fit_is_continued_by_the_same_command(shop: Path, tmp_path: Path) -> None:
    def ask(folder: str) -> tuple[object, ...]:
        how = ("--set", "channels=8", "--set", "heads=2", "--device", "cpu", "--json")
        tables = ("--tables", shop / "tables", "--preset", "single", "--epochs", 6, *how)
        return ("similar", tmp_path / folder, "products", 7, *tables)

    interrupt(*ask("stopped"))
    assert [one.name for one in (tmp_path / "stopped/products/checkpoints").glob("epoch-*")]
    again = invoke(*ask("stopped"))
    assert "continuing" in again.stderr
    assert json.loads(again.stdout) == call(*ask("whole"))
    assert H3GNN.load(tmp_path / "stopped/products").history_.completed == 6


def test_a_new_folder_needs_tables(tmp_path: Path) -> None:
    for command in (("links", "none/", "ratings", "--for", 3), ("anomalies", "none/", "ratings")):
        with rejects("option-needs-tables") as found:
            call(*command)
        assert "none" in found.message


def test_wide_embeddings_propose_fewer_dimensions(shop: Path, models: Path) -> None:
    said = invoke("embed", models, "--type", "customers", "--out", shop / "wide.csv").stderr
    words = said.split("--dimensions ")[1].split("`")[0]
    out = shop / "few.parquet"
    call("export", models, "--type", "customers", "--to", "parquet", "--dimensions", words, "--out", out)
    assert len(pd.read_parquet(out).columns) == 1 + int(words)
