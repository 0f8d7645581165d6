"""What commands put out: words and bars to standard error, embeddings to files, whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

from h3gnn.errors import InputError
from h3gnn.strangers import check_ids, guarded

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph

EMBEDDING_ENDINGS = (".parquet", ".csv", ".npy")
AddBar = Callable[[str, float | None], Callable[..., None]]
"""From a title and a total (None: unknown) to what updates a bar: `completed=`, `total=`, `note=`, …."""

Told = Callable[[str, float], None]
"""Told what is done next, and the share of the work that is done."""


def say(message: str) -> None:
    """Tell the person something, beside the result; a terminal that is gone ends nothing."""
    with suppress(OSError):
        print(f"h3gnn: {message}", file=sys.stderr)


def is_alone() -> bool:
    """Tell whether torchrun did not start several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def is_first() -> bool:
    """Tell whether this process writes: the only one, or rank 0 of those that torchrun started."""
    return is_alone() or os.environ.get("RANK", "0") == "0"


@contextmanager
def progress(*, counted: bool = False) -> Iterator[AddBar]:
    """Give what adds a bar on standard error; where that is no terminal, bars that show nothing.

    Args:
        counted: show how many of how many are done, not the share.
    """
    if not sys.stderr.isatty():
        yield lambda title, total: lambda **_: None
        return
    from rich import progress as rich
    from rich.console import Console

    done = rich.MofNCompleteColumn() if counted else rich.TaskProgressColumn()
    note, title = (
        rich.TextColumn(f"{{task.{field}}}", markup=False) for field in ("fields[note]", "description")
    )
    # the wheel and the clock move while a step is long, so that nobody thinks it hangs
    columns = (
        rich.SpinnerColumn(),
        title,
        rich.BarColumn(),
        done,
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
        note,
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        yield lambda title, total: partial(bars.update, bars.add_task(title, total=total, note=""))


@contextmanager
def stages(*, show: bool = True) -> Iterator[Told]:
    """Give what is told each part of a long command, its words and the share that is done: a bar shows it."""
    if not show:
        yield lambda words, share: None
        return
    with progress() as add_bar:
        bar = add_bar("", 1.0)
        yield lambda words, share: bar(completed=share, description=words)
        bar(completed=1.0, description="done")


def write_embedding(
    path: Path, embedding: npt.NDArray[np.float32], graph: Graph, *, safe: bool = False
) -> None:
    """Write one row per node of a graph, as `write_rows` does."""
    write_rows(path, embedding, graph.node_ids, safe=safe)


def write_rows(
    path: Path, embedding: npt.NDArray[np.float32], node_ids: npt.NDArray[Any], *, safe: bool = False
) -> None:
    """Write one row per node under its id, as Parquet, CSV or NPY by the ending of the file name.

    Parquet and CSV have a column `node` and a column `e0`, `e1`, … per dimension. NPY holds the numbers
    alone, so the ids go beside it into `NAME.ids.csv`, in the same order.
    """
    import numpy as np
    import pandas as pd

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
    gets a quote before it in a CSV. Who makes the table has asked `check_ids`.
    """
    if path.suffix.lower() != ".csv":
        _write(path, lambda file: table.to_parquet(file, index=False))
        return
    if safe:
        table = table.map(guarded).rename(columns=guarded)
    _write(path, lambda file: table.to_csv(file, index=False))


def _write(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file, whole or not at all, by what writes into an open one."""
    from h3gnn.storage.atomic import whole_file

    with whole_file(path.parent, path.name, lambda: path.name) as file:
        write(file)


def is_mapped(graph: Graph | MappedGraph) -> TypeGuard[MappedGraph]:
    """Tell a graph in files from one in memory."""
    from h3gnn.ondisk.mapped import MappedGraph

    return isinstance(graph, MappedGraph)


def write_result(path: Path, model: H3GNN, graph: Graph | MappedGraph, *, safe: bool = False) -> None:
    """Write a fitted graph's embeddings; those of any graph in files as Parquet, never all in memory."""
    from h3gnn.graphs.graph import Graph

    if isinstance(graph, Graph):
        write_embedding(path, model.embedding_, graph, safe=safe)
        return
    check_ending(path, graph)
    _write(path, lambda file: _write_chunks(file, model, graph))


def check_ending(path: Path, graph: Graph | MappedGraph) -> None:
    """Refuse, before the work, a format that is not written in chunks, and ids that cannot be written."""
    if not is_mapped(graph):
        check_ids(graph.node_ids, path)
    if is_mapped(graph) and path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: the embeddings of a graph in files are written as .parquet")


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
    """Hands out the next so many ids from blocks of any length."""

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
