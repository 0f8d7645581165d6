"""DuckDB as the engine for graphs on disk, and edges as compressed sparse rows in files.

DuckDB reads, joins and sorts more rows than memory holds: it obeys a memory limit and spills to a folder. It
downloads nothing: extensions are never installed or loaded automatically.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import stored_weights
from h3gnn.resources import available_memory, format_bytes
from h3gnn.storage.atomic import lock, remove_orphans
from h3gnn.tables.files import MOST_SHOWN, Problems, check_parquet, reading, split_line, text_blocks
from h3gnn.tables.reader import FIX_NUMBER, Table

DATABASE = "work.duckdb"
BATCH_ROWS = 1 << 20
"""Rows that are read from the engine at a time."""

Edges = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]
"""Targets, sources and perhaps weights of some edges."""
Found = TypeVar("Found")


class Engine:
    """A DuckDB connection that obeys a memory limit and signals, and spills to a folder.

    `memory` is in bytes, None for half of the available memory. A `database` file keeps the tables.
    """

    def __init__(self, folder: Path, memory: int | None = None, database: Path | None = None) -> None:
        import duckdb

        self.folder, self.spill = folder, folder / "spill"
        self.memory = memory or available_memory() // 2
        options: dict[str, Any] = {
            "memory_limit": f"{max(1, self.memory // 1000)}KB",
            "temp_directory": str(self.spill),
            "threads": torch.get_num_threads(),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with self._errors():
            self.connection = duckdb.connect(str(database or ":memory:"), config=options)
            self.reader = self.connection.cursor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.connection.close()
        shutil.rmtree(self.spill, ignore_errors=True)

    def run(self, query: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a query to its end and return its rows."""

        def rows() -> list[tuple[Any, ...]]:
            return list(self.connection.execute(query, values).fetchall())

        with self._errors(), ThreadPoolExecutor(1) as pool:
            return _interruptible(pool, self.connection, rows)

    def stream(self, query: str, rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Yield the rows of a query as Arrow batches; the connection is not free meanwhile."""
        yield from self._stream(self.connection, query, rows)

    def _stream(self, connection: Any, query: str, rows: int) -> Iterator[Any]:
        with self._errors(), ThreadPoolExecutor(1) as pool:
            reader = _interruptible(pool, connection, lambda: connection.sql(query).to_arrow_reader(rows))
            while (batch := _interruptible(pool, connection, lambda: next(reader, None))) is not None:
                yield batch

    def blocks(self, query: str, rows: int) -> Iterator[Any]:
        """Yield the rows of a query as Arrow tables of equal length, on a connection of its own."""
        import pyarrow as pa

        rest = None
        for batch in self._stream(self.reader, query, rows):
            new = pa.Table.from_batches([batch])
            rest = new if rest is None else pa.concat_tables([rest, new])
            while len(rest) >= rows:
                yield rest.slice(0, rows)
                rest = rest.slice(rows)
        if rest is not None and len(rest):
            yield rest

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all changes of the block, or none of them."""
        self.connection.begin()
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise InputError(
                f"joining and sorting tables needs more than {format_bytes(self.memory)} of memory "
                f"({first_line(error)}); raise the limit (--memory) or free some memory",
                code="memory-limit",
            ) from None
        except duckdb.IOException as error:
            raise OSError(first_line(error)) from None


def _interruptible(pool: ThreadPoolExecutor, connection: Any, work: Callable[[], Found]) -> Found:
    """Return the result of some work of DuckDB; it does not notice signals, so an exception interrupts it."""
    waiting = pool.submit(work)
    try:
        return waiting.result()
    except BaseException:
        connection.interrupt()
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of a message of DuckDB, which is followed by its advice."""
    return str(error).partition("\n")[0][:200]


class Work(Engine):
    """The hidden folder in which a target is made, with a database of its finished stages."""

    def __init__(self, folder: Path, memory: int | None) -> None:
        super().__init__(folder, memory, folder / DATABASE)
        self.run("CREATE TABLE IF NOT EXISTS stages (name VARCHAR PRIMARY KEY, state VARCHAR)")

    def state(self, stage: str) -> Any:
        """Return what a stage has stored, None if nothing."""
        found = self.run("SELECT state FROM stages WHERE name = ?", [stage])
        return json.loads(found[0][0]) if found else None

    def store(self, stage: str, state: Any) -> None:
        """Store the state of a stage."""
        self.run("INSERT OR REPLACE INTO stages VALUES (?, ?)", [stage, json.dumps(state)])

    def sample(self, query: str, problems: Problems) -> Iterator[tuple[Any, ...]]:
        """Yield the first rows of a query for problems; the others are only counted."""
        rows = self.run(f"{query} LIMIT {MOST_SHOWN}")
        yield from rows
        if len(rows) == MOST_SHOWN:
            problems.count += self.run(f"SELECT count(*) FROM ({query})")[0][0] - MOST_SHOWN

    @property
    def id_kind(self) -> str:
        """Type of the nodes' ids, BIGINT or VARCHAR."""
        return str(self.run("SELECT any_value(typeof(id)) FROM nodes")[0][0])


@contextmanager
def work_folder(target: Path, made_of: Any, memory: int | None) -> Iterator[Work]:
    """Yield the hidden folder of a target, which replaces the target when the block succeeds.

    Invalid input removes it, since the same call would fail again. Any other exception keeps it if a stage
    is finished.
    """
    remove_orphans(target.parent, target.name)
    folder = hidden_beside(target)
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1
    try:
        if handle >= 0 and lock(handle) is False:
            raise InputError(
                f"another process is preparing {target}; wait for it, or stop it", code="folder-in-use"
            )
        with _open_work(folder, json.loads(json.dumps(made_of)), memory) as work:
            try:
                yield work
            except BaseException as error:
                if isinstance(error, GraphError) or work.state("features") is None:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        for path in folder.iterdir():
            if path.name.startswith(DATABASE):
                path.unlink()
            else:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        folder.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        folder.replace(target)
    finally:
        if handle >= 0:
            os.close(handle)


def _open_work(folder: Path, made_of: Any, memory: int | None) -> Work:
    """Open the database of an interrupted call with the same input, or else begin a new one."""
    import duckdb

    with suppress(duckdb.Error, OSError):  # damaged, or of another version of DuckDB
        work = Work(folder, memory)
        if work.state("made_of") == made_of:
            return work
        work.__exit__()
    shutil.rmtree(folder)
    folder.mkdir()
    work = Work(folder, memory)
    work.store("made_of", made_of)
    return work


def hidden_beside(target: Path) -> Path:
    """Return the hidden folder in which a target is made; after an interruption it holds finished stages."""
    return target.parent / f".{target.name}.unfinished"


SMALL_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
INTEGERS = (*SMALL_INTEGERS, "UBIGINT")
NUMBERS = (*INTEGERS, "FLOAT", "DOUBLE", "BOOLEAN")
INTEGER = "CASE WHEN TRY_CAST({0} AS BIGINT)::VARCHAR = {0} THEN TRY_CAST({0} AS BIGINT) END"
"""The integer that a text is in its plain form: "007" and "+7" are none."""
SPACE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)
"""White space that is no part of an id."""
MOST_REJECTS = 1000
"""Malformed rows that are listed."""
REJECTS_THERE = "SELECT 1 FROM duckdb_tables() WHERE table_name = 'reject_errors'"
REJECTS = "SELECT line, column_idx, error_type, csv_line FROM reject_errors ORDER BY line, column_idx"


