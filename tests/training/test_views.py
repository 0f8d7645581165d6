"""The student's view: dropped columns and edges, on the whole graph and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support, build_support
from h3gnn.encoder.noise import Noise, PerNodeNoise, SequentialNoise
from h3gnn.encoder.tokens import Part, Projected
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import Batch, SampledBatches, Source, WholeGraph
from h3gnn.training.distributed import Ranks, rows_in_memory
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import stack_step
from h3gnn.training.sampling import ALL
from h3gnn.training.step import Step
from tests.training.stacks import CPU, HOUSE, batches_of, generators_of, plain_training, whole_graph_of


def stack(columns: int, entries: int, models: int = 2, edge_weights: str = "learned") -> EncoderStack:
    student = EncoderStack(columns, 4, entries, heads=2, models=models, edge_weights=edge_weights)
    student.reset_parameters(generators_of(range(models)), torch.full((entries,), 0.5))
    return student.double()


def step_of(
    source: Source, feature_drop: Any, edge_drop: Any, seeds: Sequence[int] = (1, 2), replace_rate: Any = 0.0
) -> Step:
    rates = {"feature_drop": feature_drop, "edge_drop": edge_drop, "replace_rate": replace_rate}
    training = plain_training(["teacher"] * len(seeds), **rates)
    columns = source.features.shape[1] if isinstance(source, WholeGraph) else source.graph.columns  # type: ignore[attr-defined]
    edge_weights = "learned" if source.whole else "fixed"
    student = stack(columns, source.support.entries, len(seeds), edge_weights)
    return stack_step(student, source, seeds, training, 16)


def ends(batch: Batch, support: Support) -> list[tuple[int, int]]:
    """Return the two ends of each of a batch's edge weights."""
    if batch.part.whole:
        return list(zip(support.pattern.rows.tolist(), support.pattern.cols.tolist(), strict=True))
    found: dict[int, tuple[int, int]] = {}
    for block in batch.part.blocks:
        assert block.weight_of is not None
        pairs = batch.part.nodes[torch.stack([block.rows, block.cols])].t().tolist()
        for weight, (row, col) in zip(block.weight_of.tolist(), pairs, strict=True):
            found[weight] = row, col
    return [found[weight] for weight in range(len(batch.factor))]


def factors(batch: Batch, support: Support, kept: Tensor) -> dict[tuple[int, int], float]:
    """Return what each edge's weight is multiplied with, by its two ends, for one model."""
    return dict(zip(ends(batch, support), kept.tolist(), strict=True))


# Feature columns


def parts(graph: Graph) -> list[tuple[str, Part]]:
    seeds = torch.tensor([7, 3, 50])
    return [
        ("whole, dense", whole_graph_of(graph, "dense").batch_of(seeds).part),
        ("whole, sparse", whole_graph_of(graph, "csr").batch_of(seeds).part),
        ("batch, dense", batches_of(graph, 20, 4).batch_of(seeds).part),
        ("batch, sparse", batches_of(graph, 20, 4, sparse=True).batch_of(seeds).part),
    ]


