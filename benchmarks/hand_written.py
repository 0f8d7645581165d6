"""Parts written by hand against what a library or a plainer idea does: seconds, and whether it is as good.

`python -m benchmarks.hand_written [--device cpu|cuda]` writes its device's rows of
benchmarks/results/hand_written.json.

k-means: `lloyd_clusters`, all starts at once on the device, against scikit-learn's `KMeans` on the CPU, which
first turns the rows into as few columns as there are rows. Inertia is the mean over seeds.

Wide probe: rows turned into the span of the training rows and the ordinary solver (the probe takes float32
for many nodes on a CPU, else float64), against a solver in float64 that sees nothing but the rows' inner
products (`FromProducts`, kept here alone). The excess is the largest loss of the first over the second, over
all splits and strengths.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.evaluation.candidates import inner_products, turned
from h3gnn.evaluation.clustering import kmeans_clusters, lloyd_clusters
from h3gnn.evaluation.logistic import Regressions, _product, fit_logistic, minimise, predict_logistic
from h3gnn.evaluation.probe import STRENGTHS

RESULTS = Path(__file__).parent / "results" / "hand_written.json"
SEEDS = range(3)
CLUSTERED = [(183, 12288, 5), (2708, 512, 7), (2708, 6144, 7), (7600, 512, 5), (19717, 512, 3)]
"""Nodes, columns and clusters of an embedding."""
PROBED = [(183, 12288, 5, 10, 0.48), (2277, 6144, 5, 10, 0.48), (2708, 6144, 7, 1, 0.05)]
"""Nodes, columns, classes, splits, and the share of training nodes."""


class FromProducts(Regressions):
    """The same problems over the coefficients A of W = Xᵀ A, from K = X Xᵀ alone.

    A vector holds coefficients a, products K a, and the intercept, `[problems, n + n + 1, classes]`; with
    both at hand an inner product ⟨Xᵀa, Xᵀb⟩ = aᵀ(K b) costs no more than one of two vectors.
    """

    def __init__(self, products: Tensor, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        super().__init__(products, targets, used, strength)
        self.products, self.many = products, len(products)
        self.curvature = 1 + 0.5 * products.diagonal().mean()

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient."""
        coefficients, reached, intercept = torch.split(weights, [self.many, self.many, 1], dim=1)
        loss, slope = self.fit(reached + intercept)
        gradient = slope + self.strength[:, None, None] * coefficients
        penalty = 0.5 * self.strength * (coefficients * reached).sum(dim=(1, 2))
        whole = [gradient, _product(self.products, gradient), slope.sum(dim=1, keepdim=True)]
        return loss + penalty, torch.cat(whole, dim=1)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ⟨Xᵀa, Xᵀb⟩ and the intercepts' product."""
        inner = (a[:, : self.many] * b[:, self.many : -1]).sum(dim=(1, 2))
        return inner + (a[:, -1] * b[:, -1]).sum(dim=1)


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
    """Return seconds of both solvers for all splits, one by one, and how their losses and answers differ."""
    rows, labels = (one.to(device) for one in planted(nodes, width, classes))
    draw = torch.Generator().manual_seed(1)
    train = (torch.rand(splits, nodes, generator=draw) < share).to(device)
    products = inner_products(rows, torch.arange(nodes, device=device))
    strength = torch.tensor(STRENGTHS, device=device)

    def solve(split: int, precision: torch.dtype | None) -> tuple[Tensor, Tensor]:
        """Return the losses at the end and the classes of all nodes; without a precision, by products."""
        own = torch.nonzero(train[split]).flatten()
        used = torch.ones(len(strength), len(own), dtype=torch.bool, device=device)
        targets = torch.nn.functional.one_hot(labels[own], classes).double()
        if precision is None:
            problem: Regressions = FromProducts(products[own][:, own], targets, used, strength)
            start = products.new_zeros(len(strength), 2 * len(own) + 1, classes)
            found = minimise(problem, start, 500, 1e-6)
            problem = FromProducts(products[own][:, own], targets, used, strength)  # all problems again
            weights = torch.cat([found[:, : len(own)], found[:, -1:]], dim=1)
            return problem(found)[0], predict_logistic(products[:, own], weights).argmax(dim=-1)
        basis = turned(products[:, own], own).to(precision)
        weights = fit_logistic(basis[own], targets.to(precision), used, strength)
        loss = Regressions(basis[own].double(), targets, used, strength)(weights.double())[0]
        return loss, predict_logistic(basis, weights).argmax(dim=-1)

    def measure(precision: torch.dtype | None) -> tuple[float, Tensor, Tensor]:
        seconds, found = timed(lambda: [solve(split, precision) for split in range(splits)], device, 2)
        losses, answers = (torch.stack(part) for part in zip(*found, strict=True))
        return seconds, losses, answers

    seconds, least, wanted = measure(None)
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "splits": splits, "training share": share}
    row["inner products"] = {"seconds": seconds}
    for name, precision in (("turned, float32", torch.float32), ("turned, float64", torch.float64)):
        seconds, loss, said = measure(precision)
        differ = float((said != wanted).double().mean())
        row[name] = {"seconds": seconds, "excess": float((loss - least).max()), "answers that differ": differ}
    return row


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    here: dict[str, Any] = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    here["k-means"] = [compare_kmeans(*shape, device) for shape in CLUSTERED]
    here["wide probe"] = [compare_probe(*shape, device) for shape in PROBED]
    stored[device.type] = here
    asked.out.write_text(json.dumps(stored, indent=1) + "\n")
    print(json.dumps(here, indent=1))


if __name__ == "__main__":
    main()
