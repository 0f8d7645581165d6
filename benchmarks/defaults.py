"""How the constructor's defaults compare with the paper's and with their neighbours, on validation nodes.

`python -m benchmarks.defaults [GRAPH …]` prints one row per setting: mean validation accuracy of the linear
probe and k-means accuracy on validation nodes. Test nodes are not looked at.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.probe import linear_probe
from h3gnn.graphs.catalogue import load
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.settings import preset

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": preset("paper"),
    "untrained": {"epochs": 0},
    "norm=residual-post": {"norm": "residual-post"},
    "mask_token=normal": {"mask_token": "normal"},
    "self_loops": {"self_loops": True},
    "momentum=0.99": {"momentum": 0.99},
    "mask_ratio=0.5": {"mask_ratio": 0.5},
    "learning_rate=0.005": {"learning_rate": 0.005},
    "epochs=200": {"epochs": 200},
    "hops=3": {"hops": 3},
    "scale_features=rows": {"scale_features": "rows"},
    "batch_norm": {"batch_norm": True},
}


def score(graph: Graph, settings: dict[str, Any]) -> tuple[float, float]:
    """Return validation accuracy of the probe, and k-means accuracy on the first split's validation nodes."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    embedding = H3GNN(**settings).fit_transform(graph)
    probe = linear_probe(embedding, graph.labels, graph.train_mask, graph.val_mask, graph.val_mask)
    seen = graph.val_mask[:, 0].numpy()
    clusters = kmeans_clusters(embedding, graph.num_classes)
    return float(probe.validation.mean()), clustering_accuracy(clusters[seen], graph.labels.numpy()[seen])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=["synthetic"])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    graphs = {name: mixed_graph() if name == "synthetic" else load(name) for name in asked.graphs}
    rows = []
    for name, settings in VARIANTS.items():
        scores = {graph: score(data, settings) for graph, data in graphs.items()}
        rows.append({"setting": name, "probe_kmeans": scores})
        if not asked.json:
            cells = "  ".join(f"{graph} {100 * p:5.1f} / {100 * k:5.1f}" for graph, (p, k) in scores.items())
            print(f"{name:22s} {cells}", flush=True)
    if asked.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
