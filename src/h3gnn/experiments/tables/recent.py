"""Table 8: the same runs as table 1, beside more recent methods."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.classification import DIFFI, OURS, PROB, own_line
from h3gnn.experiments.tables.experiment import Experiment, figures_of, side_by_side
from h3gnn.experiments.tables.lines import Line, Row
from h3gnn.experiments.tables.scope import HETEROPHILIC, Scope


def _lines(scope: Scope) -> list[Line]:
    return [own_line(scope, method, graph) for graph in HETEROPHILIC for method in OURS]


def _text(rows: Sequence[Row]) -> str:
    return (
        side_by_side("recent", HETEROPHILIC, figures_of(rows), {DIFFI: DIFFI, PROB: PROB})
        + "\n\nOur rows are the runs of table 1; the other rows are what the paper took over from the "
        "methods' own papers."
    )


RECENT = Experiment("recent", "Table 8: recent methods", _lines, _text)
