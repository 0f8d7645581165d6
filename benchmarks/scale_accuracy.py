"""Mini-batches against the full graph: `python -m benchmarks.scale_accuracy [GRAPH …] [--device cuda]`.

Both make the same number of steps with the same settings and seeds, warm-ups counted in steps, without
labels: the default's objectives with one model each, C = 64. Ridge regression on the embedding is judged on
validation nodes (see `benchmarks.defaults`); the difference is paired over seeds. Test nodes are not looked
at. A GRAPH is a benchmark's name or a file of that name, e.g. flickr.npz. `--out FILE` and what it holds
already are as in `benchmarks.precision`. `H3GNN_DATA` names the folder of benchmark files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.defaults import named, score
from benchmarks.precision import keep_rows

RESULTS = Path(__file__).parent / "results" / "scale_accuracy.json"
GRAPHS = {"cora": (512, 25), "actor": (2048, 25), "pubmed": (8192, 25), "flickr": (2048, 25)}
"""Nodes per batch, and epochs of mini-batches; full-graph training has an epoch for every batch."""
SETTINGS = {"n_models": 4, "channels": 64}
WARMUP_STEPS = 10


def settings_of(nodes: int, batch_size: int, epochs: int) -> dict[str, dict[str, Any]]:
    """Return the settings of both ways, which make equally many steps."""
    steps = math.ceil(nodes / batch_size)
    early = math.ceil(WARMUP_STEPS / steps)
    full = {"epochs": epochs * steps, "warmup_epochs": WARMUP_STEPS, "mask_warmup": WARMUP_STEPS}
    batches = {"epochs": epochs, "warmup_epochs": early, "mask_warmup": early, "batch_size": batch_size}
    return {"full graph": SETTINGS | full, "mini-batches": SETTINGS | batches}


def compare(name: str, seeds: int, device: torch.device) -> dict[str, Any]:
    """Return both ways' validation accuracies on one graph in per cent, one for each seed."""
    graph, known = named(name), Path(name).stem
    batch_size, epochs = GRAPHS[known]
    row: dict[str, Any] = {"graph": known, "sha256": graph.provenance.sha256, "seeds": seeds}
    for way, settings in settings_of(graph.num_nodes, batch_size, epochs).items():
        each = [score(graph, settings | {"random_state": seed}, str(device)) for seed in range(seeds)]
        row[way] = {"settings": settings, "accuracies": [one["accuracy"] for one in each]}
    apart = np.subtract(row["mini-batches"]["accuracies"], row["full graph"]["accuracies"])
    row["difference"] = round(float(apart.mean()), 2)
    row["standard_error"] = round(float(apart.std(ddof=1) / seeds**0.5), 2)
    return row


if __name__ == "__main__":
    keep_rows(__doc__ or "", compare, ("cora", "actor", "pubmed"), 8, RESULTS)
