from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.encoder import build_support
from h3gnn.encoder.sparse import row_pointers
from h3gnn.training.sampling import (
    ClusterSampler,
    NeighbourSampler,
    Sample,
    cluster_batches,
    find_clusters,
    neighbors_per_hop,
    node_batches,
)
from tests.rejects import rejects

# sources: of 0: 1, 2, 3, 4; of 1: 0; of 2: 3; of 3: none; of 4: 0, 2
CROW = torch.tensor([0, 4, 5, 6, 6, 8])
COLS = torch.tensor([1, 2, 3, 4, 0, 3, 0, 2])


def edges_of(sample: Sample, hop: int) -> list[tuple[int, int, int]]:
    """(target, source, entry) in the numbers of the whole graph."""
    found = sample.hops[hop]
    targets = torch.repeat_interleave(torch.arange(len(found.crow) - 1), found.crow.diff())
    return sorted(
        zip(
            sample.nodes[targets].tolist(),
            sample.nodes[found.cols].tolist(),
            found.entries.tolist(),
            strict=True,
        )
    )


def test_all_neighbours_by_hand() -> None:
    sampler = NeighbourSampler(CROW, COLS, [-1, -1])
    sample = sampler.sample(torch.tensor([2, 1]))
    assert sample.nodes.tolist() == [2, 1, 0, 3, 4]
    assert sample.counts == [2, 4, 5]
    assert edges_of(sample, 0) == [(1, 0, 4), (2, 3, 5)]
    assert edges_of(sample, 1) == [(0, 1, 0), (0, 2, 1), (0, 3, 2), (0, 4, 3), (1, 0, 4), (2, 3, 5)]
    again = sampler.sample(torch.tensor([4]))  # independent of the batch before
    assert again.nodes.tolist() == [4, 0, 2, 1, 3]
    assert edges_of(again, 0) == [(4, 0, 6), (4, 2, 7)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_sample_is_a_thinned_graph_whatever_the_batch(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 12))
    pairs = data.draw(st.sets(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=60))
    ordered = sorted(pairs)
    rows = torch.tensor([p[0] for p in ordered], dtype=torch.int64)
    cols = torch.tensor([p[1] for p in ordered], dtype=torch.int32)
    crow = row_pointers(rows, nodes)
    num_neighbors = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    seeds = torch.tensor(data.draw(st.permutations(range(nodes)))[: data.draw(st.integers(1, nodes))])
    sampler = NeighbourSampler(crow, cols, num_neighbors)
    sampler.begin(data.draw(st.integers(0, 2**62)))
    sample = sampler.sample(seeds)
    assert len(set(sample.nodes.tolist())) == len(sample.nodes) == sample.counts[-1]
    for hop, fan in enumerate(num_neighbors):
        found = edges_of(sample, hop)
        assert all(ordered[entry] == (target, source) for target, source, entry in found)
        assert len(set(found)) == len(found)
        received = Counter(target for target, _, _ in found)
        reached = sample.nodes[: sample.counts[hop]]
        assert all(received[v] == min(fan, int(crow[v + 1] - crow[v])) for v in reached.tolist())
        assert max(sample.hops[hop].cols.tolist(), default=-1) < sample.counts[hop + 1]
    alone = sampler.sample(seeds[:1])  # the first seed has the same neighbours alone
    assert edges_of(alone, 0) == [edge for edge in edges_of(sample, 0) if edge[0] == seeds[0]]
    last = len(num_neighbors) - 1
    assert set(edges_of(alone, last)) <= set(edges_of(sample, last))


def test_every_subset_of_neighbours_is_equally_likely() -> None:
    nodes, rounds = 400, 10
    sampler = NeighbourSampler(torch.arange(0, 5 * nodes + 1, 5), torch.arange(5).repeat(nodes), [2])
    drawn: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        sampler.begin(seed)
        entries = sampler.sample(torch.arange(nodes)).hops[0].entries.view(nodes, 2)
        drawn.update(map(tuple, (entries % 5).tolist()))
    assert len(drawn) == 10
    assert sum((count - 400) ** 2 / 400 for count in drawn.values()) < 27.9  # χ², 9 degrees, p = 0.001


def test_a_cluster_batch_is_the_induced_subgraph() -> None:
    sampler = ClusterSampler(CROW, COLS, 2)
    sampler.begin(0, torch.tensor([4, 0, 2]))
    sample = sampler.sample(torch.tensor([4, 0, 2]))
    assert sample.counts == [3, 3, 3]
    assert edges_of(sample, 1) == [(0, 2, 1), (0, 4, 3), (4, 0, 6), (4, 2, 7)]
    share = sampler.sample(torch.tensor([2]))  # a share of the batch uses edges within the batch only
    assert edges_of(share, 0) == []


