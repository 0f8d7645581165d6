"""The paper's tables and figures as specifications, read from `tables.toml`; and what the paper prints."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from h3gnn.experiments.spaces import SearchBudget
from reproduction.search import Part


@dataclass(frozen=True)
class Entry:
    """A method as a row of a table.

    Attributes:
        title: as our tables call it.
        method: a name in `experiments.methods.METHODS`; "" for a row that is no method.
        printed: as the paper's table calls it; "" where it is not there.
        changes: settings that differ from the method's own; a search leaves them as they are.
        allowance: what it is given to find its settings with, see `allowance`; "" for nothing.
        parts: what is taken out of what it chose, see `parts_of`; "" for nothing.
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
        """Return whether a benchmark graph is too large for this system."""
        from h3gnn.experiments.methods import METHODS
        from h3gnn.graphs.datasets import benchmarks

        method = METHODS.get(self.method)
        most = method.system.most_nodes if method is not None and method.system is not None else None
        return most is not None and benchmarks()[graph].nodes > most


@dataclass(frozen=True)
class Table:
    """One of the paper's tables or figures.

    Attributes:
        name: as `make reproduce TABLE=` takes it.
        title: a heading.
        graphs, entries: what is run, every entry on every graph.
        words: the Markdown; `{name}` stands for one of `markdown.BLOCKS`, made from the stored rows.
        kind: of its cells: "method", "clustering", "efficiency", "convergence", "masks", "map" or
            "statistics".
        rows: how records become stored rows, see `results.ROWS`.
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
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _specified() -> dict[str, Any]:
    return tomllib.loads(_stored("tables.toml"))


@cache
def tables() -> dict[str, Table]:
    """Return all tables by name: the paper's tables in its order, then its figures."""
    return {name: _table(name, dict(given)) for name, given in _specified()["tables"].items()}


def paper_title() -> str:
    """Return the title of the paper."""
    return str(_specified()["paper"])


def defaults() -> dict[str, dict[str, Any]]:
    """Return the settings and ranges of H3GNN that the tables use where they differ from today's defaults."""
    return dict(_specified()["defaults"])


def allowance(name: str) -> SearchBudget:
    """Return the search budget of a name."""
    return SearchBudget.of(_specified()["allowances"][name])


def parts_of(name: str) -> dict[str, Part]:
    """Return the ablations of a name, by title; "" has none."""
    return {title: Part(**given) for title, given in _specified()["parts"].get(name, {}).items()}


def group(name: str) -> tuple[str, ...]:
    """Return the graphs of a group, or the graph itself."""
    return tuple(_specified()["graphs"].get(name, [name]))


def find_entry(given: str | dict[str, Any], shared: dict[str, Any] | None = None) -> Entry:
    """Return an entry, given by its name or in full, with the settings that its table shares."""
    from h3gnn.experiments.methods import METHODS

    own, shared = dict(_specified()["entries"][given] if isinstance(given, str) else given), shared or {}
    method = METHODS.get(own.get("method", ""))
    if "allowance" in shared and method is not None and not own.get("parts"):
        own.setdefault("allowance", shared["allowance"])
    own["changes"] = {**shared.get("changes", {}), **own.get("changes", {})}
    return Entry(own.pop("title", None) or (method.title if method else ""), **own)


def _table(name: str, given: dict[str, Any]) -> Table:
    shared: dict[str, Any] = {key: given.pop(key) for key in ("changes", "allowance") if key in given}
    given |= {
        "graphs": tuple(graph for one in given["graphs"] for graph in group(one)),
        "entries": tuple(find_entry(one, shared) for one in given["entries"]),
        "words": _specified()["words"].get(given["words"], given["words"]),
    }
    return Table(name, **given)


def widths_of(graph: str, budget: str) -> list[int]:
    """Return the token widths that the paper's method may choose from on a graph."""
    found: list[int] = _of_graph("widths", graph, budget)
    return found


def longest_of(graph: str, budget: str) -> int:
    """Return the number of epochs for which a search trains the paper's method on a graph."""
    found: int = _of_graph("epochs", graph, budget)
    return found


def _of_graph(what: str, graph: str, budget: str) -> Any:
    given = _specified()["searched"][budget][what]
    groups = [name for name, graphs in _specified()["graphs"].items() if graph in graphs]
    return next(given[name] for name in (graph, *groups) if name in given)


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
