"""Table 2: memory, time of an epoch and time of a whole training."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row, plain_rows
from h3gnn.experiments.tables.markdown import graph_title, table
from h3gnn.experiments.tables.paper import paper_tables
from h3gnn.experiments.tables.scope import WEBKB, Scope

DEVICES = ("cpu", "cuda")
HEADINGS = ["graph", "method", "device", "memory, MB", "epoch, ms", "total, s"]


def _lines(scope: Scope) -> list[Line]:
    """Return lines for every device; those of other devices stand in the table if they were ever measured."""
    lines = []
    for graph in WEBKB:
        preset = scope.settings_of(graph, mask="probability")
        for models in dict.fromkeys((1, preset["n_models"])):
            for device in DEVICES:
                params = {**preset, "n_models": models, "device": device}
                cell = Cell("efficiency", graph, params, (0,), alone=True)
                lines.append(Line(_name(models), graph, (cell,)))
    return lines


def _name(models: int) -> str:
    return "H3GNN, 1 model" if models == 1 else f"H3GNN, {models} models at once"


def _text(rows: Sequence[Row]) -> str:
    table_2 = paper_tables()["efficiency"]
    lines = []
    for place, graph in enumerate(table_2["graphs"]):
        for row in table_2["rows"]:
            memory, epoch, total = row["values"][place]
            told = [f"{memory:.1f}", f"{1000 * epoch:.0f}", f"{total:.2f}"]
            lines.append([graph_title(graph), f"{row['method']} (paper)", "the paper's GPU", *told])
        for row in (one for one in rows if one["graph"] == graph):
            told = [f"{row['memory_mb']:.1f}", f"{1000 * row['epoch_s']:.2f}", f"{row['total_s']:.2f}"]
            lines.append([graph_title(graph), row["method"], row["device"], *told])
    return (
        table(HEADINGS, lines)
        + "\n\nOurs: the graph's preset, alone on the machine. Memory is what training adds: on a GPU the "
        "most that tensors held, on a CPU the growth of the process. Total is a whole `fit` with the "
        "preset's number of epochs; the paper's total is the time until its best epoch."
    )


EFFICIENCY = Experiment("efficiency", "Table 2: time and memory", _lines, _text, rows=plain_rows)
