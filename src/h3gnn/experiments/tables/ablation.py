"""Table 3: one component after another is taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3gnn.experiments.tables.classification import DECODER, PROB, encoder_line, own_line
from h3gnn.experiments.tables.experiment import Experiment, figures_of, side_by_side
from h3gnn.experiments.tables.lines import Line, Row, fit_line
from h3gnn.experiments.tables.pairs import pairs_table
from h3gnn.experiments.tables.scope import WEBKB, Scope

FULL, NO_TEACHER = "H3GNN (Full)", "w/o T-S + DynMsk"
WITHOUT: dict[str, dict[str, Any]] = {
    "w/o DynMsk": {"mask": "random"},
    "w/o T-S + DynMsk + Attn": {"mask": "random", "objective": "decoder", "fusion": "mlp"},
}


def _lines(scope: Scope) -> list[Line]:
    """Return the lines; two of them are runs of table 1 under another name."""
    lines = []
    for graph in WEBKB:
        lines.append(Line(FULL, graph, own_line(scope, PROB, graph).cells))
        lines += [fit_line(scope, method, graph, **changes) for method, changes in WITHOUT.items()]
        lines.append(Line(NO_TEACHER, graph, encoder_line(scope, DECODER, graph).cells))
    return lines


def _text(rows: Sequence[Row]) -> str:
    less = sorted([*WITHOUT, NO_TEACHER], key=len)
    names: dict[str, str | None] = {name: name for name in (FULL, *less)}
    return "\n\n".join(
        [
            "DynMsk: masks by difficulty (without it, random masks). T-S: the teacher as target (without it, "
            "a decoder that rebuilds the features). Attn: attention over the tokens (without it, an MLP).",
            side_by_side("ablation", WEBKB, figures_of(rows), names),
            pairs_table(rows, FULL, less, WEBKB),
        ]
    )


ABLATION = Experiment("ablation", "Table 3: ablations", _lines, _text)
