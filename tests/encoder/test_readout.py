from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.encoder.readout import Smoother, StepMatrix, step_support
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.training.loop import Snapshots
from tests.rejects import rejects

QUICK: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 3, "random_state": 1}


def steps_on(graph: Graph, kind: str = "walks", in_files: bool = False) -> StepMatrix:
    support = step_support(graph.edge_index, graph.num_nodes, graph.edge_weight)
    return StepMatrix(support, kind, None if in_files else torch.device("cpu"))


def walks_on(graph: Graph) -> torch.Tensor:
    return steps_on(graph) @ torch.eye(graph.num_nodes)


def smoother(graph: Graph, strength: float) -> Smoother:
    return Smoother(steps_on(graph), strength)


def test_a_step_goes_to_the_node_itself_or_a_neighbour(path_graph: Graph) -> None:
    walk = walks_on(path_graph)
    assert walk[0].tolist() == pytest.approx([1 / 2, 1 / 2, 0, 0, 0])
    assert walk[2].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])


def test_two_nodes_by_hand() -> None:
    # P halves everything: P^k H is the mean from the first step on, so Z = (1 − s) H + s · mean
    pair = check_graph(torch.eye(2), torch.tensor([[0], [1]]))
    rows = torch.tensor([[4.0], [0.0]])
    assert smoother(pair, 0.5)(rows).flatten().tolist() == pytest.approx([3.0, 1.0], abs=1e-3)
    assert smoother(pair, -0.5)(rows).flatten().tolist() == pytest.approx([5.0, -1.0], abs=1e-3)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=30))
    pairs = list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    weights = torch.tensor([draw(st.floats(0.1, 5.0)) for _ in pairs])
    return check_graph(torch.eye(nodes), edges, edge_weight=weights)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.floats(-0.99, 0.99))
def test_smoothing_equals_the_sum_over_all_walks(graph: Graph, strength: float) -> None:
    rows = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(0))
    walk = walks_on(graph).double()
    wanted = (1 - strength) * torch.linalg.solve(torch.eye(len(rows)) - strength * walk, rows.double())
    found = smoother(graph, strength)(rows)
    torch.testing.assert_close(found.double(), wanted, atol=2e-3 * (1 - min(strength, 0)), rtol=1e-3)
    everywhere = torch.ones(graph.num_nodes, 1)
    torch.testing.assert_close(smoother(graph, strength)(everywhere), everywhere, atol=2e-3, rtol=0)


def test_wide_embeddings_are_smoothed_in_pieces(path_graph: Graph) -> None:
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    step = MagicMock(wraps=steps_on(path_graph), kind="walks")
    step.__matmul__.side_effect = lambda piece: steps_on(path_graph) @ piece
    torch.testing.assert_close(Smoother(step, 0.8)(rows, 2), smoother(path_graph, 0.8)(rows))
    assert {call.args[0].shape[1] for call in step.__matmul__.call_args_list} == {1, 2}


@settings(deadline=None, max_examples=30)
@given(graphs(), st.sampled_from(["walks", "powers"]), st.integers(1, 5))
def test_steps_read_in_pieces_equal_steps_in_memory(graph: Graph, kind: str, rows: int) -> None:
    each = torch.eye(graph.num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h3gnn.encoder.readout.ROWS", rows)
        torch.testing.assert_close(steps_on(graph, kind, in_files=True) @ each, steps_on(graph, kind) @ each)


@settings(deadline=None, max_examples=30)
@given(graphs(), st.floats(-0.99, 0.99))
def test_powers_average_eight_powers_of_the_normalised_adjacency(graph: Graph, strength: float) -> None:
    rows = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(0))
    support = step_support(graph.edge_index, graph.num_nodes, graph.edge_weight)
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes)
    weight = torch.ones(support.entries) if support.weight is None else support.weight
    matrix[support.pattern.rows, support.pattern.cols] = weight
    degree = matrix.sum(dim=1)
    matrix = matrix / (degree[:, None] * degree[None]).sqrt()
    powers = torch.stack([torch.linalg.matrix_power(matrix, k) for k in range(1, 9)]).mean(dim=0)
    wanted = (1 - strength) * rows + strength * powers @ rows
    found = Smoother(steps_on(graph, "powers"), strength)(rows)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def fitted(graph: Any, **changes: Any) -> H3GNN:
    return H3GNN.from_preset("single", **{**QUICK, **changes}).fit(graph)


