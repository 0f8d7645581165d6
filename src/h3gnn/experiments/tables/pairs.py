"""Whether rows of a table differ, or whether the splits only fell so."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.evaluation.results import RepeatedScore as Scores
from h3gnn.evaluation.results import paired_test
from h3gnn.experiments.tables.lines import Row
from h3gnn.experiments.tables.markdown import NOTHING, graph_title, table


def pairs_table(rows: Sequence[Row], base: str, methods: Sequence[str], graphs: Sequence[str]) -> str:
    """Return each method's difference to the base under `validation`, in points, with its p-value."""
    scores = {
        (row["method"], row["graph"]): Scores.from_dict(row["probe"])
        for row in rows
        if row["protocol"] == "validation"
    }
    lines = []
    for method in methods:
        cells = [_difference(scores.get((method, graph)), scores.get((base, graph))) for graph in graphs]
        lines.append([method, *cells])
    headings = [f"difference to {base}, `validation`, points (p)", *map(graph_title, graphs)]
    return table(headings, lines)


def _difference(one: Scores | None, base: Scores | None) -> str:
    if one is None or base is None:
        return NOTHING
    both = min(len(one.values), len(base.values))  # the seeds that both had
    tested = paired_test(Scores(one.values[:both]), Scores(base.values[:both]))
    return f"{100 * tested.difference:+.2f} ({tested.p_value:.2f})"
