"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTHING = "–"
TITLES = {
    "cornell": "Cornell",
    "texas": "Texas",
    "wisconsin": "Wisconsin",
    "actor": "Actor",
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
    "chameleon-filtered": "Chameleon-filtered",
    "squirrel-filtered": "Squirrel-filtered",
}
"""Graphs as the paper writes them."""


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def graph_title(name: str) -> str:
    """Return a graph's name as the paper writes it."""
    return TITLES.get(name, name)


def percent(mean_std: tuple[float, float] | None) -> str:
    """Return mean ± standard deviation of figures that are in percent already."""
    return NOTHING if mean_std is None else f"{mean_std[0]:.2f} ± {mean_std[1]:.2f}"


def of_probe(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return a stored row's test accuracy, in percent."""
    probe = row["probe"]
    return 100 * probe["test_mean"], 100 * probe["test_std"]


def of_clusters(row: Mapping[str, Any], measure: str = "acc") -> tuple[float, float] | None:
    """Return a stored row's agreement of clusters and classes, in percent."""
    if row["clustering"] is None:
        return None
    found = row["clustering"][measure]
    return 100 * found["mean"], 100 * found["std"]
