"""Systems that mask nodes or edges: their losses by plain loops, and what must not leak past a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.baselines.attention import Attention, weighted_sum
from h3gnn.baselines.embedder import embed, train
from h3gnn.baselines.graphmae import GraphMAE, GraphMAESettings
from h3gnn.baselines.layers import SparseMatrix, adjacency
from h3gnn.baselines.registry import systems
from h3gnn.errors import InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
NAMES = ("graphmae",)
QUIET = GraphMAESettings(width=8, heads=2, epochs=3, feature_drop=0.0, attention_drop=0.0)


def small(name: str, **changes: Any) -> Any:
    settings = systems()[name].with_settings({"width": 8, "epochs": 12, **changes})
    return replace(settings, heads=2) if hasattr(settings, "heads") else settings


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats_and_the_callers_generator_is_left_alone(name: str, small_mixed: Graph) -> None:
    kind, settings = systems()[name].kind, small(name)
    state = torch.get_rng_state()
    one, again, other = (embed(kind, small_mixed, seed, CPU, settings) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(one) == 100
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_one_pair_and_a_node_without_neighbours(name: str) -> None:
    graph = check_graph(torch.eye(3), torch.tensor([[0, 1], [1, 0]]))
    assert np.isfinite(embed(systems()[name].kind, graph, 0, CPU, small(name))).all()


def test_nodes_can_be_said_without_edges() -> None:
    graph = check_graph(torch.eye(3), torch.empty(2, 0, dtype=torch.int64))
    assert embed(GraphMAE, graph, 0, CPU, QUIET).shape == (3, 8)


def looped_attention(
    layer: Attention, hidden: np.ndarray[Any, Any], edges: SparseMatrix
) -> np.ndarray[Any, Any]:
    """Graph attention, node by node and head by head."""
    weight, bias = (part.detach().numpy().astype(float) for part in (layer.weight, layer.bias))
    sender, hearer = (end.detach().numpy()[0].astype(float) for end in layer.ends)
    heads, channels = sender.shape
    product = (hidden @ weight).reshape(-1, heads, channels)
    out = np.zeros_like(product)
    for v in range(len(hidden)):
        around = edges.cols[edges.rows == v].tolist()
        for k in range(heads):
            score = np.array([product[u, k] @ sender[k] + product[v, k] @ hearer[k] for u in around])
            share = np.exp(np.where(score > 0, score, 0.2 * score))
            out[v, k] = sum(s * product[u, k] for s, u in zip(share / share.sum(), around, strict=True))
    rows: np.ndarray[Any, Any] = out.reshape(len(hidden), -1) + bias
    return rows


def test_attention_by_loops_and_both_ways_through_it(path_graph: Graph) -> None:
    torch.manual_seed(1)
    edges, hidden = adjacency(path_graph, self_loops=True), torch.randn(5, 4)
    layer = Attention(4, 6, 2, 0.0)
    expected = looped_attention(layer, hidden.numpy().astype(float), edges)
    np.testing.assert_allclose(layer(hidden @ layer.weight, edges).detach().numpy(), expected, atol=1e-5)
    single = Attention(4, 6, 1, 0.0)
    wanted = torch.tensor([3, 0])
    through, first = single(hidden @ single.weight, edges)[wanted], single.averaged(hidden, edges, wanted)
    torch.testing.assert_close(first, through)
    slopes = [torch.autograd.grad((rows**2).sum(), [*single.parameters()]) for rows in (first, through)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_attention_is_that_of_differences(path_graph: Graph) -> None:
    entries = adjacency(path_graph, self_loops=True)
    edges = entries.with_values(entries.values.double())
    hidden = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(13, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, s: weighted_sum(h, s, edges), (hidden, shares))


def test_graphmae_error_by_loops(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = GraphMAE(path_graph, QUIET, CPU)
    code, masked = torch.randn(5, 8), torch.tensor([4, 1])
    said = looped_attention(model.decoder, code.numpy().astype(float), model.edges)
    x = path_graph.features.numpy()
    errors = [
        (1 - said[v] @ x[v] / np.linalg.norm(said[v]) / np.linalg.norm(x[v])) ** 3 for v in masked.tolist()
    ]
    assert float(model.error(code, masked).detach()) == pytest.approx(np.mean(errors), abs=1e-5)


def test_what_is_masked_does_not_reach_the_code_or_the_decoder(path_graph: Graph) -> None:
    """With the token alone, other features of a masked node change nothing but the target."""
    masked = torch.tensor([1, 3])
    changed = path_graph.features.clone()
    changed[masked] = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    codes, left = [], []
    for features in (path_graph.features, changed):
        torch.manual_seed(0)
        graph = check_graph(features, path_graph.edge_index)
        model = GraphMAE(graph, replace(QUIET, replace_ratio=0.0, scale_features="none"), CPU)
        codes.append(model.encode_masked(masked))
        left.append(model.embedding())
    torch.testing.assert_close(*codes)
    assert not torch.allclose(left[0], left[1])


def test_replaced_nodes_show_another_nodes_features(path_graph: Graph) -> None:
    """All masked nodes are replaced: the token has no gradient, and what is shown are rows of the graph."""
    torch.manual_seed(0)
    model = GraphMAE(path_graph, replace(QUIET, replace_ratio=1.0), CPU)
    model.loss(0).backward()  # type: ignore[no-untyped-call]
    assert model.token.grad is not None
    assert not model.token.grad.any()
    model = GraphMAE(path_graph, replace(QUIET, replace_ratio=0.0), CPU)
    model.loss(0).backward()  # type: ignore[no-untyped-call]
    assert model.token.grad is not None
    assert model.token.grad.any()


def test_the_rate_falls_as_half_a_cosine_and_the_loss_with_it(small_mixed: Graph) -> None:
    settings = replace(QUIET, epochs=40, learning_rate=0.01)
    model = train(GraphMAE, small_mixed, 0, CPU, settings)
    assert model.optimiser.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    torch.manual_seed(5)
    trained = float(model.loss(0).detach())
    torch.manual_seed(5)
    start = float(GraphMAE(small_mixed, settings, CPU).loss(0).detach())
    assert trained < 0.8 * start


def test_heads_must_share_the_width(path_graph: Graph) -> None:
    with pytest.raises(InputError, match="do not divide the width"):
        GraphMAE(path_graph, replace(QUIET, heads=3), CPU)
