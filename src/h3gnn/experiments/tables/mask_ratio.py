"""Table 4: how much of the mask difficulty decides."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.ablation import MODELS, ablation_line
from h3gnn.experiments.tables.experiment import Experiment, figures_of, side_by_side
from h3gnn.experiments.tables.lines import Line, Row
from h3gnn.experiments.tables.scope import WEBKB, Scope

RATIOS = {"r = 1": 1.0, "r = 0.8": 0.8, "r = 0.5": 0.5, "r = 0.2": 0.2, "r = 0": 0.0}


def _lines(scope: Scope) -> list[Line]:
    return [
        ablation_line(scope, method, graph, exploit_ratio=ratio)
        for graph in WEBKB
        for method, ratio in RATIOS.items()
    ]


def _text(rows: Sequence[Row]) -> str:
    names: dict[str, str | None] = {method: method.removeprefix("r = ") for method in RATIOS}
    return (
        "r is the share of the mask that difficulty decides (`exploit_ratio`); the rest is random. "
        f"Everything else is the graph's preset, with probability masks and {MODELS} models joined.\n\n"
        + side_by_side("mask-ratio", WEBKB, figures_of(rows), names)
    )


MASK_RATIO = Experiment("mask-ratio", "Table 4: the exploitation ratio", _lines, _text)
