"""GRACE, CCA-SSG, MVGRL, GMI and S²GC: losses against plain formulas, and how the systems behave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from h3gnn.baselines import ccassg, contrast, gmi, grace, mvgrl, s2gc
from h3gnn.baselines.embedder import embed
from h3gnn.baselines.layers import gcn_adjacency
from h3gnn.baselines.systems import System
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
LEARNING = [grace.SYSTEM, ccassg.SYSTEM, mvgrl.SYSTEM, gmi.SYSTEM]
ALL = [*LEARNING, s2gc.SYSTEM]


def rows_of(seed: int, nodes: int = 5, width: int = 3) -> Tensor:
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quick(system: System, **changes: Any) -> Any:
    small = {"width": 8, "epochs": 6 if system in LEARNING else 0}
    return replace(system.settings, **{**small, **changes})


def softplus(value: Any) -> Any:
    return np.log1p(np.exp(value))


@pytest.mark.parametrize("pairs", [2**24, 20])
def test_info_nce_is_its_formula_whole_and_in_parts(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast, "PAIRS", pairs)
    first, second = rows_of(0).requires_grad_(), rows_of(1)
    loss = contrast.info_nce(first, second, 0.4)
    u, v = ((x / np.linalg.norm(x, axis=1, keepdims=True)) for x in (first.detach().numpy(), second.numpy()))
    total = 0.0
    for own, other in ((u, v), (v, u)):
        for i in range(5):
            right = np.exp(own[i] @ other[i] / 0.4)
            wrong = sum(np.exp(own[i] @ x[k] / 0.4) for x in (own, other) for k in range(5) if k != i)
            total -= np.log(right / (right + wrong)) / 10
    assert float(loss.detach()) == pytest.approx(total)
    assert torch.autograd.gradcheck(lambda x: contrast.info_nce(x, second, 0.4), [first], fast_mode=True)


def test_views_that_agree_without_telling_anything_twice_have_the_least_loss() -> None:
    apart, _ = torch.linalg.qr(rows_of(2, 6) - rows_of(2, 6).mean(dim=0))
    least = ccassg.correlation_loss((3 * apart + 1).float(), apart.float(), 0.5)
    assert float(least) == pytest.approx(-3, abs=1e-5)
    alike = apart[:, :1].expand(6, 3).float()
    assert float(ccassg.correlation_loss(alike, alike, 0.5)) == pytest.approx(-3 + 0.5 * 2 * 6, abs=1e-5)
    constant = torch.ones(6, 3)
    assert float(ccassg.correlation_loss(constant, constant, 0.5)) == pytest.approx(0.5 * 2 * 3)


def test_correlations_against_numpy() -> None:
    first, second = rows_of(3, 7).float(), rows_of(4, 7).float()
    one, two = (((x - x.mean(0)) / x.std(0)) for x in (first.numpy(), second.numpy()))
    spread = sum(((np.corrcoef(x.T) - np.eye(3)) ** 2).sum() for x in (one, two))
    expected = 0.1 * spread - np.trace(one.T @ two) / 7
    assert float(ccassg.correlation_loss(first, second, 0.1)) == pytest.approx(expected, rel=1e-4)


def test_the_diffusion_is_a_sum_over_walks(path_graph: Graph) -> None:
    matrix = gcn_adjacency(path_graph, CPU)
    dense, walks = matrix.csr().to_dense(), torch.zeros(5, 5)
    for step in range(200):
        walks += 0.2 * 0.8**step * torch.linalg.matrix_power(dense, step)
    torch.testing.assert_close(mvgrl.personal_pagerank(matrix, 0.2), walks)
    part = mvgrl.between(matrix, 1, 4)
    torch.testing.assert_close(part.csr().to_dense(), dense[1:4, 1:4])
    thin = mvgrl.thinned(torch.tensor([[0.5, 0.005], [0.25, 0.0]]), 1)
    torch.testing.assert_close(thin, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_mvgrl_by_hand(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = mvgrl.MVGRL(path_graph, quick(mvgrl.SYSTEM), CPU)
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


def test_a_step_of_mvgrl_sees_a_part_of_the_graph(small_mixed: Graph) -> None:
    settings = quick(mvgrl.SYSTEM, sample=40, samples=3, thin=True)
    assert embed(mvgrl.MVGRL, small_mixed, 0, CPU, settings).shape == (100, 8)


@pytest.mark.parametrize("pairs", [2**24, 7])
def test_edges_are_told_from_all_other_pairs(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked: 0–1 both ways and the five nodes with themselves, so that e is 3.5."""
    monkeypatch.setattr(contrast, "PAIRS", pairs)
    rows = rows_of(5).requires_grad_()
    sources, targets = torch.tensor([0, 1, 0, 1, 2, 3, 4]), torch.tensor([1, 0, 0, 1, 2, 3, 4])
    linked = np.eye(5)
    linked[0, 1] = linked[1, 0] = 1
    guess = 1 / (1 + np.exp(-(rows @ rows.t()).detach().numpy()))
    entropy = -linked * np.log(guess) * (25 - 3.5) / 3.5 - (1 - linked) * np.log(1 - guess)
    expected = entropy.mean() * 25 / (25 - 3.5)
    assert float(gmi.edge_loss(rows, sources, targets).detach()) == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda x: gmi.edge_loss(x, sources, targets), [rows], fast_mode=True)


