"""Table 1: node classification on seven graphs, with baselines under the same protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3gnn.experiments.methods import METHODS as LISTED
from h3gnn.experiments.tables.experiment import Experiment, figures_of, selection_table, side_by_side
from h3gnn.experiments.tables.lines import Line, Row, fit_line
from h3gnn.experiments.tables.methods import METHODS, method_line
from h3gnn.experiments.tables.scope import CITATION, HETEROPHILIC, Scope

GRAPHS = (*HETEROPHILIC, *CITATION)
DIFFI, PROB = "H3GNN Diffi", "H3GNN Prob"
OURS = {DIFFI: "difficulty", PROB: "probability"}
"""The two rows of the method, and their masks."""
UNTRAINED, DECODER = "untrained encoder", "encoder–decoder"
OF_ENCODER: dict[str, dict[str, Any]] = {
    UNTRAINED: {"epochs": 0},
    DECODER: {"objective": "features", "mask": "random"},
}
"""Rows that change the preset of a graph."""
PRINTED = {
    DIFFI: DIFFI,
    PROB: PROB,
    DECODER: None,
    UNTRAINED: None,
    **{LISTED[method].title: name for method, name in METHODS.items()},
}
"""Our rows, and what they are called in the paper's tables."""


def own_line(scope: Scope, method: str, graph: str) -> Line:
    """Return the line of H3GNN Diffi or Prob, with all that any table or figure asks of it."""
    wants = ("map",) if method == PROB and graph in HETEROPHILIC else ()
    return fit_line(scope, method, graph, wants, mask=OURS[method])


def encoder_line(scope: Scope, method: str, graph: str) -> Line:
    """Return the line of a changed encoder."""
    return fit_line(scope, method, graph, **OF_ENCODER[method])


def all_lines(scope: Scope, graphs: Sequence[str]) -> list[Line]:
    """Return every method on every graph."""
    lines = [own_line(scope, method, graph) for graph in graphs for method in OURS]
    lines += [encoder_line(scope, method, graph) for graph in graphs for method in OF_ENCODER]
    return lines + [method_line(scope, method, graph) for graph in graphs for method in METHODS]


def compared(experiment: str, graphs: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the two tables of a classification experiment with the words between them."""
    figures = figures_of(rows)
    names = {row["method"] for row in rows}
    paper = {method: name for method, name in PRINTED.items() if method in names}
    return "\n\n".join(
        [
            side_by_side(experiment, graphs, figures, paper),
            "The encoder–decoder row rebuilds the features with a decoder on our encoder; the GraphMAE row "
            "is GraphMAE's objective on our encoder, with the same preset. Where a preset smooths its "
            "embedding, these rows and the untrained encoder's are smoothed alike; the diffused features "
            "show what smoothing does without any encoder. Rows without a `published` line were run under "
            "`validation` only: nothing of theirs is chosen on test nodes.",
            "### What choosing on test nodes adds",
            selection_table(experiment, graphs, figures, {DIFFI: DIFFI, PROB: PROB}),
        ]
    )


def _text(rows: Sequence[Row]) -> str:
    return compared("classification", GRAPHS, rows)


CLASSIFICATION = Experiment(
    "classification", "Table 1: node classification", lambda scope: all_lines(scope, GRAPHS), _text
)
