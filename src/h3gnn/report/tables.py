"""Results as tables in the terminal, and node properties as a Parquet table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.evaluation.metrics import NUMBER_TITLES, TITLES
from h3gnn.evaluation.results import ALL_TITLES, RepeatedScore, Result, formatted
from h3gnn.report.findings import TRAINED, Findings, Floats
from h3gnn.resources import new_table, show
from h3gnn.storage.atomic import write_atomically

MEASURES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "macro_f1": "macro-F1"}

LONG = 14  # column titles of at least this length are wrapped


def print_results(results: Sequence[Result]) -> None:
    """Print tables of probe and k-means scores with one row per result, and the protocol."""
    from rich.console import Console

    graphs = ", ".join(dict.fromkeys(result.graph for result in results))
    show(_table(f"{graphs}: linear probe", {one.method: _probe_cells(one) for one in results}))
    usual = {one.method: _usual_cells(one) for one in results if one.leading not in ("accuracy", "r2")}
    if usual:
        show(_table(f"{graphs}: linear probe, usual measures", usual))
    clustered = {one.method: _cluster_cells(one.clustering) for one in results if one.clustering is not None}
    if clustered:
        show(_table(f"{graphs}: k-means", clustered))
    notes = [note(result) for note in (measures_note, _protocol_note) for result in results]
    for note in dict.fromkeys(one for one in notes if one):
        Console().print(note, markup=False, emoji=False, highlight=False, soft_wrap=True)


def percent(scores: RepeatedScore) -> str:
    """Return mean ± standard deviation in per cent, or a dash without values."""
    return f"{100 * scores.mean:.1f} ± {100 * scores.std:.1f}" if scores.flat.size else "–"


def _table(title: str, rows: dict[str, dict[str, str]]) -> Any:
    """Return a table with the columns of all rows."""
    table = new_table(title, title_justify="left")
    table.add_column("method")
    columns = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    for column in columns:
        shown = column if len(column) < LONG else column.replace(" ", "\n", 1)
        table.add_column(shown, justify="right", no_wrap=True)
    for method, cells in rows.items():
        table.add_row(method, *(cells.get(column, "–") for column in columns))
    return table


def _probe_cells(result: Result) -> dict[str, str]:
    first, leading = result.leading, result.score(result.leading)
    cells = {ALL_TITLES[first]: percent(leading)}
    if leading.interval95 is not None:
        low, high = leading.interval95
        cells["95 % interval"] = f"{100 * low:.1f} – {100 * high:.1f}"
    if first != "accuracy":
        others = [name for name in other_measures(first) if name != "accuracy"]
        found = {name: formatted(name, result.score(name)).removesuffix(" %") for name in others}
        return cells | {ALL_TITLES[name]: shown for name, shown in found.items()}
    cells["macro-F1"] = percent(result.macro_f1)
    if result.roc_auc is not None:
        cells["ROC-AUC"] = percent(result.roc_auc)
    return cells


def _usual_cells(result: Result) -> dict[str, str]:
    """Return the cells of the second table, printed if one class is rare."""
    auc = {} if result.roc_auc is None else {"ROC-AUC": percent(result.roc_auc)}
    return {
        "accuracy": percent(result.probe),
        TITLES["majority"]: f"{100 * result.score('majority').mean:.1f}",
        "macro-F1": percent(result.macro_f1),
        **auc,
    }


def other_measures(leading: str) -> list[str]:
    """Return the measures to show next to the leading one if one class is rare, or of numbers."""
    if leading == "r2":
        return [name for name in NUMBER_TITLES if name != "r2"]
    return [name for name in TITLES if name not in (leading, "majority")]


def measures_note(result: Result) -> str:
    """Return the note on the measures of numbers or of a rare class; "" if there is none."""
    if result.leading == "accuracy":
        return ""
    if result.leading == "r2":
        return "R² is the share of the variance that is explained; errors are in the unit of the number"
    k = "as many as it has test nodes" if result.top is None else str(result.top)
    return (
        f"one class holds {100 * result.score('majority').mean:.1f} % of the test nodes, so accuracy hides "
        f"the others; average precision and recall at k are of class {result.rare}, k = {k}"
    )


def _cluster_cells(found: dict[str, Any]) -> dict[str, str]:
    return {
        shown: f"{100 * found[name]['mean']:.1f} ± {100 * found[name]['std']:.1f}"
        for name, shown in MEASURES.items()
    }


def _protocol_note(result: Result) -> str:
    seeds, splits = len(result.probe.values), len(result.probe.values[0])
    return (
        f"protocol {result.protocol}: {result.description}; epoch: {result.epoch_rule}; "
        f"probe on test nodes, mean ± standard deviation over {splits} split(s) × {seeds} seed(s), in %"
    )


def write_node_table(path: Path, findings: Findings, places: Floats, raw_places: Floats) -> None:
    """Write one row per node, for other viewers.

    Columns: `node`; `x`, `y` and `raw_x`, `raw_y`, the positions on the two maps; each category (text, null
    where unknown) and each measure by its key; and `embedding`, a list of float32.
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
    rows = pa.LargeListArray.from_arrays(ends, pa.array(embedding.ravel()))
    columns["embedding"] = rows.cast(pa.list_(pa.float32()))
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    write_atomically(path, buffer.getvalue())
