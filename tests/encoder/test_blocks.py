"""Blocks of input features: on three nodes by hand, against dense algebra, and through every way to embed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import h3gnn.encoder.blocks as module
from h3gnn import H3GNN, EncoderConfig, mixed_graph
from h3gnn.encoder.blocks import InputBlocks, principal_directions
from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.readout import Smoother, StepMatrix, step_support
from h3gnn.encoder.support import build_support
from h3gnn.graphs.checks import check_graph
from h3gnn.training.loop import Snapshots
from tests.rejects import rejects

CPU = torch.device("cpu")
PATH = torch.tensor([[0, 1], [1, 2]])  # 0 – 1 – 2


def values_of(blocks: InputBlocks, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Return F and D of a graph side by side."""
    nodes = len(features)
    neighbours = build_support(edges, nodes, self_loops=False)
    rows = GraphRows.in_memory(FeatureMatrix(features), neighbours)
    walks = Smoother(StepMatrix(step_support(edges, nodes, None), "walks", CPU), module.DIFFUSION)
    filled = torch.empty(nodes, sum(blocks.widths))
    for some, values in blocks.columns(rows, StepMatrix(neighbours, "walks", CPU), walks, width=3):
        filled[:, some] = values
    return filled


def fit(features: torch.Tensor, edges: torch.Tensor) -> InputBlocks:
    """Fit blocks to features and undirected edges."""
    neighbours = build_support(edges, len(features), self_loops=False)
    matrix = FeatureMatrix(features)
    rows = GraphRows(lambda nodes: features[nodes], neighbours, features.shape[1], matrix)
    return InputBlocks.fit(rows, neighbours, CPU)


def test_on_a_path_of_three_nodes() -> None:
    features = torch.tensor([[0.0], [3.0], [6.0]])  # centred: -3, 0, 3
    found = values_of(fit(features, PATH), features, PATH)
    torch.testing.assert_close(found[:, 0], torch.tensor([-3.0, 0.0, 3.0]))  # the node's own
    torch.testing.assert_close(found[:, 1], torch.tensor([0.0, 0.0, 0.0]))  # the neighbours' mean
    step = torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])
    walked = 0.1 * torch.linalg.solve(torch.eye(3) - 0.9 * step, features - 3)
    torch.testing.assert_close(found[:, 2:], walked, atol=1e-3, rtol=0)


def test_directions_are_those_of_a_dense_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mixed_graph(60, words=40)
    features = graph.dense_features()
    neighbours = build_support(graph.edge_index, 60, self_loops=False)
    centred = features - features.mean(dim=0)
    step = torch.zeros(60, 60)
    step[neighbours.pattern.rows, neighbours.pattern.cols] = 1 / neighbours.in_degree[neighbours.pattern.rows]
    both = torch.cat([centred, step @ centred], dim=1)
    monkeypatch.setattr(module, "COMPONENTS", 5)
    monkeypatch.setattr(module, "ITERATIONS", 8)
    blocks = fit(features, graph.edge_index)
    directions = torch.cat([blocks.own, blocks.around])
    assert blocks.widths == [5, 5]
    exact = torch.linalg.svd(both, full_matrices=False).Vh[:5].mT
    torch.testing.assert_close(directions @ directions.mT, exact @ exact.mT, atol=1e-3, rtol=0)
    found = values_of(blocks, features, graph.edge_index)[:, :5]
    torch.testing.assert_close(found, both @ directions, atol=1e-4, rtol=0)


def test_directions_from_a_sample_span_what_all_nodes_span(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(200, 2, generator=draw) @ torch.randn(2, 30, generator=draw)
    ring = torch.stack([torch.arange(200), torch.arange(200).roll(-1)])
    monkeypatch.setattr(module, "COMPONENTS", 10)
    monkeypatch.setattr(module, "SAMPLE", 40)
    blocks = fit(features, ring)
    assert blocks.widths == [4, 2]  # the features have rank 2; directions without variance are left out
    own = (features - blocks.mean) @ blocks.walks
    torch.testing.assert_close(own @ blocks.walks.mT, features - blocks.mean, atol=1e-3, rtol=0)


def test_features_may_be_sparse_and_a_node_may_be_isolated() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [4.0, 4.0]])
    blocks = fit(features, PATH)
    dense = values_of(blocks, features, PATH)
    neighbours = build_support(PATH, 4, self_loops=False)
    sparse = FeatureMatrix(features, "csr")
    again = InputBlocks.fit(
        GraphRows(lambda nodes: features[nodes].to_sparse_csr(), neighbours, 2, sparse), neighbours, CPU
    )
    torch.testing.assert_close(again.mean, blocks.mean)
    torch.testing.assert_close(values_of(again, features, PATH), dense)
    assert dense[3, 2:4].tolist() == [0.0, 0.0]  # without neighbours, their mean is that of all nodes


def test_principal_directions_do_not_depend_on_the_order_of_rows() -> None:
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 9)
    start = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))
    shuffled = rows[torch.randperm(50, generator=torch.Generator().manual_seed(3))]

    def directions(matrix: torch.Tensor) -> torch.Tensor:
        return principal_directions(lambda w: matrix @ w, lambda r: matrix.mT @ r, start, 3)

    one, other = directions(rows), directions(shuffled)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


SMALL: dict[str, Any] = {"channels": 8, "epochs": 2, "n_models": 4, "encoder": EncoderConfig(heads=2)}


