from __future__ import annotations

import pytest
import torch

from h3gnn.encoder.support import (
    START_BOUNDS,
    NewEdges,
    Support,
    attach_nodes,
    build_support,
    cut_around,
    find_entries,
)

PATH = torch.tensor([[0, 1], [1, 2]])  # 0 → 1 → 2


def entries(support: Support) -> dict[tuple[int, int], float]:
    """(receiver, sender) -> start value."""
    pairs = zip(support.pattern.rows.tolist(), support.pattern.cols.tolist(), strict=True)
    return dict(zip(pairs, support.start.tolist(), strict=True))


def test_start_values_are_the_entries_of_the_normalised_adjacency() -> None:
    # With self-loops the degrees are 2, 3, 2.
    start = entries(build_support(PATH, 3))
    assert set(start) == {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (1, 2), (2, 1)}
    assert [start[pair] for pair in ((0, 0), (1, 1), (0, 1))] == pytest.approx([1 / 2, 1 / 3, 1 / 6**0.5])
    star = torch.tensor([[1, 2], [0, 0]])
    start = entries(build_support(star, 3, edge_weight=torch.tensor([3.0, 1.0]), self_loops=False))
    assert [start[0, 1], start[0, 2]] == pytest.approx([3 / (4 * 3) ** 0.5, 1 / (4 * 1) ** 0.5])
    support = build_support(PATH, 3, start=0.7, normalize=True)
    assert support.start.tolist() == pytest.approx([0.7] * 7)
    torch.testing.assert_close(support.factor, build_support(PATH, 3).start)


def test_direction_and_self_loops() -> None:
    assert set(entries(build_support(PATH, 3, undirected=False, self_loops=False))) == {(1, 0), (2, 1)}
    loops = torch.tensor([[0, 0, 2], [0, 1, 2]])  # self-loops of the data are removed
    assert set(entries(build_support(loops, 3, self_loops=False))) == {(0, 1), (1, 0)}


def test_initial_weights_are_bounded_on_request_and_derived_supports_alike() -> None:
    # Two nodes that have only each other: Ã is 1 there, and logit(1) is infinite.
    pair = torch.tensor([[0], [1]])
    assert build_support(pair, 2, self_loops=False).start.tolist() == pytest.approx([START_BOUNDS[1]] * 2)
    support = build_support(pair, 2, self_loops=False, bounded=False)
    joining = NewEdges.to_nearest(torch.tensor([[0]]), 2)
    larger = attach_nodes(support, joining, undirected=True, self_loops=False)
    for one in (support, support.to(torch.device("cpu")), cut_around(larger, torch.tensor([0]), 1)[0]):
        assert set(one.start.tolist()) == {1.0}


def test_find_entries_maps_edges_by_node() -> None:
    known = build_support(PATH, 3, self_loops=False).pattern
    # The new graph has node 2, node 1 and a new node; the edge 2 – 1 is known, that to the new node is not.
    wanted = build_support(torch.tensor([[0, 1], [1, 2]]), 3, self_loops=False).pattern
    position, found = find_entries(known, wanted, torch.tensor([2, 1, -1]))
    pairs = list(zip(wanted.rows.tolist(), wanted.cols.tolist(), strict=True))
    assert {pair for pair, there in zip(pairs, found.tolist(), strict=True) if there} == {(0, 1), (1, 0)}
    at = position[pairs.index((0, 1))]
    assert (int(known.rows[at]), int(known.cols[at])) == (2, 1)


def test_attached_nodes_receive_but_do_not_send() -> None:
    support = build_support(PATH, 3)
    edges = NewEdges.to_nearest(torch.tensor([[0, 1]]), 3)
    larger = attach_nodes(support, edges, undirected=True, self_loops=True)
    start = entries(larger)
    assert {pair for pair in start if 3 in pair} == {(3, 0), (3, 1), (3, 3)}
    assert abs(start[3, 0] - 1 / (3 * 3) ** 0.5) < 1e-6  # node 0 has a loop, a neighbour and the new node
    assert {pair: start[pair] for pair in entries(support)} == entries(support)
