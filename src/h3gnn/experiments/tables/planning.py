"""From a table's specification to lines: a method on a graph, and the cells that its row is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h3gnn.experiments.methods import METHODS, Method
from h3gnn.experiments.run import method_params
from h3gnn.experiments.tables.cells import Cell, Scope
from h3gnn.experiments.tables.specifications import CITATION, WEBKB, Entry, Table

DEVICES = ("cpu", "cuda")
FULL_GRID = (*WEBKB, "cora", "citeseer")
"""On these the supervised baselines choose from the full grid of settings, on others from the small."""
SEEDS, SEEDS_OF_ONE_SPLIT = 2, 5
"""Training runs of a baseline on a graph with ten splits, and on one with a single split."""
QUICK_EPOCHS = 5
"""Epochs of a baseline in a quick look."""


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
    """Return a baseline: one cell with all its seeds, under `validation`."""
    seeds = scope.seeds_up_to(SEEDS_OF_ONE_SPLIT if graph in CITATION else SEEDS)
    chosen = baseline(entry.baseline, quick=scope.quick)
    grid = "full" if graph in FULL_GRID and not scope.quick else "small"
    params = method_params(chosen, grid=grid)
    if chosen.takes_settings:
        params = {**scope.settings_of(graph, mask="random"), "probe": chosen.probe}
    params |= {"method": entry.baseline, "quick": scope.quick}
    if chosen.supervised:
        params |= {"grid_name": grid, "grid": _axes(params["grid"])}
    cell = Cell("method", graph, params, seeds if chosen.has_chance else seeds[:1], scope.splits)
    return [Line(entry.title, graph, (cell,))]


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
    params, seeds = scope.settings_of(graph, **entry.changes), scope.seeds_up_to(table.seeds or 1)
    return [Line(entry.title, graph, (Cell("convergence", graph, params, seeds, scope.splits, alone=True),))]


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
    return method.with_settings(epochs=QUICK_EPOCHS, **small)


def _axes(points: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values along each axis of a grid, which say the same in fewer words."""
    return {name: sorted({point[name] for point in points}) for name in points[0]}
