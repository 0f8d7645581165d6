"""SQLite, DuckDB and PostgreSQL: how to connect, and what they declare about their tables."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from h3gnn.errors import InputError
from h3gnn.tables.files import reading


class DeclaredLink(NamedTuple):
    """A foreign key: its columns, the table that it references, and the columns there; () for its key."""

    columns: tuple[str, ...]
    to: str
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """What a source itself says about a table.

    Attributes:
        key: the columns of the primary key; () if none is declared.
        links: the foreign keys.
        time: the column with the time of each row, "" if there is none; None if nothing is declared.
    """

    key: tuple[str, ...] = ()
    links: tuple[DeclaredLink, ...] = ()
    time: str | None = None


class Engine(ABC):
    """A kind of database: how to connect, and how to read its schema.

    Attributes:
        list_tables, list_views: statements that return names.
    """

    list_tables: str
    list_views: str

    @abstractmethod
    def connect(self) -> Any:
        """Return a context manager whose value runs a statement and returns column names and rows."""

    @abstractmethod
    def declared(self, run: Any, table: str) -> Declared:
        """Return the keys and links of a table."""


def _runner(connection: Any) -> Callable[[str], tuple[list[str], list[Any]]]:
    """Return a function that runs a statement and returns column names and rows."""

    def run(statement: str) -> tuple[list[str], list[Any]]:
        cursor = connection.execute(statement)
        return [one[0] for one in cursor.description or ()], cursor.fetchall()

    return run


class SQLite(Engine):
    """A SQLite file."""

    list_tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    list_views = "SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY 1"

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Open the file read-only."""
        import sqlite3

        with reading(self.path, "SQLite"):
            address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
            with closing(sqlite3.connect(address, uri=True)) as connection:
                yield _runner(connection)

    def declared(self, run: Any, table: str) -> Declared:
        """Read PRAGMA table_info and foreign_key_list."""
        info = run(f"PRAGMA table_info({quoted(table)})")[1]
        key = tuple(row[1] for row in sorted((row for row in info if row[5]), key=lambda row: row[5]))
        links: dict[int, list[Any]] = {}
        for row in run(f"PRAGMA foreign_key_list({quoted(table)})")[1]:
            links.setdefault(row[0], []).append(row)
        found = []
        for rows in links.values():
            rows.sort(key=lambda row: row[1])
            names = tuple(str(row[4]) for row in rows if row[4] is not None)
            found.append(DeclaredLink(tuple(str(row[3]) for row in rows), str(rows[0][2]), names))
        return Declared(key, tuple(sorted(found)))


class DuckDB(Engine):
    """A DuckDB file."""

    list_tables = "SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY table_name"
    list_views = "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY view_name"

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Open the file read-only."""
        import duckdb

        with reading(self.path, "DuckDB"), duckdb.connect(str(self.path), read_only=True) as connection:
            yield _runner(connection)

    def declared(self, run: Any, table: str) -> Declared:
        """Read the constraints of a table."""
        columns = "constraint_type, constraint_column_names, referenced_table, referenced_column_names"
        rows = run(f"SELECT {columns} FROM duckdb_constraints() WHERE table_name = {_literal(table)}")[1]
        key = next((tuple(row[1]) for row in rows if row[0] == "PRIMARY KEY"), ())
        foreign = [row for row in rows if row[0] == "FOREIGN KEY"]
        links = [DeclaredLink(tuple(row[1]), str(row[2]), tuple(row[3])) for row in foreign]
        return Declared(key, tuple(sorted(links)))


class PostgreSQL(Engine):
    """A PostgreSQL server, by its URL; needs the extra `postgres`."""

    list_tables = (
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY (current_schemas(false)) "
        "ORDER BY 1"
    )
    list_views = list_tables.replace("('r', 'p')", "('v', 'm')")

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Connect in a read-only transaction."""
        try:
            import psycopg
        except ImportError:
            message = "reading PostgreSQL needs psycopg: pip install 'h3gnn[postgres]'"
            raise InputError(message, code="package-missing") from None

        try:
            with psycopg.connect(self.url, connect_timeout=20) as connection:
                connection.read_only = True
                yield _runner(connection)
        except psycopg.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{hidden_password(self.url)}: {reason}", code="database-error") from None

    def declared(self, run: Any, table: str) -> Declared:
        """Read the constraints of a table."""
        rows = run(
            "SELECT con.contype, target.relname, array_agg(a.attname ORDER BY k.position), "
            "array_agg(b.attname ORDER BY k.position) FROM pg_constraint con "
            "CROSS JOIN LATERAL unnest(con.conkey, con.confkey) WITH ORDINALITY AS k(here, there, position) "
            "JOIN pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = k.here "
            "LEFT JOIN pg_attribute b ON b.attrelid = con.confrelid AND b.attnum = k.there "
            "LEFT JOIN pg_class target ON target.oid = con.confrelid "
            f"WHERE con.conrelid = {_literal(quoted(table))}::regclass AND con.contype IN ('p', 'f') "
            "GROUP BY con.oid, con.contype, target.relname"
        )[1]
        kinds = [(one if isinstance(one, str) else one.decode(), *others) for one, *others in rows]
        key = next((tuple(names) for kind, _, names, _ in kinds if kind == "p"), ())
        foreign = [
            DeclaredLink(tuple(names), to, tuple(key)) for kind, to, names, key in kinds if kind == "f"
        ]
        return Declared(key, tuple(sorted(foreign)))


def hidden_password(url: str) -> str:
    """Return a URL without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1@", url)


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
