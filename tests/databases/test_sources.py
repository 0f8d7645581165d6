"""Tables from folders, workbooks and databases, with the cells that people and programs write."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from h3gnn.tables.database import OpenedTables, read_database
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.sources import FrameSource, hidden_password, is_source, open_source
from tests.rejects import rejects

PEOPLE = "id,name,note\n1,ann,\n2,bob,x\n"


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("t.csv", PEOPLE, [["1", "ann", None], ["2", "bob", "x"]]),
        ("t.csv", "id;name\n1;ann\n2;NULL\n", [["1", "ann"], ["2", None]]),
        ("t.csv", "id,q\n1,\\N\n2,3\n", [["1", None], ["2", "3"]]),
        ("t.csv", 'id,name\n1,"two\nlines"\n2,"a, b"\n', [["1", "two\nlines"], ["2", "a, b"]]),
        ("t.csv", "id,name\n1,Pavlova, Ltd.\n2,Tokyo\n", [["1", "Pavlova, Ltd."], ["2", "Tokyo"]]),
        ("t.dat", "1::It 2::5\n2::It::4\n3::R::4\n", [["1", "It 2", "5"], ["2", "It", "4"], ["3", "R", "4"]]),
        ("t.tsv", "id\tx\n1\t2\n", [["1", "2"]]),
        ("t.csv", "id;price, EUR\n1;2,5\n2;3,5\n", [["1", "2,5"], ["2", "3,5"]]),
        ("t.json", '[{"id": 1, "x": {"y": 2}}]', [[1, 2]]),
        ("t.json", '{"0": [5, 7], "1": []}', [["0", [5, 7]], ["1", []]]),
        ("t.jsonl", '{"id": 1}\n{"id": 2}\n', [[1], [2]]),
        ("t.json", '{"a": {"x": 1}, "b": {"x": 2}}', [["a", 1], ["b", 2]]),
    ],
)  # fmt: skip
def test_cells_of_files(tmp_path: Path, name: str, content: str, wanted: list[list[object]]) -> None:
    (tmp_path / name).write_text(content, newline="")
    frame = open_source(tmp_path).frame("t")
    assert frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == wanted


def test_compressed_files_and_other_encodings_are_noted(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(PEOPLE.encode()))
    (tmp_path / "b.csv").write_bytes("id,name\n1,José\n".encode("latin-1"))
    (tmp_path / "picture.png").write_bytes(b"x")
    source = open_source(tmp_path)
    assert source.tables == ("a", "b")
    assert source.frame("a").shape == (2, 3)
    assert source.frame("b")["name"].tolist() == ["José"]
    assert len(source.notes) == 2  # the picture, and Latin-1


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"t.csv": "id,name\n1,a,b,c\n2,d\n"}, "file-damaged"),
        ({"t.csv": "id,id\n1,2\n"}, "column-duplicate"),
        ({"t.csv": ""}, "table-empty"),
        ({"t.json": "5"}, "json-not-a-table"),
        ({"t.json": "{"}, "file-damaged"),
        ({"t.csv": PEOPLE, "t.tsv": PEOPLE}, "table-duplicate"),
        ({}, "source-empty"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, files: dict[str, str], code: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with rejects(code):
        open_source(tmp_path).frame("t")


def test_workbooks_have_a_table_per_sheet(tmp_path: Path) -> None:
    path = tmp_path / "shop.xlsx"
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame({"client_id": [1, 2]}).to_excel(writer, sheet_name="clients", index=False)
        pd.DataFrame({"client_id": [2, 2, 1]}).to_excel(writer, sheet_name="orders", index=False)
    assert infer_schema(path).tables["orders"].links[0].to == "clients"


def test_duckdb_declares_keys_and_links(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE client (nr INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE loan (owner INTEGER REFERENCES client(nr), happened DATE)")
        database.execute("INSERT INTO client VALUES (1), (2)")
        database.execute("INSERT INTO loan VALUES (1, DATE '2020-01-02'), (NULL, NULL)")
    schema = infer_schema(path)
    assert schema.tables["client"].key == ("nr",)
    assert schema.tables["loan"].links[0].columns == ("owner",)
    assert schema.tables["loan"].time == "happened"


VIEWS = (
    "CREATE TABLE client (nr INTEGER PRIMARY KEY, town TEXT)",
    "INSERT INTO client VALUES (1, 'Ulm'), (2, 'Bonn'), (3, 'Ulm')",
    "CREATE TABLE orders (nr INTEGER PRIMARY KEY, owner INTEGER REFERENCES client)",
    "INSERT INTO orders VALUES (1, 1), (2, 1), (3, 3)",
    "CREATE VIEW busy AS SELECT owner, count(*) AS orders FROM orders GROUP BY owner ORDER BY owner",
)


def check_views(source: Any, folder: Path) -> None:
    """A view is a table if a schema file names it, and otherwise only mentioned."""
    opened = open_source(source)
    assert (set(opened.tables), opened.views) == ({"client", "orders"}, ("busy",))
    inferred = OpenedTables.open(source)
    assert "busy" not in inferred.schema().tables
    assert "busy" in " ".join(inferred.notes)
    tables = (
        '[tables.client]\nkey = ["nr"]\n[tables.busy]\nlinks = [{ columns = ["owner"], to = "client" }]\n'
    )
    (folder / "graph.toml").write_text(f'source = "{source}"\n{tables}')
    graph = read_database(folder / "graph.toml")
    assert {name: one.nodes for name, one in graph.types.items()} == {"client": 3, "busy": 2}
    assert graph.relations[0].ends.tolist() == [[0, 1], [0, 2]]
    assert not [one for one in graph.repairs if "busy" in one.message]
    (folder / "graph.toml").write_text(f'source = "{source}"\n{tables.replace("busy", "other")}')
    with rejects("table-missing"):
        read_database(folder / "graph.toml")


def test_views_of_sqlite_and_duckdb(tmp_path: Path) -> None:
    for connect, name in ((duckdb.connect, "shop.duckdb"), (sqlite3.connect, "shop.sqlite")):
        with closing(connect(str(tmp_path / name))) as database:
            for statement in VIEWS:
                database.execute(statement)
            database.commit()
        check_views(tmp_path / name, tmp_path)


def test_views_of_postgresql(postgres: str, tmp_path: Path) -> None:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE views")
    own = f"{postgres.rpartition('/')[0]}/views"
    with psycopg.connect(own) as connection:
        for statement in VIEWS:
            connection.execute(statement)
    check_views(own, tmp_path)


MANIFEST = """
name: rel-f1
manifest_version: 1
val_timestamp: '2005-01-01'
test_timestamp: '2010-01-01'
tables:
  drivers:
    pkey: nr
    time_col: null
    fkeys: {}
  results:
    pkey: null
    time_col: when
    fkeys:
      who: drivers
  races: {pkey: id, time_col: null, fkeys: {}}
