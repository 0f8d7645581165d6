"""Output of commands: messages and progress bars on standard error, tables and embeddings in files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from h3gnn.errors import InputError
from h3gnn.resources import progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph


EMBEDDING_ENDINGS = (".parquet", ".csv", ".npy")
Stage = Callable[[str, float], None]
"""Called with the current step and the completed share."""


def say(message: str) -> None:
    """Print a message to standard error; ignore a closed terminal."""
    with suppress(OSError):
        print(f"h3gnn: {message}", file=sys.stderr)


def say_repairs(graph: Graph | MappedGraph) -> None:
    """Report what was repaired when a graph was read."""
    for repair in graph.provenance.repairs:
        say(f"note: {repair.message}")


def echo_json(content: dict[str, Any] | list[Any]) -> None:
    """Print a result as JSON; paths become strings."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, default=str))


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table; the texts of cells are shown as they are."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title)) if title else Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def is_alone() -> bool:
    """Return whether this is the only process (no torchrun)."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def is_first() -> bool:
    """Return whether this process writes: the only one, or rank 0 of torchrun."""
    return is_alone() or os.environ.get("RANK", "0") == "0"


@contextmanager
def stages(*, show: bool = True) -> Iterator[Stage]:
    """Yield a function that shows the current step and the completed share of a long command."""
    if not show:
        yield lambda words, share: None
        return
    with progress() as add_bar:
        bar = add_bar("", 1.0)
        yield lambda words, share: bar(completed=share, description=words)
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

    check_ids(node_ids, path)  # pandas itself cannot hold such
    if path.suffix.lower() == ".npy":
        write_table(path.with_suffix(".ids.csv"), pd.DataFrame({"node": node_ids}), safe=safe)
        _write(path, lambda file: np.save(file, embedding))
        return
    columns = {f"e{i}": embedding[:, i] for i in range(embedding.shape[1])}
    write_table(path, pd.DataFrame({"node": node_ids, **columns}), safe=safe)


def write_table(path: Path, table: pd.DataFrame, *, safe: bool = False) -> None:
    """Write a DataFrame as CSV or Parquet by the ending of the file name.

    With `safe`, a text that a spreadsheet would take for a formula, an id, a class or the name of a column,
    gets a leading quote in a CSV file. The caller has called `check_ids`.
    """
    if path.suffix.lower() != ".csv":
        _write(path, lambda file: table.to_parquet(file, index=False))
        return
    if safe:
        from h3gnn.answers.export import guarded

        table = table.map(guarded).rename(columns=guarded)
    _write(path, lambda file: table.to_csv(file, index=False))


def _write(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file, whole or not at all, by what writes into an open one."""
    from h3gnn.storage.atomic import atomic_file

    with atomic_file(path.parent, path.name, lambda: path.name) as file:
        write(file)


def write_result(path: Path, model: H3GNN, graph: Graph | MappedGraph, *, safe: bool = False) -> None:
    """Write the embeddings of a graph; those of a graph on disk in chunks, as Parquet."""
    if graph.in_memory:
        write_rows(path, model.embedding_, graph.node_ids, safe=safe)
        return
    check_ending(path, graph)
    _write(path, lambda file: _write_chunks(file, model, graph))


def check_ending(path: Path, graph: Graph | MappedGraph) -> None:
    """Reject, before the work, formats without chunks and ids that cannot be written."""
    if graph.in_memory:
        from h3gnn.graphs.ids import check_ids

        check_ids(graph.node_ids, path)
    elif path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: embeddings of a graph on disk need .parquet", code="file-ending")


def _write_chunks(file: BinaryIO, model: H3GNN, graph: Any) -> None:
    """Write one row group per chunk: a column `node`, and `e0`, `e1`, … as for graphs in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    ids = _Ids(graph.id_blocks())
    writer = None
    try:
        for chunk in model.embedding_chunks(graph):
            turned = torch.from_numpy(chunk).t().contiguous().numpy()  # block by block, unlike NumPy
            columns = {f"e{i}": pa.array(column) for i, column in enumerate(turned)}
            table = pa.table({"node": ids.take(len(chunk)), **columns})
            writer = writer or pq.ParquetWriter(file, table.schema, compression="none", use_dictionary=False)
            writer.write_table(table, row_group_size=len(chunk))
    finally:
        if writer is not None:
            writer.close()


class _Ids:
    """Returns consecutive ids from blocks of any length."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks
        self.left: Any = None

    def take(self, count: int) -> Any:
        """Return the next `count` ids as one Arrow array."""
        import pyarrow as pa

        taken: list[Any] = []
        while count:
            block = next(self.blocks) if self.left is None else self.left
            taken.append(block.slice(0, count))
            self.left = block.slice(count) if len(block) > count else None
            count -= len(taken[-1])
        return pa.concat_arrays(taken)


@dataclass(frozen=True)
class Embedded:
    """An embedding `[nodes, D]` with its nodes' ids, its graph if there is one, and where it came from."""

    values: npt.NDArray[np.float32]
    ids: npt.NDArray[Any]
    graph: Graph | None
    method: str
    params: dict[str, Any]
    seed: int | None = None
    epochs: int = 0


