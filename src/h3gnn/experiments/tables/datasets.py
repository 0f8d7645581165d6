"""Table 5: what the graphs are."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row, plain_rows
from h3gnn.experiments.tables.markdown import NOTHING, graph_title, table
from h3gnn.experiments.tables.paper import paper_tables
from h3gnn.experiments.tables.scope import CITATION, FILTERED, HETEROPHILIC, Scope

GRAPHS = (*HETEROPHILIC, *CITATION, *FILTERED)
COUNTS = ("nodes", "edges", "features", "classes")


def _lines(scope: Scope) -> list[Line]:
    return [Line("graph", graph, (Cell("statistics", graph),)) for graph in GRAPHS]


def _text(rows: Sequence[Row]) -> str:
    found = {row["graph"]: row for row in rows}
    paper = {name: values for name, *values in paper_tables()["datasets"]["rows"]}
    lines = []
    for graph in (name for name in GRAPHS if name in found):
        theirs = paper.get(graph)
        if theirs is not None:
            counts = [f"{value:,}" for value in theirs[:4]]
            lines.append([graph_title(graph), "paper", *counts, f"{theirs[4]:.2f}", NOTHING, NOTHING])
        row = found[graph]
        shares = [row["homophily"], row["node_homophily"], row["adjusted_homophily"]]
        counts = [f"{row[name]:,}" for name in COUNTS]
        lines.append([graph_title(graph), "as loaded", *counts, *(f"{share:.2f}" for share in shares)])
    headings = ["graph", "whose figures", *COUNTS, "edge homophily", "node homophily", "adjusted homophily"]
    return (
        table(headings, lines)
        + "\n\nEdges are directed and counted as they are loaded, self-loops of the data included; where "
        "both directions are there, both count."
    )


DATASETS = Experiment("datasets", "Table 5: the graphs", _lines, _text, rows=plain_rows)
