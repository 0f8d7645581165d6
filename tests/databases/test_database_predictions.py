"""Predictions of several tables: suspicious columns, times, links and scores are reported, with a remedy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, Database
from h3gnn.answers.learning import (
    MEANS,
    NEGLIGIBLE,
    SHARES,
    NodeColumns,
    NodeInputs,
    NodeModel,
    candidates,
    titles_of_parts,
)
from h3gnn.answers.prediction import check_labels, predict_nodes
from h3gnn.answers.scores import Scores, dominant, no_better
from h3gnn.evaluation.heads import Target
from h3gnn.graphs.graph import Graph
from h3gnn.tables.database import read_database
from h3gnn.tables.leaks import BINS, doubts, nearly_determined
from h3gnn.tables.schema import Link, Schema, TableSchema
from tests.rejects import rejects

MODEL = H3GNN.from_preset("single", epochs=1, channels=8, heads=2, device="cpu")
USERS = 120


def ratings(others: int = 0, users: int = USERS) -> dict[str, pd.DataFrame]:
    """Return which of the first users are frauds, most with poor ratings, and the ratings of all users."""
    draw = np.random.default_rng(0)
    fraud = np.arange(users + others) % 3 == 0
    rated = np.repeat(np.arange(users + others), 4)
    poor = np.where(np.arange(users + others) % 20 == 0, ~fraud, fraud)
    stars = np.where(poor[rated], -1, 1) * draw.integers(1, 4, len(rated))
    given = {
        "rater": draw.permutation(rated),
        "rated": rated,
        "stars": stars,
        "weight": draw.random(len(rated)),
    }
    known = {"user": np.arange(users), "fraud": np.where(fraud[:users], "yes", "no")}
    return {"verdicts": pd.DataFrame(known), "ratings": pd.DataFrame(given)}


def user_schema() -> Schema:
    verdicts = TableSchema("verdicts", nodes={"person": ("user",)})
    return Schema(
        {"verdicts": verdicts, "ratings": TableSchema("ratings", nodes={"person": ("rater", "rated")})}
    )


def fraud(tables: dict[str, pd.DataFrame], **options: Any) -> Database:
    return Database(tables, schema=user_schema(), model=MODEL, **options)


def codes(graph: Graph) -> dict[str, Any]:
    return {one.code: one for one in graph.provenance.repairs}


def test_unknown_columns_are_rejected_with_a_suggestion() -> None:
    for name, code in (("ratings.star", "column-missing"), ("rating.stars", "column-unknown")):
        with rejects(code) as caught:
            fraud(ratings(), columns={name: "identifier"})
        assert "did you mean" in caught.message
        with rejects(code):
            read_database(ratings(), user_schema(), columns={name: "identifier"})


def test_values_of_many_categories_that_predict_the_class_are_found() -> None:
    draw, values = np.random.default_rng(0), np.repeat(np.arange(2 * BINS), 10)
    columns, classes = np.eye(2 * BINS)[values], values % 2
    of = ["place"] * columns.shape[1]
    assert nearly_determined(columns, of, classes) == {"place": 1.0}
    assert nearly_determined(columns, of, draw.permutation(classes)) == {}
    alone = np.eye(200)  # a value of each row says nothing about others
    assert nearly_determined(alone, ["id"] * 200, draw.integers(0, 2, 200)) == {}


def test_columns_are_reported_before_the_fit_and_the_advice_can_be_pasted() -> None:
    seen = list[Graph]()

    def train(model: H3GNN, graph: Graph, folder: Path | None) -> H3GNN:
        seen.append(graph)
        return model.fit(graph)

    database = fraud(ratings())
    database.train = train
    asked = database.ask("verdicts.fraud", label_time="now")
    (found,) = doubts(seen[0], asked.labels, "verdicts", "fraud")
    assert codes(seen[0])["label-doubtful"] == found
    words = shlex.split(found.message.split("`")[1])
    options = [words[at + 1] for at, one in enumerate(words) if one == "--columns"]
    assert "ratings.stars=identifier" in options
    assert words[:4] == ["h3gnn", "predict", "NEW_FOLDER", "verdicts.fraud"]
    again = fraud(ratings(), columns=dict(one.split("=") for one in options))
    without = again.view("verdicts", "fraud", label_time="now")
    assert doubts(without, asked.labels, "verdicts", "fraud") == ()


def test_rows_of_values_that_have_no_label_are_reported_and_can_be_predicted() -> None:
    database = fraud(ratings(others=30))
    found = database.predict("verdicts.fraud", label_time="now", head="logistic", allow_leaks=True)
    report = codes(database.loaded(database.fitted[0]).graph_)["other-rows-unlabelled"]
    assert (report.count, report.fields) == (30, ("person",))
    assert report.message in found.notes
    new = {"verdicts": pd.DataFrame({"user": [USERS, USERS + 1]})}
    more = database.predict("verdicts.fraud", head="logistic", allow_leaks=True, new=new)
    assert len(more.table) == 2


def test_a_condition_that_is_asked_for_is_the_positive_class() -> None:
    found = fraud(ratings()).predict("verdicts.fraud=no", label_time="now", head="logistic", allow_leaks=True)
    assert found.as_dict()["held_out"]["positive_class"] == "fraud=no"  # of two thirds of the rows
    assert found.scores.rate == pytest.approx(2 / 3)
    assert found.scores.mean["recall"] > 0.9


def test_sources_of_columns_are_those_that_users_know() -> None:
    database = fraud(ratings())
    asked = database.ask("verdicts.fraud", label_time="now", allow_leaks=True)
    graph, embedding = asked.model.graph_, asked.model.embedding_
    columns = NodeColumns.fit(graph, embedding).columns  # more than 256, so that they are components
    assert {one.source for one in columns if one.part == "own columns"} == {MEANS}
    assert f"{MEANS}, component 3" in {one.name for one in columns}
    few = fraud(ratings(users=12)).view("verdicts", "fraud", label_time="now")
    assert few.path_columns is not None
    columns = NodeColumns.fit(few, np.random.default_rng(0).random((12, 4)).astype(np.float32)).columns
    nothing = fraud(ratings()).view("verdicts", "fraud", label_time="row")  # of which no time is known
    assert titles_of_parts(nothing)["own columns"] != "own columns"
    titles = {f"path {one}" for one in few.path_columns.titles}
    assert {one.source for one in columns if one.part == "own columns"} == titles
    inputs, target = NodeInputs.of(graph, embedding), Target(asked.labels, 2)
    heads = candidates(inputs, np.arange(USERS), target, "auto", 0)
    assert any(one.head.title.endswith("on means along paths") for one in heads)
    assert not any("own columns" in one.head.title for one in heads)
    found = predict_nodes(graph, embedding, asked.labels, asked.names, labelled_too=True, allow_leaks=True)
    shares = [float(one) for one in re.findall(r": (\d\.\d\d)(?=[;.])", found.how)]
    assert sum(shares) == pytest.approx(1, abs=0.01 * len(shares))


def test_shares_of_the_classes_are_no_head() -> None:
    tables, schema = bank()
    asked = Database(tables, schema=schema, model=MODEL).ask("loan.status", label_time="row")
    inputs = NodeInputs.of(asked.model.graph_, asked.model.embedding_)
    model = NodeModel(inputs, inputs.order, Target(asked.labels[inputs.order], 2))
    weights = dict(zip([one.head.title for one in model.candidates], model.pool.weights, strict=True))
    assert weights[SHARES] > NEGLIGIBLE  # the labels are random
    assert SHARES not in model.weights()
    assert len(model.weights()) == len(model.used) - 1


# rows without a time of their own


def bank() -> tuple[dict[str, pd.DataFrame], Schema]:
    """Return accounts with dates, their loans with later dates, and standing orders without dates."""
    draw, accounts = np.random.default_rng(0), np.arange(60)
    tables = {
        "account": pd.DataFrame({"id": accounts, "date": "1995-01-01"}),
        "loan": pd.DataFrame(
            {
                "id": accounts,
                "account": accounts,
                "date": "1997-01-01",
                "amount": draw.random(60),
                "status": draw.choice(["A", "B"], 60),
            }
        ),
        "order": pd.DataFrame({"account": draw.integers(0, 60, 200), "amount": draw.random(200)}),
    }
    to = (Link(("account",), "account"),)
    loan = TableSchema("loan", key=("id",), links=to, time="date")
    schema = {"account": TableSchema("account", key=("id",), time="date"), "loan": loan}
    return tables, Schema({**schema, "order": TableSchema("order", links=to)})


def test_tables_that_others_date_are_named() -> None:
    tables, schema = bank()
    assert schema.dated_by("order") == ("account.date",)
    assert schema.dated_by("loan") == schema.dated_by("account") == ()
    database = Database(tables, schema=schema, model=MODEL)
    found = database.predict("loan.status", label_time="row", head="logistic")
    report = codes(database.loaded(database.fitted[0]).graph_)["rows-without-own-time"]
    assert report.fields == ("order",)
    assert report.message in found.notes
    assert report.message in found.as_dict()["notes"]
    now = Database(tables, schema=schema).view("loan", "status", label_time="now")
    assert "rows-without-own-time" not in codes(now)
    remedied = Schema({name: one for name, one in schema.tables.items() if name != "order"})
    view = Database(tables, schema=remedied).view("loan", "status", label_time="row")
    assert "rows-without-own-time" not in codes(view)


def test_new_rows_that_refer_to_nothing_are_named() -> None:
    tables, schema = bank()
    tables["loan"].loc[5, "account"] = 700  # known at the fit, and no news
    database = Database(tables, schema=schema, model=MODEL)
    database.ask("loan.status", label_time="row")
    new = pd.DataFrame({"id": [900, 901], "account": [3, 777], "date": "1998-01-01", "amount": 0.5})
    extension, _ = database.extend(database.fitted[0], {"loan": new})
    (report,) = [one for one in extension.repairs if one.code == "dangling-links"]
    assert report.count == 1
    assert re.findall(r"\d+", report.message) == ["1", "901", "777"]
    found = database.predict("loan.status", label_time="row", head="logistic", new={"loan": new})
    assert report.message in found.notes


def test_a_copy_of_the_number_to_predict_is_rejected_before_the_fit() -> None:
    tables, schema = bank()
    tables["loan"]["paid"] = tables["loan"]["amount"] * 2
    tables["loan"]["amount"] = tables["loan"]["amount"].where(np.arange(60) < 50)
    database = Database(tables, schema=schema, columns={"loan.paid": "number"}, model=MODEL)
    database.train = lambda *_: pytest.fail("rejected after the work")
    with rejects("label-leak"):
        database.ask("loan.amount", label_time="row")


def test_options_are_written_as_on_the_command_line(tmp_path: Path) -> None:
    tables, schema = bank()
    Database(tables, schema=schema, folder=tmp_path / "db").predict(
        "loan.status", label_time="row", head="logistic"
    )
    for options, flag in (
        ({"columns": {"loan.amount": "identifier"}}, "--columns loan.amount=identifier"),
        ({"as_of": "1998-01-01"}, "--as-of 1998-01-01"),
    ):
        with rejects("already-fitted") as caught:
            Database(tables, folder=tmp_path / "db", **options)
        assert flag in caught.message
        assert "{" not in caught.message


# what is said about scores


def scores(main: str, mean: float, error: float, **more: Any) -> Scores:
    given: dict[str, Any] = {
        "majority": None,
        "folds": 5,
        "positive": None,
        "contributions": (),
        "held_out": None,
    }
    return Scores({main: mean}, {main: error}, main=main, **given | more)


def test_scores_of_a_constant_are_called_so() -> None:
    assert no_better(scores("r2", 0.02, 0.03)) is not None
    assert no_better(scores("r2", 0.20, 0.03)) is None
    assert no_better(scores("accuracy", 0.71, 0.02, majority=0.70)) is not None
    assert no_better(scores("accuracy", 0.75, 0.02, majority=0.70)) is None
    assert no_better(scores("average_precision", 0.12, 0.03, majority=0.9, rate=0.1)) is not None
    assert no_better(scores("average_precision", 0.30, 0.03, majority=0.9, rate=0.1)) is None


def test_a_column_that_alone_explains_nearly_perfect_scores_is_found() -> None:
    perfect, good = (scores("accuracy", one, 0.01, majority=0.6) for one in (0.97, 0.9))
    alone, shared = [("a", 0.9, 0.1), ("b", 0.1, 0.1)], [("a", 0.5, 0.1), ("b", 0.4, 0.1)]
    assert dominant(perfect, alone) == ["a"]
    assert dominant(perfect, shared) == []
    assert dominant(good, alone) == []
    assert dominant(scores("r2", 0.95, 0.01), alone) == ["a"]
    assert dominant(perfect, []) == []


@pytest.mark.parametrize(
    ("counts", "noted"), [((80, 20), True), ((70, 30), False), ((80, 60, 40, 20), False)]
)
def test_a_threshold_is_advised_for_two_classes_only(counts: tuple[int, ...], noted: bool) -> None:
    notes = check_labels(np.repeat(np.arange(len(counts)), counts), tuple("abcd"[: len(counts)]), "loan")
    assert any("--threshold" in one for one in notes) == noted
