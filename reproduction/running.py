"""What is measured and not scored: seconds and bytes of training, what a graph is."""

from __future__ import annotations

import gc
import resource
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.embedder import train
from h3gnn.baselines.registry import systems
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import project_to_plane
from h3gnn.evaluation.protocols import PROTOCOLS, VALIDATION
from h3gnn.evaluation.results import Result
from h3gnn.experiments import workers
from h3gnn.experiments.run import run_method
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.spaces import SearchBudget
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.graphs.profile import measure_homophily
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.training.resources import pick_device
from reproduction.cells import Cell, method_of
from reproduction.files import Record, rounded
from reproduction.origin import made_with, origin
from reproduction.search import Part, search_clusterings, search_protocols
from reproduction.theory import run_convergence

FEW = 5
"""Epochs for the peak of memory."""


def run_efficiency(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Measure the memory, the seconds per epoch and the seconds in all that training takes.

    The memory is what training adds: on a GPU the largest amount that tensors held, on a CPU the growth of
    the process. A run on a tiny graph first loads what all runs need; all times are of one later run.
    """
    params = {name: value for name, value in cell.params.items() if name != "device"}
    warm = params | {"epochs": 2} if "method" in params else {"epochs": 2, "channels": 8}
    timed_fit(warm, mixed_graph(60, words=30), device)
    before = _begin_memory(device)
    timed_fit(params | {"epochs": min(FEW, params["epochs"])}, graph, device)  # more need no more memory
    memory = (_peak_memory(device) - before) / 2**20
    fit = timed_fit(params, graph, device)
    return {"memory_mb": memory, "epoch_s": fit.epoch, "total_s": fit.total, "epochs": fit.epochs}


def seconds_per_epoch(params: dict[str, Any], graph: Graph, device: torch.device) -> tuple[float, float]:
    """Return the seconds of an epoch and of the whole of one fit."""
    fit = timed_fit(params, graph, device)
    return fit.epoch, fit.total


@dataclass(frozen=True)
class TimedFit:
    """How long one fit took.

    Attributes:
        total: its seconds, everything included.
        epochs: how many it made, fewer than asked for where a system stops early.
        between: for each group of models that trained together, the seconds from the end of each epoch to
            the end of the next.
    """

    total: float
    epochs: int
    between: list[list[float]]

    @property
    def epoch(self) -> float:
        """The seconds of an epoch of all models: the median, so that what starts up does not count.

        Never more than the whole divided by the epochs: epochs times this are no more than the total.
        """
        if not self.epochs:
            return 0.0
        medians = [median(some) for some in self.between if some]
        return min(sum(medians) if medians else self.total, self.total / self.epochs)


def timed_fit(params: dict[str, Any], graph: Graph, device: torch.device) -> TimedFit:
    """Fit H3GNN, or the system that `method` names, and note when each epoch ends.

    On a GPU an epoch has ended when the GPU is done with it; nobody waits for that before the fit is over.
    """
    ends: dict[int, list[Any]] = defaultdict(list)
    started = time.perf_counter()
    if "method" in params:
        system = systems()[params["method"]]
        own = system.with_settings({name: value for name, value in params.items() if name != "method"})
        train(system.kind, graph, 0, device, own, watch=lambda _: ends[0].append(_moment(device)))
    else:
        model = H3GNN.from_settings({**params, "random_state": 0, "device": str(device)})
        model.fit(graph, after_epoch_of=lambda first: lambda *_: ends[first].append(_moment(device)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    total = time.perf_counter() - started
    between = [[_seconds(a, b) for a, b in pairwise(some)] for some in ends.values()]
    return TimedFit(total, max(map(len, ends.values()), default=0), between)


def _moment(device: torch.device) -> Any:
    """Return this moment: of the clock, or, on a GPU, of its queue of work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds(start: Any, end: Any) -> float:
    """Return the seconds between two moments of one kind."""
    return float(end - start) if isinstance(start, float) else float(start.elapsed_time(end)) / 1000


def run_statistics(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Count a graph's nodes, edges, features and classes, and measure how its labels lie on its edges."""
    homophily = measure_homophily(graph.edge_index, Splits.of(graph).labels, graph.num_classes)
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "classes": graph.num_classes,
        "homophily": homophily.edge,
        "node_homophily": homophily.node,
        "adjusted_homophily": homophily.adjusted,
        "label_informativeness": homophily.label_informativeness,
        "splits": graph.num_splits,
    }


def _begin_memory(device: torch.device) -> int:
    """Forget the largest memory so far, and return what is used now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")
    return _peak_memory(device)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
    found = search_protocols(
        method_of(params),
        graph,
        seeds=cell.seeds,
        budget=SearchBudget.of(params["allowance"]),
        protocols=params["protocols"],
        parts={title: Part(**told) for title, told in params["parts"].items()},
        device=device,
        name=cell.graph,
    )
    rows = [pack(result) for result in found.results.values()]
    rows += [{**pack(result), "part": title} for title, result in found.parts.items()]
    record = found.record if params["allowance"] and "candidates" in found.record else None
    return {"rows": rows, "record": record, "chosen": found.chosen}


def run_map(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train once and draw the maps of features and embedding."""
    model = H3GNN.from_settings({**cell.params, "random_state": cell.seeds[0], "device": str(device)}).fit(
        graph
    )
    return draw_map(graph, model.embedding_, cell.seeds[0])


def run_masks(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train once for each size of the mask, and return the mean share of nodes masked after the warm-up."""
    shares = {}
    for size in ("bounded", "free", "exact"):
        params = {**cell.params, "mask_size": size}
        model = H3GNN.from_settings({**params, "random_state": cell.seeds[0], "device": str(device)}).fit(
            graph
        )
        masked = np.asarray(model.history_["masked"], dtype=np.float64)[cell.params["mask_warmup"] :]
        shares[size] = float(masked.mean() / graph.num_nodes)
    return {"shares": shares}


def draw_map(graph: Graph, embedding: npt.NDArray[np.float32], seed: int) -> dict[str, Any]:
    """Return the maps of features and embedding, with the classes to colour them by."""
    shown = np.sort(np.random.default_rng(seed).permutation(graph.num_nodes)[:MAP_NODES])

    def on_grid(rows: npt.NDArray[np.float32]) -> list[list[int]]:  # x of all, then y of all
        places = project_to_plane(rows[shown], seed=seed)
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
    row: dict[str, Any] = rounded(result.as_dict()) | {"origin": origin()}
    del row["protocol_in_words"]  # said once for the whole file
    names = list(dict.fromkeys(name for run in result.chosen for split in run for name in split))
    row["chosen"] = {name: [[split.get(name) for split in run] for run in result.chosen] for name in names}
    return row


RUNNERS: dict[str, Callable[[Cell, Graph, torch.device], dict[str, Any]]] = {
    "method": run_searched,
    "clustering": lambda cell, graph, device: search_clusterings(
        method_of(cell.params), graph, cell.seeds, SearchBudget.of(cell.params["allowance"]), device
    ),
    "efficiency": run_efficiency,
    "convergence": run_convergence,
    "masks": run_masks,
    "map": run_map,
    "statistics": run_statistics,
}
