"""Running cells: the graph is read, the work is done, and the outcome says where it came from."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines import Progress, unwatched
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.projection import place
from h3gnn.evaluation.protocols import PROTOCOLS, VALIDATION
from h3gnn.evaluation.results import Result
from h3gnn.experiments import workers
from h3gnn.experiments.run import run_method
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.search import Allowance, Part, run_clustered, run_nested
from h3gnn.experiments.tables.cells import Cell, method_of
from h3gnn.experiments.tables.measures import run_efficiency, run_statistics
from h3gnn.experiments.tables.theory import run_convergence
from h3gnn.graphs.catalogue import load
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.storage.atomic import Record, rounded
from h3gnn.storage.origin import made_with
from h3gnn.training.resources import pick_device

MAP_NODES, MAP_SIDE = 1500, 999
"""A map shows no more nodes than this, drawn at random, on a grid from 0 to this along each side."""


def run_cells(cells: Sequence[Cell], device: str, jobs: int = 1) -> Iterator[workers.Finished]:
    """Run cells and yield each as it ends; those that must be alone come last, one after another.

    On a CPU each of those has a fresh process, whose memory says what the cell needed.

    Args:
        cells: in the order in which they shall begin.
        device: "cpu" or "cuda".
        jobs: processes at once; with 1, cells run in this process.
    """
    together = [cell for cell in cells if not cell.alone]
    alone = [cell for cell in cells if cell.alone]
    work = partial(_run_on, device)
    if jobs == 1:
        yield from (workers.attempt(cell, work, unwatched) for cell in together)
    else:
        for finished in workers.in_processes(together, work, min(jobs, max(1, len(together))), threads=1):
            if finished.out_of_memory:
                alone.append(finished.task)
            else:
                yield finished
    for group in [[cell] for cell in alone] if device == "cpu" else [alone]:
        yield from workers.in_processes(group, work, 1, threads=None)


def _run_on(device: str, cell: Cell, watch: Progress) -> Record:
    return run_cell(cell, pick_device(device))


def run_cell(cell: Cell, device: torch.device) -> Record:
    """Do a cell's work and return what is kept of it."""
    started, made = time.perf_counter(), made_with()
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
        **made,
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


def device_name(device: torch.device) -> str:
    """Return what a reader would call the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} thread(s)"


def run_searched(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Tune a method as the cell allows, and return a row for each rule of choosing, and for each part."""
    params = cell.params
    if VALIDATION.name in params["protocols"]:  # a classifier chooses among the few points of its grid
        run = partial(run_method, method_of(params), graph, device=str(device), name=cell.graph)
        results = [run(seeds=cell.seeds, protocol=PROTOCOLS[one]) for one in params["protocols"]]
        return {"rows": [pack(one) for one in results], "record": None, "chosen": {}}
    found = run_nested(
        method_of(params),
        graph,
        seeds=cell.seeds,
        allowance=Allowance.of(params["allowance"]),
        protocols=params["protocols"],
        parts={title: Part(**told) for title, told in params["parts"].items()},
        device=str(device),
        name=cell.graph,
    )
    rows = [pack(result) for result in found.results.values()]
    rows += [{**pack(result), "part": title} for title, result in found.parts.items()]
    record = found.record if params["allowance"] and "candidates" in found.record else None
    return {"rows": rows, "record": record, "chosen": found.chosen}


def run_map(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train once and draw the maps of features and embedding."""
    model = H3GNN(**cell.params, random_state=cell.seeds[0], device=str(device)).fit(graph)
    return draw_map(graph, model.embedding_, cell.seeds[0])


def run_masks(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train once for each size of the mask, and return the mean share of nodes masked after the warm-up."""
    shares = {}
    for size in ("bounded", "free", "exact"):
        params = {**cell.params, "mask_size": size}
        model = H3GNN(**params, random_state=cell.seeds[0], device=str(device)).fit(graph)
        masked = np.asarray(model.history_["masked"], dtype=np.float64)[cell.params["mask_warmup"] :]
        shares[size] = float(masked.mean() / graph.num_nodes)
    return {"shares": shares}


def draw_map(graph: Graph, embedding: npt.NDArray[np.float32], seed: int) -> dict[str, Any]:
    """Return the maps of features and embedding, with the classes to colour them by."""
    shown = np.sort(np.random.default_rng(seed).permutation(graph.num_nodes)[:MAP_NODES])

    def on_grid(rows: npt.NDArray[np.float32]) -> list[list[int]]:  # x of all, then y of all
        places = place(rows[shown], seed=seed)
        found: list[list[int]] = np.rint(MAP_SIDE * (places + 1) / 2).astype(int).T.tolist()
        return found

    return {
        "before": on_grid(graph.dense_features().numpy()),
        "after": on_grid(embedding),
        "labels": Splits.of(graph).labels.numpy()[shown].tolist(),
        "classes": list(graph.class_names),
    }


def pack(result: Result) -> dict[str, Any]:
    """Return a result as plain values, small: five digits, and what was chosen in columns."""
    row: dict[str, Any] = rounded(result.as_dict())
    del row["protocol_in_words"]  # said once for the whole file
    names = list(dict.fromkeys(name for run in result.chosen for split in run for name in split))
    row["chosen"] = {name: [[split.get(name) for split in run] for run in result.chosen] for name in names}
    return row


RUNNERS: dict[str, Callable[[Cell, Graph, torch.device], dict[str, Any]]] = {
    "method": run_searched,
    "clustering": lambda cell, graph, device: run_clustered(
        method_of(cell.params), graph, cell.seeds, Allowance.of(cell.params["allowance"]), device
    ),
    "efficiency": run_efficiency,
    "convergence": run_convergence,
    "masks": run_masks,
    "map": run_map,
    "statistics": run_statistics,
}
