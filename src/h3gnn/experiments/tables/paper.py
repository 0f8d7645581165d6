"""What the paper prints: the figures of its tables 1 to 8, kept in `paper.json`."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

PAPER = (
    "H³GNNs: Harmonizing Heterophily and Homophily in GNNs via Joint Structural Node Encoding and "
    "Self-Supervised Learning"
)
"""The title of the paper whose figures these are."""

Cell = tuple[float, float]
"""Mean and standard deviation, in percent."""


@cache
def paper_tables() -> dict[str, Any]:
    """Return all tables by the name of the experiment that makes them again."""
    stored = files("h3gnn.experiments.tables") / "paper.json"
    tables: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8"))
    return tables


def printed(experiment: str) -> dict[str, dict[str, Cell | None]]:
    """Return a table's figures by method and graph; None where the paper has none."""
    table = paper_tables()[experiment]
    return {
        row["method"]: {
            graph: None if value is None else (value[0], value[1])
            for graph, value in zip(table["graphs"], row["values"], strict=True)
        }
        for row in table["rows"]
    }
