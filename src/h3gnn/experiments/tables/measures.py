"""What is measured and not scored: seconds and bytes of training, what a graph is."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from h3gnn.baselines.embedder import train
from h3gnn.baselines.registry import systems
from h3gnn.estimator import H3GNN
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.tables.cells import Cell
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.homophily import measure_homophily
from h3gnn.graphs.synthetic import mixed_graph

LOOKS = 10
"""At so many epochs a run is probed, for the protocol that picks the best on test nodes."""
FEW = 5
"""Epochs for the peak of memory."""


def look_epochs(epochs: int, count: int = LOOKS) -> list[int]:
    """Return growing epochs, close together at the start, the last included: `epochs · (i / count)²`."""
    if epochs == 0:
        return [0]
    return sorted({max(1, round(epochs * (i / count) ** 2)) for i in range(1, count + 1)})


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
        model = H3GNN(**params, random_state=0, device=str(device))
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
