"""Time per epoch and peak memory on a GPU, engine against reference in the same run.

`python -m benchmarks.gpu [--out FILE]`. The reference runs as PyTorch launches it; the engine's step is
captured as a CUDA graph. Each row is measured in float32 and with the fusion block in bfloat16 (`precision`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import show
from benchmarks.workload import Shape, engine_masks, engine_step, graph_of, random_graph, reference_epoch
from h3gnn.graphs.graph import Graph
from h3gnn.training.loop import CapturedStep

RESULTS = Path(__file__).parent / "results" / "gpu.json"
CASES = [
    ("texas", 128, 1),
    ("texas", 128, 8),
    ("texas", 128, 64),
    ("cora", 128, 1),
    ("citeseer", 128, 1),
    ("actor", 128, 1),
    ("pubmed", 128, 1),
    ("texas", 512, 1),
    ("cora", 512, 1),
    ("citeseer", 512, 1),
    ("actor", 512, 1),
    ("pubmed", 512, 1),
]
TARGETS: dict[tuple[str, int], dict[str, float]] = {
    ("texas", 1): {"engine_ms": 0.35},
    ("texas", 64): {"ms_per_model": 0.04},
    ("actor", 1): {"engine_ms": 1.5},
    ("pubmed", 1): {"engine_ms": 3.0},
    ("1M nodes", 1): {"engine_ms": 100.0, "engine_mb": 12e9 / 2**20},
}
"""What is aimed at on an H200 at C = 128, by graph and number of models, in the faster precision."""
LARGE = Shape(nodes=1_000_000, edges=10_000_000, features=128, density=0.5)


def per_epoch(epoch: Callable[[], object], epochs: int) -> float:
    """Return milliseconds per epoch, after a warm-up, the best of three stretches."""
    for _ in range(5):
        epoch()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(epochs):
            epoch()
        torch.cuda.synchronize()
        best = min(best, 1000 * (time.perf_counter() - start) / epochs)
    return best


def peak_megabytes(build: Callable[[], Callable[[], object]], epochs: int) -> tuple[float, float]:
    """Build an epoch and run it; return milliseconds and the peak of allocated memory above the start."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    milliseconds = per_epoch(build(), epochs)
    return milliseconds, (torch.cuda.max_memory_allocated() - start) / 2**20


def captured_epoch(graph: Graph, channels: int, models: int, bfloat16: bool) -> Callable[[], object]:
    """Return one captured epoch of the engine."""
    step = engine_step(graph, channels, models, device="cuda", bfloat16=bfloat16)
    run = CapturedStep(step)
    warming, masks = engine_masks(models)
    for _ in range(2):
        run(warming)
    return lambda: run(masks)


def compare(name: str, graph: Graph, channels: int, models: int, epochs: int) -> list[dict[str, Any]]:
    """Measure one case in both precisions."""
    plain, plain_mb = peak_megabytes(lambda: reference_epoch(graph, channels, "cuda"), epochs)
    rows = []
    for precision in ("float32", "bfloat16"):
        build = partial(captured_epoch, graph, channels, models, precision == "bfloat16")
        ours, ours_mb = peak_megabytes(build, epochs)
        rows.append(
            {
                "graph": name,
                "channels": channels,
                "models": models,
                "precision": precision,
                "reference_ms": round(plain, 3),
                "engine_ms": round(ours, 3),
                "ms_per_model": round(ours / models, 4),
                "ratio": round(models * plain / ours, 2),
                "reference_mb": round(plain_mb),
                "engine_mb": round(ours_mb),
            }
        )
    return rows


def floor(name: str, graph: Graph, channels: int) -> dict[str, Any]:
    """Return the least time that counted float32 operations allow at this GPU's measured rate."""
    a, b = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
    rate = 2 * 8192**3 / (per_epoch(lambda: a @ b, 3) / 1000)
    nodes = graph.num_nodes
    operations = 4 * nodes * 4 * 12 * channels**2 * 2 + 4 * nodes * 5 * channels**2 * 2
    return {"graph": name, "channels": channels, "floor_ms": round(1000 * operations / rate, 3)}


KINDS = {
    "Adam and average": ("_adam", "_ema_update", "multi_tensor_apply", "lerp"),
    "attention, norms, activations, masks": ("_forward", "_backward", "_fold", "_column_sums"),
    "sparse products": ("_sum_rows", "_sampled_product", "cusparse"),
    "dense products": ("gemm", "nvjet", "cutlass", "gemv", "splitKreduce"),
    "copies and casts": ("copy", "Memcpy", "CatArray", "Memset", "FillFunctor"),
    "draws and sorts": ("distribution", "radix", "Sort"),
}
"""Kernels by parts of their names; what has none of these is the rest."""


def shares_of(epoch: Callable[[], object], epochs: int = 3) -> dict[str, Any]:
    """Return how many kernels an epoch has, and the share of their time that each kind takes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(epochs):
            epoch()
        torch.cuda.synchronize()
    times: dict[str, float] = dict.fromkeys([*KINDS, "rest"], 0.0)
    kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
    for event in kernels:
        kind = next((kind for kind, parts in KINDS.items() if any(p in event.name for p in parts)), "rest")
        times[kind] += event.device_time
    total = sum(times.values())
    shares = {kind: round(100 * spent / total) for kind, spent in times.items()}
    return {
        "kernels": round(len(kernels) / epochs),
        "kernels_ms": round(total / epochs / 1000, 3),
        "shares": shares,
    }


def profiled(name: str, graph: Graph, models: int) -> dict[str, Any]:
    """Return where the time of a case with a target goes."""
    epoch = captured_epoch(graph, 128, models, bfloat16=True)
    for _ in range(5):
        epoch()
    return {"graph": name, "models": models, **shares_of(epoch)}


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each target with what was measured."""
    found = []
    for (graph, models), aims in TARGETS.items():
        case = {"graph": graph, "models": models, "channels": 128, "precision": "bfloat16"}
        for row in (row for row in rows if case.items() <= row.items()):
            for what, target in aims.items():
                aim = {"graph": graph, "models": models, "what": what, "target": round(target, 3)}
                found.append(aim | {"measured": row[what], "reached": row[what] <= target})
    return found


def main() -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--large", action="store_true", help="also a million nodes and ten million edges")
    asked = parser.parse_args()
    graphs = {name: graph_of(name) for name in dict.fromkeys(name for name, _, _ in CASES)}
    rows, floors = [], []
    for name, channels, models in CASES:
        measured = compare(name, graphs[name], channels, models, epochs=10)
        rows += measured
        for row in measured:
            show(row)
        if models == 1:
            floors.append(floor(name, graphs[name], channels))
    if asked.large:
        measured = compare("1M nodes", random_graph(LARGE), 128, 1, epochs=2)
        rows += measured
        for row in measured:
            show(row)
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    kept: dict[str, Any] = {"machine": machine, "rows": rows, "floors": floors, "targets": judged(rows)}
    kept["profile"] = [
        profiled(name, graphs[name] if name in graphs else random_graph(LARGE), models)
        for name, models in TARGETS
        if name in graphs or asked.large
    ]
    for row in (*kept["targets"], *kept["profile"]):
        show(row)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"wrote {asked.out}")


if __name__ == "__main__":
    main()
