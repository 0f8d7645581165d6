"""Validation of graphs: repairs, rejected input, and properties of the result."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph, valid_weights
from tests.graphs.helpers import listed
from tests.rejects import rejects

FEATURES = np.eye(3)
EDGES = np.array([[2, 0, 0, 1], [0, 1, 1, 1]])


def test_edges_are_sorted_by_target_merged_and_counted() -> None:
    graph = check_graph(FEATURES, EDGES, edge_weight=[1.0, 2.0, 3.0, 4.0])
    assert graph.edge_index.tolist() == [[2, 0, 1], [0, 1, 1]]
    assert listed(graph.edge_weight) == [1.0, 5.0, 4.0]
    assert [(repair.code, repair.count) for repair in graph.provenance.repairs] == [
        ("duplicate-edges", 1),
        ("self-loops", 1),
    ]


def test_the_callers_arrays_are_not_changed_or_shared() -> None:
    features = np.eye(3, dtype=np.float32)
    edges, weights = EDGES.copy(), np.ones(4, dtype=np.float32)
    graph = check_graph(features, edges, edge_weight=weights)
    assert graph.edge_weight is not None
    for part in (graph.features, graph.edge_index, graph.edge_weight):
        part.fill_(7)
    assert np.array_equal(features, np.eye(3))
    assert np.array_equal(edges, EDGES)
    assert np.array_equal(weights, np.ones(4))


def test_sparse_features_stay_sparse_below_a_tenth() -> None:
    wide = np.zeros((3, 100))
    wide[0, 5] = 1
    assert check_graph(sp.csr_matrix(wide), EDGES).features.layout == torch.sparse_csr
    assert check_graph(sp.csr_matrix(np.ones((3, 2))), EDGES).features.layout == torch.strided


def test_the_hash_depends_on_content_alone() -> None:
    first = check_graph(FEATURES, EDGES, source="one")
    assert check_graph(torch.eye(3), EDGES, source="two").provenance.sha256 == first.provenance.sha256
    assert check_graph(2 * FEATURES, EDGES).provenance.sha256 != first.provenance.sha256


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"features": np.array([[1, 2], [3, np.inf], [0, 0]])}, "feature-not-finite"),
        ({"features": sp.csr_matrix(np.diag([1, np.nan, 1] + [0] * 30))}, "feature-not-finite"),
        ({"features": np.array([["a"], ["b"], ["c"]])}, "not-numbers"),
        ({"features": np.eye(3) * 1j}, "not-numbers"),
        ({"features": np.zeros(3, dtype=[("a", float)]).reshape(3, 1)}, "not-numbers"),
        ({"features": np.empty((3, 0))}, "features-empty"),
        ({"edge_index": np.array([[0], [-1]])}, "edge-node-unknown"),
        ({"edge_weight": [1.0, 1.0, 0.0, 1.0]}, "edge-weight-not-positive"),
        ({"edge_weight": [1.0, 1.0, 1e-60, 1.0]}, "edge-weight-not-positive"),
        ({"edge_weight": [1.0]}, "edge-weight-shape"),
        ({"labels": [0, 1]}, "labels-shape"),
        ({"labels": [0, 1, 2], "class_names": ("a", "b")}, "label-without-class-name"),
        ({"labels": ["a", "b", "c"]}, "labels-not-integers"),
        ({"masks": ([True, False, False],) * 3}, "masks-overlap"),
        ({"masks": ([0, 1, 2], [0, 0, 0], [0, 0, 0])}, "mask-not-boolean"),
        ({"masks": ([True], [False], [False])}, "mask-shape"),
        ({"masks": (np.zeros((3, 2)) > 0, np.zeros((3, 1)) > 0, np.zeros((3, 2)) > 0)}, "mask-shape"),
        ({"node_ids": np.array(["a", "b", "a"], dtype=object)}, "node-id-duplicate"),
        ({"node_ids": np.array(["a"], dtype=object)}, "node-ids-shape"),
    ],
)
def test_invalid_arrays_are_rejected(change: dict[str, Any], code: str) -> None:
    arguments: dict[str, Any] = {"features": FEATURES, "edge_index": EDGES, **change}
    with rejects(code, GraphError):
        check_graph(arguments.pop("features"), arguments.pop("edge_index"), **arguments)


def test_messages_name_row_and_column() -> None:
    with rejects("feature-not-finite") as caught:
        check_graph(np.array([[1, 2], [3, np.inf], [0, 0]]), EDGES)
    assert "features, position 1, column 2: infinity" in caught.message


def test_the_readers_import_without_the_optional_libraries(tmp_path: Path) -> None:
    program = """
import sys
for name in ("networkx", "matplotlib"):
    sys.modules[name] = None
import h3gnn.graphs.datasets, h3gnn.tables.read, h3gnn.graphs.formats, h3gnn.graphs.profile
import h3gnn.cli.inspect, h3gnn.report.figures
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.profile import profile
from h3gnn.errors import InputError
print(profile(check_graph([[1.0], [2.0]], [[0], [1]])).nodes)
path = sys.argv[1] + ".gml"
open(path, "w").write("0,1")
try:
    h3gnn.graphs.formats.read_graph_file(path)
except InputError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "file")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "2"
    assert "needs networkx" in lines[1]


def test_the_benchmark_of_the_readers_runs() -> None:
    program = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "readers.py"))
    measured = program["run"](nodes=50, edges=200, repeats=1)
    assert len(measured["results"]) == 3
    assert all(times["seconds"] > 0 for times in measured["results"].values())


@given(st.floats(min_value=0, width=64))
@example(2.0**-150)
@example(np.nextafter(2.0**-150, 1))
@example(float(np.finfo(np.float32).max))
@example(2.0**128 - 2.0**103)
@example(np.nextafter(2.0**128 - 2.0**103, 0))
def test_valid_weights_are_positive_and_finite_in_float32(weight: float) -> None:
    with np.errstate(over="ignore"):
        stored = np.float32(weight)
    assert valid_weights(np.array([weight]))[0] == (np.isfinite(stored) and stored > 0)
