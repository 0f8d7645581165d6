"""DSSL, HGRL, GraphACL and MUSE: their losses against plain loops, and the effect of their settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.embedder import embedding_of, forked_rng, minimize
from h3gnn.baselines.heterophilous_ssl import DSSL, HGRL, MUSE, GraphACL, HGRLSettings, apart
from h3gnn.baselines.layers import SparseMatrix
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, check_moving_average, embed_on, model_on
from tests.rejects import rejects


def unit_rows(rows: int, width: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


def test_graphacl_is_its_formula(path_graph: Graph) -> None:
    model = model_on(GraphACL, path_graph, width=3, temperature=0.5, samples=0, self_loops=True)
    predicted, target, embedding = (unit_rows(5, 3, seed) for seed in range(3))
    expected = 0.0
    for v in range(5):
        crowd = sum(math.exp(float(embedding[v] @ embedding[w]) / 0.5) for w in range(5))
        near = [u for u in (v - 1, v, v + 1) if 0 <= u < 5]
        for u in near:
            alike = math.exp(float(predicted[v] @ target[u]) / 0.5)
            expected -= math.log(alike / (alike + crowd)) / len(near) / 5
    assert float(model.asymmetric(predicted, target, embedding)) == pytest.approx(expected, rel=1e-5)


def test_graphacl_with_sampled_pairs_is_its_formula(path_graph: Graph) -> None:
    """With all embeddings equal, every drawn node w counts e^(1/τ)."""
    model = model_on(GraphACL, path_graph, width=2, temperature=0.5, samples=4, self_loops=False)
    same = torch.tensor([[0.6, 0.8]]).expand(5, 2)
    other = torch.tensor([[0.8, -0.6]]).expand(5, 2)
    expected = math.log(1 + 4 * math.exp(2))
    assert float(model.asymmetric(same, other, same)) == pytest.approx(expected, rel=1e-5)


def test_graphacls_target_is_a_moving_average_with_shared_features(path_graph: Graph) -> None:
    model = model_on(GraphACL, path_graph, width=3, momentum=0.75)
    assert model.target.features is model.online.features
    check_moving_average(model.target, model.online, lambda: model.after(0))


def test_graphacl_needs_neighbours() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64))
    assert np.isfinite(embed_on(GraphACL, graph, width=4, epochs=2, self_loops=True)).all()
    with rejects("no-edges"):
        model_on(GraphACL, graph, self_loops=False)


def test_dssls_divergence_is_its_formula(path_graph: Graph) -> None:
    model = model_on(DSSL, path_graph, width=4, prototypes=3, temperature=0.5)
    embedding = unit_rows(5, 4, 0)
    scores = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))
    expected = 0.0
    for v in range(5):
        links = [[math.exp(float(one)) for one in scores[v, u]] for u in range(2)]
        prior = [math.exp(float(embedding[v] @ row) / 0.5) for row in model.prototypes]
        for k in range(3):
            chance = sum(link[k] / sum(link) for link in links) / 2
            expected += chance * math.log(chance / (prior[k] / sum(prior))) / 5
    assert float(model.divergence(embedding, scores)) == pytest.approx(expected, rel=1e-4)


def test_a_prototype_is_the_mean_direction_of_its_nodes(path_graph: Graph) -> None:
    model = model_on(DSSL, path_graph, width=2, prototypes=3)
    before = model.prototypes.clone()
    embedding = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8], [0.6, 0.8]])
    model.gather(embedding, torch.tensor([0, 0, 0, 2, 2]))
    root = math.sqrt(5)
    torch.testing.assert_close(model.prototypes[0], torch.tensor([2 / root, 1 / root]))
    torch.testing.assert_close(model.prototypes[2], torch.tensor([0.6, 0.8]))
    assert torch.equal(model.prototypes[1], before[1])


class Fixed(torch.nn.Module):
    """An encoder with constant output."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, matrix: SparseMatrix) -> Tensor:
        return self.rows


def test_dssl_predicts_neighbours_by_the_type_of_the_link(path_graph: Graph) -> None:
    """All nodes are (1, 1) / √2, their neighbours (1, 0) or (0, 1): without link types, a node is 45° off."""
    root = math.sqrt(0.5)
    kinds = torch.eye(2)[torch.tensor([0, 1, 1, 0, 1])]
    for shift, expected in ((1.0, 0.0), (0.0, 2 - 2 * root)):
        model = model_on(DSSL, path_graph, width=2, prototypes=2, prior_weight=0, shift=shift)
        model.online, model.target = Fixed(torch.full((5, 2), root)), Fixed(kinds)  # type: ignore[assignment]
        model.inference = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        model.inference[0].weight.data = 200 * torch.eye(2)
        model.shift = torch.nn.Sequential()
        model.predictor = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        model.predictor[0].weight.data = (1 - shift) * torch.eye(2)
        assert float(model.loss(0).detach()) == pytest.approx(expected, abs=1e-4)


