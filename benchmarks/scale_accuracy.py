"""Mini-batches against the full graph: `python -m benchmarks.scale_accuracy [--json]`.

Both make the same number of steps with the same settings and seeds, warm-ups counted in steps, without
labels, and are read by the same linear probe on the public split, its strength chosen on validation nodes.
Mean and standard deviation of the test accuracy over seeds. `H3GNN_DATA` names the folder of benchmark files.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import numpy as np

from benchmarks.scale import machine

GRAPHS = {"cora": (2708, 512, 25), "pubmed": (19717, 8192, 25)}
"""Nodes, nodes per batch, and epochs of mini-batches; full-graph training has an epoch for every batch."""
WARMUP_STEPS = 10


def scores(name: str, seeds: int, settings: dict[str, Any]) -> list[float]:
    """Return the test accuracy of each seed, in per cent."""
    from h3gnn.estimator import H3GNN
    from h3gnn.evaluation.probe import linear_probe
    from h3gnn.graphs.catalogue import load

    graph = load(name)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    if graph.labels is None or any(mask is None for mask in masks):
        raise ValueError(f"{name} has no labels or no split")
    found = []
    for seed in range(seeds):
        model = H3GNN(random_state=seed, device="cpu", **settings).fit(graph)
        result = linear_probe(model.embedding_, graph.labels, *[mask for mask in masks if mask is not None])
        found.append(100 * result.mean)
    return found


def compare(name: str, seeds: int, channels: int) -> dict[str, Any]:
    """Return both ways' figures for one graph."""
    nodes, batch_size, epochs = GRAPHS[name]
    steps = math.ceil(nodes / batch_size)
    early = math.ceil(WARMUP_STEPS / steps)
    full = {"epochs": epochs * steps, "lr_warmup": WARMUP_STEPS, "mask_warmup": WARMUP_STEPS}
    batches = {"epochs": epochs, "lr_warmup": early, "mask_warmup": early, "batch_size": batch_size}
    ways = {
        "full graph": full | {"channels": channels},
        "mini-batches": batches | {"channels": channels},
    }
    result: dict[str, Any] = {}
    for way, settings in ways.items():
        start = time.perf_counter()
        found = scores(name, seeds, settings)
        result[way] = {
            "settings": settings,
            "test_accuracy": [round(one, 2) for one in found],
            "mean": round(float(np.mean(found)), 2),
            "std": round(float(np.std(found, ddof=1)), 2),
            "seconds": round(time.perf_counter() - start, 1),
        }
    apart = abs(result["mini-batches"]["mean"] - result["full graph"]["mean"])
    result["within_one_std"] = bool(apart <= max(result["full graph"]["std"], result["mini-batches"]["std"]))
    return result


def main() -> None:
    """Read the arguments and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: compare(name, given.seeds, given.channels) for name in given.graphs}
    if given.json:
        print(json.dumps({"machine": machine(), "protocol": __doc__, "graphs": found}, indent=2))
        return
    for name, ways in found.items():
        for way, figures in ways.items():
            if isinstance(figures, dict):
                print(f"{name:8s} {way:14s} {figures['mean']:.2f} ± {figures['std']:.2f}")
        print(f"{name:8s} within one standard deviation: {ways['within_one_std']}")


if __name__ == "__main__":
    main()