"""
"""Of a folder of RelBench, whose Parquet files declare nothing."""


def _relbench(folder: Path, *, manifest: bool) -> Path:
    described: dict[str, dict[str, object]] = {
        "drivers": {"pkey_col": "nr", "fkey_col_to_pkey_table": {}, "time_col": None},
        "results": {"pkey_col": None, "fkey_col_to_pkey_table": {"who": "drivers"}, "time_col": "when"},
    }
    frames = {
        "drivers": pd.DataFrame({"nr": [0, 1], "joined": pd.to_datetime(["2020-01-01", "2020-02-01"])}),
        "results": pd.DataFrame({"who": [0, 1, 1], "when": pd.to_datetime(["2020-01-01"] * 3)}),
    }
    (folder / "db").mkdir()
    for name, frame in frames.items():
        table = pa.Table.from_pandas(frame)
        if not manifest:
            stored = {key: json.dumps(one) for key, one in described[name].items()}
            table = table.replace_schema_metadata(stored)
        pq.write_table(table, folder / "db" / f"{name}.parquet")
    if manifest:
        (folder / "manifest.yaml").write_text(MANIFEST)
    return folder


@pytest.mark.parametrize("manifest", [True, False])
def test_relbench_folders(tmp_path: Path, manifest: bool) -> None:
    source = open_source(_relbench(tmp_path, manifest=manifest))
    schema = infer_schema(source)
    assert schema.tables["drivers"].key == ("nr",)
    assert [(one.columns, one.to) for one in schema.tables["results"].links] == [(("who",), "drivers")]
    assert [one.time for one in schema.tables.values()] == [None, "when"]
    assert ["races" in one for one in source.notes] == [True] * manifest  # a table without a file


def test_frames_of_other_libraries_and_named_indexes() -> None:
    frame = pd.DataFrame({"x": [1]}, index=pd.Index([7], name="id"))
    source = FrameSource({"a": frame, "b": pa.table({"y": [2]})})
    assert source.frame("a").to_dict("list") == {"id": [7], "x": [1]}
    assert source.frame("b").to_dict("list") == {"y": [2]}


def test_what_is_a_source(tmp_path: Path) -> None:
    assert not is_source(tmp_path)
    (tmp_path / "a.csv").write_text(PEOPLE)
    assert is_source(tmp_path)
    assert is_source("postgresql://me:secret@host/db")
    assert not is_source("cora")
    assert hidden_password("postgresql://me:secret@host/db") == "postgresql://me@host/db"


def test_postgresql_declares_keys_and_links(postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE TABLE client (nr INTEGER PRIMARY KEY, name TEXT)")
        connection.execute(
            'CREATE TABLE "Loan Book" (nr INT, part INT, owner INT REFERENCES client, at TIMESTAMP, '
            "amount NUMERIC, PRIMARY KEY (nr, part))"
        )
        connection.execute("INSERT INTO client VALUES (1, 'ann'), (2, NULL)")
        connection.execute(
            """INSERT INTO "Loan Book" VALUES (1, 1, 2, '2020-01-02', 9.5), (1, 2, NULL, NULL, NULL)"""
        )
    source = open_source(postgres)
    frame = source.frame("Loan Book")
    assert frame["owner"].tolist()[0] == 2
    assert float(frame["amount"][0]) == 9.5
    schema = infer_schema(source)
    loans = schema.tables["Loan Book"]
    assert (loans.key, loans.time) == (("nr", "part"), "at")
    assert [(one.columns, one.to) for one in loans.links] == [(("owner",), "client")]


def test_an_unreachable_server_is_one_sentence_without_the_password() -> None:
    with rejects("database-error") as caught:
        open_source("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in caught.message


def test_a_database_in_a_folder_is_proposed(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table a (a_id integer primary key)")
    assert is_source(tmp_path)
    with rejects("source-is-no-tables") as found:
        open_source(tmp_path)
    assert str(path) in found.message
    (tmp_path / "b.csv").write_text("b_id\n1\n")
    assert list(open_source(tmp_path).tables) == ["b"]
