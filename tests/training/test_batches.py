from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support, build_support
from h3gnn.encoder.blocks import part_tokens
from h3gnn.encoder.noise import NodeNoise, node_uniform
from h3gnn.graphs.graph import Graph
from h3gnn.masking import DifficultyMask, ProbabilityMask, RandomMask
from h3gnn.training.batches import BatchStep, dense_parameters, train_in_batches
from h3gnn.training.distributed import Ranks
from h3gnn.training.edges import EdgeSteps, SparseEdges
from h3gnn.training.objective import LatentPrediction, backward_by_chunks
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.parts import Parts, dense_rows
from h3gnn.training.sampling import ALL, NeighbourSampler, Whole
from h3gnn.training.step import MaskStrategy, Step
from h3gnn.training.targets import TeacherTarget
from h3gnn.training.teacher import Teacher

MODELS = 2


def encoder_for(graph: Graph, support: Support, hops: int, dropout: float = 0.0) -> JointEncoder:
    encoder = JointEncoder(
        graph.num_features,
        8,
        support.pattern.entries,
        heads=2,
        hops=hops,
        token_dropout=dropout,
        attention_dropout=dropout,
        models=MODELS,
    )
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(MODELS)], support.start)
    return encoder.double()


def parts_for(
    graph: Graph, support: Support, fan_out: list[int], batch_size: int, sparse: bool = False
) -> Parts:
    sampler = NeighbourSampler(support.pattern.crow.numpy(), support.pattern.cols.numpy(), fan_out)
    features = graph.dense_features().double()
    rows = dense_rows(features.to_sparse_csr() if sparse else features)
    return Parts(
        sampler, rows, lambda entries: support.factor.double()[entries], batch_size, torch.device("cpu")
    )


