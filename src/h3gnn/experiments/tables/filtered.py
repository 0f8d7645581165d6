"""Table 7: node classification on the filtered Wikipedia graphs."""

from __future__ import annotations

from collections.abc import Sequence

from h3gnn.experiments.tables.classification import all_lines, compared
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Row
from h3gnn.experiments.tables.scope import FILTERED


def _text(rows: Sequence[Row]) -> str:
    return compared("filtered", FILTERED, rows)


FILTERED_TABLE = Experiment(
    "filtered", "Table 7: the filtered Wikipedia graphs", lambda scope: all_lines(scope, FILTERED), _text
)
