"""Structural distances by hand and by loops, layers and walks of struc2vec, and WRGAT."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.structure import (
    WRGAT,
    Struc2Vec,
    compressed,
    layer_changes,
    structural_distances,
    warped,
)
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, embed_on, model_on, path_matrix, stack_on, weights_of


def graph_of(edges: list[tuple[int, int]], nodes: int) -> Graph:
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    return check_graph(torch.eye(nodes), index, labels=[node % 2 for node in range(nodes)])


def slow_warp(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> float:
    """Compute dynamic time warping by its recursion."""

    @cache
    def best(i: int, j: int) -> float:
        (a, often), (b, other) = one[i], two[j]
        here = (max(a, b) + 0.5) / (min(a, b) + 0.5) - 1
        here *= max(often, other)
        before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
        ways = [best(*place) for place in before if min(place) >= 0]
        return here + (min(ways) if ways else 0.0)

    return best(len(one) - 1, len(two) - 1)


def test_warping_is_its_recursion() -> None:
    generator = np.random.default_rng(1)
    degrees = np.array([1, 2, 5, 9])
    counts = generator.integers(0, 3, (12, 4))
    counts[counts.sum(1) == 0, 0] = 1
    sequences = compressed(degrees, counts)
    lists = [[(int(d), int(c)) for d, c in zip(degrees, row, strict=True) if c] for row in counts]
    one, two = torch.arange(12).repeat_interleave(12), torch.arange(12).repeat(12)
    found = warped(*(tuple(part[ends] for part in sequences) for ends in (one, two)))  # type: ignore[arg-type]
    expected = [slow_warp(lists[i], lists[j]) for i, j in zip(one.tolist(), two.tolist(), strict=True)]
    np.testing.assert_allclose(found.numpy(), expected)
    assert bool((found.view(12, 12).diagonal() == 0).all())


def test_distances_of_a_path_by_hand(path_graph: Graph) -> None:
    """Nodes 0 and 1 of a path of five: degrees 1 and 2, rings (2) and (1, 2), then (2) and (2)."""
    found = structural_distances(path_graph, 3, CPU)
    distance = {tuple(pair): found.distances[:, i].tolist() for i, pair in enumerate(found.pairs.tolist())}
    assert len(distance) == 9  # all pairs but one: three steps along the order of degrees
    ratio = 2.5 / 1.5 - 1
    for pair, values in distance.items():
        if pair == (0, 1):
            np.testing.assert_allclose(values, [ratio, 2 * ratio, 2 * ratio])
        if pair == (1, 3):
            assert values == [0, 0, 0]
        if pair == (0, 2):  # (2), and (2, 2): nothing but a count; then (2), and (1, 1)
            np.testing.assert_allclose(values, [ratio, ratio, 3 * ratio])


def test_isomorphic_nodes_have_distance_zero() -> None:
    """Two copies of a triangle with a tail, with permuted node numbers."""
    shape = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)]
    name = [7, 2, 9, 0, 5, 3, 8, 1, 6, 4]
    graph = graph_of([(name[a + s], name[b + s]) for s in (0, 5) for a, b in shape], 10)
    found = structural_distances(graph, 4, CPU)
    twins = {tuple(sorted((name[i], name[i + 5]))) for i in range(5)}
    twins.add(tuple(sorted((name[0], name[1]))))
    for pair, values in zip(found.pairs.tolist(), found.distances.t(), strict=True):
        if tuple(pair) in twins:
            assert values[torch.isfinite(values)].tolist() == [0.0] * int(torch.isfinite(values).sum())
        elif torch.isfinite(values[1]):
            assert float(values[1]) >= 0
    assert any(tuple(pair) in twins for pair in found.pairs.tolist())


def test_rows_of_a_layer_sum_to_one_and_keep_the_nearest(small_mixed: Graph) -> None:
    found = structural_distances(small_mixed, 3, CPU)
    for matrix in (found.layer(1), found.layer(1, nearest=3)):
        dense = matrix.csr().to_dense()
        torch.testing.assert_close(dense.sum(1), torch.ones(100))
    far = torch.full((100, 100), torch.inf, dtype=torch.float64)
    for (u, v), value in zip(found.pairs.tolist(), found.distances[1].tolist(), strict=True):
        far[u, v] = far[v, u] = value
    kept = found.layer(1, nearest=3).csr().to_dense() > 0
    assert kept.sum(1).tolist() == [3] * 100
    for node in range(100):
        assert far[node][kept[node]].max() <= far[node][~kept[node]].min() + 1e-12


def test_layer_changes_are_the_sum_over_single_changes(small_mixed: Graph) -> None:
    found = structural_distances(small_mixed, 3, CPU)
    chances = layer_changes(found, 0.3)
    torch.testing.assert_close(chances.sum(2), torch.ones(100, 3, dtype=torch.float64))
    change = (torch.eye(3) - 0.3 * torch.linalg.inv(chances)) / 0.7
    total, power = torch.zeros_like(chances), torch.eye(3, dtype=torch.float64).expand(100, 3, 3)
    for _ in range(200):
        total, power = total + 0.3 * power, 0.7 * power @ change
    torch.testing.assert_close(total, chances)
    assert bool((change[:, 0, 2].abs() < 1e-9).all())
    up = change[:, 0, 1]
    above = torch.expm1(up / (1 - up)) + 1 - math.e  # Γ, from its weight
    torch.testing.assert_close(above, above.round(), atol=1e-6, rtol=0)


def test_walks_connect_similar_nodes_of_two_stars() -> None:
    """Hubs 0 and 6 have five leaves each; a walk from a hub reaches the other, without an edge."""
    graph = graph_of([(hub, hub + leaf) for hub in (0, 6) for leaf in range(1, 6)], 12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_on(Struc2Vec, graph, width=4, walk_length=30, layers=3)
        walks = model.walks(torch.tensor([0] * 20 + [1] * 20))
    hubs = (walks == 0) | (walks == 6)
    assert float(hubs[:20, 1].float().mean()) > 0.9
    assert float(hubs[20:, 1].float().mean()) < 0.1


def test_structural_systems_on_tiny_graphs() -> None:
    for graph in (graph_of([], 3), graph_of([(0, 1)], 2), graph_of([], 1)):
        rows = embed_on(Struc2Vec, graph, width=4, epochs=2, walk_length=5)
        assert rows.shape == (graph.num_nodes, 4)
        assert stack_on(WRGAT, graph).logits(None).isfinite().all()


def test_wrgat_by_hand(path_graph: Graph) -> None:
    stack = stack_on(WRGAT, path_graph, layers=2, nearest=2, near_weight=0.7, scale_features="none")
    found = structural_distances(path_graph, 2, CPU)
    layers = [found.layer(k, 2).csr().to_dense() for k in range(2)]
    relations = [0.7 * path_matrix(), *layers]  # [sender, receiver]
    own = weights_of(stack, 1)

    def layer(x: Tensor, name: str) -> Tensor:
        mine, *maps = (x @ own[name]).chunk(4, dim=1)
        rows = mine + own[f"{name} bias"]
        for r, (weights, values) in enumerate(zip(relations, maps, strict=True)):
            for v in range(5):
                senders = weights[:, v].nonzero().flatten()
                if not senders.numel():
                    continue
                score = values[senders] @ own[f"{name} from"][r] + values[v] @ own[f"{name} to"][r]
                share = functional.leaky_relu(score, 0.2).softmax(0)
                rows[v] = rows[v] + (weights[senders, v] * share) @ values[senders] / senders.numel()
        return rows

    expected = layer(layer(torch.eye(5), "first").relu(), "second")
    torch.testing.assert_close(stack.logits(None)[:, 1], expected)


def test_wrgat_connects_distant_nodes_of_similar_structure() -> None:
    """In two stars, a change of one hub's features reaches the other, unless structure is left out."""
    edges = [(hub, hub + leaf) for hub in (0, 6) for leaf in range(1, 6)]
    plain, changed = graph_of(edges, 12), graph_of(edges, 12)
    changed.features[0] = 3.0
    for layers in (0, 3):
        stacks = (stack_on(WRGAT, graph, layers=layers, scale_features="none") for graph in (plain, changed))
        before, after = (stack.logits(None) for stack in stacks)
        change = (after - before).detach().abs()[6].max()
        assert (float(change) > 1e-6) == (layers > 0)
