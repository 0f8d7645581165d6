"""All that is known about each node as one Parquet table, for other viewers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.findings import TRAINED, Findings, Floats
from h3gnn.storage.files import write_atomically


def write_node_table(path: Path, findings: Findings, places: Floats, raw_places: Floats) -> None:
    """Write one row per node.

    Columns: `node`; `x`, `y` and `raw_x`, `raw_y`, the places on the two maps; one for each category (words,
    null where unknown) and each measure, by its key; and `embedding`, a list of float32.

    Args:
        path: the file.
        findings: of a run.
        places: of the embedding `[nodes, 2]`.
        raw_places: of the raw features.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"node": list(findings.ids)}
    for prefix, map_ in (("", places), ("raw_", raw_places)):
        columns |= {f"{prefix}{axis}": np.asarray(map_[:, i], np.float32) for i, axis in enumerate("xy")}
    for category in findings.categories:
        names = [*category.names, None]
        columns[category.key] = [names[value] for value in category.values.tolist()]
    for measure in findings.measures:
        columns[measure.key] = pa.array(np.asarray(measure.values, np.float32), from_pandas=True)
    embedding = np.ascontiguousarray(findings.embeddings[TRAINED], dtype=np.float32)
    ends = pa.array(np.arange(len(embedding) + 1, dtype=np.int64) * embedding.shape[1])
    columns["embedding"] = pa.LargeListArray.from_arrays(ends, pa.array(embedding.ravel())).cast(
        pa.list_(pa.float32())
    )
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    write_atomically(path, buffer.getvalue())
