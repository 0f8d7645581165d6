"""Table 3: one component after another is taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3gnn.experiments.tables.experiment import Experiment, figures_of, side_by_side
from h3gnn.experiments.tables.lines import Line, Row, fit_line
from h3gnn.experiments.tables.pairs import pairs_table
from h3gnn.experiments.tables.scope import WEBKB, Scope

FULL = "H3GNN (Full)"
WITHOUT: dict[str, dict[str, Any]] = {
    "w/o DynMsk": {"mask": "random"},
    "w/o T-S + DynMsk": {"mask": "random", "objective": "features"},
    "w/o T-S + DynMsk + Attn": {"mask": "random", "objective": "features", "fusion": "mlp"},
}
MODELS = 4
"""Models joined here: with the preset's own sixteen, joining hides much of what one component does."""


def ablation_line(scope: Scope, method: str, graph: str, **changes: Any) -> Line:
    """Return the line of a preset with fewer models, probability masks and some changes."""
    given = {"n_models": MODELS, "mask": "probability", **changes}
    return fit_line(scope, method, graph, **given)


def _lines(scope: Scope) -> list[Line]:
    return [
        ablation_line(scope, method, graph, **changes)
        for graph in WEBKB
        for method, changes in {FULL: {}, **WITHOUT}.items()
    ]


def _text(rows: Sequence[Row]) -> str:
    names: dict[str, str | None] = {name: name for name in (FULL, *WITHOUT)}
    return "\n\n".join(
        [
            "DynMsk: masks by difficulty (without it, random masks). T-S: the teacher as target (without it, "
            "a decoder that rebuilds the features). Attn: attention over the tokens (without it, an MLP). "
            f"Everything else is the graph's preset, with {MODELS} models joined.",
            side_by_side("ablation", WEBKB, figures_of(rows), names),
            pairs_table(rows, FULL, list(WITHOUT), WEBKB),
        ]
    )


ABLATION = Experiment("ablation", "Table 3: ablations", _lines, _text)
