"""The baselines of the comparison tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from h3gnn.estimator import H3GNN
from h3gnn.experiments import methods, run
from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.lines import Line, pack
from h3gnn.experiments.tables.scope import CITATION, WEBKB, Scope
from h3gnn.graphs.graph import Graph

METHODS: dict[str, str | None] = {
    "raw": None,
    "smoothed": None,
    "diffused": None,
    "mlp": "MLP",
    "gcn": "GCN",
    "gat": "GAT",
    "h2gcn": "H2GCN",
    "dgi": "DGI",
    "bgrl": "BGRL",
    "graphmae": "GraphMAE",
}
"""Baselines by name, and what the paper calls them; GraphMAE is its objective on our encoder."""
FULL_GRID = (*WEBKB, "cora", "citeseer")
"""On these the supervised baselines choose from the full grid of settings, on others from the small."""
SEEDS, SEEDS_OF_ONE_SPLIT = 2, 5
"""Training runs of a baseline on a graph with ten splits, and on one with a single split."""
QUICK = {"epochs": 5, "width": 16}
"""What a quick look makes smaller, of the methods that have it."""


def method_line(scope: Scope, method: str, graph: str) -> Line:
    """Return the line of a baseline: one cell with all its seeds, under `validation`."""
    seeds = scope.seeds_up_to(SEEDS_OF_ONE_SPLIT if graph in CITATION else SEEDS)
    chosen = _method(method, scope.quick)
    grid = "full" if graph in FULL_GRID and not scope.quick else "small"
    params = run.method_params(chosen, grid=grid)
    if chosen.takes_settings:
        params = {**scope.settings_of(graph, mask="random"), "probe": chosen.probe}
    params |= {"method": method, "quick": scope.quick}
    if chosen.supervised:
        params |= {"grid_name": grid, "grid": _axes(params["grid"])}
    cell = Cell("method", graph, params, seeds if chosen.has_chance else seeds[:1], scope.splits)
    return Line(chosen.title, graph, (cell,))


def run_baseline(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Run a baseline under `validation`."""
    quick = cell.params["quick"]
    method = _method(cell.params["method"], quick)
    settings = {name: value for name, value in cell.params.items() if name in H3GNN().get_params()}
    result = run.run_method(
        method,
        graph,
        seeds=cell.seeds,
        model=H3GNN(**settings) if method.takes_settings else None,
        device=str(device),
        grid=cell.params.get("grid_name", "small"),
        name=cell.graph,
    )
    return {"rows": [pack(replace(result, params=cell.params))]}


def _axes(points: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values along each axis of a grid, which say the same in fewer words."""
    return {name: sorted({point[name] for point in points}) for name in points[0]}


def _method(name: str, quick: bool) -> methods.Method:
    found = methods.METHODS[name]
    changes = {key: value for key, value in QUICK.items() if key in found.settings}
    return found.with_settings(**changes) if quick and not found.takes_settings else found