def key_of(id_: str, kind: str, wanted: str) -> str:
    """Return an id, an SQL expression of some kind, as the kind of the nodes' ids; NULL where it is none."""
    if wanted == "VARCHAR":
        return f"{id_}::VARCHAR"
    return f"{id_}::BIGINT" if kind in SMALL_INTEGERS else INTEGER.format(f"{id_}::VARCHAR")


class TableScan:
    """A table as DuckDB reads it: with our header, delimiter and types, and columns c0, c1, … by position.

    The bytes of a text file are checked before: UTF-8, each quotation mark closed on its line.

    Attributes:
        kinds: DuckDB's types of the columns of `texts` (ids) and `numbers`.
        rows: number of rows, None for a text file.
    """

    def __init__(self, engine: Engine, table: Table, texts: Sequence[int], numbers: Sequence[int]) -> None:
        self.engine, self.table, self.texts, self.numbers = engine, table, texts, numbers
        self.rows: int | None = None
        self._path, self._blank_lines = table.path, False
        if table.delimiter is None:
            self.rows = _parquet_rows(table.path, [*texts, *numbers])
        else:
            self._check_text()
        columns = ", ".join(f"c{column}" for column in dict.fromkeys([*texts, *numbers]))
        with reading(table.path, "a table"):
            found = engine.run(f"DESCRIBE SELECT {columns} FROM {self.sql()}")
        self.kinds = {int(name[1:]): str(kind) for name, kind, *_ in found}
        for column, kind in self.kinds.items():
            place = f"{table.path}{table.title(column)}: a column of type {kind}"
            if column in texts and kind not in (*INTEGERS, "VARCHAR"):
                raise GraphError(
                    f"{place} cannot hold node ids; use integers or strings", code="id-type-invalid"
                )
            if column not in texts and kind.partition("[")[0] not in NUMBERS:
                raise GraphError(f"{place} does not hold numbers", code="column-not-numeric")

    def sql(self, span: tuple[int, int] | None = None, *, numbered: bool = False) -> str:
        """Return the table, or a range of its rows; numbered rows have a column `row`, counted from 0."""
        if self.table.delimiter is None:
            names = ", ".join(f"c{column}" for column in range(len(self.table.names)))
            rows = f"read_parquet({_quoted(self._path)}, file_row_number=true, hive_partitioning=false)"
            part = f" WHERE row >= {span[0]} AND row < {span[1]}" if span is not None else ""
            return f"(SELECT * FROM {rows} AS file({names}, row){part})"
        kinds = dict.fromkeys(range(len(self.table.names)), "VARCHAR")
        kinds |= dict.fromkeys(set(self.numbers) - set(self.texts), "DOUBLE")
        options = {
            "auto_detect": "false",
            "header": "false",
            "skip": str(self.table.line),
            "delim": _literal(self.table.delimiter),
            "quote": _literal('"'),
            "escape": _literal('"'),
            "columns": "{" + ", ".join(f"'c{column}': '{kind}'" for column, kind in kinds.items()) + "}",
            "compression": "'none'",
            "strict_mode": "true",
            "store_rejects": "true",
            "rejects_limit": str(MOST_REJECTS),
            "max_line_size": str(max(1 << 21, 256 * len(kinds))),
        }
        given = ", ".join(f"{name} = {value}" for name, value in options.items())
        number = ", row_number() OVER () - 1 AS row" if numbered else ""
        return f"(SELECT *{number} FROM read_csv({_quoted(self._path)}, {given}))"

    def id(self, column: int, *, trim: bool) -> str:
        """Return the expression of an id."""
        if trim and self.kinds[column] == "VARCHAR":
            return f"trim(c{column}, {_literal(SPACE)})"
        return f"c{column}"

    def id_kind(self, column: int) -> str:
        """Return the type in which the ids of a column are stored."""
        return "BIGINT" if self.kinds[column] in SMALL_INTEGERS else "VARCHAR"

    def number(self, column: int) -> str:
        """Return the expression of a number or of a list of numbers."""
        return f"c{column}" if self.table.delimiter is None else f"TRY_CAST(c{column} AS DOUBLE)"

    def blocks(self, query: str, rows: int) -> Iterator[Any]:
        """Yield the rows of a query of this table as Arrow tables, in the order of the file."""
        with self.errors():
            yield from self.engine.blocks(query, rows)

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row by its line in a text file, else by its number."""
        if self.table.delimiter is None or self._blank_lines:
            return self.table.place(row, column)
        return f"{self.table.path}, line {self.table.line + row + 1}{self.table.title(column)}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Name the file where DuckDB cannot read it."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise GraphError(
                f"{self.table.path} cannot be read as a table ({first_line(error)})", code="file-damaged"
            ) from None

    def check_rows(self, rows: int) -> None:
        """Raise if a table has malformed rows, which DuckDB leaves out and lists, or no row."""
        problems, listed = Problems(self.table.path), set[int]()
        for connection in (self.engine.reader, self.engine.connection):
            there = connection.execute(REJECTS_THERE).fetchall()
            for line, column, kind, text in connection.execute(REJECTS).fetchall() if there else ():
                place = f"{self.table.path}, line {line}"
                cells = split_line(text.rstrip("\r\n"), str(self.table.delimiter))
                if kind == "CAST" and len(cells) == len(self.table.names):
                    what = f"{cells[column - 1]!r} is not a number"
                    problems.add(place + self.table.title(column - 1), what, FIX_NUMBER, "cell-unreadable")
                elif line not in listed:
                    self.table.add_cell_count(problems, place, len(cells))
                listed.add(line)
        problems.check()
        if not rows:
            header = "a header and " if self.table.delimiter else ""
            raise GraphError(f"{self.table.path} has {header}no row", code="table-empty")

    def _check_text(self) -> None:
        """Check the bytes of a text file; if it has several kinds of line ends, read a copy that has one."""
        ends = set[bytes]()
        with self.table.path.open("rb") as file:
            _add_line_ends(file.read(self.table.start), ends)
        for _, content in text_blocks(self.table.path, self.table.start, self.table.line):
            _add_line_ends(content, ends)
            blank = any(pair in content for pair in (b"\n\n", b"\r\r", b"\n\r")) or content[:1] in b"\r\n"
            self._blank_lines = self._blank_lines or blank
        if len(ends) > 1:
            self.engine.spill.mkdir(exist_ok=True)
            self._path = self.engine.spill / f"{self.table.path.stem}.csv"
            with self.table.path.open("rb") as file, self._path.open("wb") as copy:
                copy.write(_unix_lines(file.read(self.table.start)))
                for _, content in text_blocks(self.table.path, self.table.start, self.table.line):
                    copy.write(_unix_lines(content))


def _add_line_ends(content: bytes, ends: set[bytes]) -> None:
    both = content.count(b"\r\n") if b"\r" in content else 0
    ends |= {end for end in (b"\n", b"\r") if content.count(end) > both} | ({b"\r\n"} if both else set())


def _unix_lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parquet_rows(path: Path, columns: Sequence[int]) -> int:
    """Return the number of rows of a Parquet file that fits into memory block by block."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"), pq.ParquetFile(path) as file:
        check_parquet(path, file, columns)
        return int(file.metadata.num_rows)


