"""A cell: the smallest piece of work, kept and never done twice; and the lines of a table, made of cells."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.protocols import PROTOCOLS
from h3gnn.experiments.methods import METHODS, Method, variant
from h3gnn.experiments.run import method_params
from h3gnn.experiments.tables.specifications import CITATION, Entry, Table
from h3gnn.settings import BEFORE, kept_for, tuned_presets
from h3gnn.storage.files import fingerprint

FORMAT = 2
"""Grows when the content of a kept cell changes its meaning, so that older ones are done again."""
SEEDS, VARIANT_SEEDS = dict.fromkeys(CITATION, 10), dict.fromkeys(CITATION, 3)
"""Training runs of a preset, and of one with something changed, on graphs with one split; with ten, one."""
QUICK_SPLITS = 2
QUICK_EPOCHS = 2
QUICK = {"channels": 16, "heads": 2, "hidden_channels": None, "n_models": 1, "hops": 2, "mask_warmup": 1}
"""What a quick look changes; its numbers mean nothing."""

DEVICES = ("cpu", "cuda")
BASELINE_SEEDS, BASELINE_SEEDS_OF_ONE_SPLIT = 1, 3
"""Training runs of a baseline on a graph with ten splits, and on one with a single split."""
QUICK_BASELINE_EPOCHS = 5
"""Epochs of a baseline in a quick look."""


@dataclass(frozen=True)
class Cell:
    """One piece of work on one graph.

    Attributes:
        kind: what is done: "fit", "method", "efficiency", "convergence" or "statistics".
        graph: name of the benchmark graph.
        params: the full configuration.
        seeds: of the training runs.
        splits: the first few splits only, or None for all.
        wants: what is measured beside the scores: "clusters", "map".
        alone: nothing else may run beside it, since it measures time or memory.
    """

    kind: str
    graph: str
    params: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    splits: int | None = None
    wants: tuple[str, ...] = ()
    alone: bool = False

    def key(self, sha256: str) -> str:
        """Return a name that is the same only if everything is that the outcome depends on.

        Args:
            sha256: of the graph's content.
        """
        params = {
            name: value for name, value in self.params.items() if name not in BEFORE or value != BEFORE[name]
        }
        if params.get("objective") == "features":  # the name under which it was first kept
            params["objective"] = "decoder"
        return fingerprint({**self.as_dict(), "params": params, "sha256": sha256, "format": FORMAT})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: all that the outcome depends on, beside the graph's content."""
        return {name: value for name, value in asdict(self).items() if name != "alone"}

    @property
    def name(self) -> str:
        """A few words for the person who waits."""
        told = [self.kind, self.graph]
        told += [str(self.params[one]) for one in ("method", "mask", "objective") if one in self.params]
        return " ".join([*told, *(f"seed {seed}" for seed in self.seeds[:1] if len(self.seeds) == 1)])

    def size(self, nodes: int) -> float:
        """Return about how long it takes, in no unit: the largest cells are begun first."""
        params = self.params
        if self.kind == "fit":
            wide = float(params["channels"] * (2 + params["hops"]))
            return nodes * wide * float(params["n_models"] * (params["epochs"] + 20))
        return float(nodes) * 30_000 * max(1, len(self.seeds))


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

    def seeds_of(self, graph: str, *, variant: bool = False) -> tuple[int, ...]:
        """Return the seeds of a row: of a graph's preset as it is shipped, or of a variant of it."""
        return self.seeds_up_to((VARIANT_SEEDS if variant else SEEDS).get(graph, 1))

    def seeds_up_to(self, usual: int) -> tuple[int, ...]:
        """Return the usual number of seeds, or fewer where fewer were asked for."""
        return tuple(range(1 if self.quick else min(usual, self.seeds or usual)))

    def settings_of(self, graph: str, *, purpose: str | None = None, **changes: Any) -> dict[str, Any]:
        """Return the shipped preset of a graph with some changes, all arguments that shape a result.

        Args:
            graph: name of the graph.
            purpose: "clustering" for the preset that was made for k-means.
            changes: arguments of `H3GNN`.

        Raises:
            InputError: without a preset, unless the look is quick, which then takes the defaults.
        """
        name = graph if purpose is None else f"{graph}-{purpose}"
        if name == "paper" or name in tuned_presets():
            params = H3GNN.from_preset(name, **changes).get_params()
        elif self.quick:
            params = H3GNN(**changes).get_params()
        else:
            raise InputError(f"there is no shipped preset {name}: make one with `h3gnn tune {graph}`")
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
            made = _PLANNERS["method" if entry.baseline else table.kind](table, entry, graph, scope)
            lines += [line for line in made if line not in lines]
    return lines