def test_a_discriminator_by_hand() -> None:
    judge = gmi.Discriminator(2, 2)
    with torch.no_grad():
        judge.bias.fill_(0.5)
    rows, keys = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 3.0], [-1.0, 1.0]])
    found = float(judge.divergence(rows, keys, torch.tensor([[1, 0], [1, 0]])).detach())
    true, false = (1 / (1 + np.exp(-np.array(x))) for x in ([1.5, 2.5], [-0.5, 6.5]))
    assert found == pytest.approx(softplus(-true).mean() + softplus(false).mean(), rel=1e-5)


def test_negatives_are_others(small_mixed: Graph) -> None:
    others = gmi.GMI(small_mixed, quick(gmi.SYSTEM, negatives=50), CPU)._others()
    assert others.shape == (50, 100)
    assert not bool((others == torch.arange(100)).any())
    assert set(others.flatten().tolist()) == set(range(100))


def test_smoothed_features_by_hand(path_graph: Graph) -> None:
    settings = quick(s2gc.SYSTEM, steps=3, own_share=0.1, scale_features="none")
    dense = gcn_adjacency(path_graph, CPU).csr().to_dense().numpy()
    expected = sum(0.9 * np.linalg.matrix_power(dense, k) + 0.1 * np.eye(5) for k in (1, 2, 3)) / 3
    np.testing.assert_allclose(embed(s2gc.S2GC, path_graph, 0, CPU, settings), expected, atol=1e-6)


@pytest.mark.parametrize("system", ALL, ids=lambda one: one.name)
def test_seeds_repeat_and_the_callers_chance_is_left(system: System, small_mixed: Graph) -> None:
    state = torch.get_rng_state()
    found = [embed(system.kind, small_mixed, seed, CPU, quick(system)) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.allclose(found[0], found[2]) == (not system.kind.has_chance)


@pytest.mark.parametrize("system", LEARNING, ids=lambda one: one.name)
def test_the_loss_falls_and_labels_are_not_looked_at(system: System, small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    settings = quick(system, epochs=30, patience=0, learning_rate=0.01)
    torch.manual_seed(0)
    model = system.kind(small_mixed, settings, CPU)
    model.begin()
    losses = [float(model.step(epoch)) for epoch in range(30)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    turned = replace(small_mixed, labels=small_mixed.labels.flip(0))
    one, other = (embed(system.kind, graph, 0, CPU, quick(system)) for graph in (small_mixed, turned))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("system", ALL, ids=lambda one: one.name)
@pytest.mark.parametrize("edges", [[], [[0, 1]]], ids=["no edge", "one edge"])
def test_graphs_with_hardly_any_edges(system: System, edges: list[list[int]]) -> None:
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    graph = check_graph(torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]]), edge_index)
    rows: npt.NDArray[np.float32] = embed(system.kind, graph, 0, CPU, quick(system))
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("system", ALL, ids=lambda one: one.name)
def test_every_published_setting_and_range_is_a_setting(system: System) -> None:
    for changes in (*system.published.values(), *({name: value[0]} for name, value in system.ranges.items())):
        system.with_settings(changes)
    assert all(getattr(system.settings, name) in values for name, values in system.ranges.items())