def test_dropping_rows_of_the_weight_is_dropping_columns_of_the_features(small_mixed: Graph) -> None:
    x = small_mixed.dense_features().double()
    student = stack(x.shape[1], 0)
    draw = torch.Generator().manual_seed(0)
    kept = (torch.rand(2, x.shape[1], generator=draw) < 0.6).double() * torch.tensor([[1.5], [2.5]])
    hidden = torch.rand(2, len(x), generator=draw) < 0.5
    for name, part in parts(small_mixed):
        student.zero_grad()
        part.features.recycle(torch.full_like(student.input.weight, float("nan")))
        projected = [run for run in student.project(part, kept) if isinstance(run, Projected)]
        mask = hidden[:, part.nodes]
        found = [run.masked(mask[:, : run.nodes.shape[1]]) for run in projected]
        torch.cat([run.flatten() for run in found]).sin().sum().backward()  # type: ignore[no-untyped-call]
        weight, token = (
            student.input.weight.detach().clone().requires_grad_(),
            student.input.mask_token.detach().clone().requires_grad_(),
        )
        widths = student.input.widths
        pieces = torch.split(weight, [sum(widths)] if part.whole else [sum(widths[:2]), *widths[2:]], dim=2)
        wanted = []
        for run, piece in zip(projected, pieces, strict=True):
            nodes = part.nodes[: run.nodes.shape[1]]
            seen = torch.where(hidden[:, nodes, None], token, x[nodes]) * kept[:, None, :]
            wanted.append(torch.stack([seen[model] @ piece[model] for model in range(2)]))
        torch.cat([run.flatten() for run in wanted]).sin().sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(found, wanted, msg=name)
        for ours, theirs in (
            (student.input.weight.grad, weight.grad),
            (student.input.mask_token.grad, token.grad),
        ):
            assert theirs is not None
            assert theirs.abs().max() > 0
            torch.testing.assert_close(ours, theirs, msg=name)


def test_columns_are_dropped_at_each_models_rate_and_scaled(small_mixed: Graph) -> None:
    step = step_of(whole_graph_of(small_mixed, "dense"), [0.0, 0.25, 0.8], 0.0, seeds=(1, 2, 3))
    drawn = []
    for _ in range(200):
        kept = step._seen_columns(SequentialNoise(step.generators))
        assert kept is not None
        drawn.append(kept)
    every = torch.stack(drawn)
    assert every.shape == (200, 3, small_mixed.num_features)
    assert (every[:, 0] == 1).all()
    for model, scale in ((1, 1 / 0.75), (2, 5.0)):
        values = every[:, model]
        torch.testing.assert_close(torch.unique(values[values > 0]), torch.tensor([scale]).double())
        assert float(values.mean()) == pytest.approx(1, abs=0.1)
        assert (values == 0).any(dim=0).all()  # no column is always there


def test_all_batches_of_a_step_see_the_same_columns_and_edges_of_a_node(small_mixed: Graph) -> None:
    """As two processes do, each with its share of one batch."""
    source = batches_of(small_mixed, 20, ALL)
    step, noise = step_of(source, 0.5, 0.5), PerNodeNoise([8, 9])
    first, second = (source.batch_of(torch.arange(start, start + 20)) for start in (0, 10))
    columns = [step._seen_columns(noise), step._seen_columns(PerNodeNoise([8, 9]))]
    assert columns[0] is not None
    assert columns[1] is not None
    assert (columns[0] == columns[1]).all()
    assert (columns[0][0] != columns[0][1]).any()
    found = [batch.pairs_kept([0.5, 0.5], noise) for batch in (first, second)]
    seen = []
    for batch, kept in zip((first, second), found, strict=True):
        assert kept is not None
        seen.append([factors(batch, source.support, model) for model in kept[0]])
    for model in range(2):
        common = seen[0][model].keys() & seen[1][model].keys()
        assert len(common) > 50
        assert {seen[0][model][edge] for edge in common} == {0.0, 1.0, 2.0}
        assert all(seen[0][model][edge] == seen[1][model][edge] for edge in common)
    assert seen[0][0] != seen[0][1]
    other = first.pairs_kept([0.5, 0.5], PerNodeNoise([9, 10]))
    assert other is not None
    assert found[0] is not None
    assert (other[0][0] == found[0][0][1]).all()  # a model's seed alone decides
    assert (other[0][0] != found[0][0][0]).any()


# Edges