def step_for(
    graph: Graph, fan_out: list[int], batch_size: int, dropout: float = 0.0, hops: int = 2
) -> BatchStep:
    support = build_support(graph.edge_index, graph.num_nodes)
    student = encoder_for(graph, support, hops, dropout)
    teacher = Teacher(student, [0.9] * MODELS)
    steps = EdgeSteps([0.01] * MODELS, [0.0] * MODELS, [0.9] * MODELS)
    edges = SparseEdges(student.edges.logit, teacher.encoder.edges.logit.detach(), steps)
    optimizer = StackedAdam([dense_parameters(student)], [0.01] * MODELS, [0.0] * MODELS)
    generators = [torch.Generator().manual_seed(i) for i in range(MODELS)]
    parts = parts_for(graph, support, fan_out, batch_size)
    step = BatchStep(
        student,
        TeacherTarget(teacher, edges),
        optimizer,
        edges,
        parts,
        generators,
        torch.Generator().manual_seed(9),
        chunk=16,
    )
    step.difficulty = step.difficulty.double()
    return step


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_with_all_neighbours_a_batch_is_the_full_graph_at_its_seeds(
    small_mixed: Graph, hops: int, normalize: bool, sparse: bool
) -> None:
    graph = small_mixed
    support = build_support(graph.edge_index, graph.num_nodes, normalize=normalize)
    encoder = encoder_for(graph, support, hops)
    features = FeatureMatrix(graph.dense_features().double())
    mask = torch.rand(MODELS, graph.num_nodes, generator=torch.Generator().manual_seed(1)) < 0.5
    target = torch.randn(MODELS, graph.num_nodes, encoder.out_channels, dtype=torch.double)
    seeds = torch.tensor([5, 2, 80, 41])

    def gradients(tokens: Tensor) -> list[Tensor]:
        encoder.zero_grad()
        loss = (encoder.fuse(tokens) - target[:, seeds]).square().sum(dim=-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return [loss.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]

    whole = gradients(encoder.tokens(encoder.project(features), support, mask)[:, seeds])
    piece = parts_for(graph, support, [ALL] * hops, 4, sparse).piece_of(seeds.numpy())
    logit = encoder.edges.logit.index_select(1, piece.entries)
    weights = torch.sigmoid(logit) * piece.factor
    part = gradients(part_tokens(encoder, piece.part, weights, mask[:, piece.part.nodes]))
    assert len(whole) == len(part) == 1 + len(list(encoder.parameters()))
    for ours, theirs in zip(part, whole, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_one_batch_of_all_nodes_with_all_neighbours_trains_as_the_full_graph(small_mixed: Graph) -> None:
    graph, support = small_mixed, build_support(small_mixed.edge_index, small_mixed.num_nodes)
    student = encoder_for(graph, support, 2)
    full = Step(
        student,
        LatentPrediction(Teacher(student, [0.9] * MODELS)),
        StackedAdam([student], [0.01] * MODELS, [0.0] * MODELS),
        FeatureMatrix(graph.dense_features().double()),
        support,
        [torch.Generator().manual_seed(i) for i in range(MODELS)],
        16,
    )
    full.difficulty = full.difficulty.double()
    batched = step_for(graph, [ALL, ALL], graph.num_nodes)
    for epoch in range(4):
        strategy: MaskStrategy = RandomMask([0.5] * MODELS)
        if epoch:
            strategy = ProbabilityMask([0.5] * MODELS, [0.5] * MODELS)
        full(strategy)
        batched(strategy)
        torch.testing.assert_close(batched.difficulty, full.difficulty)
    batched.edges.settle()
    for ours, theirs in zip(batched.student.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


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

    def gradients(ranks: Ranks) -> tuple[list[Tensor], Tensor]:
        step.optimizer.parameters[0].grad = None
        for parameter in step.optimizer.parameters:
            parameter.grad = torch.zeros_like(parameter)
        order = torch.Generator().manual_seed(3)
        piece = next(step.parts.epoch(order, ranks))
        logit = step.edges.student(piece.entries).requires_grad_()
        step._backward(piece, torch.sigmoid(logit) * piece.factor, mask, NodeNoise([1, 2]))
        assert logit.grad is not None
        spread = torch.zeros_like(step.edges.logit).index_copy_(1, piece.entries, logit.grad)
        return [p.grad.clone() for p in step.optimizer.parameters if p.grad is not None], spread

    whole, whole_edges = gradients(Ranks())
    first, first_edges = gradients(Halves(0))
    second, second_edges = gradients(Halves(1))
    assert float(whole_edges.abs().sum()) > 0
    torch.testing.assert_close(first_edges + second_edges, whole_edges)
    for total, one, other in zip(whole, first, second, strict=True):
        torch.testing.assert_close(one + other, total)


def test_a_step_touches_what_its_batch_touches_and_no_other_edge_weight(small_mixed: Graph) -> None:
    step = step_for(small_mixed, [2, 1], 5)
    before = step.edges.logit.clone()
    piece = next(step.parts.epoch(torch.Generator().manual_seed(0), Ranks()))
    step._train_on(piece, torch.zeros(MODELS, small_mixed.num_nodes, dtype=torch.bool).fill_(True))
    moved = (step.edges.logit != before).any(dim=0).nonzero().flatten()
    assert set(moved.tolist()) <= set(piece.entries.tolist())
    assert len(moved) > 0
    assert int((step.difficulty[0] > 0).sum()) == 5


STRATEGIES: dict[str, Callable[[], MaskStrategy]] = {
    "probability": lambda: ProbabilityMask([0.4] * MODELS, [0.8] * MODELS),
    "difficulty": lambda: DifficultyMask([0.4] * MODELS, [0.5] * MODELS),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_masks_have_the_distribution_of_full_graph_training(
    small_mixed: Graph, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often each node is hidden at the seeds of all batches, over many epochs of the same difficulty."""
    step, rounds = step_for(small_mixed, [1, 1], 30), 400
    nodes = small_mixed.num_nodes
    difficulty = torch.rand(MODELS, nodes, generator=torch.Generator().manual_seed(4)).double()
    hidden = torch.zeros(MODELS, nodes)

    def look(piece: object, mask: Tensor) -> None:
        seeds = piece.part.seeds  # type: ignore[attr-defined]
        hidden[:, seeds] += mask[:, seeds]

    monkeypatch.setattr(step, "_train_on", look)
    monkeypatch.setattr(step.parts, "_samples", _seeds_only(step.parts))
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


def _seeds_only(parts: Parts) -> Callable[[list[Whole], int, Ranks], object]:
    return lambda batches, seed, ranks: (parts.sampler.sample(ranks.share(batch)) for batch in batches)


def test_difficulty_is_of_the_last_time_that_a_node_was_a_seed(small_mixed: Graph) -> None:
    step = step_for(small_mixed, [4, 2], 30)
    history = train_in_batches(
        step,
        epochs=6,
        mask_of=lambda epoch: RandomMask([0.5] * MODELS),
        learning_rate_of=lambda epoch: 1.0,
    )
    assert step.steps == 6 * 4
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
    assert NodeNoise([1]).keep([0.0], nodes, 3, 0) is None
    kept = NodeNoise([1]).keep([0.3], nodes, 3, 0)
    assert kept is not None
    assert abs(float(kept.float().mean()) - 0.7) < 0.01


def test_chunks_of_the_fusion_change_nothing(small_mixed: Graph) -> None:
    support = build_support(small_mixed.edge_index, small_mixed.num_nodes)
    encoder = encoder_for(small_mixed, support, 2)
    piece = parts_for(small_mixed, support, [5, 5], 30).piece_of(np.arange(30))
    weights = torch.sigmoid(encoder.edges.logit[:, piece.entries].detach()) * piece.factor

    def gradients(chunk: int) -> list[Tensor]:
        encoder.zero_grad()
        tokens = part_tokens(encoder, piece.part, weights)
        found = backward_by_chunks(
            encoder.fuse, lambda embedding, _: embedding.square().sum(-1), tokens, None, chunk
        )
        return [found, *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]

    for one, other in zip(gradients(7), gradients(30), strict=True):
        torch.testing.assert_close(one, other)
