"""Output of commands: messages and progress bars on standard error, tables and embeddings in files."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import typer

from h3gnn.cli.exit import Stopped
from h3gnn.errors import InputError, named
from h3gnn.resources import new_table, progress, show

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from h3gnn.encoder.encode import Sharing
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.storage.atomic import Remote
    from h3gnn.tables.schema import Schema


PART = re.compile(r"part-\d{5,}\.parquet")
REMOTE = re.compile(r"(-{0,2}[\w-]+=|)((?:s3|gs|hdfs)://.*)", re.DOTALL)
WRITTEN = ("--out", "--embeddings", "--table", "--plot", "--write", "--record")
"""Options of files and folders that commands write."""
EMBEDDING_ENDINGS = (".parquet", ".csv", ".npy")
ROWS = 8_192
"""Rows of an embedding in memory that are written at a time."""
Stage = Callable[[str, float], None]
"""Called with the current step and the completed share."""


def say(message: str) -> None:
    """Print a message to standard error, of several processes once; ignore a closed terminal."""
    with suppress(OSError):
        if is_first():
            print(f"h3gnn: {message}", file=sys.stderr)


def say_repairs(graph: Graph | MappedGraph) -> None:
    """Report what was repaired when a graph was read; questions are asked when tables are opened."""
    for repair in graph.provenance.repairs:
        if repair.code != "question-open":
            say(f"note: {repair.message}")


def is_terminal() -> bool:
    """Whether a person can answer questions."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_questions(schema: Schema) -> list[int]:
    """Ask each question that has a proposal; return the numbers of those that are answered with yes."""
    accepted, linked = [], set()
    for number, one in schema.numbered.items():
        place = (one.table, one.link) if one.link is None else (one.table, one.link.columns)
        if not one.proposes or place in linked:
            continue
        if typer.confirm(f"{one.table}: {one.text}. Accept?", default=False, err=True):
            accepted.append(number)
            linked |= set() if one.link is None else {place}
    return accepted


def echo_json(content: dict[str, Any] | list[Any]) -> None:
    """Print a result as JSON; paths become strings."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, default=str))


def echo_written(*paths: Path | None) -> None:
    """Print the names of the written files."""
    for path in paths:
        if path is not None:
            typer.echo(f"wrote {path}")


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table."""
    table = new_table(title) if title else new_table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*row)
    show(table)


def is_alone() -> bool:
    """Return whether this is the only process (no torchrun)."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def is_first() -> bool:
    """Return whether this process writes: the only one, or rank 0 of torchrun."""
    return is_alone() or os.environ.get("RANK", "0") == "0"


def work_alone() -> None:
    """Let rank 0 of torchrun do all of a work that cannot be divided; the others end here."""
    if not is_first():
        raise Stopped(0)
    os.environ["WORLD_SIZE"] = "1"


def alone(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that works alone."""

    @wraps(command)
    def run(*given: Any, **named: Any) -> None:
        work_alone()
        command(*given, **named)

    return run


@contextmanager
def stages(*, spoken: bool = False) -> Iterator[Stage]:
    """Yield a function that shows the current step and the completed share of a long command.

    With `spoken`, each step, and each fifth of the whole, is also a line where there is no terminal.
    """
    printed = set[tuple[str, int]]()
    with progress() as add_bar:
        bar = add_bar("", 1.0)

        def show_stage(words: str, share: float) -> None:
            bar(completed=share, description=words)
            step = words, int(5 * share)
            if spoken and step not in printed and not sys.stderr.isatty():
                say(f"{words} … {share:.0%}")
            printed.add(step)

        yield show_stage
        bar(completed=1.0, description="done")


def write_rows(
    path: Path, embedding: npt.NDArray[np.float32], node_ids: npt.NDArray[Any], *, safe: bool = False
) -> None:
    """Write one row per node under its id, as Parquet, CSV or NPY by the ending of the file name.

    Parquet and CSV have a column `node` and a column `e0`, `e1`, … per dimension. NPY holds the numbers
    alone, so the ids go beside it into `NAME.ids.csv`, in the same order.
    """
    import numpy as np
    import pandas as pd

    from h3gnn.graphs.ids import check_ids

    check_ids(node_ids, path)
    if path.suffix.lower() == ".npy":
        write_table(path.with_suffix(".ids.csv"), pd.DataFrame({"node": node_ids}), safe=safe)
        _write(path, lambda file: np.save(file, embedding))
        return
    if path.suffix.lower() == ".parquet":
        _write(path, lambda file: _write_groups(file, embedding, node_ids))
        return
    columns = {f"e{i}": embedding[:, i] for i in range(embedding.shape[1])}
    write_table(path, pd.DataFrame({"node": node_ids, **columns}), safe=safe)


