"""The demonstration: H3GNN beside raw features and its own untrained encoder, on the built-in graph."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.probe import linear_probe
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.storage import versions


@dataclass(frozen=True)
class DemoRow:
    """One representation and its scores."""

    method: str
    embedding: npt.NDArray[np.float32]
    probe_accuracy: float
    probe_std: float
    kmeans_accuracy: float


@dataclass(frozen=True)
class DemoResult:
    """The table, and where its numbers came from."""

    rows: tuple[DemoRow, ...]
    graph: Graph
    params: dict[str, Any]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": [
                {
                    "method": row.method,
                    "probe_accuracy": row.probe_accuracy,
                    "probe_std": row.probe_std,
                    "kmeans_accuracy": row.kmeans_accuracy,
                }
                for row in self.rows
            ],
            "protocol": "validation",
            "provenance": self.graph.provenance.as_dict(),
            "params": self.params,
            "versions": versions(),
            "seconds": round(self.seconds, 2),
        }


def run_demo(model: H3GNN, graph: Graph | None = None) -> DemoResult:
    """Fit the model and score it beside raw features and the same encoder without training."""
    started = time.perf_counter()
    graph = graph or mixed_graph()
    untrained = H3GNN(**{**model.get_params(), "epochs": 0})
    representations = {
        "raw features": graph.dense_features().numpy(),
        "untrained encoder": untrained.fit_transform(graph),
        "H3GNN": model.fit_transform(graph),
    }
    rows = tuple(_score(method, embedding, graph) for method, embedding in representations.items())
    params = {name: value for name, value in model.get_params().items() if name != "verbose"}
    return DemoResult(rows, graph, params, time.perf_counter() - started)


def _score(method: str, embedding: npt.NDArray[np.float32], graph: Graph) -> DemoRow:
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    assert graph.test_mask is not None
    probe = linear_probe(embedding, graph.labels, graph.train_mask, graph.val_mask, graph.test_mask)
    clusters = kmeans_clusters(embedding, graph.num_classes)
    accuracy = clustering_accuracy(clusters, graph.labels.numpy())
    return DemoRow(method, embedding, probe.mean, probe.std, accuracy)
