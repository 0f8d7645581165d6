"""A cell: the smallest piece of work, kept and never done twice; and the lines of a table, made of cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.protocols import NESTED, POOLED, PUBLISHED, VALIDATION
from h3gnn.experiments.methods import METHODS, Method, variant
from h3gnn.experiments.run import settings_of
from h3gnn.settings import BEFORE, kept_for, original
from reproduction.files import fingerprint
from reproduction.specifications import (
    Entry,
    Table,
    allowance,
    defaults,
    group,
    longest_of,
    parts_of,
    widths_of,
)

FORMAT = 3
"""Grows when the content of a kept cell changes its meaning, so that older ones are done again."""
CITATION_SEEDS = 3
"""Training runs of a row on a citation graph, which has one split; other graphs have ten, and one run."""
OWN_SEEDS = 3
"""Training runs of our rows that choose no setting, which cost little."""
QUICK_SPLITS = 2
QUICK = {"channels": 16, "heads": 2, "hidden_channels": None, "n_models": 1, "hops": 2, "mask_warmup": 1}
"""What a quick look changes; its numbers mean nothing."""
QUICK_EPOCHS, QUICK_BASELINE_EPOCHS = 2, 5
QUICK_ALLOWANCE = {"trials": 2, "looks": (1, 2)}
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Cell:
    """One piece of work on one graph.

    Attributes:
        kind: what is done, see `Table.kind`.
        graph: name of the benchmark graph.
        params: all that the outcome depends on beside the graph and the seeds.
        seeds: of the training runs.
        splits: the first few splits only, or None for all.
        alone: nothing else may run beside it, since it measures time or memory.
    """

    kind: str
    graph: str
    params: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    splits: int | None = None
    alone: bool = False

    def key(self, sha256: str) -> str:
        """Return a name that is the same only if everything is that the outcome depends on.

        Args:
            sha256: of the graph's content.
        """
        told = self.as_dict()
        for part in ("settings", "params"):
            inner = told["params"] if part == "params" else told["params"].get(part, {})
            for name in [name for name in inner if name in BEFORE and inner[name] == BEFORE[name]]:
                del inner[name]
        params, method = told["params"], told["params"].get("method")
        if method is None or METHODS[method].takes_settings:  # stored under the first names of settings
            for part in ("settings", "changes", "ranges"):
                params |= {part: original(params[part])} if part in params else {}
            told["params"] = original(params)
        return fingerprint({**told, "sha256": sha256, "format": FORMAT})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: all that the outcome depends on, beside the graph's content."""
        return {name: value for name, value in asdict(self).items() if name != "alone"}

    @property
    def name(self) -> str:
        """A few words for the person who waits."""
        told = [self.kind, self.graph, str(self.params.get("method", ""))]
        changed = self.params.get("changes", {})
        return " ".join([one for one in told if one] + [f"{key}={value}" for key, value in changed.items()])

    def size(self, nodes: int) -> float:
        """Return about how long it takes, in no unit: the largest cells are begun first."""
        trials = float(self.params.get("allowance", {}).get("trials", 1))
        return (nodes + 2000) * trials * max(1, len(self.seeds))


@dataclass(frozen=True)
class Scope:
    """How much of the tables to run: everything, or a quick look at whether it runs.

    Attributes:
        quick: one seed, two splits and tiny settings.
        seeds: at most so many seeds per row; None for the table's own number.
        device: the kind of device, "cpu" or "cuda", for what is measured in seconds and bytes.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"

    @property
    def splits(self) -> int | None:
        """The first few splits, or None for all."""
        return QUICK_SPLITS if self.quick else None

    def seeds_up_to(self, usual: int) -> tuple[int, ...]:
        """Return the usual number of seeds, or fewer where fewer were asked for."""
        return tuple(range(1 if self.quick else min(usual, self.seeds or usual)))

    def settings_of(self, preset: str | None, **changes: Any) -> dict[str, Any]:
        """Return the settings of a preset, or the defaults, with some changes: all that shape a result."""
        if preset is None:
            model = H3GNN.from_settings({**defaults()["settings"], **changes})
        else:
            model = H3GNN.from_preset(preset, **changes)
        params: dict[str, Any] = model.get_settings()
        if self.quick:
            params |= QUICK | {"epochs": min(QUICK_EPOCHS, params["epochs"])}
        return kept_for("preset", params)


@dataclass(frozen=True)
class Line:
    """A method on a graph, and the cells that its row is made from."""

    method: str
    graph: str
    cells: tuple[Cell, ...]


def lines_of(table: Table, scope: Scope) -> list[Line]:
    """Return the lines of a table, graph by graph; what two entries share stands there once."""
    lines: list[Line] = []
    for graph in table.graphs:
        for entry in table.entries:
            if not entry.too_large(graph):
                made = _PLANNERS[table.kind](table, entry, graph, scope)
                lines += [line for line in made if line not in lines]
    return lines


def method_of(params: dict[str, Any]) -> Method:
    """Return the method that a cell names, with its settings; what the cell fixes a search leaves alone."""
    ranges = {key: values for key, values in params["ranges"].items() if key not in params["changes"]}
    return replace(METHODS[params["method"]], settings=params["settings"], ranges=ranges)


def _methods(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return a method that is trained, tuned as its entry says, and scored by each rule of choosing."""
    params = _method_params(entry, graph, scope)
    params["parts"] = {
        title: {"changes": dict(part.changes), "probe": part.probe}
        for title, part in parts_of(entry.parts).items()
    }
    params["protocols"] = [NESTED.name, POOLED.name, PUBLISHED.name] if entry.is_ours else [NESTED.name]
    if not METHODS[entry.method].takes_settings and not entry.allowance:  # nothing of its settings is chosen
        params["protocols"] = [VALIDATION.name]
        system = METHODS[entry.method].system
        params["protocols"] += [PUBLISHED.name] if system is not None and system.on_test else []
    usual = CITATION_SEEDS if graph in group("citation") else 1
    if entry.is_ours and not entry.allowance:
        usual = OWN_SEEDS
    seeds = scope.seeds_up_to(table.seeds or usual)
    seeds = seeds if METHODS[entry.method].has_chance else seeds[:1]
    return [Line(entry.title, graph, (Cell("method", graph, params, seeds, scope.splits),))]


