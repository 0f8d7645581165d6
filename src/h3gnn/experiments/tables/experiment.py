"""An experiment: the lines of a table or figure, and the words and tables made from its stored rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from h3gnn.experiments.tables.lines import Line, Row, scored_rows
from h3gnn.experiments.tables.markdown import graph_title, of_probe, percent, table
from h3gnn.experiments.tables.paper import Cell as Printed
from h3gnn.experiments.tables.paper import printed
from h3gnn.experiments.tables.scope import Scope
from h3gnn.experiments.tables.store import Record

PROTOCOL_NAMES = {"published": "ours, `published`", "validation": "ours, `validation`"}


@dataclass(frozen=True)
class Experiment:
    """One of the paper's tables or figures.

    Attributes:
        name: as `h3gnn reproduce` takes it.
        title: a heading.
        lines: what to run.
        text: from the stored rows to Markdown.
        rows: from a line and the records of its cells to stored rows.
        figure: from the stored rows to those that a picture shows; None without a picture.
    """

    name: str
    title: str
    lines: Callable[[Scope], list[Line]]
    text: Callable[[Sequence[Row]], str]
    rows: Callable[[Line, Sequence[Record]], list[Row]] = scored_rows
    figure: Callable[[Sequence[Row]], list[Row]] | None = None


Figures = dict[tuple[str, str, str], tuple[float, float]]
"""Mean and standard deviation by method, graph and protocol."""


def figures_of(
    rows: Sequence[Row], measure: Callable[[Row], tuple[float, float] | None] = of_probe
) -> Figures:
    """Return the figures of stored rows, in percent."""
    found = {(row["method"], row["graph"], row["protocol"]): measure(row) for row in rows}
    return {key: value for key, value in found.items() if value is not None}


def side_by_side(
    experiment: str,
    graphs: Sequence[str],
    figures: Figures,
    printed_as: dict[str, str | None],
    *,
    others: bool = True,
) -> str:
    """Return a table that sets the paper and both protocols of ours beside one another.

    Args:
        experiment: whose table of the paper it is.
        graphs: the columns.
        figures: ours.
        printed_as: our methods, in their order, with their names in the paper's table (None: not there).
        others: whether the paper's other methods follow.
    """
    paper = printed(experiment)
    lines: list[list[str]] = []
    for method, name in printed_as.items():
        shown: dict[str, dict[str, Printed | None]] = {"paper": paper.get(name or "", {})}
        for protocol, words in PROTOCOL_NAMES.items():
            shown[words] = {graph: figures.get((method, graph, protocol)) for graph in graphs}
        lines += _lines(method, shown, graphs)
    if others:
        for name, values in paper.items():
            if name not in printed_as.values():
                lines += _lines(name, {"paper": values}, graphs)
    return table(["method", "whose figures", *map(graph_title, graphs)], lines)


def _lines(method: str, shown: dict[str, dict[str, Any]], graphs: Sequence[str]) -> list[list[str]]:
    return [
        [method, words, *(percent(values.get(graph)) for graph in graphs)]
        for words, values in shown.items()
        if any(values.get(graph) for graph in graphs)
    ]


def selection_table(
    experiment: str, graphs: Sequence[str], figures: Figures, printed_as: dict[str, str]
) -> str:
    """Return what choosing on test nodes adds: the paper, ours chosen so, and the same runs without it."""
    paper = printed(experiment)
    lines = []
    for method, name in printed_as.items():
        for graph in graphs:
            theirs = paper[name][graph]
            chosen, honest = (figures.get((method, graph, one)) for one in PROTOCOL_NAMES)
            if theirs is None or chosen is None or honest is None:
                continue
            away = abs(chosen[0] - theirs[0])
            within = "yes" if chosen[0] >= theirs[0] - theirs[1] else f"no, {away:.2f} below"
            gain = f"{chosen[0] - honest[0]:+.2f}"
            lines.append(
                [method, graph_title(graph), percent(theirs), percent(chosen), within, percent(honest), gain]
            )
    headings = [
        "method",
        "graph",
        "paper",
        "chosen on test nodes",
        "reaches the paper's cell less one std",
        "the same runs, nothing chosen on test nodes",
        "what the choice adds",
    ]
    return table(headings, lines)
