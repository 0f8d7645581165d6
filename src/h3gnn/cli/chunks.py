"""Results that are written a chunk at a time, and by the first of several processes alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3gnn.cli.output import write_embedding
from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph


def is_first() -> bool:
    """Tell whether this process writes: the only one, or rank 0 of those that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("RANK", "0") == "0"


def is_mapped(graph: Graph) -> bool:
    """Tell a graph in files from one in memory."""
    from h3gnn.graphs.mapped import MappedGraph

    return isinstance(graph, MappedGraph)


def write_result(path: Path, model: H3GNN, graph: Graph) -> None:
    """Write a fitted graph's embeddings; those of a graph in files as Parquet, never all in memory."""
    if not is_mapped(graph):
        write_embedding(path, model.embedding_, graph)
        return
    check_ending(path, graph)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        _write_chunks(Path(name), model, graph)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def check_ending(path: Path, graph: Graph) -> None:
    """Refuse, before the work, a format that is not written in chunks."""
    if is_mapped(graph) and path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: the embeddings of a graph in files are written as .parquet")


def _write_chunks(path: Path, model: H3GNN, graph: Any) -> None:
    """Write one row group per chunk: a column `node`, and `e0`, `e1`, … as for graphs in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = _Ids(graph.node_ids())
    writer = None
    try:
        for chunk in model.embedding_chunks():
            columns = {f"e{i}": pa.array(chunk[:, i]) for i in range(chunk.shape[1])}
            table = pa.table({"node": ids.take(len(chunk)), **columns})
            writer = writer or pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False)
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
