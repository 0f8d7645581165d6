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
from h3gnn.tables.files import check_file, check_table_memory, reading, split_line
from h3gnn.tables.headers import find_delimiter, find_header

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".dat", ".asc", ".txt")
FILE_SUFFIXES = (*TEXT_SUFFIXES, ".json", ".jsonl", ".parquet", ".pq", ".xlsx")
DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".duckdb")
MARKS = ("\t", "::", ",", ";", "|")
"""Delimiters, in the order in which they are tried; `::` is that of MovieLens."""
NULLS = ("\\N", "NULL")
"""What database exports write for a missing value."""
MANIFEST = "manifest.yaml"
SAMPLE_LINES, SAMPLE_BYTES = 500, 1 << 20
UNIT, COMMA = b"\x1f", "\u2063".encode()
"""Characters in place of a delimiter of two, and of a comma within a text."""


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
        time: the column with the time of each row, if declared.
    """

    key: tuple[str, ...] = ()
    links: tuple[DeclaredLink, ...] = ()
    time: str | None = None


class Source(ABC):
    """Several tables by name.

    Attributes:
        name: the source as the user gave it.
        tables: the names of the tables.
        declared: what the source itself declares; tables without an entry declare nothing.
        notes: what was changed or left out.
    """

    name: str
    tables: tuple[str, ...]

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
        for path in files:
            sheets = _workbook_sheets(path) if path.suffix.lower() == ".xlsx" else [None]
            for sheet in sheets:
                table = table_name(path) if sheet is None or len(sheets) == 1 else sheet
                if table in self._files:
                    both = f"{path.name} and {self._files[table][0].name}"
                    message = f"{name}: {both} are both the table {table!r}; rename one of them"
                    raise GraphError(message, code="table-duplicate")
                self._files[table] = path, sheet
        super().__init__(name, list(self._files))
        for table, (path, _) in self._files.items():
            if path.suffix.lower() in (".parquet", ".pq") and (found := _parquet_schema(path)):
                self.declared[table] = found

    def frame(self, table: str) -> pd.DataFrame:
        """Read the file of a table."""
        path, sheet = self._files[table]
        suffix = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
        check_table_memory(path, path.stat().st_size * (5 if suffix.endswith(".gz") else 1))
        with reading(path, "a table"):
            if suffix in (".parquet", ".pq"):
                return _named(pd.read_parquet(path))
            if suffix == ".xlsx":
                return _named(pd.read_excel(path, sheet_name=sheet or 0))
            if suffix.startswith(".json"):
                return _read_json(path)
            frame, notes = _read_text(path)
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

    def frame(self, table: str) -> pd.DataFrame:
        """Read all rows of a table."""
        with self._engine.connect() as run:
            names, rows = run(f"SELECT * FROM {_quoted(table)}")
        return pd.DataFrame.from_records(rows, columns=names).convert_dtypes(dtype_backend="numpy_nullable")


class Engine(ABC):
    """A kind of database: how to connect, and how to read its schema."""

    list_tables: str

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
        info = run(f"PRAGMA table_info({_quoted(table)})")[1]
        key = tuple(row[1] for row in sorted((row for row in info if row[5]), key=lambda row: row[5]))
        links: dict[int, list[Any]] = {}
        for row in run(f"PRAGMA foreign_key_list({_quoted(table)})")[1]:
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
            f"WHERE con.conrelid = {_literal(_quoted(table))}::regclass AND con.contype IN ('p', 'f') "
            "GROUP BY con.oid, con.contype, target.relname"
        )[1]
        kinds = [(one if isinstance(one, str) else one.decode(), *others) for one, *others in rows]
        key = next((tuple(names) for kind, _, names, _ in kinds if kind == "p"), ())
        foreign = [
            DeclaredLink(tuple(names), to, tuple(key)) for kind, to, names, key in kinds if kind == "f"
        ]
        return Declared(key, tuple(sorted(foreign)))


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
    path = Path(source)
    if path.is_dir():
        return _open_folder(path)
    check_file(path, (*DATABASE_SUFFIXES, ".xlsx"), "source of several tables")
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
        if (path / "graph.json").is_file():  # a graph on disk
            return False
        return any(_is_table(one) for one in path.iterdir()) or (path / "db").is_dir()
    return path.is_file() and path.suffix.lower() in (*DATABASE_SUFFIXES, ".xlsx")


def table_name(path: Path) -> str:
    """Return the name of the table in a file."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def hidden_password(url: str) -> str:
    """Return a URL without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1@", url)


def _is_table(path: Path) -> bool:
    suffixes = [one.lower() for one in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    named = path.name.lower().startswith(("readme", "license", "licence", "."))
    return path.is_file() and not named and bool(last) and last[0] in FILE_SUFFIXES


def _open_folder(folder: Path) -> Source:
    inner = folder / "db" if (folder / "db").is_dir() else folder  # RelBench
    files = sorted(one for one in inner.iterdir() if _is_table(one))
    source = FileSource(str(folder), files)
    others = sorted(
        one.name for one in inner.iterdir() if one.is_file() and one not in files and one.name != MANIFEST
    )
    if others:
        source.notes.append(f"{folder}: not tables: {shortened(others, 6)}")
    for path in (folder / MANIFEST, inner / MANIFEST):
        if path.is_file():
            source.declared |= _read_manifest(path, source.tables)
            break
    return source


def _read_manifest(path: Path, tables: Sequence[str]) -> dict[str, Declared]:
    """Read the keys, links and times of a RelBench folder."""
    try:
        import yaml
    except ImportError:
        message = f"{path} needs PyYAML: pip install 'h3gnn[relbench]'"
        raise InputError(message, code="package-missing") from None
    with reading(path, "a manifest"):
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        listed = content.get("tables", {}) if isinstance(content, dict) else {}
        if isinstance(listed, list):
            listed = {one["name"]: one for one in listed}
        return {name: _as_declared(one) for name, one in listed.items() if name in tables and one}


def _parquet_schema(path: Path) -> Declared | None:
    """Return what RelBench stores about a table in the metadata of its Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        stored = {key.decode(): value for key, value in (pq.read_schema(path).metadata or {}).items()}
        names = ("pkey_col", "fkey_col_to_pkey_table", "time_col")
        if "fkey_col_to_pkey_table" not in stored:
            return None
        return _as_declared({name: json.loads(stored[name]) for name in names if name in stored})


