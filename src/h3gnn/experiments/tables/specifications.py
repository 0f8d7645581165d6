"""The paper's tables and figures as specifications, read from `tables.toml`; and what the paper prints."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from h3gnn.experiments.methods import METHODS
from h3gnn.graphs.catalogue import benchmarks


@dataclass(frozen=True)
class Entry:
    """A method as a row of a table.

    Attributes:
        title: as our tables call it.
        printed: as the paper's table calls it; "" where it is not there.
        changes: arguments of `H3GNN` that differ from the graph's preset.
        baseline: a name in `experiments.methods.METHODS`, for a row that is no preset of ours.
        mapped: the graphs of which a map of the embedding is kept.
    """

    title: str
    printed: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""
    mapped: tuple[str, ...] = ()

    def too_large(self, graph: str) -> bool:
        """Tell whether a benchmark graph is one that this system is not run on for its size."""
        method = METHODS.get(self.baseline)
        most = method.system.most_nodes if method is not None and method.system is not None else None
        return most is not None and benchmarks()[graph].nodes > most


@dataclass(frozen=True)
class Table:
    """One of the paper's tables or figures.

    Attributes:
        name: as `h3gnn reproduce` takes it.
        title: a heading.
        graphs, entries: what is run, every entry on every graph.
        words: the Markdown; `{name}` stands for one of `markdown.BLOCKS`, made from the stored rows.
        kind: of its cells: "fit" (baselines beside it), "efficiency", "convergence" or "statistics".
        rows: how records become stored rows, see `reproduce.ROWS`.
        measure: what is shown: "probe", or a measure of k-means.
        seeds: training runs of a row; None for as many as its graph and preset have usually.
        purpose: which of a graph's presets.
        preset: the one that is used on every graph, in place of each graph's own.
        picture: whether a picture is drawn from the rows.
    """

    name: str
    title: str
    graphs: tuple[str, ...]
    entries: tuple[Entry, ...]
    words: str
    kind: str = "fit"
    rows: str = "scored"
    measure: str = "probe"
    seeds: int | None = None
    purpose: str | None = None
    preset: str | None = None
    picture: bool = False


def _stored(name: str) -> str:
    return (files("h3gnn.experiments.tables") / name).read_text(encoding="utf-8")


def _graphs(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of graphs, groups of graphs resolved."""
    return tuple(graph for name in names for graph in _READ["graphs"].get(name, [name]))


def _entry(given: str | dict[str, Any], changes: dict[str, Any]) -> Entry:
    """Return an entry, given by its name or in full, with what its whole table changes."""
    told = dict(_READ["entries"][given] if isinstance(given, str) else given)
    if "baseline" in told:
        return Entry(METHODS[told["baseline"]].title, **told)
    mapped = _graphs([told.pop("mapped")]) if "mapped" in told else ()
    return Entry(**{**told, "changes": {**changes, **told.get("changes", {})}}, mapped=mapped)


def _table(name: str, told: dict[str, Any]) -> Table:
    changes = told.pop("changes", {})
    told |= {
        "graphs": _graphs(told["graphs"]),
        "entries": tuple(_entry(given, changes) for given in told["entries"]),
        "words": _READ["words"].get(told["words"], told["words"]),
    }
    return Table(name, **told)


_READ = tomllib.loads(_stored("tables.toml"))
PAPER_TITLE: str = _READ["paper"]
"""The paper whose tables these are."""
WEBKB, CITATION = _graphs(["webkb"]), _graphs(["citation"])
DIFFI, PROB = _entry("diffi", {}), _entry("prob", {})
"""The two rows of the method: a preset with masks by difficulty, and with masks by probability."""
TABLES: dict[str, Table] = {name: _table(name, told) for name, told in _READ["tables"].items()}
"""All tables by name, in the order of the paper's tables and then its figures."""

MeanStd = tuple[float, float]
"""Mean and standard deviation, in percent."""


@cache
def paper_tables() -> dict[str, Any]:
    """Return what the paper prints in its tables 1 to 8, by name of the table."""
    tables: dict[str, Any] = json.loads(_stored("paper.json"))
    return tables


def printed(name: str) -> dict[str, dict[str, MeanStd | None]]:
    """Return a table's figures by method and graph; None where the paper has none."""
    table = paper_tables()[name]
    return {
        row["method"]: {
            graph: None if value is None else (value[0], value[1])
            for graph, value in zip(table["graphs"], row["values"], strict=True)
        }
        for row in table["rows"]
    }
