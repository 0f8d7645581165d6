"""GRACE, CCA-SSG, MVGRL, GMI and S²GC: losses against plain formulas, and how the systems behave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.baselines import allpairs
from h3gnn.baselines.allpairs import edge_cross_entropy
from h3gnn.baselines.classics import S2GC
from h3gnn.baselines.contrastive import (
    BGRL,
    GMI,
    MVGRL,
    Discriminator,
    between,
    correlation_loss,
    personal_pagerank,
    thinned,
)
from h3gnn.baselines.embedder import train, values_of
from h3gnn.baselines.layers import View, gcn_adjacency
from h3gnn.baselines.registry import System, systems
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, check_moving_average, model_on

LEARNING = [systems()[name] for name in ("grace", "ccassg", "mvgrl", "gmi")]


def rows_of(seed: int, nodes: int = 5, width: int = 3) -> Tensor:
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quick(system: System, **changes: Any) -> Any:
    small = {"width": 8, "epochs": 6 if system in LEARNING else 0}
    return replace(system.settings, **{**small, **changes})


def softplus(value: Any) -> Any:
    return np.log1p(np.exp(value))


def test_equal_decorrelated_views_have_the_least_loss() -> None:
    apart, _ = torch.linalg.qr(rows_of(2, 6) - rows_of(2, 6).mean(dim=0))
    least = correlation_loss((3 * apart + 1).float(), apart.float(), 0.5)
    assert float(least) == pytest.approx(-3, abs=1e-5)
    alike = apart[:, :1].expand(6, 3).float()
    assert float(correlation_loss(alike, alike, 0.5)) == pytest.approx(-3 + 0.5 * 2 * 6, abs=1e-5)
    constant = torch.ones(6, 3)
    assert float(correlation_loss(constant, constant, 0.5)) == pytest.approx(0.5 * 2 * 3)


def test_correlation_loss_by_numpy() -> None:
    first, second = rows_of(3, 7).float(), rows_of(4, 7).float()
    one, two = (((x - x.mean(0)) / x.std(0)) for x in (first.numpy(), second.numpy()))
    spread = sum(((np.corrcoef(x.T) - np.eye(3)) ** 2).sum() for x in (one, two))
    expected = 0.1 * spread - np.trace(one.T @ two) / 7
    assert float(correlation_loss(first, second, 0.1)) == pytest.approx(expected, rel=1e-4)


def test_the_diffusion_is_a_sum_over_walks(path_graph: Graph) -> None:
    matrix = gcn_adjacency(path_graph, CPU)
    dense, walks = matrix.csr().to_dense(), torch.zeros(5, 5)
    for step in range(200):
        walks += 0.2 * 0.8**step * torch.linalg.matrix_power(dense, step)
    torch.testing.assert_close(personal_pagerank(matrix, 0.2), walks)
    part = between(matrix, 1, 4)
    torch.testing.assert_close(part.csr().to_dense(), dense[1:4, 1:4])
    thin = thinned(torch.tensor([[0.5, 0.005], [0.25, 0.0]]), 1)
    torch.testing.assert_close(thin, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_mvgrl_by_hand(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = MVGRL(path_graph, quick(systems()["mvgrl"]), CPU)
    torch.manual_seed(3)
    loss = float(model.loss(0).detach())
    torch.manual_seed(3)
    order = torch.randperm(5)
    matrices = model.matrix.csr().to_dense(), model.diffusion
    encoded = []
    for rows in (torch.eye(5), torch.eye(5)[order]):
        for matrix, encoder in zip(matrices, (model.near, model.far), strict=True):
            hidden = (matrix @ rows @ encoder.first.weight).detach().numpy()
            encoded.append(np.where(hidden > 0, hidden, 0.25 * hidden))
    keys = [model.bilinear.detach().numpy() @ (1 / (1 + np.exp(-rows.mean(0)))) for rows in encoded[:2]]
    right = [softplus(-encoded[0] @ keys[1]), softplus(-encoded[1] @ keys[0])]
    wrong = [softplus(encoded[2] @ keys[1]), softplus(encoded[3] @ keys[0])]
    assert loss == pytest.approx(np.mean(right + wrong), rel=1e-5)


@pytest.mark.parametrize("pairs", [2**24, 7])
def test_edge_cross_entropy_by_numpy(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked: 0–1 both ways and the five nodes with themselves, so that e is 3.5."""
    monkeypatch.setattr(allpairs, "BLOCK", pairs)
    rows = rows_of(5).requires_grad_()
    edges = torch.tensor([[0, 1, 0, 1, 2, 3, 4], [1, 0, 0, 1, 2, 3, 4]])
    linked = np.eye(5)
    linked[0, 1] = linked[1, 0] = 1
    guess = 1 / (1 + np.exp(-(rows @ rows.t()).detach().numpy()))
    entropy = -linked * np.log(guess) * (25 - 3.5) / 3.5 - (1 - linked) * np.log(1 - guess)
    expected = entropy.mean() * 25 / (25 - 3.5)
    assert float(edge_cross_entropy(rows, edges, 3.5).detach()) == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda x: edge_cross_entropy(x, edges, 3.5), [rows], fast_mode=True)


def test_a_discriminator_by_hand() -> None:
    judge = Discriminator(2, 2)
    with torch.no_grad():
        judge.bias.fill_(0.5)
    rows, keys = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 3.0], [-1.0, 1.0]])
    found = float(judge.divergence(rows, keys, torch.tensor([[1, 0], [1, 0]])).detach())
    true, false = (1 / (1 + np.exp(-np.array(x))) for x in ([1.5, 2.5], [-0.5, 6.5]))
    assert found == pytest.approx(softplus(-true).mean() + softplus(false).mean(), rel=1e-5)


def test_gmis_negatives_are_other_nodes(small_mixed: Graph) -> None:
    others = GMI(small_mixed, quick(systems()["gmi"], negatives=50), CPU)._others()
    assert others.shape == (50, 100)
    assert not bool((others == torch.arange(100)).any())
    assert set(others.flatten().tolist()) == set(range(100))


def test_s2gc_by_hand(path_graph: Graph) -> None:
    settings = quick(systems()["s2gc"], steps=3, own_share=0.1, scale_features="none")
    dense = gcn_adjacency(path_graph, CPU).csr().to_dense().numpy()
    expected = sum(0.9 * np.linalg.matrix_power(dense, k) + 0.1 * np.eye(5) for k in (1, 2, 3)) / 3
    np.testing.assert_allclose(values_of(train(S2GC, path_graph, 0, CPU, settings)), expected, atol=1e-6)


@pytest.mark.parametrize("system", LEARNING, ids=lambda one: one.name)
def test_the_loss_falls(system: System, small_mixed: Graph) -> None:
    settings = quick(system, epochs=30, patience=0, learning_rate=0.01)
    torch.manual_seed(0)
    model = system.kind(small_mixed, settings, CPU)
    model.begin()
    losses = [float(model.step(epoch)) for epoch in range(30)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_bgrls_loss_and_moving_average(small_mixed: Graph) -> None:
    model = model_on(BGRL, small_mixed, width=8, momentum=0.75)
    view = View(model.views.full(), torch.ones(small_mixed.num_features))
    model.predictor = torch.nn.Sequential()
    model.target.load_state_dict(model.online.state_dict())
    assert float(model.disagreement(view, view).detach()) < 1e-5  # the same view of the same encoder
    check_moving_average(model.target, model.online, lambda: model.after(0))
