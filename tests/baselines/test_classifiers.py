"""Training of stacked classifiers, and MLP, GCN, GAT, H2GCN and GraphSAGE against PyG or by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classics import GAT, GCN, SAGE
from h3gnn.baselines.embedder import minimize
from h3gnn.baselines.heterophilous import H2GCN
from h3gnn.baselines.layers import Features, adjacency, sparse_matrix, two_hop_adjacency
from h3gnn.baselines.supervised import (
    ClassifierSettings,
    GridPoint,
    Member,
    Noise,
    Predictions,
    Weights,
    predict,
    stacked_adam,
)
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from tests.baselines.helpers import CPU, MEMBERS, POINT, normalized, path_matrix, stack_on, weights_of
from tests.rejects import rejects


def test_gcn_is_pygs_gcn(small_mixed: Graph) -> None:
    from torch_geometric.nn import GCNConv

    stack = stack_on(GCN, small_mixed, scale_features="none")
    for model in range(2):
        weights = weights_of(stack, model)
        first, second = GCNConv(60, 8), GCNConv(8, small_mixed.num_classes)
        for layer, name in ((first, "first"), (second, "second")):
            layer.lin.weight.data, layer.bias.data = weights[name].t(), weights[f"{name} bias"][0]
        hidden = first(small_mixed.dense_features(), small_mixed.edge_index).relu()
        expected = second(hidden, small_mixed.edge_index)
        torch.testing.assert_close(stack.logits(None)[:, model], expected, rtol=1e-4, atol=1e-5)


def test_gat_is_pygs_gat(small_mixed: Graph) -> None:
    from torch_geometric.nn import GATConv

    stack = stack_on(GAT, small_mixed, scale_features="none")
    for model in range(2):
        weights = weights_of(stack, model)
        first, second = GATConv(60, 1, heads=8), GATConv(8, small_mixed.num_classes)
        for layer, name, heads in ((first, "first", 8), (second, "second", 1)):
            layer.lin.weight.data, layer.bias.data = weights[name].t(), weights[f"{name} bias"][0]
            layer.att_src.data = weights[f"{name} from"].view(1, heads, -1)
            layer.att_dst.data = weights[f"{name} to"].view(1, heads, -1)
        hidden = functional.elu(first(small_mixed.dense_features(), small_mixed.edge_index))
        expected = second(hidden, small_mixed.edge_index)
        torch.testing.assert_close(stack.logits(None)[:, model], expected, rtol=1e-4, atol=1e-5)


def test_h2gcn_by_hand(path_graph: Graph) -> None:
    """On 0 – 1 – 2 – 3 – 4 the two-hop pairs are 0–2, 1–3 and 2–4."""
    far = two_hop_adjacency(adjacency(path_graph, self_loops=False))
    assert list(zip(far.rows.tolist(), far.cols.tolist(), strict=True)) == [
        *((0, 2), (1, 3), (2, 0)),
        *((2, 4), (3, 1), (4, 2)),
    ]
    stack = stack_on(H2GCN, path_graph, scale_features="none")
    weights = weights_of(stack, 1)
    apart = torch.diag(torch.ones(3), 2) + torch.diag(torch.ones(3), -2)
    near, apart = normalized(path_matrix()), normalized(apart)
    ego = weights["embed"].relu()  # the features are one-hot
    once = torch.cat([near @ ego, apart @ ego], dim=1)
    twice = torch.cat([near @ once, apart @ once], dim=1)
    expected = torch.cat([ego, once, twice], dim=1) @ weights["classify"] + weights["bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected)


def test_h2gcn_rejects_too_many_two_hop_paths(path_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3gnn.baselines.layers.TWO_HOP_LIMIT", 3)
    with rejects("too-many-two-hop-paths"):
        H2GCN.on(path_graph, CPU, ClassifierSettings())


@pytest.mark.parametrize("sparse", [True, False])
def test_feature_dropout_keeps_the_mean_and_depends_on_the_seed(sparse: bool) -> None:
    dense = torch.ones(400, 8)
    if sparse:
        dense = functional.pad(dense, (0, 400))
    features = Features(dense, CPU)
    members = [replace(MEMBERS[0], split=split) for split in (0, 1)] + [MEMBERS[1]]
    weight = torch.ones(dense.shape[1], 3, 1)
    product = features.product(weight, Noise(members, CPU)).squeeze(2)
    assert set(product.flatten().tolist()) <= {2.0 * k for k in range(9)}
    torch.testing.assert_close(product.mean(dim=0), torch.full((3,), 8.0), rtol=0.05, atol=0)
    assert torch.equal(product[:, 0], product[:, 1])
    assert not torch.equal(product[:, 0], product[:, 2])


def train_gcn(graph: Graph, seeds: list[int], epochs: int, **options: Any) -> list[Predictions]:
    options = {"device": CPU, "memory": 2**28, "grid": [POINT], **options}
    return predict(GCN, graph, seeds, settings=ClassifierSettings(epochs, epochs), **options)


def quick(graph: Graph, seeds: list[int], memory: int = 2**28) -> tuple[Tensor, list[Any]]:
    grid = [replace(POINT, weight_decay=decay, dropout=drop) for decay, drop in ((0.001, 0.5), (0.5, 0.2))]
    found = train_gcn(graph, seeds, 10, memory=memory, grid=grid)
    return torch.stack([one.scores for one in found]), [one.chosen for one in found]


def test_a_model_does_not_depend_on_the_rest_of_its_stack(small_mixed: Graph) -> None:
    together, chosen = quick(small_mixed, [5, 6])
    apart, chosen_apart = quick(small_mixed, [5, 6], memory=1)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    assert chosen == chosen_apart
    assert together.shape == (2, 3, 100, 5)
    assert not torch.equal(together[0], together[1])


def test_test_labels_are_not_used(small_mixed: Graph) -> None:
    graph = mixed_graph(100, words=60, splits=1)
    assert graph.labels is not None
    assert graph.test_mask is not None
    hidden = graph.test_mask[:, 0]
    turned = replace(graph, labels=torch.where(hidden, (graph.labels + 1) % 5, graph.labels))
    assert torch.equal(quick(graph, [0])[0], quick(turned, [0])[0])


def test_gcn_learns(small_mixed: Graph) -> None:
    (found,) = train_gcn(small_mixed, [0], epochs=60)
    assert small_mixed.test_mask is not None
    right = (found.scores.argmax(dim=-1) == small_mixed.labels) & small_mixed.test_mask.t()
    assert float(right.sum() / small_mixed.test_mask.sum()) > 0.5


def test_stacks_in_several_threads_equal_those_of_one_thread(small_mixed: Graph) -> None:
    kept, before = {}, torch.get_num_threads()
    for threads in (1, 3):
        progress: list[float] = []
        torch.set_num_threads(threads)
        try:
            kept[threads] = train_gcn(small_mixed, [0, 1], 52, memory=1, watch=progress.append)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        assert progress == sorted(progress)
        assert progress[-1] == pytest.approx(1.0)
    for one, other in zip(kept[1], kept[3], strict=True):
        torch.testing.assert_close(one.scores, other.scores)
        assert one.chosen == other.chosen


@pytest.mark.parametrize("many", [False, True])
def test_a_sparse_product_is_the_dense_one(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr("h3gnn.baselines.layers.MANY_ENTRIES", 0)
        monkeypatch.setattr("h3gnn.baselines.layers.BLOCK_COLUMNS", 3)
    draw = torch.Generator().manual_seed(0)
    matrix = torch.rand(6, 9, generator=draw) * (torch.rand(6, 9, generator=draw) < 0.3)
    matrix[2] = 0
    values = torch.randn(9, 2, 4, generator=draw, requires_grad=True)
    product = sparse_matrix(matrix) @ values
    expected = torch.einsum("ij,jmc->imc", matrix, values)
    torch.testing.assert_close(product, expected)
    slope = torch.randn(6, 2, 4, generator=draw)
    (own,), (theirs,) = (torch.autograd.grad(one, values, slope) for one in (product, expected))
    torch.testing.assert_close(own, theirs)


def test_h2gcn_gives_the_same_logits_if_it_classifies_before_propagation(small_mixed: Graph) -> None:
    stack = stack_on(H2GCN, small_mixed)
    nothing = Noise([replace(one, point=replace(POINT, dropout=0.0)) for one in MEMBERS], CPU)
    torch.testing.assert_close(stack.logits(None), stack.logits(nothing))


def test_factors_scale_rate_and_decay_of_a_tensor() -> None:
    points = [GridPoint(4, 0.0, 0.1, 0.02), GridPoint(4, 0.0, 0.01, 0.5)]
    weights = Weights([Member(7, 0, point) for point in points], CPU)
    weights.glorot("map", 3, 4)
    weights.constant("steps", torch.tensor([[0.1, 0.2, 0.7]]), rate=0.5, decay=0.0)
    weights.zeros("bias", 4, decay=3.0)
    names = list(weights.tensors)
    alone = [{name: weights[name][:, model].detach().clone() for name in names} for model in range(2)]
    for model in alone:
        for tensor in model.values():
            tensor.requires_grad_()
    wide = stacked_adam(weights)
    for _ in range(5):
        torch.stack([(weights[name] - 1).pow(4).sum() for name in names]).sum().backward()  # type: ignore[no-untyped-call]
        wide.step()
    for place, (model, point) in enumerate(zip(alone, points, strict=True)):
        for name, tensor in model.items():
            rate, decay = weights.factors[name]
            adam = torch.optim.Adam(
                [tensor], lr=point.learning_rate * rate, weight_decay=point.weight_decay * decay
            )
            for _ in range(5):
                minimize((tensor - 1).pow(4).sum(), adam)
            torch.testing.assert_close(weights[name][:, place], tensor, msg=name)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    weights = Weights([MEMBERS[0], *MEMBERS], CPU)
    weights.uniform("map", 50, 4, bound=0.1)
    assert torch.equal(weights["map"][:, 0], weights["map"][:, 1])
    assert not torch.equal(weights["map"][:, 0], weights["map"][:, 2])
    assert 0.09 < float(weights["map"].detach().abs().max()) < 0.1001


@pytest.mark.parametrize("norm", ["none", "unit"])
def test_sage_is_pygs_sage(small_mixed: Graph, norm: str) -> None:
    from torch_geometric.nn import SAGEConv

    stack = stack_on(SAGE, small_mixed, norm=norm, scale_features="none")
    weights = weights_of(stack, 1)
    hidden = small_mixed.dense_features()
    for layer in range(2):
        convolution = SAGEConv(hidden.shape[1], 8)
        near, itself = torch.split(weights[f"{layer}"], 8, dim=1)
        convolution.lin_l.weight.data, convolution.lin_r.weight.data = near.t(), itself.t()
        convolution.lin_l.bias.data = weights[f"{layer} bias"][0]
        hidden = convolution(hidden, small_mixed.edge_index).relu()
        hidden = torch.nn.functional.normalize(hidden) if norm == "unit" else hidden
    expected = hidden @ weights["classify"] + weights["classify bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_is_torchs() -> None:
    graph = check_graph(torch.eye(6), torch.tensor([[0, 1], [1, 0]]), labels=[0, 1, 0, 1, 0, 1])
    stack = stack_on(SAGE, graph, norm="batch")
    assert isinstance(stack, SAGE)
    layers = [torch.nn.BatchNorm1d(8) for _ in MEMBERS]
    with torch.no_grad():
        stack.weights["0 scale"].copy_(torch.linspace(0.5, 2, 16).view(1, 2, 8))
        stack.weights["0 shift"].copy_(torch.linspace(-1, 1, 16).view(1, 2, 8))
    for model, layer in enumerate(layers):
        layer.weight.data, layer.bias.data = (
            weights_of(stack, model)[f"0 {part}"][0] for part in ("scale", "shift")
        )
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        x = torch.randn(6, 2, 8, generator=generator) * (step + 1)
        found = stack.batch_norm(x, 0, training=step < 3)
        for model, layer in enumerate(layers):
            layer.train(step < 3)
            torch.testing.assert_close(found[:, model], layer(x[:, model]))


def test_noise_at_another_rate_has_the_same_random_numbers() -> None:
    values = torch.ones(1000, 2, 1)
    some, more = (Noise(MEMBERS, CPU).at(rate).drop(values) for rate in (0.2, 0.6))
    assert bool(((more > 0) <= (some > 0)).all())
    torch.testing.assert_close(more.mean(), torch.tensor(1.0), rtol=0.1, atol=0)
    assert torch.equal(Noise(MEMBERS, CPU).at(0.5).drop(values), Noise(MEMBERS, CPU).drop(values))
