"""Representations without labels: by hand where there is a formula, else by how they behave."""

from __future__ import annotations

import numpy as np
import torch

from h3gnn.baselines.bootstrap import (
    Bootstrap,
    BootstrapSettings,
    ViewMaker,
    bootstrap_embedding,
    warm_cosine,
)
from h3gnn.baselines.features import raw_features, smoothed_features
from h3gnn.baselines.infomax import InfomaxSettings, infomax_embedding
from h3gnn.baselines.layers import scaled_features
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")


def test_smoothing_by_hand() -> None:
    """0 → 1, 1 → 2 and a loop at 0: heard both ways, without the loop; node 3 hears nobody."""
    features = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    graph = check_graph(features, torch.tensor([[0, 1, 0], [1, 2, 0]]))
    unit = np.array([[0.6, 0.8], [0, 1], [1, 0], [0, 0]])
    once = np.array([[0, 1], [0.8, 0.4], [0, 1], [0, 0]])
    twice = np.array([once[1], [0, 1], once[1], [0, 0]])
    np.testing.assert_allclose(smoothed_features(graph, 2), np.hstack([unit, once, twice]), atol=1e-6)
    np.testing.assert_allclose(smoothed_features(graph, 1), np.hstack([unit, once]), atol=1e-6)
    np.testing.assert_array_equal(raw_features(graph), features.numpy())


def test_a_graph_without_edges_has_nothing_to_smooth() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64))
    np.testing.assert_array_equal(smoothed_features(graph, 1), np.hstack([np.eye(3), np.zeros((3, 3))]))


def test_infomax_repeats_by_seed_and_leaves_the_global_generator(small_mixed: Graph) -> None:
    settings = InfomaxSettings(width=16, epochs=15)
    state = torch.get_rng_state()
    one, again, other = (infomax_embedding(small_mixed, seed, CPU, settings) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert one.shape == (100, 16)
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


def test_a_view_drops_pairs_whole_and_counts_degrees_anew(path_graph: Graph) -> None:
    views = ViewMaker(path_graph, CPU, torch.Generator().manual_seed(2))
    view = views.draw(0.5, 0.5)
    dense = view.matrix.csr().to_dense()
    assert torch.equal(dense, dense.t())
    linked = (dense > 0).float()
    assert linked.sum() < 13  # five loops and eight directions
    assert torch.equal(linked.diagonal(), torch.ones(5))
    degree = linked.sum(dim=1)
    torch.testing.assert_close(dense, linked / (degree[:, None] * degree[None]).sqrt())


def test_bootstrap_loss_and_target(small_mixed: Graph) -> None:
    model = Bootstrap(scaled_features(small_mixed, CPU), 8, torch.Generator().manual_seed(0))
    view = ViewMaker(small_mixed, CPU, torch.Generator().manual_seed(0)).full()
    model.predictor = torch.nn.Sequential()
    model.target.load_state_dict(model.online.state_dict())
    assert float(model(view, view).detach()) < 1e-5  # the same view of the same encoder, predicted by itself
    before = [slow.clone() for slow in model.target.parameters()]
    with torch.no_grad():
        for fast in model.online.parameters():
            fast.add_(1)
    model.follow(0.75)
    for slow, start in zip(model.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, start + 0.25)


def test_bootstrap_repeats_by_seed(small_mixed: Graph) -> None:
    settings = BootstrapSettings(width=8, epochs=10)
    one, again, other = (bootstrap_embedding(small_mixed, seed, CPU, settings) for seed in (0, 0, 1))
    assert one.shape == (100, 8)
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    assert [warm_cosine(epoch, 20) for epoch in (0, 1, 2)] == [0.5, 1.0, 1.0]
