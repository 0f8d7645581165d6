"""Results as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3gnn.evaluation.results import RepeatedScore as Scores
from h3gnn.evaluation.results import Result

MEASURES = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "macro_f1": "macro-F1"}


def print_results(results: Sequence[Result]) -> None:
    """Print one row per result, probe and k-means apart, and what the protocol says about the numbers."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    graphs = escape(", ".join(dict.fromkeys(result.graph for result in results)))
    console.print(_table(f"{graphs}: linear probe", {one.method: _probe_cells(one) for one in results}))
    clustered = {one.method: _cluster_cells(one.clustering) for one in results if one.clustering is not None}
    if clustered:
        console.print(_table(f"{graphs}: k-means", clustered))
    for words in dict.fromkeys(_words(result) for result in results):
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def percent(scores: Scores) -> str:
    """Return mean ± standard deviation in per cent."""
    return f"{100 * scores.mean:.1f} ± {100 * scores.std:.1f}"


def _table(title: str, rows: dict[str, dict[str, str]]) -> Any:
    """Return a table of named cells; a column stands where any row has a cell for it."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("method")
    columns = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for method, cells in rows.items():
        table.add_row(escape(method), *(cells.get(column, "–") for column in columns))
    return table


def _probe_cells(result: Result) -> dict[str, str]:
    cells = {"accuracy": percent(result.probe)}
    if result.probe.interval95 is not None:
        low, high = result.probe.interval95
        cells["95 % interval"] = f"{100 * low:.1f} – {100 * high:.1f}"
    cells["macro-F1"] = percent(result.macro_f1)
    if result.roc_auc is not None:
        cells["ROC-AUC"] = percent(result.roc_auc)
    return cells


def _cluster_cells(found: dict[str, Any]) -> dict[str, str]:
    return {
        shown: f"{100 * found[name]['mean']:.1f} ± {100 * found[name]['std']:.1f}"
        for name, shown in MEASURES.items()
    }


def _words(result: Result) -> str:
    seeds, splits = len(result.probe.values), len(result.probe.values[0])
    return (
        f"protocol {result.protocol}: {result.words}; epoch: {result.epoch_rule}; "
        f"probe on test nodes, mean ± standard deviation over {splits} split(s) × {seeds} seed(s), in %"
    )
