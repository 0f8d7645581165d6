"""Table 4: how much of the mask difficulty decides."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.classification import PROB, own_line
from h3gnn.experiments.tables.experiment import Experiment, figures_of, side_by_side
from h3gnn.experiments.tables.lines import Line, Row, fit_line
from h3gnn.experiments.tables.scope import WEBKB, Scope

SEEDS = 3
RATIOS = {"r = 1": 1.0, "r = 0.8": 0.8, "r = 0.5": 0.5, "r = 0.2": 0.2, "r = 0": 0.0}


def _lines(scope: Scope) -> list[Line]:
    return [_line(scope, method, graph, ratio) for graph in WEBKB for method, ratio in RATIOS.items()]


def _line(scope: Scope, method: str, graph: str, ratio: float) -> Line:
    """Return the line of a ratio; where it is the preset's own, the cells of table 1."""
    own = own_line(scope, PROB, graph)
    if own.cells[0].params["exploit_ratio"] == ratio:
        return Line(method, graph, own.cells)
    return fit_line(scope, method, graph, most_seeds=SEEDS, mask="probability", exploit_ratio=ratio)


def _text(rows: Sequence[Row]) -> str:
    names: dict[str, str | None] = {method: method.removeprefix("r = ") for method in RATIOS}
    return (
        "r is the share of the mask that difficulty decides (`exploit_ratio`); the rest is random. "
        "Everything else is the graph's preset, with probability masks.\n\n"
        + side_by_side("mask-ratio", WEBKB, figures_of(rows), names)
    )


MASK_RATIO = Experiment("mask-ratio", "Table 4: the exploitation ratio", _lines, _text)