def _as_declared(stored: Mapping[str, Any]) -> Declared:
    key, links = stored.get("pkey_col"), stored.get("fkey_col_to_pkey_table") or {}
    return Declared(
        (str(key),) if key else (),
        tuple(sorted(DeclaredLink((str(column),), str(table)) for column, table in links.items())),
        stored.get("time_col"),
    )


def _workbook_sheets(path: Path) -> Sequence[str | None]:
    try:
        import openpyxl
    except ImportError:
        message = f"{path}: reading Excel workbooks needs openpyxl: pip install 'h3gnn[excel]'"
        raise InputError(message, code="package-missing") from None
    with reading(path, "a workbook"), closing(openpyxl.load_workbook(path, read_only=True)) as book:
        return [str(name) for name in book.sheetnames]


def _read_json(path: Path) -> pd.DataFrame:
    """Read records, one JSON object per line, or an object from ids to values."""
    text = _content(path).decode("utf-8-sig")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(content, dict) and all(isinstance(one, list) for one in content.values()):
        return pd.DataFrame({"id": list(content), "items": pd.Series(list(content.values()), dtype=object)})
    if isinstance(content, dict):
        items = content.items()
        content = [{"id": key} | (one if isinstance(one, dict) else {"value": one}) for key, one in items]
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise GraphError("not a list of records, or an object from ids to values", code="json-not-a-table")
    return _named(pd.json_normalize(content))


def _read_text(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a text file, of which quoted cells may span lines, and return notes on how it was read."""
    import pyarrow as pa

    content, notes = _content(path), []
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode()
        notes.append(f"{path.name} is not UTF-8 and is read as Latin-1")
    content = content.removeprefix(b"\xef\xbb\xbf")
    lines = content[:SAMPLE_BYTES].decode(errors="ignore").splitlines()[:SAMPLE_LINES]
    lines = [line for line in lines if line]
    if not lines:
        raise GraphError("it has no row", code="table-empty")
    mark = next((one for one in MARKS if one in lines[0]), ",")
    mark = find_delimiter(lines, path) if mark == "," and mark in lines[0] else mark
    if len(mark) > 1:
        content, lines = content.replace(mark.encode(), UNIT), [line.replace(mark, "\x1f") for line in lines]
        mark = "\x1f"
    cells = [[cell.strip() for cell in split_line(line, mark)] for line in lines]
    header = find_header(cells, "features", (), path)
    names = _column_names(cells[0], header=header)
    try:
        table = _parse(content, names, mark, header=header)
    except pa.ArrowInvalid:
        if mark != ",":
            raise
        table = _parse(content.replace(b", ", COMMA), names, mark, header=header)
        table = table.map(lambda cell: cell.replace(COMMA.decode(), ", ") if COMMA.decode() in cell else cell)
        notes.append(
            f"{path.name}: a comma before a space belongs to the text: otherwise rows differ in length"
        )
    return table.replace(dict.fromkeys(("", *NULLS))), notes


def _parse(content: bytes, names: Sequence[str], mark: str, *, header: bool) -> pd.DataFrame:
    """Split text into cells; every row must have as many as there are names."""
    import pyarrow as pa
    from pyarrow import csv

    table = csv.read_csv(
        pa.BufferReader(content),
        read_options=csv.ReadOptions(column_names=list(names), skip_rows_after_names=int(header)),
        parse_options=csv.ParseOptions(delimiter=mark, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return pd.DataFrame(
        {name: [cell.strip() for cell in cells] for name, cells in columns.items()}, dtype=object
    )


def _column_names(first: Sequence[str], *, header: bool) -> list[str]:
    names = list(first) if header else [""] * len(first)
    names = [name or f"column {at + 1}" for at, name in enumerate(names)]
    again = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if again is not None:
        raise GraphError(f"several columns are called {again!r}: rename one of them", code="column-duplicate")
    return names


def _content(path: Path) -> bytes:
    """Return the bytes of a file, decompressed."""
    import gzip

    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix.lower() == ".gz" else content


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis([str(name) for name in frame.columns], axis="columns")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
