"""Keys and links of several tables: inferred, asked about, declared by a database, and in a schema file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pandas as pd
import pytest

from h3gnn.tables.propose import infer_schema, stems
from h3gnn.tables.schema import Question, Schema, TableSchema, accept_questions, check_schema, read_schema
from h3gnn.tables.sources import open_source
from tests.databases.generated import generate
from tests.program import call
from tests.rejects import rejects

CLIENTS = pd.DataFrame({"client_id": [1, 2, 3], "born": ["1980-01-01", "1990-02-02", "1970-03-03"]})
LOANS = pd.DataFrame({"loan_id": [7, 8, 9], "client_id": [1, 1, 3], "date": ["930705", "930706", "940101"]})


@pytest.mark.parametrize("seed", range(200))
def test_generated_databases(seed: int) -> None:
    made = generate(seed)
    schema = infer_schema(made.frames)
    found = {(name, link.columns[0], link.to) for name, one in schema.tables.items() for link in one.links}
    asked = {(one.table, one.link.columns[0], one.link.to) for one in schema.questions if one.link}
    assert found <= made.links
    assert made.links <= found | asked
    for name, key in made.keys.items():
        assert schema.tables[name].key == (key,)
    assert len(found) >= 2


def test_link_tables_have_two_links_and_a_key_of_both() -> None:
    films = pd.DataFrame({"film_id": range(10)})
    actors = pd.DataFrame({"actor_id": range(10)})
    cast = pd.DataFrame({"film_id": [0, 0, 1, 2], "actor_id": [1, 2, 1, 3]})
    schema = infer_schema({"films": films, "actors": actors, "cast": cast})
    assert schema.is_link_table("cast")
    assert schema.tables["cast"].key == ("film_id", "actor_id")
    assert not schema.is_link_table("films")


def test_times_are_those_of_the_row() -> None:
    schema = infer_schema({"clients": CLIENTS, "loans": LOANS})
    assert schema.tables["loans"].time == "date"
    assert schema.tables["clients"].time is None  # a date of birth


def test_values_without_a_name_are_a_question() -> None:
    shippers = pd.DataFrame({"shipperID": [1, 2, 3], "name": ["a", "b", "c"]})
    orders = pd.DataFrame({"orderID": range(9), "shipVia": [1, 2, 3] * 3, "quantity": [1, 2, 3] * 3})
    schema = infer_schema({"shippers": shippers, "orders": orders})
    assert schema.tables["orders"].links == ()
    assert [(one.link.columns, one.link.to) for one in schema.questions if one.link] == [
        (("shipVia",), "shippers")
    ]


def test_a_name_without_values_is_a_question_or_nothing() -> None:
    accounts = pd.DataFrame({"account_id": range(100)})
    orders = pd.DataFrame({"order_id": range(4), "account_id": [1, 2, 777, 888]})
    schema = infer_schema({"accounts": accounts, "orders": orders})
    assert schema.tables["orders"].links == ()
    assert schema.questions[0].link is not None
    assert schema.questions[0].link.share == 0.5
    elsewhere = orders.assign(account_id=[4001, 4002, 4003, 4004])
    assert infer_schema({"accounts": accounts, "orders": elsewhere}).questions == ()


def test_an_own_key_is_no_link_to_a_table_with_the_same_key() -> None:
    results = pd.DataFrame({"resultId": range(1, 50), "points": range(49)})
    sprints = pd.DataFrame({"resultId": range(1, 9), "points": range(8)})
    schema = infer_schema({"results": results, "sprint_results": sprints})
    assert schema.tables["sprint_results"].key == ("resultId",)
    assert schema.tables["sprint_results"].links == ()
    assert [one.table for one in schema.questions] == ["sprint_results"]


def test_one_table_and_empty_tables() -> None:
    schema = infer_schema({"clients": CLIENTS, "loans": LOANS.iloc[:0]})
    assert schema.tables["loans"].rows == 0
    assert schema.tables["loans"].links == ()
    assert infer_schema({"clients": CLIENTS}).questions == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("order-details", ("order", "detail")),
        ("CategoryID", ("category",)),
        ("statuses", ("status",)),
        ("id", ()),
    ],
)
def test_stems(name: str, words: tuple[str, ...]) -> None:
    assert stems(name) == words


def test_schema_files_keep_the_schema(tmp_path: Path) -> None:
    for name, frame in {"clients": CLIENTS, "loans": LOANS}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    schema = infer_schema(tmp_path)
    path = tmp_path / "graph.toml"
    path.write_text(schema.to_toml("."))
    stored, source = read_schema(path)
    assert check_schema(stored, open_source(source)).tables["loans"].links[0].share == 1.0
    assert {name: (one.key, one.time) for name, one in stored.tables.items()} == {
        name: (one.key, one.time) for name, one in schema.tables.items()
    }


def test_proposals_become_links_when_uncommented(tmp_path: Path) -> None:
    frames = {"staff": pd.DataFrame({"staff_id": [1, 2, 3], "reportsTo": [None, 1, 1]})}
    schema = infer_schema(frames)
    assert len(schema.questions) == 1
    path = tmp_path / "graph.toml"
    text = schema.to_toml(".")
    path.write_text(
        "\n".join(line.removeprefix("# ") for line in text.split("\n") if not line.startswith(("# ?", "# K")))
    )
    stored, _ = read_schema(path)
    assert check_schema(stored, open_source(frames)).tables["staff"].links[0].to == "staff"


NODES = """
[tables.transfers]
time = ""
nodes = ["currency"]
[tables.payments]
time = false
[tables.payments.nodes]
bank = ["payer", "payee"]
"city of payer" = "city"
"""


def test_columns_whose_values_are_nodes(tmp_path: Path) -> None:
    frames = {
        "transfers": pd.DataFrame({"currency": ["EUR", "USD"]}),
        "payments": pd.DataFrame({"payer": ["a", "b"], "payee": ["b", "a"], "city": ["x", "y"]}),
    }
    path = tmp_path / "graph.toml"
    path.write_text(NODES)
    schema = check_schema(read_schema(path)[0], open_source(frames))
    assert schema.tables["transfers"].nodes == {"currency": ("currency",)}
    expected = {"bank": ("payer", "payee"), "city of payer": ("city",)}
    assert schema.tables["payments"].nodes == expected
    assert [one.time for one in schema.tables.values()] == [None, None]
    assert schema.as_dict()["tables"]["payments"]["nodes"] == {
        "bank": ["payer", "payee"],
        "city of payer": ["city"],
    }
    path.write_text(schema.to_toml("."))
    assert read_schema(path)[0].tables["payments"].nodes == expected


COMPOSITE = """
[tables.lines]
key = ["order_id", "line"]
[tables.returns]
[[tables.returns.links]]
columns = ["order_id", "line"]
to = "lines"
"""


def test_composite_keys_and_links(tmp_path: Path) -> None:
    lines = pd.DataFrame({"order_id": [1, 1, 2], "line": [1, 2, 1]})
    returns = pd.DataFrame({"order_id": [1, 2, 2], "line": [2, 1, 9]})
    path = tmp_path / "graph.toml"
    path.write_text(COMPOSITE)
    schema, _ = read_schema(path)
    checked = check_schema(schema, open_source({"lines": lines, "returns": returns}))
    assert checked.tables["returns"].links[0].share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[tables.other]\n", "table-missing"),
        ('[tables.loans]\nkey = ["nothing"]\n', "column-missing"),
        ('[tables.loans]\nkey = ["client_id"]\n', "key-not-unique"),
        (
            '[tables.loans]\n[[tables.loans.links]]\ncolumns = ["client_id"]\nto = "clients"\n',
            "table-missing",
        ),
        (
            "[tables.clients]\n[tables.loans]\n[[tables.loans.links]]\n"
            'columns = ["client_id"]\nto = "clients"\n',
            "key-missing",
        ),
        (
            '[tables.clients]\nkey = ["client_id"]\n[tables.loans]\n[[tables.loans.links]]\n'
            'columns = ["loan_id"]\nto = "clients"\n',
            "link-without-match",
        ),
        ("[tables.loans]\nkeys = 1\n", "schema-invalid"),
        ("[tables.loans]\nnodes = 1\n", "schema-invalid"),
        ("[tables.loans]\ntime = 1\n", "schema-invalid"),
        ("[tables.loans]\ncolumns = 1\n", "schema-invalid"),
        ('[tables.loans]\nnodes = { bank = ["nothing"] }\n', "column-missing"),
        ('[tables.clients]\n[tables.loans]\nnodes = { clients = ["client_id"] }\n', "node-type-is-table"),
        ("[tables.loans]\n[[tables.loans.links]]\nto = 'clients'\n", "schema-invalid"),
        ("[tables", "schema-invalid"),
    ],
)
def test_schemas_that_do_not_fit(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "graph.toml"
    path.write_text(text)
    with rejects(code):
        check_schema(read_schema(path)[0], open_source({"clients": CLIENTS, "loans": LOANS}))


def test_sqlite_declares_keys_and_links(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE client (nr INTEGER PRIMARY KEY, name TEXT);"
            "CREATE TABLE loan (nr INTEGER PRIMARY KEY, owner INTEGER REFERENCES client(nr), amount REAL);"
            "INSERT INTO client VALUES (1, 'ann'), (2, NULL);"
            "INSERT INTO loan VALUES (1, 2, 9.5), (2, NULL, 3);"
        )
    schema = infer_schema(path)
    assert schema.tables["loan"].key == ("nr",)
    assert [(one.columns, one.to, one.share) for one in schema.tables["loan"].links] == [
        (("owner",), "client", 1.0)
    ]


def test_inspect_writes_a_schema_and_checks_an_edited_one(tmp_path: Path) -> None:
    for name, frame in {"clients": CLIENTS, "loans": LOANS}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    path = tmp_path / "graph.toml"
    shown = call("inspect", tmp_path, "--write", path, "--json")
    assert shown["tables"]["loans"]["links"] == [{"columns": ["client_id"], "to": "clients", "share": 1.0}]
    again = call("inspect", path, "--json")
    assert again["tables"] == shown["tables"]
    assert "client_id -> clients" in call("inspect", path)


def test_questions_keep_their_numbers_when_others_are_accepted() -> None:
    questions = (
        Question("a", "declared key repeats"),
        Question("a", "time?", time="day"),
        Question("a", "nodes?", kind="bank", nodes={"a": ("bank_id",)}),
    )
    schema = Schema({"a": TableSchema("a")}, questions)
    assert schema.acceptable == "2,3"
    rest = accept_questions(schema, "2")
    assert [one["number"] for one in rest.as_dict()["questions"]] == [1, 3]
    assert (rest.numbered[3].kind, rest.acceptable) == ("bank", "3")
    assert accept_questions(rest, "3").tables["a"].nodes == {"bank": ("bank_id",)}
    with rejects("question-unknown"):
        accept_questions(rest, "2")
    with rejects("question-without-proposal"):
        accept_questions(rest, "1")