@pytest.mark.parametrize("self_loops", [True, False])
def test_edges_by_hand(self_loops: bool) -> None:
    support = build_support(HOUSE, 6, self_loops=self_loops)
    batch = WholeGraph(FeatureMatrix(torch.eye(6)), support, 2).batch_of(torch.arange(6))
    edges = [(0, 1), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4)]
    assert list(map(tuple, batch.pairs.T.tolist())) == edges
    found = batch.pairs_kept([0.5, 0.0, 0.75], SequentialNoise(generators_of([1, 2, 3])))
    assert found is not None
    kept, seen = found
    drawn = torch.empty(6, dtype=torch.bool)
    for model, rate in ((0, 0.5), (2, 0.75)):
        drawn.bernoulli_(1 - rate, generator=torch.Generator().manual_seed(1 + model))
        assert (seen[model] == drawn).all()
        assert 0 < int(drawn.sum()) < 6
        by_pair = dict(zip(edges, drawn.tolist(), strict=True))
        for (row, col), factor in factors(batch, support, kept[model]).items():
            pair = (min(row, col), max(row, col))
            assert factor == (1 if row == col else by_pair[pair] / (1 - rate))
    assert (kept[1] == 1).all()
    assert seen[1].all()


def test_both_directions_of_an_edge_are_dropped_together() -> None:
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 3]])
    support = build_support(edge_index, 4, undirected=False, self_loops=False)
    batch = WholeGraph(FeatureMatrix(torch.eye(4)), support, 2).batch_of(torch.arange(4))
    outcomes = set()
    for seed in range(20):
        found = batch.pairs_kept([0.5], SequentialNoise(generators_of([seed])))
        assert found is not None
        kept = factors(batch, support, found[0][0])
        assert kept.keys() == {(1, 0), (0, 1), (2, 1), (3, 2)}
        assert kept[1, 0] == kept[0, 1]
        outcomes.add(tuple(kept.values()))
    assert len(outcomes) == 8


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_edges_drop_in_both_directions_and_loops_never(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, 8))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = data.draw(st.lists(pairs, min_size=1, max_size=15))
    rates = data.draw(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9]), min_size=1, max_size=3))
    support = build_support(torch.tensor(edges).T, nodes, self_loops=data.draw(st.booleans()))
    graph = rows_in_memory(torch.eye(nodes), support)
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, nodes - 1), min_size=1, unique=True)))
    seed = data.draw(st.integers(0, 2**40))
    noises: tuple[Noise, Noise] = (
        SequentialNoise(generators_of([seed] * len(rates))),
        PerNodeNoise([seed] * len(rates)),
    )
    sources: tuple[Source, Source] = (
        WholeGraph(FeatureMatrix(torch.eye(nodes)), support, 2),
        SampledBatches(graph, 2, CPU, batch_size=4, num_neighbors=ALL),
    )
    for source, noise in zip(sources, noises, strict=True):
        batch = source.batch_of(seeds)
        found = batch.pairs_kept(rates, noise)
        assert (found is None) == (not any(rates))
        if found is None:
            continue
        for model, rate in enumerate(rates):
            kept = factors(batch, support, found[0][model])
            for (row, col), factor in kept.items():
                assert factor == kept.get((col, row), factor)
                assert factor == 1 if row == col else factor in (0, pytest.approx(1 / (1 - rate)))


def test_in_batches_the_pairs_that_objectives_see_are_those_of_the_edges(small_mixed: Graph) -> None:
    source = batches_of(small_mixed, 25, ALL, paired=True)
    rows, cols = source.support.pattern.rows, source.support.pattern.cols
    edges = set(zip(rows.tolist(), cols.tolist(), strict=True))
    met, hidden = set(), 0
    for batch in source.epoch(torch.Generator().manual_seed(0), Ranks()):
        seeds = batch.part.seeds.tolist()
        assert len(set(seeds)) == len(seeds)
        assert batch.seeds is not None
        assert seeds[: batch.own] == batch.seeds.tolist()
        met |= set(seeds[: batch.own])
        assert batch.share == 1
        found = batch.pairs_kept([0.5, 0.0], PerNodeNoise([4, 5]))
        assert found is not None
        kept = factors(batch, source.support, found[0][0])
        assert len(found[1][0]) == batch.pairs.shape[1] > 0
        for first, second, seen in zip(*batch.pairs.tolist(), found[1][0].tolist(), strict=True):
            assert first < batch.own
            pair = (seeds[first], seeds[second])
            assert pair in edges
            assert (kept[pair] > 0) == seen
            hidden += not seen
        assert found[1][1].all()
    assert met == set(range(small_mixed.num_nodes))
    assert 20 < hidden < 80


