"""Time per epoch and peak memory on the CPU, engine against reference in the same run.

`make bench`, or `python -m benchmarks.cpu [--quick]`. Writes benchmarks/results/cpu.json. Engine and
reference take turns, so that a busy moment of the machine hits both; the fastest of their epochs counts.
`--profile` writes where the time of an epoch goes to benchmarks/results/profile.json instead.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.shares import write_profile
from benchmarks.workload import SHAPES, engine_epoch, graph_of, reference_epoch
from h3gnn.resources import retain_heap
from h3gnn.training.resources import use_bfloat16

RESULTS = Path(__file__).parent / "results" / "cpu.json"
WIDE = ("texas", "cora")
"""Graphs that are measured at C = 512 too; the others take minutes, so `--all` asks for them."""
TARGET = 1.5
"""An epoch should take at most this multiple of its floor."""


def fastest(epochs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Run the epochs in turn for about so long; return the fastest of each, in milliseconds."""
    best = [float("inf")] * len(epochs)
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < deadline:
        for position, epoch in enumerate(epochs):
            start = time.perf_counter()
            epoch()
            best[position] = min(best[position], 1000 * (time.perf_counter() - start))
        rounds += 1
    return best


def peak_megabytes(name: str, channels: int, kind: str) -> float:
    """Return what three epochs add to the peak memory of a fresh process that holds the graph."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu", "--memory-of", kind]
    command += ["--graph", name, "--channels", str(channels)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(name: str, channels: int, kind: str) -> float:
    """Measure it, in this process."""
    graph = graph_of(name)
    before = memory_kilobytes("VmRSS")
    if kind == "reference":
        epoch = reference_epoch(graph, channels)
    else:
        epoch = engine_epoch(graph, channels, bfloat16=kind == "bfloat16")
    retain_heap()
    for _ in range(2):
        epoch()
    return (memory_kilobytes("VmHWM") - before) / 1024


def memory_kilobytes(field: str) -> int:
    """Return this process's resident memory now (VmRSS) or at its peak (VmHWM), as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def precisions() -> list[str]:
    """Return what is measured here: bfloat16 only where the processor computes in it."""
    return ["float32", "bfloat16"] if use_bfloat16("auto", torch.device("cpu")) else ["float32"]


def compare(name: str, channels: int, seconds: float) -> list[dict[str, Any]]:
    """Measure one graph and width, with the fusion block in each precision."""
    graph, rows = graph_of(name), []
    epochs = [reference_epoch(graph, channels)]
    epochs += [engine_epoch(graph, channels, bfloat16=one == "bfloat16") for one in precisions()]
    reference, *engines = fastest(epochs, seconds)
    del epochs
    reference_mb = peak_megabytes(name, channels, "reference")
    for precision, engine in zip(precisions(), engines, strict=True):
        least = floor(name, channels, precision)
        rows.append(
            {
                "graph": name,
                "data": graph.provenance.source,
                "channels": channels,
                "models": 1,
                "precision": precision,
                "reference_ms": round(reference, 2),
                "engine_ms": round(engine, 2),
                "ratio": round(reference / engine, 2),
                "reference_mb": round(reference_mb),
                "engine_mb": round(peak_megabytes(name, channels, precision)),
                "floor_ms": round(least, 2),
                "over_floor": round(engine / least, 2),
            }
        )
    return rows


def compare_stack(name: str, channels: int, models: int, seconds: float) -> list[dict[str, Any]]:
    """Measure this many models at once against as many epochs of one model, one after another."""
    graph = graph_of(name)
    rows = []
    for precision in precisions():
        half = precision == "bfloat16"
        epochs = [engine_epoch(graph, channels, count, half) for count in (1, models)]
        plain, one, many = fastest([reference_epoch(graph, channels), *epochs], seconds)
        rows.append(
            {
                "graph": name,
                "data": graph.provenance.source,
                "channels": channels,
                "models": models,
                "precision": precision,
                "reference_ms": round(models * plain, 2),
                "one_after_another_ms": round(models * one, 2),
                "engine_ms": round(many, 2),
                "ratio": round(models * plain / many, 2),
                "ratio_to_engine": round(models * one / many, 2),
            }
        )
    return rows


def floor(name: str, channels: int, precision: str) -> float:
    """Return the least milliseconds that counted operations and bytes allow on this machine.

    The products of the fusion block count at the rate of their precision, all else at that of float32.
    """
    graph = graph_of(name)
    nodes, tokens = graph.num_nodes, 4
    filled = int(torch.count_nonzero(graph.dense_features()))
    fusion = 4 * nodes * tokens * 12 * channels**2 * 2  # two forwards, one backward (twice a forward)
    others = 4 * nodes * (4 * channels * channels + channels * channels) * 2  # MLP token, second hop
    others += 2 * filled * 7 * channels * 2  # features: product and transposed product
    parameters = graph.num_features * 7 * channels + 20 * channels**2
    touched = 4 * parameters * 10  # Adam: 7 passes, moving average: 3
    large = torch.randn(16_000_000)
    copied = 2 * 4 * large.numel() / fastest([large.clone], 0.5)[0]
    return fusion / product_rate(precision) + others / product_rate("float32") + touched / copied


def product_rate(precision: str) -> float:
    """Measure the operations per millisecond of a matrix product."""
    a, b = (torch.randn(rows, 512, dtype=getattr(torch, precision)) for rows in (2048, 512))
    return 2 * 2048 * 512 * 512 / fastest([lambda: a @ b], 0.5)[0]


def machine() -> dict[str, Any]:
    """Describe the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def main() -> None:
    """Print the tables and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="C = 128 only, fewer repeats, nothing kept")
    parser.add_argument(
        "--all", action="store_true", help="C = 512 on the two largest graphs too: minutes each"
    )
    parser.add_argument("--profile", action="store_true", help="where the time goes, kept in profile.json")
    parser.add_argument("--memory-of", choices=["reference", "float32", "bfloat16"], help=argparse.SUPPRESS)
    parser.add_argument("--graph", default="", help="this graph only, nothing kept")
    parser.add_argument("--channels", type=int, default=128)
    asked = parser.parse_args()
    if asked.memory_of:
        print(measure_memory(asked.graph, asked.channels, asked.memory_of))
        return
    if asked.profile:
        write_profile()
        return
    retain_heap()  # as in every command
    measure(asked)


def measure(asked: argparse.Namespace) -> None:
    """Measure what was asked for, and keep it where that is all there is."""
    seconds = 2.0 if asked.quick else 4.0
    whole = not asked.quick and not asked.graph
    narrow = [asked.graph] if asked.graph else list(SHAPES)
    cases = [(name, channels) for channels in (128, 64) for name in narrow]
    cases += [(name, 512) for name in (SHAPES if asked.all else WIDE) if whole]
    rows = []
    for name, channels in cases:
        rows += compare(name, channels, seconds)
        for row in rows[-len(precisions()) :]:
            reached = "reached" if row["over_floor"] <= TARGET else "not reached"
            show(row | {f"target of {TARGET}": reached})
    for row in compare_stack("texas", 128, 8, seconds):
        rows.append(row)
        show(row)
    if whole:
        RESULTS.parent.mkdir(exist_ok=True)
        kept = {"machine": machine(), "rows": rows}
        RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
