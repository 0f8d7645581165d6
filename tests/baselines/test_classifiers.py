"""Stacked classifiers against PyG's layers, and against answers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classics import GAT, GCN
from h3gnn.baselines.heterophilous import H2GCN
from h3gnn.baselines.layers import Features, adjacency, sparse_matrix, two_hop_adjacency
from h3gnn.baselines.stacks import GridPoint, Member, Noise
from h3gnn.baselines.supervised import Classifier, ClassifierSettings, Ground, predict
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects

CPU = torch.device("cpu")
POINT = GridPoint(width=16, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]


def stack_on(kind: type[Classifier], graph: Graph) -> Classifier:
    ground = Ground(
        Features(graph.features, CPU), graph.num_classes, kind.matrices(graph, ClassifierSettings())
    )
    stack = kind(ground, MEMBERS, CPU)
    for name, tensor in stack.weights.tensors.items():
        if name.endswith("bias"):
            torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(len(name)))
    return stack


def own(stack: Classifier, model: int) -> dict[str, Tensor]:
    return {name: tensor[:, model].detach() for name, tensor in stack.weights.tensors.items()}


def test_gcn_is_pygs_gcn(small_mixed: Graph) -> None:
    from torch_geometric.nn import GCNConv

    stack = stack_on(GCN, small_mixed)
    for model in range(2):
        weights = own(stack, model)
        first, second = GCNConv(60, 16), GCNConv(16, small_mixed.num_classes)
        for layer, name in ((first, "first"), (second, "second")):
            layer.lin.weight.data, layer.bias.data = weights[name].t(), weights[f"{name} bias"][0]
        hidden = first(small_mixed.dense_features(), small_mixed.edge_index).relu()
        expected = second(hidden, small_mixed.edge_index)
        torch.testing.assert_close(stack.logits(None)[:, model], expected, rtol=1e-4, atol=1e-5)


def test_gat_is_pygs_gat(small_mixed: Graph) -> None:
    from torch_geometric.nn import GATConv

    stack = stack_on(GAT, small_mixed)
    for model in range(2):
        weights = own(stack, model)
        first, second = GATConv(60, 2, heads=8), GATConv(16, small_mixed.num_classes)
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
    stack = stack_on(H2GCN, path_graph)
    weights = own(stack, 1)
    near, apart = torch.zeros(5, 5), torch.zeros(5, 5)
    for i in range(4):
        near[i, i + 1] = near[i + 1, i] = 1
    for i in range(3):
        apart[i, i + 2] = apart[i + 2, i] = 1
    near, apart = (a / (a.sum(1)[:, None] * a.sum(0)[None]).sqrt() for a in (near, apart))
    ego = weights["embed"].relu()  # the features are one-hot
    once = torch.cat([near @ ego, apart @ ego], dim=1)
    twice = torch.cat([near @ once, apart @ once], dim=1)
    expected = torch.cat([ego, once, twice], dim=1) @ weights["classify"] + weights["bias"]
    torch.testing.assert_close(stack.logits(None)[:, 1], expected)


def test_hubs_make_h2gcn_give_up(path_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3gnn.baselines.layers.TWO_HOP_LIMIT", 3)
    with rejects("too-many-two-hop-paths"):
        H2GCN.on(path_graph, CPU, ClassifierSettings())


@pytest.mark.parametrize("sparse", [True, False])
def test_dropped_features_keep_their_mean_and_follow_the_seed(sparse: bool) -> None:
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


def quick(graph: Graph, seeds: list[int], memory: int = 2**28) -> tuple[Tensor, list[Any]]:
    grid = [replace(POINT, weight_decay=decay, dropout=drop) for decay, drop in ((0.001, 0.5), (0.5, 0.2))]
    found = predict(
        GCN, graph, seeds, device=CPU, memory=memory, grid=grid, settings=ClassifierSettings(10, 10)
    )
    return torch.stack([one.scores for one in found]), [one.chosen for one in found]


def test_a_model_does_not_depend_on_its_neighbours_in_the_stack(small_mixed: Graph) -> None:
    together, chosen = quick(small_mixed, [5, 6])
    apart, chosen_apart = quick(small_mixed, [5, 6], memory=1)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    assert chosen == chosen_apart
    assert together.shape == (2, 3, 100, 5)
    assert not torch.equal(together[0], together[1])


def test_test_labels_are_not_looked_at(small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    assert small_mixed.test_mask is not None
    one_split = replace(
        small_mixed,
        train_mask=small_mixed.train_mask[:, :1] if small_mixed.train_mask is not None else None,
        val_mask=small_mixed.val_mask[:, :1] if small_mixed.val_mask is not None else None,
        test_mask=small_mixed.test_mask[:, :1],
    )
    hidden = small_mixed.test_mask[:, 0]
    turned = replace(one_split, labels=torch.where(hidden, (small_mixed.labels + 1) % 5, small_mixed.labels))
    assert torch.equal(quick(one_split, [0])[0], quick(turned, [0])[0])


def test_supervision_learns(small_mixed: Graph) -> None:
    (found,) = predict(
        GCN, small_mixed, [0], device=CPU, memory=2**28, grid=[POINT], settings=ClassifierSettings(60)
    )
    assert small_mixed.test_mask is not None
    right = (found.scores.argmax(dim=-1) == small_mixed.labels) & small_mixed.test_mask.t()
    assert float(right.sum() / small_mixed.test_mask.sum()) > 0.5


def test_stacks_that_train_beside_one_another_are_those_of_one_thread(small_mixed: Graph) -> None:
    settings = ClassifierSettings(epochs=60, patience=60)
    kept, before = {}, torch.get_num_threads()
    for threads in (1, 3):
        told: list[float] = []
        torch.set_num_threads(threads)
        try:
            kept[threads] = predict(
                GCN, small_mixed, [0, 1], device=CPU, memory=1, settings=settings, watch=told.append
            )
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        assert told == sorted(told)
        assert told[-1] == pytest.approx(1.0)
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


def test_h2gcn_says_the_same_whether_it_classifies_first_or_last(small_mixed: Graph) -> None:
    stack = stack_on(H2GCN, small_mixed)
    nothing = Noise([replace(one, point=replace(POINT, dropout=0.0)) for one in MEMBERS], CPU)
    torch.testing.assert_close(stack.logits(None), stack.logits(nothing))
