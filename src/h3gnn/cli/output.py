"""What commands write: words to standard error, embeddings to files, whole or not at all."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from h3gnn.graphs.graph import Graph

EMBEDDING_ENDINGS = (".parquet", ".csv", ".npy")


def say(message: str) -> None:
    """Tell the person something, beside the result."""
    print(f"h3gnn: {message}", file=sys.stderr)


def write_embedding(path: Path, embedding: npt.NDArray[np.float32], graph: Graph) -> None:
    """Write one row per node under its id, as Parquet, CSV or NPY by the ending of the file name.

    Parquet and CSV have a column `node` and a column `e0`, `e1`, … per dimension. NPY holds the numbers
    alone, so the ids go beside it into `NAME.ids.csv`, in the same order.
    """
    from h3gnn.storage import write_atomically

    ending = path.suffix.lower()
    if ending == ".npy":
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, embedding)
        ids = _table(graph, {})
        write_atomically(path.with_suffix(".ids.csv"), ids.to_csv(index=False).encode())
        write_atomically(path, buffer.getvalue())
        return
    table = _table(graph, {f"e{i}": embedding[:, i] for i in range(embedding.shape[1])})
    if ending == ".csv":
        write_atomically(path, table.to_csv(index=False).encode())
        return
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


def _table(graph: Graph, columns: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame({"node": graph.node_ids, **columns})
