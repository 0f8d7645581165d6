"""Autoencoders of edges, features and neighbourhoods: GAE, VGAE, AE, SDCN and NWR-GAE."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from h3gnn.baselines.allpairs import edge_cross_entropy
from h3gnn.baselines.autoencoders import (
    AE,
    GAE,
    NWRGAE,
    SDCN,
    VGAE,
    AESettings,
    GAESettings,
    NWRGAESettings,
    SDCNSettings,
    student,
    target,
    wasserstein,
)
from h3gnn.baselines.embedder import embedding_of, forked_rng, train
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, embed_on, model_on


def test_gaes_loss_is_the_cross_entropy_of_all_pairs(path_graph: Graph) -> None:
    model = model_on(GAE, path_graph, width=4, hidden=8)
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = edge_cross_entropy(rows, model.edges, 8) / 2  # eight directed edges
    torch.testing.assert_close(model.reconstruction(rows), expected)


def test_vgae_adds_a_divergence_and_embeds_the_mean(path_graph: Graph) -> None:
    model = model_on(VGAE, path_graph, width=3, hidden=6)
    with forked_rng(CPU, 0):
        loss = float(model.loss(0).detach())
    mean, log_spread = (part.detach() for part in model.coder.encoder(model.features, model.matrix))
    with forked_rng(CPU, 0):
        drawn = mean + torch.randn_like(log_spread) * log_spread.exp()
    divergence = (0.5 * (mean**2 + (2 * log_spread).exp() - 1) - log_spread).sum() / 25
    assert loss == pytest.approx(float(model.reconstruction(drawn) + divergence), rel=1e-5)
    torch.testing.assert_close(embedding_of(model), mean)


def test_gae_reconstructs_edges(small_mixed: Graph) -> None:
    model = train(GAE, small_mixed, 0, CPU, GAESettings())
    rows = embedding_of(model)
    linked = torch.zeros(100, 100, dtype=torch.bool)
    linked[small_mixed.edge_index[0], small_mixed.edge_index[1]] = True
    linked = linked | linked.mT
    products = rows @ rows.mT
    assert products[linked].mean() > products[~linked].mean() + 0.5


def test_ae_reconstructs_features_and_ignores_edges(small_mixed: Graph) -> None:
    settings = AESettings(width=8, hidden=(32,), epochs=60, batch=25, learning_rate=0.003)
    model = train(AE, small_mixed, 0, CPU, settings)
    everyone = torch.arange(100)
    start = AE(small_mixed, settings, CPU)
    assert isinstance(model, AE)
    assert model.batch_loss(everyone) < 0.9 * model.dense.var(dim=0, unbiased=False).mean()
    assert start.batch_loss(everyone) > model.batch_loss(everyone)
    alone = check_graph(small_mixed.features, torch.empty(2, 0, dtype=torch.int64))
    quick = {"width": 4, "hidden": (16, 8), "epochs": 4, "batch": 32}
    np.testing.assert_array_equal(embed_on(AE, small_mixed, **quick), embed_on(AE, alone, **quick))


def test_sdcns_targets_by_hand() -> None:
    near = student(torch.tensor([[0.0], [3.0], [3.0]]), torch.tensor([[1.0], [3.0]]))
    expected = np.array([[1 / 2, 1 / 10], [1 / 5, 1], [1 / 5, 1]])
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(near.numpy(), expected, rtol=1e-6)
    clear = expected**2 / expected.sum(axis=0)
    np.testing.assert_allclose(target(near).numpy(), clear / clear.sum(axis=1, keepdims=True), rtol=1e-6)


def test_sdcn_by_hand(path_graph: Graph) -> None:
    """With one hidden layer: the GCN's input is a quarter of the autoencoder's values."""
    model = model_on(SDCN, path_graph, width=2, hidden=(3,), clusters=2, share=0.25, scale_features="none")
    torch.nn.init.normal_(model.centres)
    near = np.eye(5) + np.eye(5, k=1) + np.eye(5, k=-1)
    degree = near.sum(axis=1)
    near /= np.sqrt(np.outer(degree, degree))
    held = {name: value.numpy() for name, value in model.state_dict().items()}
    weights = [held[f"{name}.weight"] for name in ("first", "others.0", "others.1")]
    hidden = np.maximum(held["coder.encoder.0.weight"].T + held["coder.encoder.0.bias"], 0)
    code = hidden @ held["coder.encoder.1.weight"].T + held["coder.encoder.1.bias"]
    hidden_graph = np.maximum(near @ weights[0], 0)
    hidden_graph = np.maximum(near @ (0.75 * hidden_graph + 0.25 * hidden) @ weights[1], 0)
    read = 0.75 * hidden_graph + 0.25 * code
    np.testing.assert_allclose(embedding_of(model).numpy(), read, atol=1e-5)
    scores = np.exp(near @ read @ weights[2])
    shares = scores / scores.sum(axis=1, keepdims=True)
    assert model.clusters().tolist() == shares.argmax(axis=1).tolist()
    decoded = model.coder.decode(torch.tensor(code).float()).detach().numpy()
    q = student(torch.tensor(code), model.centres.detach()).numpy()
    p = target(torch.tensor(q)).numpy()
    loss = ((np.eye(5) - decoded) ** 2).mean()
    loss += 0.1 * (p * np.log(p / q)).sum() / 5 + 0.01 * (p * np.log(p / shares)).sum() / 5
    assert float(model.loss(0).detach()) == pytest.approx(loss, rel=1e-4)


def test_sdcn_has_as_many_clusters_as_asked(small_mixed: Graph) -> None:
    model = train(
        SDCN, small_mixed, 0, CPU, SDCNSettings(hidden=(16,), clusters=3, epochs=3, first_epochs=2, batch=50)
    )
    found = model.clusters()
    assert found is not None
    assert found.shape == (100,)
    assert int(found.max()) < 3
    assert model_on(SDCN, small_mixed, hidden=(16, 8)).count == small_mixed.num_classes


@pytest.mark.parametrize("count", [1, 3, 7])
def test_wasserstein_uses_the_cheapest_matching(count: int) -> None:
    points, others = (torch.randn(2, count, 3, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    cost = torch.cdist(points, others).square() / 3
    best = [
        min(sum(float(cost[one, i, j]) for i, j in enumerate(order)) for order in permutations(range(count)))
        for one in range(2)
    ]
    assert float(wasserstein(points, others)) == pytest.approx(sum(best) / 2 / count, rel=1e-4)


def test_wasserstein_ignores_order() -> None:
    points = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    assert float(wasserstein(points, points[:, torch.tensor([3, 1, 4, 0, 2])])) == pytest.approx(0, abs=1e-6)


def test_nwr_gaes_loss_by_hand(path_graph: Graph) -> None:
    """All points equal the bias of the decoder: only the mean over sampled neighbours matters."""
    settings = NWRGAESettings(width=4, layers=1, samples=2, degree_weight=2, feature_weight=3)
    torch.manual_seed(0)
    model = NWRGAE(path_graph, replace(settings, neighbour_weight=5, norm_scale=1), CPU)
    biases = []
    for decoder in (model.degree, model.content, model.points[0]):
        last = list(decoder.children())[-1]
        assert isinstance(last, torch.nn.Linear)
        torch.nn.init.zeros_(last.weight)
        biases.append(last.bias.detach())
    biases[0].fill_(1.5)
    rows, bias = model.encode()[0].detach(), biases[2]
    drawn = [[1, 1], [0, 2], [1, 3], [2, 4], [3, 3]]  # both neighbours, or the only one twice
    apart = sum(float((rows[u] - bias).square().mean()) for two in drawn for u in two) / 10
    rebuilt = float((model.goal - biases[1]).square().mean())
    degree = 0.25  # all five are half a neighbour off
    assert float(model.loss(0).detach()) == pytest.approx(2 * degree + 3 * rebuilt + 5 * apart, rel=1e-4)