def test_the_mean_over_neighbours_by_hand() -> None:
    support = build_support(HOUSE, 6)
    batch = WholeGraph(FeatureMatrix(torch.eye(6)), support, 2).batch_of(torch.arange(6))
    values = torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]])
    wanted = torch.tensor([26 / 3, 5 / 2, 10 / 2, 21 / 3, 9 / 2, 0.0])
    torch.testing.assert_close(
        batch.neighbour_mean(torch.stack([values, -values])), torch.stack([wanted, -wanted])[..., None]
    )
    graph = rows_in_memory(torch.eye(6), support)
    sampled = SampledBatches(graph, 2, CPU, batch_size=6, num_neighbors=ALL, paired=True)
    (drawn,) = sampled.epoch(torch.Generator().manual_seed(2), Ranks())
    neighbours: list[list[float]] = [[] for _ in range(6)]
    own = values[drawn.part.seeds]
    for first, second in drawn.pairs.T.tolist():
        neighbours[first].append(float(own[second]))
        neighbours[second].append(float(own[first]))
    means = torch.tensor([sum(one) / max(1, len(one)) for one in neighbours])
    torch.testing.assert_close(drawn.neighbour_mean(own[None])[0, :, 0], means)


# In a step


def test_a_step_compares_a_thinned_graph_with_the_full_one(small_mixed: Graph) -> None:
    """Loss and gradients of one step, with columns and edges dropped from the data themselves."""
    source = whole_graph_of(small_mixed, "dense")
    nodes, columns = source.nodes, small_mixed.num_features
    feature_drop, edge_drop, seeds = [0.3, 0.6], [0.5, 0.2], (3, 4)
    step = step_of(source, feature_drop, edge_drop, seeds)
    batch = source.batch_of(torch.arange(nodes))
    student = step.student
    mask = RandomMask([0.5] * 2)(step.difficulty, step.generators)
    difficulty = step._forward_backward(batch, mask)
    found = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    x, pattern = small_mixed.dense_features().double(), source.support.pattern
    for model, seed in enumerate(seeds):
        draw = torch.Generator().manual_seed(seed)
        hidden = RandomMask([0.5])(torch.zeros(1, nodes), [draw])[0]
        edges = torch.empty(batch.pairs.shape[1], dtype=torch.bool)
        edges.bernoulli_(1 - edge_drop[model], generator=draw)
        seen = torch.empty(columns, dtype=torch.bool).bernoulli_(1 - feature_drop[model], generator=draw)
        thinned = torch.zeros(nodes, nodes, dtype=torch.double)
        thinned[batch.pairs[0], batch.pairs[1]] = edges.double() / (1 - edge_drop[model])
        thinned = thinned + thinned.T + torch.eye(nodes)
        alone = student.copy_models([model])
        features = (
            torch.where(hidden[:, None], alone.input.mask_token[0], x) * seen / (1 - feature_drop[model])
        )
        weights = torch.sigmoid(alone.edges.logit) * thinned[pattern.rows, pattern.cols]
        part = Part(
            batch.part.nodes, batch.part.counts, batch.part.blocks, FeatureMatrix(features, "dense"), True
        )
        with torch.no_grad():
            target = alone(batch.part, torch.sigmoid(alone.edges.logit))
        shares = (alone(part, weights) - target).square().sum(dim=2)
        shares.mean().backward()
        torch.testing.assert_close(difficulty[model : model + 1], shares.detach(), rtol=1e-10, atol=1e-12)
        for name, parameter in alone.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found[name][model], parameter.grad[0], rtol=1e-9, atol=1e-11)


