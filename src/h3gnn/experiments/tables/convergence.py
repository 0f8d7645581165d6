"""What the paper's theorem says and no figure of it shows: a teacher makes training converge faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row, plain_rows
from h3gnn.experiments.tables.markdown import NOTHING, graph_title, table
from h3gnn.experiments.tables.scope import Scope

GRAPHS = ("texas", "wisconsin", "cora")
OBJECTIVES = {"teacher–student": "teacher", "encoder–decoder": "features"}
EPOCHS = 120
SEEDS = (0, 1, 2)
NEAR = 0.99
"""Converged: at this share of the run's own best validation accuracy."""


def _lines(scope: Scope) -> list[Line]:
    return [
        Line(method, graph, (_cell(scope, graph, objective),))
        for graph in GRAPHS
        for method, objective in OBJECTIVES.items()
    ]


def _cell(scope: Scope, graph: str, objective: str) -> Cell:
    """Return a cell in which the objective alone differs: one model, random masks, the preset's encoder."""
    changes: dict[str, Any] = {"objective": objective, "mask": "random", "n_models": 1, "epochs": EPOCHS}
    params = scope.settings_of(graph, **changes)
    seeds = SEEDS[:1] if scope.quick else SEEDS
    return Cell("convergence", graph, params, seeds, scope.splits, alone=True)


def mean_curve(row: Row) -> list[float]:
    """Return the validation accuracy at each look, in percent, averaged over seeds."""
    curve: list[float] = (100 * np.mean(row["validation"], axis=0)).tolist()
    return curve


def converged_at(row: Row) -> int | None:
    """Return the first epoch whose mean validation accuracy is near the best that training reached."""
    curve = mean_curve(row)
    if max(curve) <= curve[0]:
        return None
    return int(next(e for e, value in zip(row["epochs"], curve, strict=True) if value >= NEAR * max(curve)))


def _text(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        curve, epoch = mean_curve(row), converged_at(row)
        told = [f"{curve[0]:.2f}", f"{max(curve):.2f}", f"{curve[-1]:.2f}"]
        spent = [NOTHING, NOTHING] if epoch is None else [str(epoch), f"{epoch * row['epoch_s']:.2f}"]
        lines.append([graph_title(row["graph"]), row["method"], *told, *spent, row["device"]])
    headings = [
        "graph",
        "objective",
        "at the start",
        "best",
        "at the end",
        "epochs until near",
        "seconds",
        "device",
    ]
    return (
        "Accuracy on validation nodes (ridge classifier, mean over splits and seeds, percent) while training "
        "one model with random masks and else the graph's preset; the objective alone differs. Near: 99 % of "
        "the run's own best; – where training never rose above the untrained encoder.\n\n"
        + table(headings, lines)
    )


CONVERGENCE = Experiment(
    "convergence",
    "Figure: how fast each objective converges",
    _lines,
    _text,
    rows=plain_rows,
    figure=list,
)
