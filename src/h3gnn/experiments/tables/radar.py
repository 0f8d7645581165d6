"""The figure of appendix F: all graphs of table 1 at one glance."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.classification import GRAPHS, OURS, own_line
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row, scored_rows
from h3gnn.experiments.tables.markdown import of_probe
from h3gnn.experiments.tables.methods import METHODS, method_line
from h3gnn.experiments.tables.paper import printed
from h3gnn.experiments.tables.scope import Scope
from h3gnn.experiments.tables.store import Record

SHOWN = ("smoothed", "diffused", "gcn", "h2gcn", "bgrl")
"""Baselines in the figure."""
FROM_PAPER = ("MUSE", "GREET", "H3GNN Prob")
"""Rows of the paper in the figure."""


def _lines(scope: Scope) -> list[Line]:
    lines = [own_line(scope, method, graph) for graph in GRAPHS for method in OURS]
    shown = [method for method in METHODS if method in SHOWN]
    return lines + [method_line(scope, method, graph) for graph in GRAPHS for method in shown]


def _rows(line: Line, records: Sequence[Record]) -> list[Row]:
    return [
        {
            "method": line.method,
            "graph": line.graph,
            "protocol": row["protocol"],
            "percent": round(of_probe(row)[0], 2),
            "sha256": row["sha256"],
        }
        for row in scored_rows(line, records)
        if row["protocol"] == "validation"
    ]


def _with_paper(rows: Sequence[Row]) -> list[Row]:
    """Return our rows and the paper's."""
    paper = printed("classification")
    return list(rows) + [
        {"method": f"{method} (paper)", "graph": graph, "protocol": "paper", "percent": value[0]}
        for method in FROM_PAPER
        for graph, value in paper[method].items()
        if value is not None
    ]


def _text(rows: Sequence[Row]) -> str:
    return (
        "Test accuracy on the graphs of table 1. Each axis runs from 5 points below the lowest shown value "
        "to the highest. Solid: ours, `validation`. Dashed: what the paper prints."
    )


RADAR = Experiment("radar", "Figure: all graphs at one glance", _lines, _text, rows=_rows, figure=_with_paper)
