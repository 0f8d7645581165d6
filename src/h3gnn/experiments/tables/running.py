"""Running one cell: the graph is read, the work is done, and the outcome says where it came from."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.fits import run_fit
from h3gnn.experiments.tables.measures import run_convergence, run_efficiency, run_statistics
from h3gnn.experiments.tables.methods import run_baseline
from h3gnn.experiments.tables.store import Record, rounded
from h3gnn.graphs.catalogue import load
from h3gnn.graphs.graph import Graph
from h3gnn.storage.files import versions

Runner = Callable[[Cell, Graph, torch.device], dict[str, Any]]

RUNNERS: dict[str, Runner] = {
    "fit": run_fit,
    "method": run_baseline,
    "efficiency": run_efficiency,
    "convergence": run_convergence,
    "statistics": run_statistics,
}


def run_cell(cell: Cell, device: torch.device) -> Record:
    """Do a cell's work and return what is kept of it."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a user must know of a graph or a collapse
        graph = graph_of(cell.graph)
        out = RUNNERS[cell.kind](cell, first_splits(graph, cell.splits), device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    record = {
        "cell": cell.as_dict(),
        "sha256": graph.provenance.sha256,
        "device": device_name(device),
        "versions": versions(),
        "seconds": time.perf_counter() - started,
        "out": out,
    }
    kept: Record = rounded(record)
    return kept


@cache
def graph_of(name: str) -> Graph:
    """Return a benchmark graph, read once in each process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load(name)


def first_splits(graph: Graph, splits: int | None) -> Graph:
    """Return the graph with its first few splits only."""
    if splits is None or graph.train_mask is None:
        return graph
    names = ("train_mask", "val_mask", "test_mask")
    return replace(graph, **{name: getattr(graph, name)[:, :splits] for name in names})


def device_name(device: torch.device) -> str:
    """Return what a reader would call the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} thread(s)"