def test_clusters_cut_few_edges_and_batches_cover_every_node_once() -> None:
    pytest.importorskip("pymetis")
    side, blocks = 10, 6
    ends = [(b * side + i, b * side + j) for b in range(blocks) for i in range(side) for j in range(i)] + [
        (b * side, b * side - 1) for b in range(1, blocks)
    ]
    support = build_support(torch.tensor(ends).T, side * blocks, self_loops=True)
    clusters = find_clusters(support.pattern.crow.numpy(), support.pattern.cols.numpy(), side)
    assert sorted(np.concatenate(clusters).tolist()) == list(range(side * blocks))
    of = np.empty(side * blocks, int)
    for number, cluster in enumerate(clusters):
        of[cluster] = number
    assert sum(of[u] != of[v] for u, v in ends) <= 2 * blocks
    generator = torch.Generator().manual_seed(0)
    first, second = cluster_batches(clusters, generator), cluster_batches(clusters, generator)
    assert sorted(np.concatenate(first).tolist()) == list(range(side * blocks))
    assert [b.tolist() for b in first] != [b.tolist() for b in second]


def test_clusters_without_pymetis_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with rejects("pymetis-missing"):
        find_clusters(CROW.numpy(), COLS.numpy(), 2)


def test_batches_are_even_and_num_neighbors_has_one_number_per_hop() -> None:
    batches = node_batches(10, 4, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in batches] == [4, 3, 3]
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    assert neighbors_per_hop(3, None) == [10, 5, 5]
    assert neighbors_per_hop(2, 7) == [7, 7]
    assert neighbors_per_hop(2, (4, -1)) == [4, -1]


def drawn_plainly(seed: int, node: int, degree: int, count: int) -> list[int]:
    """Floyd's algorithm with hashes, one number at a time, as whole numbers of any length."""

    def mixed(key: int) -> int:
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        key = (key ^ key >> 27) * 0x94D049BB133111EB % 2**64
        return key ^ key >> 31

    start, chosen = mixed((node * 0x9E3779B97F4A7C15 + seed) % 2**64), list[int]()
    for place in range(count):
        limit = degree - count + place + 1
        number = mixed((start + (place + 1) * 0xD1B54A32D192ED03) % 2**64) >> 11
        one = int(number * 2.0**-53 * limit)
        chosen.append(limit - 1 if one in chosen else one)
    return sorted(chosen)


@pytest.mark.parametrize("seed", [0, 7, 2**61 + 5])
def test_sampled_neighbours_are_a_function_of_seed_hop_and_node(seed: int) -> None:
    degrees = [9, 0, 4, 30, 3, 7]
    crow = torch.tensor([0, *degrees]).cumsum(0)
    cols = torch.arange(int(crow[-1]), dtype=torch.int32) % len(degrees)
    sampler = NeighbourSampler(crow, cols, [4, 3])
    sampler.begin(seed)
    sample = sampler.sample(torch.tensor([3, 1, 0]))
    for hop, fan in enumerate([4, 3]):
        found = sample.hops[hop]
        for target, node in enumerate(sample.nodes[: sample.counts[hop]].tolist()):
            received = found.entries[found.crow[target] : found.crow[target + 1]] - crow[node]
            few = degrees[node] <= fan
            wanted = (
                list(range(degrees[node])) if few else drawn_plainly(seed + hop, node, degrees[node], fan)
            )
            assert received.tolist() == wanted


@pytest.mark.parametrize("num_neighbors", [[3], [4, 3], [4, 3, 2], [-1, -1]])
def test_unique_entries_have_both_their_ends(num_neighbors: list[int]) -> None:
    crow = torch.arange(0, 241, 6)  # 6 neighbours of each of 40 nodes
    cols = torch.randint(0, 40, (240,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    sample = NeighbourSampler(crow, cols, num_neighbors).sample(torch.tensor([11, 5, 30]))
    entries, places, (targets, sources) = sample.unique_entries()
    assert len(set(entries.tolist())) == len(entries)
    assert all(entries[place].equal(hop.entries) for place, hop in zip(places, sample.hops, strict=True))
    assert targets.equal(entries // 6)
    assert sources.equal(cols[entries].long())