def _quoted(path: Path) -> str:
    """Return a path as DuckDB reads it, which takes some characters for patterns of names."""
    plain = str(path.resolve())
    for mark in "[*?":
        plain = plain.replace(mark, f"[{mark}]")
    return _literal(plain)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def sort_edges(
    blocks: Iterable[Edges],
    folder: Path,
    nodes: int,
    *,
    weighted: bool,
    strongest: bool = False,
    memory: int | None = None,
) -> int:
    """Sort edges that arrive in any order, write them with `write_rows`, and return their number."""
    import duckdb
    import pyarrow as pa

    kinds = [("target", pa.int64()), ("source", pa.int64()), ("weight", pa.float64())]
    schema = pa.schema(kinds if weighted else kinds[:2])
    raised: list[BaseException] = []

    def batches() -> Iterator[Any]:
        try:
            for block in blocks:
                columns = [pa.array(column) for column in block if column is not None]
                yield pa.record_batch(columns, schema=schema)
        except BaseException as error:  # DuckDB replaces it by its own
            raised.append(error)
            raise

    with Engine(folder, memory) as engine:
        engine.connection.register("edges", pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            rows = engine.stream("SELECT * FROM edges ORDER BY target, source")
            return write_rows(map(as_edges, rows), folder, nodes, weighted=weighted, strongest=strongest)[0]
        except duckdb.Error:
            if raised:
                raise raised[0] from None
            raise


def as_edges(batch: Any) -> Edges:
    """Return the columns target, source and perhaps weight of an Arrow batch."""
    target, source, *weight = (column.to_numpy() for column in batch.columns)
    return target, source, weight[0] if weight else None


def write_rows(
    blocks: Iterable[Edges], folder: Path, nodes: int, *, weighted: bool, strongest: bool = False
) -> tuple[int, int]:
    """Write sorted edges as `crow.bin`, `cols.bin` and perhaps `weight.bin`; return how many, and duplicates.

    The weights of duplicate edges are added in their order, or with `strongest` the largest is kept.
    """
    rows = edges = filled = 0
    names = ("crow.bin", "cols.bin", *(("weight.bin",) if weighted else ()))
    with ExitStack() as opened:
        crow, cols, *weights = (opened.enter_context((folder / name).open("wb")) for name in names)
        for read, (target, source, weight) in _merge_duplicates(blocks, strongest):
            rows += read
            if not len(target):
                continue
            _write_begins(crow, target, filled, int(target[-1]) + 1, edges)
            filled, edges = int(target[-1]) + 1, edges + len(target)
            cols.write(source.astype(index_type(nodes)).tobytes())
            if weight is not None:
                weights[0].write(stored_weights(weight).tobytes())
        _write_begins(crow, np.empty(0, np.int64), filled, nodes + 1, edges)
    return edges, rows - edges


def _write_begins(file: BinaryIO, target: npt.NDArray[Any], first: int, end: int, before: int) -> None:
    """Write where the edges of the targets `first` to `end` - 1 begin; `before` edges precede these."""
    for start in range(first, end, BATCH_ROWS):
        nodes = np.arange(start, min(start + BATCH_ROWS, end))
        file.write((before + np.searchsorted(target, nodes)).astype(np.int64).tobytes())


def _merge_duplicates(blocks: Iterable[Edges], strongest: bool) -> Iterator[tuple[int, Edges]]:
    """Yield sorted edges without duplicates, and how many rows were read for them.

    The last edge of a block is held back, since the next block may begin with the same one.
    """
    held: Edges | None = None
    weight: npt.NDArray[Any] | None
    for block in blocks:
        if not (read := len(block[0])):
            continue
        target, source, weight = block if held is None else _joined(held, block)
        again = (target[1:] == target[:-1]) & (source[1:] == source[:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~again]))
        if weight is not None and strongest:
            weight = np.maximum.reduceat(weight, starts)
        elif weight is not None:
            group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(target)))
            weight = np.bincount(group, weights=weight)  # adds in order, as for a graph in memory
        target, source = target[starts], source[starts]
        held = target[-1:], source[-1:], None if weight is None else weight[-1:]
        yield read, (target[:-1], source[:-1], None if weight is None else weight[:-1])
    if held is not None:
        yield 0, held


def _joined(first: Edges, second: Edges) -> Edges:
    weight = None
    if first[2] is not None and second[2] is not None:
        weight = np.concatenate([first[2], second[2]])
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]), weight


def index_type(nodes: int) -> npt.DTypeLike:
    """Return the smallest type that numbers all nodes."""
    return np.int32 if nodes <= np.iinfo(np.int32).max else np.int64
