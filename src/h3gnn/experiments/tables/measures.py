"""What is measured and not scored: seconds and bytes of training, what a graph is."""

from __future__ import annotations

import resource
import time
from pathlib import Path
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
    the process. A run on a tiny graph first loads what all runs need, and the times are of later runs.
    """
    params = {name: value for name, value in cell.params.items() if name != "device"}
    warm = params | {"epochs": 2} if "method" in params else {"epochs": 2, "channels": 8}
    _timed(warm, mixed_graph(60, words=30), device)
    before = _begin_memory(device)
    _timed(params | {"epochs": min(FEW, params["epochs"])}, graph, device)  # more epochs need no more memory
    memory = (_peak_memory(device) - before) / 2**20
    epoch, total = seconds_per_epoch(params, graph, device)
    return {"memory_mb": memory, "epoch_s": epoch, "total_s": total, "epochs": params["epochs"]}


def seconds_per_epoch(params: dict[str, Any], graph: Graph, device: torch.device) -> tuple[float, float]:
    """Return the seconds of an epoch and of a whole fit: an epoch is what the second half takes, divided."""
    epochs = params["epochs"]
    half = _timed(params | {"epochs": epochs // 2}, graph, device)
    whole = _timed(params, graph, device)
    return max(0.0, whole - half) / max(1, epochs - epochs // 2), whole


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


def _timed(params: dict[str, Any], graph: Graph, device: torch.device) -> float:
    started = time.perf_counter()
    if "method" in params:
        system = systems()[params["method"]]
        own = {name: value for name, value in params.items() if name != "method"}
        train(system.kind, graph, 0, device, system.with_settings(own))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    else:
        H3GNN(**params, random_state=0, device=str(device)).fit(graph)
    return time.perf_counter() - started


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
