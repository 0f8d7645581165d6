"""What people wait for: probe, k-means, and the commands around them, beside a library in the same run.

`python -m benchmarks.waiting [--device cpu|cuda] [--graph FILE] [--parts k-means probe commands]` writes its
device's rows of benchmarks/results/waiting.json; parts that are not asked for stay as they are stored.

k-means: `lloyd_clusters`, all starts at once on the device, against scikit-learn's `KMeans` on the CPU, which
first turns the rows into as few columns as there are rows. Inertia is the mean over seeds.

Probe: all splits and strengths, against scikit-learn's `LogisticRegression` (its seconds are those of one
split, times the splits). The losses of the first split are compared, the largest difference over strengths.

Commands: `fit`, `evaluate` and `report` of the built-in graph of 1,000 nodes, and `compare` of FILE with its
default methods, each from start to end with all its imports: seconds, and seconds of all processors together,
which a machine that does other work too changes less.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from h3gnn.evaluation.candidates import standardise, turned
from h3gnn.evaluation.clustering import kmeans_clusters, lloyd_clusters
from h3gnn.evaluation.logistic import Regressions, fit_logistic
from h3gnn.evaluation.probe import STRENGTHS, probe_candidates

RESULTS = Path(__file__).parent / "results" / "waiting.json"
SEEDS = range(3)
CLUSTERED = [(183, 12288, 5), (2708, 512, 7), (2708, 6144, 7), (7600, 512, 5), (19717, 512, 3)]
"""Nodes, columns and clusters of an embedding."""
PROBED = [
    (183, 12288, 5, 10, 0.48),
    (3000, 2048, 10, 10, 0.48),
    (2708, 6144, 7, 1, 0.05),
    (7600, 512, 5, 10, 0.48),
]
"""Nodes, columns, classes, splits, and the share of training nodes."""
PARTS = ["k-means", "probe", "commands"]
LONG = 2000
"""Iterations that scikit-learn may take."""


def planted(nodes: int, width: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return rows like those of an encoder, some hidden columns spread over many, and their classes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (nodes,), generator=draw)
    hidden = 0.5 * torch.randn(classes, 64, generator=draw)[labels] + torch.randn(nodes, 64, generator=draw)
    noise = 0.3 * torch.randn(nodes, width, generator=draw)
    return torch.relu(hidden @ torch.randn(64, width, generator=draw) / 8 + noise), labels


def timed(work: Callable[[], Any], device: torch.device, repeats: int = 3) -> tuple[float, Any]:
    """Return the least seconds of some runs after a first one, and what the last returned."""
    best, found = float("inf"), work()
    for _ in range(repeats):
        started = time.perf_counter()
        found = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best, found


def inertia(rows: Tensor, clusters: np.ndarray[Any, Any]) -> float:
    """Return the sum of squared distances to the means of the clusters."""
    parts = [rows[torch.from_numpy(clusters == one)].double() for one in np.unique(clusters)]
    return sum(float((part - part.mean(dim=0)).square().sum()) for part in parts)


def compare_kmeans(nodes: int, width: int, clusters: int, device: torch.device) -> dict[str, Any]:
    """Return seconds of ten starts and the mean inertia, of ours and of scikit-learn's."""
    rows, _ = planted(nodes, width, clusters)
    there = rows.to(device)
    ways = {
        "ours": lambda seed: lloyd_clusters(there, clusters, 10, seed).cpu().numpy(),
        "scikit-learn": lambda seed: kmeans_clusters(there.cpu(), clusters, starts=10, seed=seed),
    }
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "clusters": clusters}
    for name, way in ways.items():
        seconds, found = timed(lambda way=way: [way(seed) for seed in SEEDS], device, repeats=1)  # type: ignore[misc]
        row[name] = {"seconds": seconds / len(SEEDS), "inertia": np.mean([inertia(rows, f) for f in found])}
    return row


