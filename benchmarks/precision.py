"""What bfloat16 in the fusion block changes: validation accuracy of the same seeds in both precisions.

`python -m benchmarks.precision [GRAPH …] [--seeds N] [--out FILE]`. Each seed is probed on its own; the
paired difference over seeds is what the decision rests on. Test nodes are not looked at.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.probe import linear_probe
from h3gnn.graphs.catalogue import load
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph

RESULTS = Path(__file__).parent / "results" / "precision.json"


def accuracies(graph: Graph, precision: str, seeds: int) -> list[float]:
    """Return the mean validation accuracy over splits of each seed."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    joined = H3GNN(n_models=seeds, precision=precision).fit_transform(graph)
    found = []
    for embedding in np.split(joined, seeds, axis=1):
        probe = linear_probe(embedding, graph.labels, graph.train_mask, graph.val_mask, graph.val_mask)
        found.append(float(probe.validation.mean()))
    return found


def compare(name: str, graph: Graph, seeds: int) -> dict[str, Any]:
    """Compare both precisions on one graph."""
    single, half = accuracies(graph, "float32", seeds), accuracies(graph, "bfloat16", seeds)
    difference = 100 * (np.array(half) - np.array(single))
    return {
        "graph": name,
        "sha256": graph.provenance.sha256,
        "seeds": seeds,
        "float32": round(100 * float(np.mean(single)), 2),
        "bfloat16": round(100 * float(np.mean(half)), 2),
        "difference": round(float(difference.mean()), 2),
        "standard_error": round(float(difference.std(ddof=1) / seeds**0.5), 2),
    }


def main() -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=["synthetic"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in asked.graphs:
        rows.append(compare(name, mixed_graph() if name == "synthetic" else load(name), asked.seeds))
        print(rows[-1], flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
