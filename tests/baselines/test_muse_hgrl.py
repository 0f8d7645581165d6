"""MUSE and HGRL: their losses by plain formulas, and what moves with what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.embedder import embedding_of, forked_rng, train, values_of
from h3gnn.baselines.heterophilous_ssl import HGRL, MUSE, HGRLSettings, MUSESettings, apart
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects

CPU = torch.device("cpu")


def muse(graph: Graph, **changes: float) -> MUSE:
    with forked_rng(CPU, 0):
        model = MUSE(graph, MUSESettings(width=6, **changes), CPU)  # type: ignore[arg-type]
    model.begin()
    return model


def test_the_view_of_features_is_blind_to_edges_and_that_of_neighbours_to_oneself(path_graph: Graph) -> None:
    """Node 0 – 1 – 2 – 3 – 4: after two steps node 0 hears of itself and of 2, not of 1, 3 and 4."""
    model = muse(path_graph)
    product = torch.randn(5, 12, requires_grad=True)
    (of_own,) = torch.autograd.grad(model.encode(product)[0].sum(), product)
    assert of_own.abs().sum(dim=1).nonzero().flatten().tolist() == [0]
    (of_near,) = torch.autograd.grad(model.encode(product, model.matrix)[0].sum(), product)
    assert of_near.abs().sum(dim=1).nonzero().flatten().tolist() == [0, 2]


def test_the_controllers_loss_by_hand(path_graph: Graph) -> None:
    model = muse(path_graph, target=0.4, target_weight=2.0, size_weight=2.0)
    model.controller.forward = lambda *_: shares[:, None]  # type: ignore[method-assign]
    shares = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.5])
    own, near = torch.eye(5), torch.eye(5)
    near[0] = -near[0]
    expected = (-0.1 + 2.4) + 2 * 5 * abs(0.5 - 0.4) + 2 * float(np.sqrt(0.01 + 0.81 + 0.75))
    assert float(model.mixture_loss(own, near)) == pytest.approx(expected, rel=1e-5)


def test_the_embedding_mixes_both_views_by_the_controllers_shares(path_graph: Graph) -> None:
    model = muse(path_graph)
    product = model.first.weight.detach()  # the features are the identity
    own, near = model.encode(product), model.encode(product, model.matrix)
    model.eval()
    shares = model.controller(own, near, torch.tensor([[1.0], [2], [2], [2], [1]]))
    torch.testing.assert_close(embedding_of(model), (own + shares * near).detach())


@pytest.mark.parametrize("target", [0.3, 0.7])
def test_shares_of_neighbours_come_to_their_target(small_mixed: Graph, target: float) -> None:
    """Between views that stay, and more of neighbours that differ than of those that are alike."""
    model = muse(small_mixed, target=target, gate_dropout=0.0, learning_rate=0.01)
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(100, 6, generator=generator)
    near = torch.where(torch.arange(100)[:, None] < 50, own, torch.randn(100, 6, generator=generator))
    for _ in range(150):
        model.mixing.zero_grad()
        model.mixture_loss(own, near).backward()  # type: ignore[no-untyped-call]
        model.mixing.step()
    shares = model.controller(own, near, model.degrees).detach()
    assert float(shares.mean()) == pytest.approx(target, abs=0.05)
    assert shares[50:].mean() > shares[:50].mean()


def test_hgrls_loss_of_neighbours_by_loops(path_graph: Graph) -> None:
    model = HGRL(path_graph, HGRLSettings(width=3, hops=2, temperature=0.5), CPU)
    model.distances = torch.nn.Parameter(torch.tensor([0.0, 1.0]))
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    dense = model.matrix.csr().to_dense()
    unit = functional.normalize(rows).double().numpy()
    shares = np.exp([0.0, 1.0]) / (1 + np.e)
    expected = 0.0
    for hop, reached in enumerate((dense @ rows, dense @ dense @ rows)):
        far = functional.normalize(reached).double().numpy()
        for v in range(5):
            below = sum(np.exp(unit[v] @ unit[u] / 0.5) for u in range(5))
            expected -= np.log(np.exp(shares[hop] * (unit[v] @ far[v]) / 0.5) / below) / 5
    assert float(model.neighbour_loss(rows, model.matrix).detach()) == pytest.approx(expected, rel=1e-5)


def test_how_far_apart_two_copies_are() -> None:
    first = torch.tensor([[1.0, 0.0], [-1.0, 2.0]])
    assert float(apart(first, 3 * first + 7)) == pytest.approx(0)
    assert float(apart(first, first * torch.tensor([1.0, -1.0]))) == pytest.approx(4)  # (±√2) in two rows


def test_the_learned_graph_by_hand() -> None:
    """Nodes 0 and 1 choose each other, 2 chooses 1 with cosine 0.6, and 3 has nothing in common."""
    features = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 1.0, 0], [0, 0, 1.0]])
    settings = HGRLSettings(graph="learned", neighbours=1, scale_features="none")
    model = HGRL(check_graph(features, torch.tensor([[0], [3]])), settings, CPU)
    plain: Tensor = torch.eye(4)
    plain[0, 1] = plain[1, 0] = 0.8
    plain[2, 1] = plain[1, 2] = 0.3
    for _ in range(2):
        scale = plain.sum(dim=1).rsqrt()
        plain = plain * scale[:, None] * scale
    graph = model.learned_graph()
    torch.testing.assert_close(graph.with_values(graph.values.detach()).csr().to_dense(), plain)
    (graph @ features).square().sum().backward()  # type: ignore[no-untyped-call]
    assert model.column_weights.grad is not None
    assert float(model.column_weights.grad.abs().sum()) > 0
    with rejects("invalid-setting"):
        HGRL(check_graph(features, torch.tensor([[0], [3]])), HGRLSettings(graph="knn"), CPU)


def test_hgrl_reads_features_alone_when_it_embeds(small_mixed: Graph) -> None:
    """The graph shapes what is learned, not what is read: nodes with the same features are in one place."""
    features = small_mixed.features.to_dense().clone()
    features[1] = features[0]
    twins = check_graph(features, small_mixed.edge_index)
    rows = values_of(train(HGRL, twins, 0, CPU, HGRLSettings(width=8, epochs=3)))
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