def read_embedded(
    given: str, graph: Graph | MappedGraph | None, device: str, *, to_score: bool = False
) -> Embedded:
    """Return the embedding of a run or a file; with a graph, one row for each of its nodes in their order.

    Args:
        given: a folder, or a file.
        graph: whose nodes are meant; that of the run by default.
        device: where to embed.
        to_score: of a graph in files, take the rows of its labelled nodes, which are all that is scored.
    """
    path = Path(given)
    if path.is_dir():
        return _of_run(path, graph, device, to_score)
    if path.suffix.lower() not in EMBEDDING_ENDINGS:
        raise InputError(
            f"{given} is neither a folder of `h3gnn fit --out` nor a file that ends in one of "
            f"{', '.join(EMBEDDING_ENDINGS)}",
            code="not-embeddings",
        )
    return _of_file(path, graph)


def _of_run(folder: Path, graph: Graph | MappedGraph | None, device: str, to_score: bool) -> Embedded:
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import with_splits
    from h3gnn.settings import kept_for
    from h3gnn.training.resources import pick_device

    pick_device(device)
    model = H3GNN.load(folder).set_params(device=device)
    named: Graph | MappedGraph = model.graph_ if graph is None else graph
    if not named.in_memory:
        if not to_score:
            raise InputError(
                f"{folder} is a run on a graph on disk: write its embeddings with `h3gnn embed {folder} "
                "--out embeddings.parquet` and give that file",
                code="graph-on-disk",
            )
        values, asked = _labelled_rows(model, named)
    else:
        values = model.embedding_ if graph is None else model.transform(named)
        asked = named if graph is not None else with_splits(named)
    params = kept_for("log", model.get_settings())
    seed = model.random_state if isinstance(model.random_state, int) else None
    return Embedded(values, asked.node_ids, asked, "H3GNN", params, seed, model.epochs)


def _labelled_rows(model: H3GNN, graph: MappedGraph) -> tuple[npt.NDArray[np.float32], Graph]:
    """Return the embeddings of a graph's labelled nodes, and these nodes."""
    import numpy as np

    from h3gnn.ondisk.mapped import labelled_nodes
    from h3gnn.resources import check_memory

    nodes, labelled = labelled_nodes(graph)
    size = 4 * len(nodes) * len(model.get_feature_names_out())
    check_memory(2 * size, f"the embeddings of {len(nodes):,} labelled nodes")
    if len(nodes) < graph.num_nodes:
        say(f"note: of a graph on disk, only the {len(nodes):,} labelled nodes are scored")
    kept, first, wanted = [], 0, nodes.numpy()
    for chunk in model.embedding_chunks(graph):
        begin, end = np.searchsorted(wanted, [first, first + len(chunk)])
        kept.append(chunk[wanted[begin:end] - first])
        first += len(chunk)
    return np.concatenate(kept), labelled


def _of_file(path: Path, named: Graph | MappedGraph | None) -> Embedded:
    import hashlib

    import numpy as np

    from h3gnn.graphs.ids import find_ids, quoted
    from h3gnn.ondisk.mapped import labelled_nodes
    from h3gnn.tables.features import read_vectors

    read = read_vectors(path)
    values = np.asarray(read.values, dtype=np.float32)
    if not np.isfinite(values).all():
        raise InputError(
            f"{path} has NaN or infinity in row {int(np.argwhere(~np.isfinite(values))[0, 0])}",
            code="embedding-not-finite",
        )
    ids = read.ids if read.named else _ids_beside(path, read.ids)
    every = 0 if named is None else named.num_nodes
    graph = named if named is None or named.in_memory else labelled_nodes(named)[1]
    if graph is not None:
        place = find_ids(graph.node_ids, ids)
        missing = np.flatnonzero(place < 0)
        if missing.size:
            raise InputError(
                f"{path} has no row for node {quoted(graph.node_ids[missing[0]])} of "
                f"{graph.provenance.source} ({missing.size} of {graph.num_nodes} nodes are missing)",
                code="embedding-rows-missing",
            )
        if len(ids) > every:
            spare, name = len(ids) - every, graph.provenance.source
            say(f"note: {path} has {spare:,} rows for nodes that {name} does not have")
        values, ids = values[place], graph.node_ids
    digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return Embedded(values, ids, graph, path.name, {"embeddings": str(path), "embeddings_sha256": digest})


def _ids_beside(path: Path, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the ids of `NAME.ids.csv`, which `h3gnn embed` writes for an NPY file; else the positions."""
    from h3gnn.tables.reader import open_table

    beside = path.with_suffix(".ids.csv")
    if not beside.exists():
        return positions
    table = open_table(beside, role="node ids", header=True)
    ids = table.load([0]).unique_ids(0)
    if len(ids) != len(positions):
        raise InputError(
            f"{beside} has {len(ids)} ids, but {path} has {len(positions)} rows", code="embedding-rows"
        )
    return ids


def open_page(path: Path) -> None:
    """Show a page in the browser, or say that there is none here."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser could be started here: open {path} yourself")