def _clusterings(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return a method whose embedding is clustered."""
    seeds = scope.seeds_up_to(table.seeds or 1)
    seeds = seeds if METHODS[entry.method].has_chance else seeds[:1]
    cell = Cell("clustering", graph, _method_params(entry, graph, scope), seeds, scope.splits)
    return [Line(entry.title, graph, (cell,))]


def _settings(entry: Entry) -> dict[str, Any]:
    """Return the settings of an entry's method, with the defaults of H3GNN when the tables were run."""
    method = METHODS[entry.method]
    former = defaults()["settings"] if method.takes_settings else {}
    fixed = {**method.settings, **entry.changes}
    return {**settings_of(method), **former, **fixed}


def _method_params(entry: Entry, graph: str, scope: Scope) -> dict[str, Any]:
    """Return all that a method's outcome depends on: its settings, their ranges, and its allowance."""
    method = METHODS[entry.method]
    settings = _settings(entry)
    ranges = {key: list(values) for key, values in method.ranges.items()}
    if method.takes_settings and not entry.method.startswith("paper"):
        ranges |= {key: values for key, values in defaults()["ranges"].items() if key in ranges}
    if method.system is not None and not method.supervised:
        ranges = {key: list(values) for key, values in method.system.ranges.items()}
    if entry.method.startswith("paper") and entry.allowance:
        ranges["channels"] = widths_of(graph, entry.allowance)
    budget = allowance(entry.allowance).as_dict() if entry.allowance else {}
    if budget.get("looks"):
        budget["looks"] = [one for one in budget["looks"] if one <= longest_of(graph, entry.allowance)]
        settings["epochs"] = max(budget["looks"])
    if not entry.allowance:
        ranges = {}
    if scope.quick:
        settings, ranges, budget = _quick(method, settings, ranges, budget)
    if method.takes_settings:
        settings = kept_for("preset", settings)
    return {
        "method": entry.method,
        "settings": settings,
        "changes": dict(entry.changes),
        "ranges": ranges,
        "allowance": budget,
    }


def _quick(
    method: Method, settings: dict[str, Any], ranges: dict[str, Any], budget: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what ends soon: tiny models, and few of their settings tried."""
    if method.takes_settings:
        settings = {**settings, **QUICK, "epochs": min(QUICK_EPOCHS, settings["epochs"])}
    elif method.has_chance and method.system is not None:
        small = {} if method.supervised else {"width": 16}
        settings = {**settings, "epochs": QUICK_BASELINE_EPOCHS, **small}
    fixed = {*QUICK, "width", "epochs"}
    ranges = {key: values for key, values in ranges.items() if key not in fixed}
    if budget:
        looks = QUICK_ALLOWANCE["looks"] if budget["looks"] else ()
        budget = {**budget, "trials": QUICK_ALLOWANCE["trials"], "looks": looks}
    return settings, ranges, budget


def _efficiency(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return lines for every device; those of other devices stand in the table if they were ever measured.

    Somebody else's system has its authors' settings.
    """
    method = METHODS[entry.method]
    if method.system is None:
        params = {**scope.settings_of(None, **_settings(entry))}
    else:
        params = {**variant(method, "published", graph).settings, "method": entry.method}
        params |= {"epochs": QUICK_BASELINE_EPOCHS} if scope.quick else {}
    return [
        Line(entry.title, graph, (Cell("efficiency", graph, {**params, "device": device}, (0,), alone=True),))
        for device in DEVICES
    ]


def _convergence(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    params = scope.settings_of(table.preset or None, **entry.changes)
    seeds = scope.seeds_up_to(table.seeds or 1)
    return [Line(entry.title, graph, (Cell("convergence", graph, params, seeds, scope.splits),))]


def _measured(kind: str) -> Callable[[Table, Entry, str, Scope], list[Line]]:
    """Return the planner of what is measured in one training from the first seed."""

    def plan(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
        params = scope.settings_of(None, **_settings(entry))
        return [Line(entry.title, graph, (Cell(kind, graph, params, (0,)),))]

    return plan


def _statistics(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    return [Line(entry.title, graph, (Cell("statistics", graph),))]


_PLANNERS = {
    "method": _methods,
    "clustering": _clusterings,
    "efficiency": _efficiency,
    "convergence": _convergence,
    "masks": _measured("masks"),
    "map": _measured("map"),
    "statistics": _statistics,
}