def compare_probe(
    nodes: int, width: int, classes: int, splits: int, share: float, device: torch.device
) -> dict[str, Any]:
    """Return seconds for all splits and strengths, and of the first split how far the losses differ."""
    rows, labels = (one.to(device) for one in planted(nodes, width, classes))
    draw = torch.Generator().manual_seed(1)
    train = (torch.rand(splits, nodes, generator=draw) < share).to(device)
    masks = train.t(), torch.zeros_like(train.t()), ~train.t()
    seconds, _ = timed(lambda: probe_candidates(rows, labels, *masks, classes=classes), device, 2)
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "splits": splits, "training share": share}
    row["ours"] = {"seconds": seconds}
    own = torch.nonzero(train[0]).flatten()
    scaled = standardise(rows.double())
    basis = turned(scaled @ scaled[own].mT, own)[own]
    targets = torch.nn.functional.one_hot(labels[own], classes).double()
    used = torch.ones(1, len(own), dtype=torch.bool, device=device)
    found = {
        precision: fit_logistic(basis.to(precision), targets.to(precision), used, STRENGTHS)[0]
        for precision in (torch.float32, torch.float64)
    }
    losses: dict[Any, list[float]] = {precision: [] for precision in found}
    began, theirs = time.perf_counter(), []
    for place, strength in enumerate(STRENGTHS):
        model = LogisticRegression(C=1 / (strength * len(own)), max_iter=LONG, tol=1e-6)
        model.fit(scaled[own].cpu().numpy(), labels[own].cpu().numpy())
        theirs.append(loss_of(scaled[own].cpu(), labels[own].cpu(), model, strength))
        for precision, weights in found.items():
            loss, *_ = Regressions(basis, targets, used, strength)(weights[place][None].double())
            losses[precision].append(float(loss[0]))
    row["scikit-learn"] = {"seconds": splits * (time.perf_counter() - began)}  # each split costs the same
    excess = np.array(losses[torch.float64])
    row["ours"] |= {
        "float32 above float64": float((np.array(losses[torch.float32]) - excess).max()),
        "above scikit-learn": float((excess - theirs).max()),
        "below scikit-learn": float((theirs - excess).max()),
    }
    return row


def loss_of(rows: Tensor, labels: Tensor, model: LogisticRegression, strength: float) -> float:
    """Return the loss that `fit_logistic` makes small, of scikit-learn's solution."""
    weights = torch.from_numpy(model.coef_)
    said = rows @ weights.T + torch.from_numpy(model.intercept_)
    pull = 0.5 * strength * float(weights.square().sum())
    return float(torch.nn.functional.cross_entropy(said, labels)) + pull


def time_commands(device: str, graph: Path | None) -> dict[str, dict[str, float]]:
    """Return the seconds of whole commands, and those of all processors."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "fit": ["fit", "synthetic", "--out", "run", "--device", device],
            "evaluate": ["evaluate", "run", "--device", device],
            "report": ["report", "run"],
        }
        if graph is not None:
            asked[f"compare {graph.stem}"] = ["compare", str(graph.resolve()), "--device", device]
        for name, arguments in asked.items():
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "h3gnn", *arguments], cwd=folder, check=True, capture_output=True
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            seconds[name] = {"seconds": time.perf_counter() - began, "processor seconds": worked}
    return seconds


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graph", type=Path, help="a graph's file to compare methods on")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    here: dict[str, Any] = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    if "k-means" in asked.parts:
        here["k-means"] = [compare_kmeans(*shape, device) for shape in CLUSTERED]
    if "probe" in asked.parts:
        here["probe"] = [compare_probe(*shape, device) for shape in PROBED]
    if "commands" in asked.parts:
        here["commands"] = time_commands(device.type, asked.graph)
    stored[device.type] = {**stored.get(device.type, {}), **here}
    asked.out.write_text(json.dumps(stored, indent=1) + "\n")
    print(json.dumps(here, indent=1))


if __name__ == "__main__":
    main()