@pytest.mark.parametrize(
    "changes", [{}, {"batch_size": 3, "edge_weights": "fixed"}, {"memory": "1GB"}, {"n_models": 2}]
)
def test_all_ways_to_embed_smooth_alike(path_graph: Graph, changes: dict[str, Any], tmp_path: Path) -> None:
    model, plain = fitted(path_graph, **changes, smoothing=0.6), fitted(path_graph, **changes).embedding_
    wanted = smoother(path_graph, 0.6)(torch.from_numpy(plain)).numpy()
    assert not np.allclose(wanted, plain, atol=1e-3)
    np.testing.assert_allclose(model.embedding_, wanted, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(list(model.embedding_chunks())), wanted, atol=1e-5)
    model.save(tmp_path / "run")
    np.testing.assert_allclose(H3GNN.load(tmp_path / "run").embedding_, wanted, atol=1e-5)


def test_snapshots_are_smoothed(path_graph: Graph) -> None:
    seen: dict[int, torch.Tensor] = {}
    shots = Snapshots([3], lambda epoch, models, rows: seen.update({epoch: rows}))
    model = H3GNN.from_preset("single", **QUICK, smoothing=0.6).fit(path_graph, snapshots=shots)
    np.testing.assert_allclose(seen[3].numpy(), model.embedding_, atol=1e-5)


def test_a_new_graph_is_smoothed_along_its_own_edges(path_graph: Graph) -> None:
    model, plain = (fitted(path_graph, **how) for how in ({"smoothing": 0.6}, {}))
    closed = torch.cat([path_graph.edge_index, torch.tensor([[0], [4]])], dim=1)
    ring = check_graph(path_graph.features, closed)
    wanted = smoother(ring, 0.6)(torch.from_numpy(plain.transform(ring))).numpy()
    np.testing.assert_allclose(model.transform(ring), wanted, atol=1e-5)


def test_new_rows_are_smoothed_over_their_nearest_fitted_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    new = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    how: dict[str, Any] = {"n_neighbors": 3, "scale_features": "none"}
    model, own = fitted(rows, **how, smoothing=0.6), fitted(rows, **how).transform(new)
    near = np.argsort(((new[:, None] - rows[None]) ** 2).sum(axis=2), axis=1)[:, :3]
    received = model.embedding_[near].sum(axis=1)
    # z = (1 − s) h + s (z + Σ of the three) / 4, solved for z
    np.testing.assert_allclose(model.transform(new), (0.4 * own + 0.15 * received) / 0.85, atol=1e-5)


@pytest.mark.parametrize("kind", ["walks", "powers"])
@pytest.mark.parametrize("memory", [None, "1KB"])  # a memory-mapped embedding
def test_a_graph_on_disk_is_smoothed_as_in_memory(tmp_path: Path, kind: str, memory: str | None) -> None:
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    (tmp_path / "features.csv").write_text("id,x,y\na,1,2\nb,3,4\nc,5,9\n")
    in_files = prepare_graph(tmp_path / "edges.csv", tmp_path / "features.csv", tmp_path / "graph")
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    inside = check_graph(rows, torch.tensor([[0, 1], [1, 2]]))
    how: dict[str, Any] = {"batch_size": 2, "edge_weights": "fixed", "memory": memory}
    how |= {"smoother": kind, "scale_features": "none"}
    wanted = fitted(inside, **how, smoothing=0.5).embedding_
    assert not np.allclose(wanted, fitted(inside, **how).embedding_, atol=1e-2)
    found = list(fitted(in_files, **how, smoothing=0.5).embedding_chunks())
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-5)


def test_a_strength_of_one_is_rejected(path_graph: Graph) -> None:
    with rejects("value-invalid"):
        fitted(path_graph, smoothing=1.0)