def muse(graph: Graph, **changes: float) -> MUSE:
    with forked_rng(CPU, 0):
        model = model_on(MUSE, graph, width=6, **changes)
    model.begin()
    return model


def test_muses_views_depend_on_own_features_or_on_neighbours(path_graph: Graph) -> None:
    """On 0 – 1 – 2 – 3 – 4, two steps from node 0 reach itself and node 2."""
    model = muse(path_graph)
    product = torch.randn(5, 12, requires_grad=True)
    (of_own,) = torch.autograd.grad(model.encode(product)[0].sum(), product)
    assert of_own.abs().sum(dim=1).nonzero().flatten().tolist() == [0]
    (of_near,) = torch.autograd.grad(model.encode(product, model.matrix)[0].sum(), product)
    assert of_near.abs().sum(dim=1).nonzero().flatten().tolist() == [0, 2]


def test_muses_controller_loss_by_hand(path_graph: Graph) -> None:
    model = muse(path_graph, target=0.4, target_weight=2.0, size_weight=2.0)
    model.controller.forward = lambda *_: shares[:, None]  # type: ignore[method-assign]
    shares = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.5])
    own, near = torch.eye(5), torch.eye(5)
    near[0] = -near[0]
    expected = (-0.1 + 2.4) + 2 * 5 * abs(0.5 - 0.4) + 2 * float(np.sqrt(0.01 + 0.81 + 0.75))
    assert float(model.mixture_loss(own, near)) == pytest.approx(expected, rel=1e-5)


def test_muses_embedding_mixes_both_views_by_the_controllers_weights(path_graph: Graph) -> None:
    model = muse(path_graph)
    product = model.first.weight.detach()  # the features are the identity
    own, near = model.encode(product), model.encode(product, model.matrix)
    model.eval()
    shares = model.controller(own, near, torch.tensor([[1.0], [2], [2], [2], [1]]))
    torch.testing.assert_close(embedding_of(model), (own + shares * near).detach())


@pytest.mark.parametrize("target", [0.3, 0.7])
def test_muses_weights_of_neighbours_reach_their_target(small_mixed: Graph, target: float) -> None:
    """For fixed views, neighbours that differ weigh more than similar ones."""
    model = muse(small_mixed, target=target, gate_dropout=0.0, learning_rate=0.01)
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(100, 6, generator=generator)
    near = torch.where(torch.arange(100)[:, None] < 50, own, torch.randn(100, 6, generator=generator))
    for _ in range(150):
        minimize(model.mixture_loss(own, near), model.mixing)
    shares = model.controller(own, near, model.degrees).detach()
    assert float(shares.mean()) == pytest.approx(target, abs=0.05)
    assert shares[50:].mean() > shares[:50].mean()


def test_hgrls_neighbour_loss_by_loops(path_graph: Graph) -> None:
    model = model_on(HGRL, path_graph, width=3, hops=2, temperature=0.5)
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


def test_hgrls_distance_of_two_copies_by_hand() -> None:
    first = torch.tensor([[1.0, 0.0], [-1.0, 2.0]])
    assert float(apart(first, 3 * first + 7)) == pytest.approx(0)
    assert float(apart(first, first * torch.tensor([1.0, -1.0]))) == pytest.approx(4)  # (±√2) in two rows


def test_hgrls_learned_graph_by_hand() -> None:
    """Nodes 0 and 1 choose each other, 2 chooses 1 with cosine 0.6, and 3 has nothing in common."""
    features = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 1.0, 0], [0, 0, 1.0]])
    given = check_graph(features, torch.tensor([[0], [3]]))
    model = model_on(HGRL, given, graph="learned", neighbours=1, scale_features="none")
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
        HGRL(given, HGRLSettings(graph="knn"), CPU)


def test_hgrl_embeds_nodes_of_equal_features_equally(small_mixed: Graph) -> None:
    features = small_mixed.features.to_dense().clone()
    features[1] = features[0]
    twins = check_graph(features, small_mixed.edge_index)
    rows = embed_on(HGRL, twins, width=8, epochs=3)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