def _write_groups(file: BinaryIO, embedding: npt.NDArray[np.float32], node_ids: npt.NDArray[Any]) -> None:
    """Write Parquet a group of rows at a time, so that no second copy of the embedding is made."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = pa.array(node_ids)
    names = ["node", *(f"e{i}" for i in range(embedding.shape[1]))]
    kinds = pa.schema([(name, pa.float32() if at else ids.type) for at, name in enumerate(names)])
    with pq.ParquetWriter(file, kinds) as writer:
        for first in range(0, len(embedding), ROWS):
            rows = embedding[first : first + ROWS]
            writer.write_table(pa.table([ids[first : first + ROWS], *rows.T.copy()], schema=kinds))


def write_table(path: Path, table: pd.DataFrame, *, safe: bool = False) -> None:
    """Write a DataFrame as CSV or Parquet by the ending of the file name.

    With `safe`, texts and column names that a spreadsheet would evaluate get a leading quote in a CSV file.
    The caller has called `check_ids`.
    """
    if path.suffix.lower() != ".csv":
        _write(path, lambda file: table.to_parquet(file, index=False))
        return
    if safe:
        from h3gnn.answers.export import guarded

        table = table.map(guarded).rename(columns=guarded)
    _write(path, lambda file: table.to_csv(file, index=False))


def _write(path: Path, write: Callable[[Any], object]) -> None:
    from h3gnn.storage.atomic import atomic_file

    with atomic_file(path.parent, path.name, lambda: path.name) as file:
        write(file)


def write_result(path: Path, model: H3GNN, graph: Graph | MappedGraph, *, safe: bool = False) -> None:
    """Write the embeddings of a graph; those of a graph on disk in chunks, as Parquet.

    Several processes, which all call this, write a folder with a file for each.
    """
    if graph.in_memory:
        write_rows(path, model.embedding_, graph.node_ids, safe=safe)
        return
    check_ending(path, graph)
    with model.sharing() as share:
        if share.size == 1:
            _write(path, lambda file: _write_chunks(file, model, graph))
        else:
            _write_parts(path, model, graph, share)


def is_parts(folder: Path) -> bool:
    """Return whether several processes wrote this folder of embeddings."""
    return folder.is_dir() and all(PART.fullmatch(path.name) for path in folder.iterdir())


def _write_parts(path: Path, model: H3GNN, graph: MappedGraph, share: Sharing) -> None:
    """Write the rows of this process's nodes, as a file in a folder that gets its name when all are there."""
    import torch

    from h3gnn.inference import CHUNK
    from h3gnn.storage.atomic import make_temporary, umask

    name, handle = torch.zeros(64 + len(os.fsencode(path.name)), dtype=torch.uint8), -1
    if share.rank == 0:
        part, handle = make_temporary(path.parent, path.name, is_folder=True)
        written = torch.frombuffer(bytearray(os.fsencode(part.name)), dtype=torch.uint8)
        name[: len(written)] = written
    name = share.sum(name.int())
    part = path.parent / os.fsdecode(bytes(name.tolist()).rstrip(b"\0"))
    try:
        own = part / f"part-{share.rank:05d}.parquet"
        with own.open("wb") as file:
            _write_chunks(file, model, graph, share.own(graph.num_nodes, CHUNK).start)
        if not own.stat().st_size:
            own.unlink()
        share.complete()
        if share.rank == 0:
            part.chmod(0o777 & ~umask())
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            part.replace(path)
    finally:
        if share.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


def check_ending(path: Path, graph: Graph | MappedGraph) -> None:
    """Reject, before the work, formats without chunks and ids that cannot be written."""
    from h3gnn.graphs.ids import check_ids

    if graph.in_memory:
        check_ids(graph.node_ids, path)
    elif path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: embeddings of a graph on disk need .parquet", code="file-ending")


def _write_chunks(file: BinaryIO, model: H3GNN, graph: MappedGraph, first: int = 0) -> None:
    """Write one row group per chunk: a column `node`, and `e0`, `e1`, … as for graphs in memory.

    `first` is the node of the first row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    blocks, ids, writer = graph.id_blocks(), pa.chunked_array([], type=pa.null()), None
    try:
        for chunk in model.embedding_chunks(graph):
            while len(ids) < first + len(chunk):
                ids = pa.chunked_array([*ids.chunks, next(blocks)])
                skipped = min(first, len(ids))
                ids, first = ids.slice(skipped), first - skipped
            turned = torch.from_numpy(chunk).t().contiguous().numpy()  # block by block, unlike NumPy
            columns = {f"e{i}": pa.array(column) for i, column in enumerate(turned)}
            table = pa.table({"node": ids.slice(0, len(chunk)), **columns})
            ids = ids.slice(len(chunk))
            writer = writer or pq.ParquetWriter(file, table.schema, compression="none", use_dictionary=False)
            writer.write_table(table, row_group_size=len(chunk))
    finally:
        if writer is not None:
            writer.close()


def open_page(path: Path) -> None:
    """Open a page in the browser, if there is one."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser found: open {path} yourself")


class _Named:
    """A stream on which local copies have the names of the remote files."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(named(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run_on_copies(run: Callable[..., object], arguments: list[str]) -> None:
    """Run a command on copies of its remote files; upload what it writes, and what it changes in folders.

    Changes in a folder that it only reads, such as a stored embedding, are not necessary.
    """
    given = {at: found for at, one in enumerate(arguments) if (found := REMOTE.fullmatch(one))}
    if not given:
        run(arguments)
        return
    from h3gnn.storage.atomic import Remote, copies_folder

    with ExitStack() as stack:
        stack.callback(shutil.rmtree, copies_folder(), ignore_errors=True)
        for at, (beginning, address) in ((at, found.groups()) for at, found in given.items()):
            option, remote = beginning.rstrip("=") or arguments[at - 1], Remote(address)
            path = remote.reserve() if option in WRITTEN else remote.fetch()
            arguments[at] = f"{beginning}{path}"
            stack.callback(_send, remote, needed=option in (*WRITTEN, "--resume"))
        stack.enter_context(redirect_stdout(cast(IO[str], _Named(sys.stdout))))
        stack.enter_context(redirect_stderr(cast(IO[str], _Named(sys.stderr))))
        run(arguments)


def _send(remote: Remote, *, needed: bool) -> None:
    try:
        remote.send()
    except InputError as error:
        if needed:
            raise
        say(f"note: changes are not stored: {error}")