def test_a_rate_of_zero_draws_nothing(small_mixed: Graph) -> None:
    source = whole_graph_of(small_mixed, "dense")
    step = step_of(source, [0.0, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.0], seeds=(1, 2, 3, 1))
    plain = step_of(source, 0.0, 0.0, seeds=(1, 2, 3, 1))
    only_masks = generators_of((1, 2, 3, 1))
    mask = RandomMask([0.5] * 4)
    for _ in range(2):
        losses = step(mask)[0], plain(mask)[0]
        mask(step.difficulty, only_masks)
    states = [[g.get_state() for g in group] for group in (step.generators, plain.generators, only_masks)]
    for model, moved in enumerate([False, True, True, False]):
        assert (states[1][model] == states[2][model]).all()
        assert (states[0][model] != states[2][model]).any() == moved
        assert torch.isclose(losses[0][model], losses[1][model], rtol=1e-10) != moved


def test_views_leave_what_is_drawn_for_batches_as_it_was(small_mixed: Graph) -> None:
    source = batches_of(small_mixed, 20, 4)
    step, plain = step_of(source, 0.3, 0.3), step_of(source, 0.0, 0.0)
    for one in (step, plain):
        one(RandomMask([0.5] * 2))
    assert (step.order.get_state() == plain.order.get_state()).all()
    for mine, theirs in zip(step.generators, plain.generators, strict=True):
        assert (mine.get_state() == theirs.get_state()).all()


# Swapped nodes


def test_only_masked_nodes_show_another_nodes_features(small_mixed: Graph) -> None:
    nodes, mask = small_mixed.num_nodes, torch.zeros(2, small_mixed.num_nodes, dtype=torch.bool)
    mask[:, :60] = True
    shown = torch.zeros(2)
    for source in (whole_graph_of(small_mixed, "dense"), batches_of(small_mixed, 20, 4)):
        step = step_of(source, 0.0, 0.0, replace_rate=[0.0, 0.25])
        seeds = source.batch_of(torch.arange(0, nodes, 2)).part
        hidden, own = seeds.rows_of(mask), torch.arange(len(seeds.nodes))
        for _ in range(40):
            noise, drawers = source.noise(step.generators, step.order, step.ranks)
            by_token, donors = step._swapped(hidden, seeds, noise, drawers)
            assert donors is not None
            swapped = donors != own
            assert torch.equal(by_token | swapped, hidden)
            assert not (by_token & swapped).any()
            assert not swapped[0].any()
            assert (donors[swapped] < seeds.counts[0]).all()
            shown += swapped.sum(dim=1) / hidden.sum(dim=1) / 80
    assert abs(float(shown[1]) - 0.25) < 0.03


def test_a_donor_is_any_other_seed() -> None:
    square = check_graph(torch.eye(4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    source = whole_graph_of(square, "dense")
    step = step_of(source, 0.0, 0.0, replace_rate=0.9)
    part, everyone = source.batch_of(torch.arange(4)).part, torch.ones(2, 4, dtype=torch.bool)
    seen: set[tuple[int, int]] = set()
    for _ in range(60):
        _, donors = step._swapped(everyone, part, *source.noise(step.generators, step.order, step.ranks))
        assert donors is not None
        seen |= set(enumerate(donors[0].tolist()))
    assert seen == {(node, donor) for node in range(4) for donor in range(4)}  # itself: shows the token


def test_without_swapping_nothing_is_drawn(small_mixed: Graph) -> None:
    source = whole_graph_of(small_mixed, "dense")
    step = step_of(source, 0.0, 0.0)
    before = step.generators[0].get_state()
    noise, drawers = source.noise(step.generators, step.order, step.ranks)
    mask = torch.ones(2, small_mixed.num_nodes, dtype=torch.bool)
    by_token, donors = step._swapped(mask, source.batch_of(torch.arange(3)).part, noise, drawers)
    assert by_token is mask
    assert donors is None
    assert torch.equal(step.generators[0].get_state(), before)