@pytest.fixture(scope="module")
def fitted() -> H3GNN:
    """A model of a small graph."""
    return H3GNN(**SMALL).fit(mixed_graph(120, words=20))


def test_the_embedding_ends_with_the_blocks_and_begins_with_the_models(fitted: H3GNN) -> None:
    plain = H3GNN(**{**SMALL, "encoder": EncoderConfig(heads=2, input_weight=0.0)}).fit(fitted.graph_)
    models = plain.embedding_.shape[1]
    np.testing.assert_array_equal(fitted.embedding_[:, :models], plain.embedding_)
    np.testing.assert_array_equal(fitted.by_model(), plain.by_model())
    inference: Any = fitted.inference_
    widths = inference.blocks.widths
    assert fitted.embedding_.shape[1] == models + sum(widths) == models + 40 + 20
    for block in np.split(fitted.embedding_[:, models:], [widths[0]], axis=1):
        assert np.square(block).sum(axis=1).mean() == pytest.approx(0.4**2 * models, rel=1e-4)


def test_save_load_transform_and_chunks_agree(fitted: H3GNN, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = H3GNN.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.embedding_, fitted.embedding_)
    chunks = np.concatenate(list(fitted.inference_.in_chunks().chunks()))
    np.testing.assert_allclose(chunks, fitted.embedding_, atol=1e-4)
    graph = fitted.graph_
    other = check_graph(graph.features, graph.edge_index.numpy()[:, 10:])  # another graph
    same = loaded.transform(other)
    np.testing.assert_allclose(same, fitted.transform(other), atol=1e-5)
    assert not np.allclose(same, fitted.embedding_, atol=1e-3)


def test_snapshots_have_the_blocks_also_of_models_in_groups(fitted: H3GNN) -> None:
    taken: list[tuple[range, torch.Tensor]] = []
    snapshots = Snapshots([2], lambda epoch, models, rows: taken.append((models, rows)))
    H3GNN(**SMALL).fit(fitted.graph_, snapshots=snapshots)
    np.testing.assert_allclose(taken[-1][1].numpy(), fitted.embedding_, atol=1e-4)


def test_a_new_node_has_the_blocks_that_it_would_have_in_the_whole_graph(fitted: H3GNN) -> None:
    graph = fitted.graph_
    features = graph.dense_features().numpy()
    new = features[:2] * 0.5 + features[5:7]
    edges = np.array([[0, 3, 120, 7], [120, 120, 121, 121]])  # the second new node knows the first
    inference: Any = fitted.inference_
    found = fitted.extend(new, edges).embedding[:, inference.models_width :]
    blocks, lengths = inference.blocks, inference.block_lengths
    size = 0.4 * inference.models_width**0.5
    rows = fitted.scaler_(torch.from_numpy(np.concatenate([features, new]))).to_dense() - blocks.mean
    mean = torch.stack([rows[[0, 3, 121]].mean(dim=0), rows[[120, 7]].mean(dim=0)])
    expected = (rows[-2:] @ blocks.own + mean @ blocks.around) * size / lengths[0]
    np.testing.assert_allclose(found[:, : blocks.widths[0]], expected.numpy(), atol=1e-4)
    walks = torch.from_numpy(fitted.embedding_[:, -blocks.widths[1] :])
    own = rows[-2:] @ blocks.walks * size / lengths[1]
    # Walks stop at a fitted node: first = 0.1 own + 0.9 / 4 (first + second + those of 0 and 3)
    step = torch.tensor([[1 / 4, 1 / 4], [1 / 3, 1 / 3]])
    known = torch.stack([(walks[0] + walks[3]) / 4, walks[7] / 3])
    exact = torch.linalg.solve(torch.eye(2) - 0.9 * step, 0.1 * own + 0.9 * known)
    np.testing.assert_allclose(found[:, blocks.widths[0] :], exact.numpy(), atol=1e-3)


def test_dimensions_are_the_principal_components_of_the_embedding(fitted: H3GNN, tmp_path: Path) -> None:
    reduced = H3GNN(**SMALL, dimensions=10).fit(fitted.graph_)
    full = torch.from_numpy(fitted.embedding_).double()
    full = full - full.mean(dim=0)
    assert reduced.embedding_.shape == (120, 10)
    exact = torch.linalg.svd(full, full_matrices=False)
    best = (exact.U[:, :10] * exact.S[:10]) @ (exact.U[:, :10] * exact.S[:10]).mT
    own = torch.from_numpy(reduced.embedding_).double()
    assert float((own @ own.mT - best).norm() / best.norm()) < 0.02
    np.testing.assert_allclose(reduced.by_model(), fitted.by_model(), atol=1e-5)
    reduced.save(tmp_path / "model")
    np.testing.assert_array_equal(H3GNN.load(tmp_path / "model").embedding_, reduced.embedding_)
    features = fitted.graph_.dense_features().numpy()[:3]
    edges = np.array([[0, 3, 7], [120, 121, 122]])
    whole = torch.from_numpy(fitted.extend(features, edges).embedding)
    reduction: Any = reduced.inference_.reduction
    np.testing.assert_allclose(reduced.extend(features, edges).embedding, reduction(whole).numpy(), atol=1e-4)
    with rejects("too-many-dimensions"):
        H3GNN(**SMALL, dimensions=500).fit(fitted.graph_)
