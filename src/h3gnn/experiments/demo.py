"""The demonstration: H3GNN beside raw features and its own untrained encoder, on the built-in graph."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from h3gnn.estimator import H3GNN
from h3gnn.experiments.gather import gather
from h3gnn.findings import Findings, Score
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.settings import kept_for
from h3gnn.storage.files import versions


@dataclass(frozen=True)
class DemoRow:
    """One representation and its scores."""

    method: str
    probe_accuracy: float
    probe_std: float
    kmeans_accuracy: float


@dataclass(frozen=True)
class DemoResult:
    """The table, all that a page shows, and where the numbers came from."""

    rows: tuple[DemoRow, ...]
    findings: Findings
    graph: Graph
    params: dict[str, Any]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": [vars(row) for row in self.rows],
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
    findings = gather(model.fit(graph))
    assert findings.scores is not None
    rows = tuple(_row(score) for score in findings.scores.rows)
    params = kept_for("log", model.get_params())
    return DemoResult(rows, findings, graph, params, time.perf_counter() - started)


def _row(score: Score) -> DemoRow:
    assert score.probe is not None
    probe, kmeans = score.probe, score.clustering["accuracy"]
    return DemoRow(score.representation, float(probe.mean()), float(probe.std()), float(kmeans[0]))
