"""Open several linked tables: a folder, an Excel workbook, SQLite, DuckDB, PostgreSQL, or data frames.

A source lists its tables and reads one at a time as a DataFrame. Databases and RelBench folders also declare
keys, links and times; for other sources, `h3gnn.tables.schema` infers them.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs.checks import as_frame
from h3gnn.tables.files import check_file, check_table_memory, reading
from h3gnn.tables.texts import check_names, read_json, read_text


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


COMPRESSED = (".csv", ".tsv", ".tab", ".dat", ".asc", ".txt", ".json", ".jsonl")
"""Endings of files that may be compressed, as in `.csv.gz`."""
FILE_SUFFIXES = (*COMPRESSED, ".parquet", ".pq", ".xlsx")
DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".duckdb")
MANIFEST = "manifest.yaml"
NOT_TABLES = ("readme", "license", "licence", ".", "~$")
"""How the names of files begin that are no tables."""
OTHER_FOLDERS = {"graph.json": "a graph on disk", "database.json": "fitted models", "model.json": "a model"}
"""Files of folders that hold something else."""


class Source(ABC):
    """Several tables by name.

    Attributes:
        name: the source as the user gave it.
        tables: the names of the tables.
        declared: what the source itself declares; tables without an entry declare nothing.
        notes: what was changed or left out.
        views: views of a database, which are read if a schema names them.
    """

    name: str
    tables: tuple[str, ...]
    views: tuple[str, ...] = ()

    def __init__(self, name: str, tables: Sequence[str]) -> None:
        if not tables:
            raise GraphError(f"{name} contains no table", code="source-empty")
        self.name, self.tables = name, tuple(tables)
        self.declared: dict[str, Declared] = {}
        self.notes: list[str] = []

    @abstractmethod
    def frame(self, table: str) -> pd.DataFrame:
        """Return the rows of a table; the cells of a text file are text, None where empty or NULL."""


class FrameSource(Source):
    """DataFrames by name; Polars and Arrow tables are converted."""

    def __init__(self, frames: Mapping[str, Any]) -> None:
        super().__init__("the tables", list(frames))
        self._frames = {name: as_frame(one) for name, one in frames.items()}

    def frame(self, table: str) -> pd.DataFrame:
        """Return a table; a named index is a column."""
        frame = self._frames[table]
        frame = frame if frame.index.name is None else frame.reset_index()
        return _named(frame)


class FileSource(Source):
    """Files, each with one table, or with several in a workbook."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        self._files: dict[str, tuple[Path, str | None]] = {}
        notes = []
        for path in files:
            sheets = _sheets(path) if path.suffix.lower() == ".xlsx" else {None: True}
            notes += [f"{path.name}: the sheet {one} is empty" for one, full in sheets.items() if not full]
            tables = [one for one, full in sheets.items() if full]
            for sheet in tables:
                table = table_name(path) if sheet is None or len(tables) == 1 else sheet
                if table in self._files:
                    both = f"{path.name} and {self._files[table][0].name}"
                    message = f"{name}: {both} are both the table {table!r}; rename one of them"
                    raise GraphError(message, code="table-duplicate")
                self._files[table] = path, sheet
        super().__init__(name, list(self._files))
        self.notes += notes
        for table, (path, _) in self._files.items():
            if path.suffix.lower() in (".parquet", ".pq") and (found := _parquet_schema(path)):
                self.declared[table] = found

    def frame(self, table: str) -> pd.DataFrame:
        """Read the file of a table."""
        path, sheet = self._files[table]
        suffix, is_compressed = _suffix(path)
        check_table_memory(path, path.stat().st_size * (5 if is_compressed else 1))
        notes: list[str] = []
        with reading(path, "a table"):
            if suffix in (".parquet", ".pq"):
                frame = pd.read_parquet(path)
            elif suffix == ".xlsx":
                frame = pd.read_excel(path, sheet_name=str(sheet))
            else:
                frame, notes = read_json(path) if suffix.startswith(".json") else read_text(path)
            frame = _named(frame)
        self.notes += [note for note in notes if note not in self.notes]
        return frame


class DatabaseSource(Source):
    """Tables of a database, read by SQL within read-only connections."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._engine = engine
        with engine.connect() as run:
            tables = [str(row[0]) for row in run(engine.list_tables)[1]]
            super().__init__(name, tables)
            self.declared = {table: engine.declared(run, table) for table in tables}
            self.views = tuple(str(row[0]) for row in run(engine.list_views)[1])

    def frame(self, table: str) -> pd.DataFrame:
        """Read all rows of a table or view."""
        with self._engine.connect() as run:
            names, rows = run(f"SELECT * FROM {quoted(table)}")
        return pd.DataFrame.from_records(rows, columns=names).convert_dtypes(dtype_backend="numpy_nullable")


def open_source(source: Any) -> Source:
    """Open several tables.

    Args:
        source: a folder of files, a workbook, a SQLite or DuckDB file, a URL `postgresql://…`, or a mapping
            of names to data frames.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return FrameSource(source)
    if re.match(r"postgres(ql)?://", str(source)):
        return DatabaseSource(hidden_password(str(source)), PostgreSQL(str(source)))
    path, suffixes = Path(source), (*DATABASE_SUFFIXES, ".xlsx")
    if path.is_dir():
        return _open_folder(path)
    if not path.exists() or path.suffix.lower() not in suffixes:
        what = "is a single file" if path.exists() else "does not exist"
        message = (
            f"{path} {what}: give several tables as a folder of CSV or Parquet files, a file that ends in "
        )
        message += f"{', '.join(suffixes)}, or a postgresql:// URL"
        raise InputError(message, code="file-suffix-unknown" if path.exists() else "file-missing")
    check_file(path)
    if path.suffix.lower() == ".xlsx":
        return FileSource(str(path), [path])
    with path.open("rb") as file:
        is_sqlite = file.read(16).startswith(b"SQLite format 3")
    return DatabaseSource(str(path), SQLite(path) if is_sqlite else DuckDB(path))


