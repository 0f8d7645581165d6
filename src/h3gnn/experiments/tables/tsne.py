"""The figures of appendix G: nodes in the plane, by their features and by their embedding."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.classification import PROB, own_line
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row
from h3gnn.experiments.tables.scope import HETEROPHILIC, Scope
from h3gnn.experiments.tables.store import Record


def _lines(scope: Scope) -> list[Line]:
    return [Line(PROB, graph, own_line(scope, PROB, graph).cells[:1]) for graph in HETEROPHILIC]


def _rows(line: Line, records: Sequence[Record]) -> list[Row]:
    record = records[0]
    return [
        {
            "method": line.method,
            "graph": line.graph,
            **record["out"]["map"],
            "sha256": record["sha256"],
            "params": record["cell"]["params"],
            "seeds": record["cell"]["seeds"],
            "versions": record["versions"],
        }
    ]


def _text(rows: Sequence[Row]) -> str:
    return (
        "t-SNE of the raw features (above) and of the embedding of H3GNN Prob (below), coloured by class; "
        "the run is the first seed of table 1. Neither map has seen a label. Of Actor, 1,500 nodes are shown."
    )


TSNE = Experiment("tsne", "Figures: before and after", _lines, _text, rows=_rows, figure=list)
