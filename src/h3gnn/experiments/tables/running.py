"""Running cells: the graph is read, the work is done, and the outcome says where it came from."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines import Progress, unwatched
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.judge import Judge
from h3gnn.evaluation.places import place
from h3gnn.evaluation.protocols import PROTOCOLS, PUBLISHED, VALIDATION
from h3gnn.evaluation.results import Result
from h3gnn.experiments import workers
from h3gnn.experiments.run import build_judge, run_method
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.tables.cells import Cell, baseline
from h3gnn.experiments.tables.measures import look_epochs, run_efficiency, run_statistics
from h3gnn.experiments.tables.theory import run_convergence
from h3gnn.graphs.catalogue import load
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.storage.files import Record, rounded, versions
from h3gnn.training.loop import Snapshots
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


def device_name(device: torch.device) -> str:
    """Return what a reader would call the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} thread(s)"


def run_fit(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train one configuration from one seed, and return its scores under each protocol.

    The run is probed at a few epochs. `validation` has the last one, whatever the others say; `published`
    has each split's best on test nodes. Where k-means is wanted, the last epoch alone is probed.
    """
    seed, looked_at = cell.seeds[0], look_epochs(cell.params["epochs"])
    judge = judge_of(graph, cell.params["n_models"], seed, clusters="clusters" in cell.wants)
    model = H3GNN(**cell.params, random_state=seed, device=str(device))
    model.fit(graph, snapshots=Snapshots(looked_at, judge.take))
    drawn = draw_map(graph, model.embedding_, seed) if "map" in cell.wants else None
    engine = {"precision": model.history_.engine["precision"]}
    return {"epochs": looked_at, **both_scores(judge), "map": drawn, **engine}


def judge_of(graph: Graph, models: int, seed: int, *, clusters: bool = False) -> Judge:
    """Return a judge that keeps what both protocols need."""
    return build_judge(
        graph,
        protocol=PUBLISHED,
        parts=models,
        cluster=clusters,
        cluster_options={"seeds": (seed,)},
        probe_last=clusters,
    )


def both_scores(judge: Judge) -> dict[str, Any]:
    """Return what each protocol makes of the same run: its scores, and k-means where it was asked for."""
    found = {"published": judge.result(), "validation": judge.result_at_end()}
    clusters = {name: one.clustering for name, one in found.items()}
    scores: dict[str, Any] = {name: asdict(one.scores) for name, one in found.items()}
    return {**scores, "clustering": clusters if judge.cluster else None}


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


def run_baseline(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Run a baseline under `validation`, and under `published` too where the cell says so."""
    quick = cell.params["quick"]
    method = baseline(cell.params["method"], quick=quick)
    settings = {name: value for name, value in cell.params.items() if name in H3GNN().get_params()}
    results = [
        run_method(
            method,
            graph,
            seeds=cell.seeds,
            model=H3GNN(**settings) if method.takes_settings else None,
            protocol=PROTOCOLS[protocol],
            device=str(device),
            cluster="clusters" in cell.wants,
            name=cell.graph,
        )
        for protocol in cell.params.get("protocols", [VALIDATION.name])
    ]
    return {"rows": [pack(replace(result, params=cell.params)) for result in results]}


def pack(result: Result) -> dict[str, Any]:
    """Return a result as plain values, small: five digits, and what was chosen in columns."""
    row: dict[str, Any] = rounded(result.as_dict())
    del row["protocol_in_words"]  # said once for the whole file
    names = list(dict.fromkeys(name for run in result.chosen for split in run for name in split))
    row["chosen"] = {name: [[split.get(name) for split in run] for run in result.chosen] for name in names}
    return row


RUNNERS: dict[str, Callable[[Cell, Graph, torch.device], dict[str, Any]]] = {
    "fit": run_fit,
    "method": run_baseline,
    "efficiency": run_efficiency,
    "convergence": run_convergence,
    "statistics": run_statistics,
}