def is_source(source: Any) -> bool:
    """Whether something names several tables: a folder of them, a workbook, a database or a URL."""
    if isinstance(source, Mapping | Source) or re.match(r"postgres(ql)?://", str(source)):
        return True
    path = Path(str(source))
    if path.is_dir():
        if any((path / one).is_file() for one in OTHER_FOLDERS):
            return False
        return any(map(_is_table, path.iterdir())) or (path / "db").is_dir() or bool(databases_in(path))
    return path.is_file() and path.suffix.lower() in (*DATABASE_SUFFIXES, ".xlsx")


def databases_in(folder: Path) -> list[Path]:
    """Return the files of databases in a folder."""
    return sorted(
        one for one in folder.iterdir() if one.suffix.lower() in DATABASE_SUFFIXES and one.is_file()
    )


def table_name(path: Path) -> str:
    """Return the name of the table in a file."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _suffix(path: Path) -> tuple[str, bool]:
    """Return the ending of a file without `.gz`, and whether it is compressed."""
    suffixes = ["", *(one.lower() for one in path.suffixes)]
    is_compressed = suffixes[-1] == ".gz" and suffixes[-2] in COMPRESSED
    return suffixes[-2] if is_compressed else suffixes[-1], is_compressed


def _is_table(path: Path) -> bool:
    named = path.name.lower().startswith(NOT_TABLES)
    return path.is_file() and not named and _suffix(path)[0] in FILE_SUFFIXES


def _open_folder(folder: Path) -> Source:
    if found := [what for name, what in OTHER_FOLDERS.items() if (folder / name).is_file()]:
        message = f"{folder} holds {found[0]}, not tables: name the tables themselves"
        raise InputError(message, code="source-is-no-tables")
    inner = folder / "db" if (folder / "db").is_dir() else folder  # RelBench
    files = sorted(one for one in inner.iterdir() if _is_table(one))
    if not files and (meant := databases_in(inner)):
        message = f"{folder} holds no tables, but did you mean {shortened(meant, 4, ' or ')}?"
        raise InputError(message, code="source-is-no-tables")
    source = FileSource(str(folder), files)
    others = sorted(
        one.name for one in inner.iterdir() if one.is_file() and one not in files and one.name != MANIFEST
    )
    if others:
        source.notes.append(f"{folder}: not tables: {shortened(others, 6)}")
    for path in {folder / MANIFEST, inner / MANIFEST}:
        if path.is_file():
            declared = _read_manifest(path)
            source.declared |= {name: one for name, one in declared.items() if name in source.tables}
            if missing := sorted({*declared} - {*source.tables}):
                source.notes.append(f"{path}: there is no file for {shortened(missing, 6)}")
    return source


def _read_manifest(path: Path) -> dict[str, Declared]:
    """Read the keys, links and times of a RelBench folder."""
    try:
        import yaml
    except ImportError:
        message = f"{path} needs PyYAML: pip install 'h3gnn[relbench]'"
        raise InputError(message, code="package-missing") from None
    with reading(path, "a manifest of RelBench"):
        tables = yaml.safe_load(path.read_text(encoding="utf-8"))["tables"]
        return {name: _declared(one, "pkey", "fkeys") for name, one in tables.items()}


def _parquet_schema(path: Path) -> Declared | None:
    """Return what RelBench stores about a table in the metadata of its Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        stored = {key.decode(): value for key, value in (pq.read_schema(path).metadata or {}).items()}
        names = ("pkey_col", "fkey_col_to_pkey_table", "time_col")
        if "fkey_col_to_pkey_table" not in stored:
            return None
        read = {name: json.loads(stored[name]) for name in names if name in stored}
        return _declared(read, "pkey_col", "fkey_col_to_pkey_table")


def _declared(stored: Mapping[str, Any], key: str, links: str) -> Declared:
    """Return the key, links and time of a table as RelBench stores them, under two kinds of names."""
    found = (DeclaredLink((str(column),), str(table)) for column, table in (stored.get(links) or {}).items())
    keys = (str(stored[key]),) if stored.get(key) else ()
    return Declared(keys, tuple(sorted(found)), stored.get("time_col") or "")


def _sheets(path: Path) -> dict[str | None, bool]:
    """Return the sheets of a workbook, and whether each has any cell."""
    try:
        import openpyxl
    except ImportError:
        message = f"{path}: reading Excel workbooks needs openpyxl: pip install 'h3gnn[excel]'"
        raise InputError(message, code="package-missing") from None
    with reading(path, "a workbook"), closing(openpyxl.load_workbook(path, read_only=True)) as book:
        rows = {str(sheet.title): sheet.iter_rows(values_only=True) for sheet in book.worksheets}
        return {name: any(one is not None for row in of for one in row) for name, of in rows.items()}


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    names = [str(name) for name in frame.columns]
    check_names(names)
    return frame.set_axis(names, axis="columns")
