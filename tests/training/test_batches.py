from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support
from h3gnn.encoder.noise import PerNodeNoise, node_uniform
from h3gnn.encoder.tokens import whole_graph
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import Batch, Source, WholeGraph, prefetch
from h3gnn.training.distributed import Ranks
from h3gnn.training.loop import train
from h3gnn.training.masking import DifficultyMask, ProbabilityMask, RandomMask
from h3gnn.training.models import Training, stack_step
from h3gnn.training.sampling import ALL, NodeIds
from h3gnn.training.step import MaskStrategy, Step
from tests.training.stacks import CPU, batches_of, support_of

MODELS = 2


def training(**changes: object) -> Training:
    return Training.of(
        {
            **H3GNN.from_preset("single", n_models=MODELS, learning_rate=0.01, momentum=0.9).get_settings(),
            **changes,
        }
    )


def undrawn(
    graph: Graph,
    entries: int,
    hops: int = 2,
    dropout: float = 0.0,
    edge_weights: str = "fixed",
    min_layers: int = 1,
) -> EncoderStack:
    return EncoderStack(
        graph.num_features,
        8,
        entries,
        heads=2,
        hops=hops,
        token_dropout=dropout,
        attention_dropout=dropout,
        edge_weights=edge_weights,
        min_layers=min_layers,
        models=MODELS,
    ).double()


def encoder_for(graph: Graph, support: Support, hops: int, min_layers: int = 1) -> EncoderStack:
    encoder = undrawn(graph, support.entries, hops, min_layers=min_layers)
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(MODELS)], support.start)
    return encoder


def step_on(
    graph: Graph, source: Source, how: Training, dropout: float = 0.0, edge_weights: str = "fixed"
) -> Step:
    student = undrawn(graph, source.support.entries, 2, dropout, edge_weights)
    step = stack_step(student, source, list(range(MODELS)), how, chunk=16)
    step.student.train()
    return step


def step_for(graph: Graph, num_neighbors: list[int], batch_size: int, dropout: float = 0.0) -> Step:
    return step_on(graph, batches_of(graph, batch_size, num_neighbors), training(), dropout)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("hops", "min_layers"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_with_all_neighbours_a_batch_is_the_full_graph_at_its_seeds(
    small_mixed: Graph, hops: int, min_layers: int, normalize: bool, sparse: bool
) -> None:
    graph, support = small_mixed, support_of(small_mixed, normalize=normalize)
    encoder = encoder_for(graph, support, hops, min_layers)
    features = FeatureMatrix(graph.dense_features().double())
    mask = torch.rand(MODELS, graph.num_nodes, generator=torch.Generator().manual_seed(1)) < 0.5
    target = torch.randn(MODELS, graph.num_nodes, encoder.out_channels, dtype=torch.double)
    seeds = torch.tensor([5, 2, 80, 41])

    def gradients(tokens: Tensor) -> list[Tensor]:
        encoder.zero_grad()
        loss = (encoder.fuse(tokens) - target[:, seeds]).square().sum(dim=-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return [loss.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]

    every = whole_graph(features, support, hops)
    wanted = encoder.tokens(encoder.project(every), every, encoder.edges(support.factor, support.start), mask)
    whole = gradients(wanted[:, seeds])
    batch = batches_of(graph, 4, [ALL] * hops, sparse=sparse, normalize=normalize).batch_of(seeds)
    weights = encoder.edges(batch.factor, batch.start)
    part = batch.part
    found = gradients(encoder.tokens(encoder.project(part), part, weights, part.rows_of(mask)))
    assert len(whole) == len(found) == len(list(encoder.parameters()))  # fixed edges have no gradient
    for ours, theirs in zip(found, whole, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"targets": "standardized"},
        {"objective": "features"},
        {"learning_rate": [0.01, 0.002], "weight_decay": [0.0, 0.1], "momentum": [0.9, 0.5]},
    ],
    ids=str,
)
@pytest.mark.parametrize("edge_weights", ["fixed", "computed"])
def test_one_batch_of_all_nodes_with_all_neighbours_trains_as_the_full_graph(
    small_mixed: Graph, asked: dict[str, object], edge_weights: str
) -> None:
    graph, support, how = small_mixed, support_of(small_mixed), training(**asked)
    features = FeatureMatrix(graph.dense_features().double())
    batches = batches_of(graph, graph.num_nodes, ALL)
    full, batched = (
        step_on(graph, source, how, edge_weights=edge_weights)
        for source in (WholeGraph(features, support, 2), batches)
    )
    for epoch in range(4):
        strategy: MaskStrategy = RandomMask([0.5] * MODELS)
        if epoch:
            strategy = ProbabilityMask([0.5] * MODELS, [0.5] * MODELS)
        full(strategy)
        batched(strategy)
        torch.testing.assert_close(batched.difficulty, full.difficulty)
    pairs = [(batched.student, full.student), (batched.objectives, full.objectives)]
    if full.teacher is not None and batched.teacher is not None:
        pairs.append((batched.teacher.encoder, full.teacher.encoder))
    for mine, theirs in pairs:
        for (name, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours, other, msg=name, rtol=1e-6, atol=1e-6)