def _fits(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return H3GNN with a graph's preset and some changes: one cell for each seed, the first with the map."""
    params = scope.settings_of(graph, purpose=table.purpose, **entry.changes)
    if table.seeds is None:
        seeds = scope.seeds_of(graph, variant=params != scope.settings_of(graph))
    else:
        seeds = scope.seeds_up_to(table.seeds)
    wants = ("clusters",) if table.measure != "probe" else ("map",) if graph in entry.mapped else ()
    cells = [
        Cell(
            "fit",
            graph,
            params,
            (seed,),
            scope.splits,
            wants if seed == seeds[0] or "map" not in wants else (),
        )
        for seed in seeds
    ]
    return [Line(entry.title, graph, tuple(cells[:1] if table.rows == "maps" else cells))]


def _baselines(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return a baseline: one cell with all its seeds, under `validation`.

    Where its authors choose on test nodes, it is scored so, too.
    """
    if entry.too_large(graph):
        return []
    usual = BASELINE_SEEDS_OF_ONE_SPLIT if graph in CITATION else BASELINE_SEEDS
    seeds = scope.seeds_up_to(BASELINE_SEEDS_OF_ONE_SPLIT if table.seeds else usual)
    if table.kind == "efficiency":
        return _system_efficiency(entry, graph, scope)
    chosen = baseline(entry.baseline, quick=scope.quick)
    params = method_params(chosen)
    if chosen.takes_settings:
        params = {**scope.settings_of(graph, mask="random"), "probe": chosen.probe}
    params |= {"method": entry.baseline, "quick": scope.quick}
    if chosen.supervised:
        params |= {"grid": _axes(params["grid"])}
    if chosen.system and chosen.system.on_test and table.measure == "probe":
        params["protocols"] = list(PROTOCOLS)
    wants = ("clusters",) if table.measure != "probe" else ()
    cell = Cell("method", graph, params, seeds if chosen.has_chance else seeds[:1], scope.splits, wants)
    return [Line(entry.title, graph, (cell,))]


def _system_efficiency(entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return a system's time and memory, as `_efficiency` does for ours; with its authors' settings."""
    method = variant(METHODS[entry.baseline], "published", graph)
    params = {**method.settings, "method": entry.baseline}
    if scope.quick:
        params["epochs"] = QUICK_BASELINE_EPOCHS
    return [
        Line(entry.title, graph, (Cell("efficiency", graph, {**params, "device": device}, (0,), alone=True),))
        for device in DEVICES
    ]


def _efficiency(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    """Return lines for every device; those of other devices stand in the table if they were ever measured."""
    params = scope.settings_of(graph, **entry.changes)
    one = params["n_models"] == 1  # of a preset with one model both entries are the same
    method = table.entries[0].title if one else entry.title.format(**params)
    return [
        Line(method, graph, (Cell("efficiency", graph, {**params, "device": device}, (0,), alone=True),))
        for device in DEVICES
    ]


def _convergence(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    params = scope.settings_of(table.preset or graph, **entry.changes)
    seeds = scope.seeds_up_to(table.seeds or 1)
    return [Line(entry.title, graph, (Cell("convergence", graph, params, seeds, scope.splits),))]


def _statistics(table: Table, entry: Entry, graph: str, scope: Scope) -> list[Line]:
    return [Line(entry.title, graph, (Cell("statistics", graph),))]


_PLANNERS = {
    "fit": _fits,
    "method": _baselines,
    "efficiency": _efficiency,
    "convergence": _convergence,
    "statistics": _statistics,
}


def baseline(name: str, *, quick: bool) -> Method:
    """Return a baseline; in a quick look those with many epochs are smaller."""
    method = METHODS[name]
    if not quick or method.takes_settings or not method.has_chance:
        return method
    small = {} if method.supervised else {"width": 16}
    return method.with_settings(epochs=QUICK_BASELINE_EPOCHS, **small)


def _axes(points: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values along each axis of a grid, which say the same in fewer words."""
    return {name: sorted({point[name] for point in points}) for name in points[0]}
