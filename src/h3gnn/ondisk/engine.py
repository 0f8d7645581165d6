"""DuckDB as the engine for graphs on disk, and edges as compressed sparse rows in files.

DuckDB joins and sorts more rows than memory holds: it obeys a memory limit and spills to a folder. It
downloads nothing: extensions are never installed or loaded automatically.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
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
from h3gnn.storage.atomic import lock, remove_orphans, umask

DATABASE = "work.duckdb"
BATCH_ROWS = 1 << 20
"""Rows that are read from the engine at a time."""

Edges = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]
"""Targets, sources and perhaps weights of some edges."""
Result = TypeVar("Result")


class Engine:
    """A DuckDB connection that obeys a memory limit and signals, and spills to a folder.

    `memory` is in bytes, None for half of the available memory. A `database` file keeps the tables.
    """

    def __init__(self, folder: Path, memory: int | None = None, database: Path | None = None) -> None:
        import duckdb

        self.folder, self._spill = folder, folder / "spill"
        self._memory = memory or available_memory() // 2
        options: dict[str, Any] = {
            "memory_limit": f"{max(1, self._memory // 1000)}KB",
            "temp_directory": str(self._spill),
            "threads": torch.get_num_threads(),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with self._errors():
            self.connection = duckdb.connect(str(database or ":memory:"), config=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        shutil.rmtree(self._spill, ignore_errors=True)

    def run(self, query: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a query to its end and return its rows."""
        with self._errors(), ThreadPoolExecutor(1) as pool:
            return self._wait(pool, lambda: list(self.connection.execute(query, values).fetchall()))

    def stream(self, query: str) -> Iterator[Any]:
        """Yield the rows of a query as Arrow batches; the connection is not free meanwhile."""
        with self._errors(), ThreadPoolExecutor(1) as pool:
            reader = self._wait(pool, lambda: self.connection.sql(query).to_arrow_reader(BATCH_ROWS))
            while (batch := self._wait(pool, lambda: next(reader, None))) is not None:
                yield batch

    def _wait(self, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        """Return the result of some work of DuckDB; it ignores signals, so an exception interrupts it."""
        waiting = pool.submit(work)
        try:
            return waiting.result()
        except BaseException:
            self.connection.interrupt()
            raise

    @contextmanager
    def table(self, name: str, schema: Any, batches: Iterable[Any]) -> Iterator[None]:
        """Let one query in the block read Arrow batches as a table; their exceptions are raised unchanged."""
        import duckdb
        import pyarrow as pa

        raised: list[BaseException] = []

        def watched() -> Iterator[Any]:
            try:
                yield from batches
            except BaseException as error:  # DuckDB replaces it by its own
                raised.append(error)
                raise

        self.connection.register(name, pa.RecordBatchReader.from_batches(schema, watched()))
        try:
            yield
        except Exception:
            if raised:
                raise raised[0] from None
            raise
        finally:
            with suppress(duckdb.TransactionException):  # an exception has aborted the transaction
                self.connection.unregister(name)

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
                f"joining and sorting tables needs more than {format_bytes(self._memory)} of memory "
                f"({_first_line(error)}); raise the limit (--memory) or free some memory",
                code="memory-limit",
            ) from None
        except duckdb.IOException as error:
            raise OSError(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    """Return the first line of a message of DuckDB, without its advice."""
    return str(error).partition("\n")[0][:200]


class Work(Engine):
    """The hidden folder in which a target is built, with a database of its finished stages."""

    def __init__(self, folder: Path, memory: int | None) -> None:
        super().__init__(folder, memory, folder / DATABASE)
        self.run("CREATE TABLE IF NOT EXISTS stages (name VARCHAR PRIMARY KEY, state VARCHAR)")

    def state(self, stage: str) -> Any:
        """Return the stored state of a stage, None without one."""
        found = self.run("SELECT state FROM stages WHERE name = ?", [stage])
        return json.loads(found[0][0]) if found else None

    def store(self, stage: str, state: Any) -> None:
        """Store the state of a stage."""
        self.run("INSERT OR REPLACE INTO stages VALUES (?, ?)", [stage, json.dumps(state)])

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
            message = f"another process is preparing {target}; wait for it, or stop it"
            raise InputError(message, code="folder-in-use")
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
        folder.chmod(0o777 & ~umask())
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
    """Return the hidden folder in which a target is built; after an interruption it holds finished stages."""
    return target.parent / f".{target.name}.unfinished"


def sort_edges(
    blocks: Iterable[Edges], folder: Path, nodes: int, *, weighted: bool, strongest: bool = False
) -> int:
    """Sort edges that arrive in any order, write them with `write_rows`, and return their number."""
    import pyarrow as pa

    kinds = [("target", pa.int64()), ("source", pa.int64()), ("weight", pa.float64())]
    schema = pa.schema(kinds if weighted else kinds[:2])
    batches = (
        pa.record_batch([pa.array(column) for column in block if column is not None], schema=schema)
        for block in blocks
    )
    with Engine(folder) as engine, engine.table("edges", schema, batches):
        rows = map(as_edges, engine.stream("SELECT * FROM edges ORDER BY target, source"))
        return write_rows(rows, folder, nodes, weighted=weighted, strongest=strongest)[0]


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
    for block in blocks:
        if not (read := len(block[0])):
            continue
        edges = block if held is None else tuple(map(_concatenate, held, block))
        target, source, weight = edges
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


def _concatenate(first: Any, second: Any) -> Any:
    return None if first is None else np.concatenate([first, second])


def index_type(nodes: int) -> npt.DTypeLike:
    """Return the smallest type that numbers all nodes."""
    return np.int32 if nodes <= np.iinfo(np.int32).max else np.int64
