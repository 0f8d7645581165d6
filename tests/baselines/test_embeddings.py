"""Representations without labels: by hand where there is a formula, else by how they behave."""

from __future__ import annotations

import numpy as np
import torch

from h3gnn.baselines.bootstrap import BGRL, BGRLSettings
from h3gnn.baselines.classics import raw_features, smoothed_features
from h3gnn.baselines.sampling import Views
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


def test_a_view_drops_pairs_whole_and_counts_degrees_anew(path_graph: Graph) -> None:
    torch.manual_seed(2)
    view = Views(path_graph, CPU).draw(0.5, 0.5)
    dense = view.matrix.csr().to_dense()
    assert torch.equal(dense, dense.t())
    linked = (dense > 0).float()
    assert linked.sum() < 13  # five loops and eight directions
    assert torch.equal(linked.diagonal(), torch.ones(5))
    degree = linked.sum(dim=1)
    torch.testing.assert_close(dense, linked / (degree[:, None] * degree[None]).sqrt())


def test_bootstrap_loss_and_target(small_mixed: Graph) -> None:
    model = BGRL(small_mixed, BGRLSettings(width=8, momentum=0.75), CPU)
    view = model.views.full()
    model.predictor = torch.nn.Sequential()
    model.target.load_state_dict(model.online.state_dict())
    assert (
        float(model.disagreement(view, view).detach()) < 1e-5
    )  # the same view of the same encoder, predicted by itself
    before = [slow.clone() for slow in model.target.parameters()]
    with torch.no_grad():
        for fast in model.online.parameters():
            fast.add_(1)
    model.after(0)
    for slow, start in zip(model.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, start + 0.25)
