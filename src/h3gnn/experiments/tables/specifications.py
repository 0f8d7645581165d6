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
from h3gnn.experiments.search import Allowance, Part
from h3gnn.graphs.catalogue import benchmarks


@dataclass(frozen=True)
class Entry:
    """A method as a row of a table.

    Attributes:
        title: as our tables call it.
        method: a name in `experiments.methods.METHODS`; "" for a row that is no method.
        printed: as the paper's table calls it; "" where it is not there.
        changes: settings that differ from the method's own; a search leaves them as they are.
        allowance: what it is given to find its settings with, one of `ALLOWANCES`; "" for nothing.
        parts: what is taken out of what it chose, one of `PARTS`; "" for nothing.
    """

    title: str
    method: str = ""
    printed: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    allowance: str = ""
    parts: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is H3GNN or the paper's method, for which other rules of choosing are shown, too."""
        return bool(self.parts)

    def too_large(self, graph: str) -> bool:
        """Tell whether a benchmark graph is one that this system is not run on for its size."""
        method = METHODS.get(self.method)
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
        kind: of its cells: "method", "clustering", "efficiency", "convergence", "masks", "map" or
            "statistics".
        rows: how records become stored rows, see `reproduce.ROWS`.
        seeds: training runs of a row; None for as many as its graph has usually.
        preset: whose settings a measurement starts from, where its entries name no method.
        picture: whether a picture is drawn from the rows.
    """

    name: str
    title: str
    graphs: tuple[str, ...]
    entries: tuple[Entry, ...]
    words: str
    kind: str = "method"
    rows: str = "scored"
    seeds: int | None = None
    preset: str = ""
    picture: bool = False


def _stored(name: str) -> str:
    return (files("h3gnn.experiments.tables") / name).read_text(encoding="utf-8")


def _graphs(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of graphs, groups of graphs resolved."""
    return tuple(graph for name in names for graph in _READ["graphs"].get(name, [name]))


def _entry(given: str | dict[str, Any], told: dict[str, Any]) -> Entry:
    """Return an entry, given by its name or in full, with what its whole table says of all entries."""
    own = dict(_READ["entries"][given] if isinstance(given, str) else given)
    method = METHODS.get(own.get("method", ""))
    if "allowance" in told and method is not None and not own.get("parts"):
        own.setdefault("allowance", told["allowance"])
    own["changes"] = {**told.get("changes", {}), **own.get("changes", {})}
    return Entry(own.pop("title", None) or (method.title if method else ""), **own)


def _table(name: str, told: dict[str, Any]) -> Table:
    for_all: dict[str, Any] = {key: told.pop(key) for key in ("changes", "allowance") if key in told}
    told |= {
        "graphs": _graphs(told["graphs"]),
        "entries": tuple(_entry(given, for_all) for given in told["entries"]),
        "words": _READ["words"].get(told["words"], told["words"]),
    }
    return Table(name, **told)


def widths_of(graph: str, allowance: str) -> list[int]:
    """Return the widths of a token that the paper's method may choose from on a graph."""
    found: list[int] = _of_graph("widths", graph, allowance)
    return found


def longest_of(graph: str, allowance: str) -> int:
    """Return how many epochs a search trains the paper's method on a graph."""
    found: int = _of_graph("epochs", graph, allowance)
    return found


def _of_graph(what: str, graph: str, allowance: str) -> Any:
    told = _READ["searched"][allowance][what]
    groups = [group for group, graphs in _READ["graphs"].items() if graph in graphs]
    return next(told[one] for one in (graph, *groups) if one in told)


_READ = tomllib.loads(_stored("tables.toml"))
PAPER_TITLE: str = _READ["paper"]
"""The paper whose tables these are."""
ALLOWANCES = {name: Allowance.of(told) for name, told in _READ["allowances"].items()}
"""What rows are given to find their settings with, by name."""
PARTS = {
    name: {title: Part(**told) for title, told in parts.items()} for name, parts in _READ["parts"].items()
}
"""What is taken out of what was chosen, by name."""
WEBKB, CITATION = _graphs(["webkb"]), _graphs(["citation"])
DIFFI, PROB, UNTUNED, TUNED = (_entry(one, {}) for one in ("diffi", "prob", "untuned", "tuned"))
"""The rows that every table of accuracies begins with: the paper's method, and ours."""
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