class Halves(Ranks):
    """Two processes in one: whoever asks gets the first or the second half."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_two_halves_of_a_batch_add_up_to_the_batch(small_mixed: Graph, dropout: float) -> None:
    """Neighbours and dropout belong to nodes, so gradients over two processes are those of one."""
    step = step_for(small_mixed, [3, 2], 40, dropout)
    mask = torch.zeros(MODELS, small_mixed.num_nodes, dtype=torch.bool)
    mask[:, ::3] = True

    def gradients(ranks: Ranks) -> list[Tensor]:
        for parameter in step.optimizer.parameters:
            parameter.grad = torch.zeros_like(parameter)
        step.ranks = ranks
        batch = next(step.source.epoch(step.order.manual_seed(3), ranks))
        step._forward_backward(batch, mask)
        return [p.grad.clone() for p in step.optimizer.parameters if p.grad is not None]

    whole = gradients(Ranks())
    assert any(float(gradient.abs().sum()) > 0 for gradient in whole)
    for total, one, other in zip(whole, gradients(Halves(0)), gradients(Halves(1)), strict=True):
        torch.testing.assert_close(one + other, total)


STRATEGIES: dict[str, Callable[[], MaskStrategy]] = {
    "probability": lambda: ProbabilityMask([0.4] * MODELS, [0.8] * MODELS),
    "difficulty": lambda: DifficultyMask([0.4] * MODELS, [0.5] * MODELS),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("rounds", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_masks_have_the_distribution_of_full_graph_training(
    small_mixed: Graph, name: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_for(small_mixed, [1, 1], 50)
    nodes = small_mixed.num_nodes
    difficulty = torch.rand(MODELS, nodes, generator=torch.Generator().manual_seed(4)).double()
    hidden = torch.zeros(MODELS, nodes)

    def look(batch: Batch, mask: Tensor) -> Tensor:
        seeds = batch.part.seeds
        hidden[:, seeds] += mask[:, seeds]
        return torch.zeros(MODELS, len(seeds))

    monkeypatch.setattr(step, "train_on", look)
    step.difficulty.copy_(difficulty)
    for _ in range(rounds):
        step(STRATEGIES[name]())
    full = torch.zeros(MODELS, nodes)
    generators = [torch.Generator().manual_seed(100 + i) for i in range(MODELS)]
    for _ in range(rounds):
        full += STRATEGIES[name]()(difficulty, generators)
    spread = (full / rounds * (1 - full / rounds) / rounds * 2).sqrt().clamp_min(1 / rounds)
    assert float(((hidden - full) / rounds / spread).abs().max()) < 4.5  # 200 nodes, both noisy
    hard, easy = difficulty[0] > 0.8, difficulty[0] < 0.2
    assert hidden[0, hard].mean() > 1.2 * hidden[0, easy].mean()


def test_difficulty_is_of_the_last_time_that_a_node_was_a_seed(small_mixed: Graph) -> None:
    step = step_for(small_mixed, [4, 2], 30)
    history = train(
        step, epochs=6, mask_of=lambda epoch: RandomMask([0.5] * MODELS), learning_rate_of=lambda epoch: 1.0
    )
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {6 * 4}
    assert len(history) == 6
    assert bool((step.difficulty > 0).all())
    np.testing.assert_allclose(history["loss"][-1], step.difficulty.mean(dim=1))
    assert np.isfinite(history["effective_rank"][[0, -1]]).all()
    assert history["teacher_distance"][-1].min() > 0


def test_the_same_seed_gives_the_same_training(small_mixed: Graph) -> None:
    def weights() -> list[Tensor]:
        step = step_for(small_mixed, [3, 2], 30, 0.3)
        for _ in range(2):
            step(ProbabilityMask([0.5] * MODELS, [0.5] * MODELS))
        return [p.detach() for p in step.student.parameters()]

    for one, other in zip(weights(), weights(), strict=True):
        assert torch.equal(one, other)


def test_node_numbers_are_uniform_and_belong_to_nodes() -> None:
    nodes = torch.arange(20_000)
    numbers = node_uniform(3, nodes, 8)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 20, 0, 1)
    expected = numbers.numel() / 20
    assert float(((counts - expected).square() / expected).sum()) < 43.8  # χ², 19 degrees, p = 0.001
    assert torch.corrcoef(numbers.T).triu(1).abs().max() < 0.03
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1, 0], numbers[1:, 0]]))[0, 1])) < 0.03
    assert torch.equal(node_uniform(3, torch.tensor([77, 4]), 8), numbers[[77, 4]])
    assert PerNodeNoise([1]).keep([0.0], nodes, (3,), 0) is None
    kept = PerNodeNoise([1]).keep([0.3], nodes, (3,), 0)
    assert kept is not None
    assert abs(float(kept.float().mean()) - 0.7) < 0.01


def test_a_paired_batch_holds_a_neighbour_of_every_seed_that_has_one(small_mixed: Graph) -> None:
    source = batches_of(small_mixed, 30, 3, paired=True)
    edges = {pair for pair in zip(*small_mixed.edge_index.tolist(), strict=True) if pair[0] != pair[1]}
    edges |= {(end, begin) for begin, end in edges}
    seen = 0
    for batch in source.epoch(torch.Generator().manual_seed(0), Ranks()):
        assert batch.seeds is not None
        assert batch.part.seeds[: batch.own].tolist() == batch.seeds.tolist()
        ends = batch.part.seeds[batch.pairs]
        pairs = list(zip(*ends.tolist(), strict=True))
        assert set(pairs) <= edges
        assert batch.share == 1.0
        assert [low * 100 + high for low, high in map(sorted, pairs)] == batch.pair_keys.tolist()
        means = batch.neighbour_mean(batch.part.seeds.double()[None, :, None])[0, :, 0]
        for at, node in enumerate(batch.part.seeds.tolist()):
            near = [a if b == node else b for a, b in pairs if node in (a, b)]
            assert float(means[at]) == pytest.approx(np.mean(near) if near else 0.0)
        seen += len(pairs)
    assert seen > 60  # of a hundred seeds, most draw a neighbour and not themselves


def test_the_number_of_nodes_that_a_step_compares(small_mixed: Graph) -> None:
    support = support_of(small_mixed)
    features = FeatureMatrix(small_mixed.dense_features().double())
    wholes = [WholeGraph(features, support, 2, compared).in_a_step for compared in (None, 30, 500)]
    assert wholes == [100, 30, 100]
    for paired, most in ((False, 30), (True, 60)):
        source = batches_of(small_mixed, 30, 3, paired=paired)
        assert source.in_a_step == most
        order = torch.Generator().manual_seed(0)
        assert max(len(batch.part.seeds) for batch in source.epoch(order, Ranks())) <= most


def test_the_next_batch_is_prefetched_and_its_error_is_raised(small_mixed: Graph) -> None:
    batches = batches_of(small_mixed, 4, 2)
    begun = [threading.Event() for _ in range(3)]

    def make(seeds: NodeIds) -> Batch:
        begun[len(seeds) - 1].set()
        if len(seeds) == 3:
            raise MemoryError("of the third")
        return batches.batch_of(torch.from_numpy(seeds))

    made = prefetch(make, [np.arange(1), np.arange(2), np.arange(3)])
    assert next(made).part.counts[0] == 1
    assert begun[1].wait(5)  # nobody has asked for the second yet
    assert next(made).part.counts[0] == 2
    with pytest.raises(MemoryError, match="of the third"):
        next(made)


def everything_in(batch: Batch) -> list[Tensor]:
    part = batch.part
    blocks = [one for block in part.blocks for one in (block.crow, block.cols, block.weight_of)]
    own = [part.nodes, part.features.dense, batch.factor, batch.start, batch.pair_of, batch.pairs]
    more = [batch.pair_keys, batch.seeds]
    return [one.cpu() for one in [*own, *more, *blocks] if one is not None]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_batches_drawn_on_a_gpu_are_those_drawn_on_the_host(
    small_mixed: Graph, sparse: bool, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fits:
        monkeypatch.setattr("h3gnn.training.batches.SUPPORT_SHARE", 0.0)
    made = []
    for device in (CPU, torch.device("cuda")):
        source = batches_of(small_mixed, 30, 3, paired=True, sparse=sparse, device=device)
        assert source.sampler.device.type == (device.type if fits else "cpu")
        order = torch.Generator().manual_seed(0)
        made.append([everything_in(batch) for batch in source.epoch(order, Ranks())])
    assert len(made[0]) == len(made[1]) == 4
    for ours, theirs in zip(*made, strict=True):
        torch.testing.assert_close(ours, theirs)
