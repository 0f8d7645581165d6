"""Each objective against its formula, and a stack of objectives against each of its models alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import gelu

from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.encoder.noise import SequentialNoise
from h3gnn.encoder.sparse import take_rows
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import Batch, Source, WholeGraph
from h3gnn.training.distributed import Ranks
from h3gnn.training.models import Training, stack_step
from h3gnn.training.objectives import (
    OBJECTIVES,
    Decorrelation,
    FeatureReconstruction,
    HiddenEdges,
    LatentPrediction,
    MaskedReconstruction,
    NeighbourPrediction,
    Objective,
    ObjectiveEnsemble,
    View,
    assign_objectives,
    standardize,
)
from h3gnn.training.step import Step, backward_by_chunks
from tests.training.stacks import HOUSE, batches_of, generators_of, plain_training, whole_graph_of

ALL_NODES = slice(0, None)
TWO = torch.tensor([[0], [1]])
"""Two nodes and the edge between them."""


def whole(edge_index: Tensor, x: Tensor) -> WholeGraph:
    support = build_support(edge_index, len(x)).to(x.device, torch.double)
    return WholeGraph(FeatureMatrix(x.double()), support, 2)


def generators(models: int) -> list[torch.Generator]:
    return generators_of(range(40, 40 + models))


def view_of(
    batch: Batch, teacher: Tensor | None, mask: Tensor | None = None, pairs_kept: Tensor | None = None
) -> View:
    """Return a fresh view; two of them draw the same numbers."""
    models = 1 if teacher is None else len(teacher)
    models = models if mask is None else len(mask)
    hidden = torch.zeros(models, batch.part.counts[0], dtype=torch.bool) if mask is None else mask
    looks = None if teacher is None else (lambda rows: teacher[:, rows])
    return View(batch, looks, hidden, pairs_kept, generators(models), Ranks())


def stack(source: WholeGraph, models: int = 1, channels: int = 4) -> EncoderStack:
    columns, entries = source.features.shape[1], source.support.entries
    student = EncoderStack(columns, channels, entries, heads=2, models=models, attention_dropout=0.3)
    student.reset_parameters(generators(models), source.support.start)
    return student.double()


def built(kind: type[Objective], student: EncoderStack, targets: str = "plain") -> Any:
    objective = kind(student.models, student, targets).double()
    objective.reset_parameters(generators(student.models))
    return objective


def fill(layer: nn.Module, value: float = 0.0) -> None:
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)


# By hand, on two nodes


def rows(*values: Sequence[float]) -> Tensor:
    """Return one model's rows."""
    return torch.tensor([values], dtype=torch.double)


def two_nodes() -> tuple[Batch, EncoderStack]:
    source = whole(TWO, torch.eye(2))
    return source.batch_of(torch.arange(2)), stack(source)


@pytest.mark.parametrize(("targets", "wanted"), [("plain", [4.0, 25.0]), ("standardized", [13.0, 2.0])])
def test_latent_prediction_by_hand(targets: str, wanted: list[float]) -> None:
    batch, student = two_nodes()
    teacher = rows([1, 0], [3, 4])  # standardized: (-1, -1) and (1, 1)
    ask = built(LatentPrediction, student, targets).compare(view_of(batch, teacher))
    torch.testing.assert_close(ask(rows([1, 2], [0, 0]), ALL_NODES), rows(wanted)[0], rtol=1e-7, atol=0)
    torch.testing.assert_close(ask(rows([0, 0]), slice(1, 2)), rows(wanted)[0, :, 1:], rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [("squared", [4.0, 5.0, 20.0]), ("cosine", [0.0, 1.0, 0.4]), ("scaled-cosine", [0.0, 1.0, 0.16])],
)
def test_losses_by_hand(loss: str, wanted: list[float]) -> None:
    source = whole(torch.tensor([[0, 1], [1, 2]]), torch.eye(3))
    embedding = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [4.0, 3.0]]], dtype=torch.double, requires_grad=True)
    target = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 5.0]]], dtype=torch.double)
    view = view_of(source.batch_of(torch.arange(3)), target)
    shares = LatentPrediction(1, stack(source), "plain", loss).compare(view)(embedding, ALL_NODES)
    torch.testing.assert_close(shares, torch.tensor([wanted], dtype=torch.double))
    shares.sum().backward()  # type: ignore[no-untyped-call]
    assert embedding.grad is not None
    assert embedding.grad.isfinite().all()


def test_decorrelation_by_hand() -> None:
    batch, student = two_nodes()
    ask = built(Decorrelation, student).compare(view_of(batch, rows([1, 0], [3, 4])))
    same = ask(rows([0, 0], [2, 2]), ALL_NODES)  # (-1, -1) and (1, 1) like the target; columns say the same
    torch.testing.assert_close(same, rows([0.002, 0.002])[0], rtol=1e-7, atol=1e-12)
    other_way = ask(rows([0, 2], [2, 0]), ALL_NODES)  # the second column is turned round: 2² away
    torch.testing.assert_close(other_way, rows([4.002, 4.002])[0], rtol=1e-7, atol=0)


def test_hidden_edges_by_hand() -> None:
    batch, student = two_nodes()
    objective = built(HiddenEdges, student)
    fill(objective)
    fill(objective.head.output, 0.7)  # every pair is told to be an edge with the same confidence
    nn.init.zeros_(objective.head.output.weight)
    told, missed = math.log(1 + math.exp(-0.7)), math.log(1 + math.exp(0.7))
    embedding = torch.zeros(1, 2, student.out_channels, dtype=torch.double)
    for kept in (None, torch.tensor([[False]])):
        shares = objective.compare(view_of(batch, None, pairs_kept=kept))(embedding, ALL_NODES)
        torch.testing.assert_close(shares, rows([2 * (told + missed), 0])[0])  # the pair begins at node 0


def test_without_hidden_edges_all_edges_count() -> None:
    source = whole(HOUSE, torch.eye(6))
    student = stack(source)
    objective, batch = built(HiddenEdges, student), source.batch_of(torch.arange(6))
    embedding = torch.randn(1, 6, student.out_channels, dtype=torch.double)
    none_hidden = torch.ones(1, 6, dtype=torch.bool)
    torch.testing.assert_close(
        objective.compare(view_of(batch, None, pairs_kept=none_hidden))(embedding, ALL_NODES),
        objective.compare(view_of(batch, None))(embedding, ALL_NODES),
    )


def test_hidden_edges_of_a_graph_without_edges() -> None:
    source = whole(torch.empty(2, 0, dtype=torch.int64), torch.eye(3))
    student = stack(source)
    embedding = torch.ones(1, 3, student.out_channels, dtype=torch.double, requires_grad=True)
    shares = built(HiddenEdges, student).compare(view_of(source.batch_of(torch.arange(3)), None))(
        embedding, ALL_NODES
    )
    shares.sum().backward()
    assert (shares == 0).all()


def test_neighbour_prediction_by_hand() -> None:
    batch, student = two_nodes()
    objective = built(NeighbourPrediction, student)
    fill(objective)
    nn.init.eye_(objective.head.weight.data[0])
    up = torch.zeros(1, 2, student.out_channels, dtype=torch.double)
    up[:, :, 0] = 1
    side = up.roll(1, dims=2)
    for teacher, wanted in ((up, 0.0), (side, 1 / 0.75), (torch.cat([side[:, :1], up[:, :1]], 1), None)):
        shares = objective.compare(view_of(batch, 5 * teacher))(2 * up, ALL_NODES)
        by_node = rows([0.0, 1 / 0.75] if wanted is None else [wanted, wanted])[0]  # node 0 hears node 1
        torch.testing.assert_close(shares, by_node, rtol=1e-12, atol=1e-12)


def test_feature_reconstruction_by_hand() -> None:
    source = whole(TWO, torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    student = stack(source)
    objective = built(FeatureReconstruction, student)
    fill(objective)
    ask = objective.compare(view_of(source.batch_of(torch.arange(2)), None))
    embedding = torch.ones(1, 2, student.out_channels, dtype=torch.double)
    torch.testing.assert_close(ask(embedding, ALL_NODES), rows([25, 1])[0])
    torch.testing.assert_close(ask(embedding[:, 1:], slice(1, 2)), rows([1])[0])


def test_masked_reconstruction_by_hand() -> None:
    batch, student = two_nodes()
    objective = built(MaskedReconstruction, student)
    fill(objective)
    objective.outer.bias.data[0, 0] = torch.tensor([3.0, 4.0])  # what is rebuilt, whoever is asked
    embedding = torch.ones(1, 2, student.out_channels, dtype=torch.double)
    for mask, wanted in (([True, True], [0.16, 0.04]), ([False, True], [0, 0.08]), ([False, False], [0, 0])):
        ask = objective.compare(view_of(batch, None, torch.tensor([mask])))
        torch.testing.assert_close(ask(embedding, ALL_NODES), rows(wanted)[0], rtol=1e-7, atol=1e-12)


# Against the formula, written for reading

Formula = Callable[[Any, int, Tensor, "Case"], Tensor]


class Case:
    """Two models on six nodes, with a teacher, a mask and hidden edges."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(6, 5, generator=draw, dtype=torch.double)
        self.source = whole(HOUSE, self.x)
        self.batch = self.source.batch_of(torch.arange(6))
        self.student = stack(self.source, models=2)
        size = (2, 6, self.student.out_channels)
        self.embedding = torch.randn(size, generator=draw, dtype=torch.double)
        self.teacher = torch.randn(size, generator=draw, dtype=torch.double)
        self.mask = torch.tensor([[1, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 1]]).bool()
        self.pairs_kept = torch.tensor([[1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0]]).bool()
        self.neighbours = [{1, 3, 4}, {0, 2}, {1, 3}, {0, 2, 4}, {0, 3}, set[int]()]

    def view(self) -> View:
        return view_of(self.batch, self.teacher, self.mask, self.pairs_kept)


def standard(values: Tensor) -> Tensor:
    """Bring the columns of `[nodes, D]` to mean 0 and variance 1."""
    centred = values - values.mean(dim=0)
    return centred / (centred.square().mean(dim=0) + 1e-8).sqrt()


def perceptron(layers: Any, model: int, x: Tensor) -> Tensor:
    hidden = gelu(x @ layers.input.weight[model] + layers.input.bias[model])
    mapped: Tensor = hidden @ layers.output.weight[model] + layers.output.bias[model]
    return mapped


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a, b) / (torch.dot(a, a) * torch.dot(b, b)).sqrt()


def plain_distance(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    return torch.stack([(found[v] - case.teacher[model, v]).square().sum() for v in range(6)]).mean()


def standardized_distance(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    return (found - standard(case.teacher[model])).square().sum(dim=1).mean()


def decorrelation(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    mine = standard(found)
    covariance = sum((torch.outer(row, row) for row in mine), start=torch.zeros(())) / 6
    excess = covariance - torch.eye(len(covariance))
    distance = (mine - standard(case.teacher[model])).square().sum() / 6
    return distance + 1e-3 * excess.square().sum()


def hidden_edges(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    view = case.view()
    chosen, random = view.draw(6, 6)[model].tolist(), view.draw(6, 6)[model].tolist()
    edges = [(0, 1), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4)]

    def told(u: int, v: int) -> Tensor:
        return torch.sigmoid(perceptron(objective.head, model, found[u] * found[v])).squeeze()

    unseen = [-told(*edges[pair]).log() for pair in chosen if not case.pairs_kept[model, pair]]
    apart = [-(1 - told(edges[pair][0], w)).log() for pair, w in zip(chosen, random, strict=True)]
    return torch.stack(unseen).mean() + torch.stack(apart).mean()


def neighbour_prediction(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    others = case.view().draw(1024, 6)[model].tolist()
    shares = []
    for v in range(6):
        sent = found[v] @ objective.head.weight[model] + objective.head.bias[model, 0]
        near = [cosine(sent, case.teacher[model, u]) for u in case.neighbours[v]]
        far = torch.stack([cosine(found[v], found[w]) for w in range(6)])[others]
        pull = torch.stack(near).mean() if near else torch.zeros(())
        shares.append(-pull / 0.75 + (far / 0.75).exp().mean().log())
    return torch.stack(shares).mean()


def feature_reconstruction(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    return (perceptron(objective.decoder, model, found) - case.x).square().sum(dim=1).mean()


def masked_reconstruction(objective: Any, model: int, found: Tensor, case: Case) -> Tensor:
    seen = found @ objective.inner.weight[model] * ~case.mask[model][:, None]
    shares = []
    for v in case.mask[model].nonzero().flatten().tolist():
        near = [seen[u] for u in case.neighbours[v]]
        heard = torch.stack(near).mean(dim=0) if near else torch.zeros_like(seen[0])
        rebuilt = heard @ objective.outer.weight[model] + objective.outer.bias[model, 0]
        shares.append((1 - cosine(rebuilt, case.x[v])) ** 2)
    return torch.stack(shares).mean()


EVERY: list[tuple[type[Objective], str, Formula]] = [
    (LatentPrediction, "plain", plain_distance),
    (LatentPrediction, "standardized", standardized_distance),
    (Decorrelation, "plain", decorrelation),
    (HiddenEdges, "plain", hidden_edges),
    (NeighbourPrediction, "plain", neighbour_prediction),
    (FeatureReconstruction, "plain", feature_reconstruction),
    (MaskedReconstruction, "plain", masked_reconstruction),
]
each = pytest.mark.parametrize(("kind", "targets", "formula"), EVERY)


def test_the_table_has_every_objective() -> None:
    assert {kind for kind, _, _ in EVERY} == set(OBJECTIVES.values())


@each
def test_loss_and_gradients_are_those_of_the_formula(
    kind: type[Objective], targets: str, formula: Formula
) -> None:
    case = Case()
    objective = built(kind, case.student, targets)
    ours, theirs = (case.embedding.clone().requires_grad_() for _ in range(2))
    learned = [ours, *objective.parameters()]
    shares = objective.compare(case.view())(ours, ALL_NODES)
    assert shares.shape == (2, 6)
    assert shares.dtype == torch.double
    loss = shares.mean(dim=1)
    gradients = torch.autograd.grad(loss.sum(), learned)
    wanted = torch.stack([formula(objective, model, theirs[model], case) for model in range(2)])
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-12)
    plain = torch.autograd.grad(wanted.sum(), [theirs, *objective.parameters()])
    for found, expected in zip(gradients, plain, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@each
def test_node_by_node_objectives_depend_on_that_node_alone(
    kind: type[Objective], targets: str, formula: Formula
) -> None:
    case = Case()
    objective = built(kind, case.student, targets)
    moved = case.embedding.clone()
    moved[:, 1] += 1
    before, after = (objective.compare(case.view())(z, ALL_NODES) for z in (case.embedding, moved))
    others = [0, 2, 3, 4, 5]
    assert ((before == after)[:, others].all()) == objective.node_by_node
    assert not (before == after)[:, 1].all() or not objective.node_by_node


@each
@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("keep", [True, False])
def test_chunks_change_neither_shares_nor_gradients(
    kind: type[Objective], targets: str, formula: Formula, chunk: int, share: float, keep: bool
) -> None:
    case = Case()
    objective = built(kind, case.student, targets)
    part = case.batch.part
    learned = [*case.student.fusion.parameters(), *objective.parameters()]
    kept = case.student.attention_keep(part.seeds, SequentialNoise(generators(2)))
    assert kept is not None
    assert not kept.all()
    leaf = torch.randn(2, 6, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(5))

    def gradients() -> list[Tensor]:
        found = [p.grad for p in (start, *learned)]
        for parameter in learned:
            parameter.grad = None
        return [gradient for gradient in found if gradient is not None]

    start = leaf.clone().requires_grad_()
    shares = objective.compare(case.view())(case.student.fuse(torch.sin(start), kept), ALL_NODES)
    (share * shares.mean(dim=1).sum()).backward()
    wanted = gradients()
    start = leaf.clone().requires_grad_()
    difficulty = backward_by_chunks(
        case.student.fuse,
        objective.compare(case.view()),
        torch.sin(start),
        kept,
        chunk,
        share,
        whole=not objective.node_by_node,
        keep=keep,
    )
    torch.testing.assert_close(difficulty, shares.detach(), rtol=1e-10, atol=1e-12)
    found = gradients()
    assert len(found) == len(wanted) == 1 + len(learned)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@each
def test_in_bfloat16_the_shares_are_those_of_float64_but_for_rounding(
    kind: type[Objective], targets: str, formula: Formula
) -> None:
    case = Case()
    exact = built(kind, case.student, targets).compare(case.view())(case.embedding, ALL_NODES)
    case.student.fuse_in_bfloat16 = True
    objective = built(kind, case.student, targets)
    rough = objective.compare(case.view())(case.embedding, ALL_NODES)
    assert rough.dtype == exact.dtype
    torch.testing.assert_close(rough, exact, rtol=0.03, atol=0.03)
    if kind in (Decorrelation, NeighbourPrediction, HiddenEdges):  # these have large products
        assert (rough != exact).any()


def test_draws_are_each_models_own_and_lie_in_range() -> None:
    case = Case()
    both = case.view().draw(4000, 7)
    for model in range(2):
        alone = replace(case.view(), generators=generators(2)[model : model + 1])
        assert (alone.draw(4000, 7)[0] == both[model]).all()
    assert (both[0] != both[1]).any()
    counts = torch.bincount(both[0], minlength=7)
    assert len(counts) == 7
    assert (counts - 4000 / 7).abs().max() < 5 * (4000 / 7) ** 0.5


class OtherHalf(Ranks):
    """A second process in words: it has the rest of the nodes, and adds what it would send."""

    size = 2

    def __init__(self, rest: Tensor, mean: Tensor) -> None:
        self.told = iter(
            [
                [rest.new_tensor([float(rest.shape[1])]), rest.sum(dim=1, keepdim=True)],
                [(rest - mean).square().sum(dim=1, keepdim=True)],
            ]
        )

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        for tensor, more in zip(tensors, next(self.told), strict=True):
            tensor.add_(more)


@settings(max_examples=30, deadline=None)
@given(nodes=st.integers(2, 9), cut=st.integers(1, 8), scale=st.floats(1, 50), shift=st.floats(-50, 50))
def test_standardized_columns(nodes: int, cut: int, scale: float, shift: float) -> None:
    steps = torch.arange(float(nodes), dtype=torch.double)
    values = steps[None, :, None].cos() * torch.tensor([[[1.0, 2.0, 3.0]], [[-1.0, 0.5, 9.0]]])
    found = standardize(values)
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(2, 3).double(), rtol=0, atol=1e-9)
    spread = values.var(dim=1, correction=0)
    torch.testing.assert_close(found.var(dim=1, correction=0), spread / (spread + 1e-8))
    moved = standardize(scale * values + shift)
    torch.testing.assert_close(moved, found, rtol=0, atol=1e-6)
    mine, rest = values[:, : min(cut, nodes - 1)], values[:, min(cut, nodes - 1) :]
    ranks = OtherHalf(rest, values.mean(dim=1, keepdim=True))
    torch.testing.assert_close(standardize(mine, ranks), found[:, : mine.shape[1]])


# Models in a stack never touch


@pytest.fixture
def in_double() -> Iterator[None]:
    """Compute everything that an engine builds for itself in float64."""
    torch.set_default_dtype(torch.double)
    yield
    torch.set_default_dtype(torch.float)


MIXED = ["teacher", "teacher", "decorrelation", "neighbours", "edges", "edges", "features", "masked-features"]
SEEDS = [11, 12, 13, 14, 15, 16, 17, 18]


def training(objectives: list[str], **changed: Any) -> Training:
    options = {"targets": "standardized", "mask": "difficulty", "weight_decay": 0.001, "edge_rate": 3.0}
    return plain_training(objectives, **{**options, **changed})


def source_of(graph: Graph) -> WholeGraph:
    return whole_graph_of(graph, dtype=torch.get_default_dtype())


def step_of(source: Source, how: Training, seeds: Sequence[int], chunk: int = 1000, **options: Any) -> Step:
    columns = source.features.shape[1] if isinstance(source, WholeGraph) else source.graph.columns  # type: ignore[attr-defined]
    options = {"edge_weights": "learned" if source.whole else "fixed", **options}
    student = EncoderStack(columns, 4, source.support.entries, heads=2, models=len(seeds), **options)
    return stack_step(student, source, seeds, how, chunk)


def run(step: Step, how: Training, epochs: int) -> Tensor:
    """Train, and return the loss of each epoch `[epochs, models]`."""
    step.student.train()
    mask_of = how.mask_of(step.student.models)
    return torch.stack([step(mask_of(epoch))[0] for epoch in range(epochs)])


PER_MODEL: dict[str, Any] = {
    "feature_drop": [0.0, 0.3, 0.2, 0.0, 0.0, 0.1, 0.4, 0.0],
    "edge_drop": [0.4, 0.0, 0.5, 0.2, 0.7, 0.0, 0.0, 0.3],
    "momentum": [0.9, 0.99, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9],
    "mask_ratio": [0.5, 0.1, 0.2, 0.0, 0.0, 0.3, 0.5, 0.6],
    "hard_fraction": [0.5, 0.2, 0.5, 0.5, 0.5, 0.5, 0.1, 0.9],
}
RATES = {"learning_rate": [0.01, 0.02] * 4, "weight_decay": [0.0, 0.01, 0.001, 0.0] * 2}
DROPOUT = {"token_dropout": [0.3, 0.0] * 4, "attention_dropout": [0.0, 0.0, 0.2, 0.2] * 2}


def assert_model_is(stacked: EncoderStack, model: int, alone: EncoderStack, objective: str) -> None:
    """Compare all weights but those that change nothing, where rounding alone says which way they go.

    These are the bias of the keys, since attention looks at differences between keys alone, and for an
    objective that standardizes the embedding the last shift.
    """
    for name, wanted in alone.state_dict().items():
        found, expected = stacked.state_dict()[name][model], wanted[0]
        if name == "fusion.qkv.bias":
            (found, _, value), (expected, _, own) = found.chunk(3, dim=-1), expected.chunk(3, dim=-1)
            torch.testing.assert_close(value, own, rtol=1e-9, atol=1e-10)
        if objective != "decorrelation" or name != "fusion.mlp_norm.bias":
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(
    ("chunk", "settings_differ", "teacher_mode", "edge_weights"),
    [
        (1000, False, "eval", "learned"),
        (30, True, "eval", "learned"),
        (30, False, "train", "computed"),
        (1000, True, "train", "learned"),
        (1000, True, "eval", "fixed"),
        (30, True, "eval", "free"),
    ],
)
def test_a_model_in_a_mixed_stack_equals_the_same_model_alone(
    small_mixed: Graph, chunk: int, settings_differ: bool, teacher_mode: str, edge_weights: str
) -> None:
    source = source_of(small_mixed)
    changed = {**PER_MODEL, **(RATES if settings_differ else {}), "teacher_mode": teacher_mode}
    how = training(MIXED, **changed)
    together = step_of(source, how, SEEDS, chunk, edge_weights=edge_weights, **DROPOUT)
    losses = run(together, how, 4)
    for model, seed in enumerate(SEEDS):
        own = how.of_models([model])
        dropout = {name: [rates[model]] for name, rates in DROPOUT.items()}
        alone = step_of(source, own, [seed], 1000, edge_weights=edge_weights, **dropout)
        torch.testing.assert_close(run(alone, own, 4)[:, 0], losses[:, model], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(alone.difficulty[0], together.difficulty[model], rtol=1e-9, atol=1e-10)
        assert_model_is(together.student, model, alone.student, MIXED[model])
        if alone.teacher is not None:
            assert together.teacher is not None
            assert_model_is(together.teacher.encoder, model, alone.teacher.encoder, MIXED[model])
        assert (alone.generators[0].get_state() == together.generators[model].get_state()).all()


@pytest.mark.usefixtures("in_double")
def test_a_stack_whose_objectives_go_node_by_node_may_be_cut_into_chunks(small_mixed: Graph) -> None:
    source = source_of(small_mixed)
    how = training(["teacher", "features"], targets="plain")
    losses = run(step_of(source, how, [1, 2], chunk=30), how, 3)
    for model, seed in enumerate([1, 2]):
        own = how.of_models([model])
        alone = run(step_of(source, own, [seed]), own, 3)
        torch.testing.assert_close(losses[:, model], alone[:, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("in_double")
def test_the_gradient_of_a_model_in_a_mixed_stack_is_its_own(small_mixed: Graph) -> None:
    source = source_of(small_mixed)
    how = training(MIXED, **PER_MODEL)
    mask = torch.zeros(len(MIXED), source.nodes, dtype=torch.bool)
    mask[:, ::3] = True

    def gradients(step: Step, hidden: Tensor) -> list[dict[str, Tensor]]:
        """Return the gradients of each model, its objective's among them."""
        step._forward_backward(source.batch_of(torch.arange(source.nodes)), hidden)
        found: list[dict[str, Tensor]] = [{} for _ in hidden]
        for name, parameter in step.student.named_parameters():
            for model, gradient in enumerate(parameter.grad if parameter.grad is not None else []):
                found[model][name] = gradient
        for member, models in step.objectives:
            for name, parameter in member.named_parameters():
                assert parameter.grad is not None
                for place, model in enumerate(models):
                    found[model][f"objective {name}"] = parameter.grad[place]
        return found

    together = gradients(step_of(source, how, SEEDS), mask)
    for model, seed in enumerate(SEEDS):
        (alone,) = gradients(
            step_of(source, how.of_models([model]), [seed], chunk=7), mask[model : model + 1]
        )
        assert alone.keys() == together[model].keys()
        for name, wanted in alone.items():
            torch.testing.assert_close(together[model][name], wanted, rtol=1e-10, atol=1e-12)


def test_objectives_are_assigned_in_turn_with_teachers_first() -> None:
    assert assign_objectives("edges", 3) == ["edges"] * 3
    assert assign_objectives(["edges", "teacher"], 3) == ["teacher", "edges", "edges"]
    assert assign_objectives(["features", "neighbours", "teacher"], 4) == [
        "neighbours",
        "teacher",
        "features",
        "features",
    ]
    assert assign_objectives(["teacher", "edges", "features"], 2) == ["teacher", "edges"]


def test_models_with_a_teacher_come_first() -> None:
    student = stack(whole(TWO, torch.eye(2)), models=2)
    for names in (["features", "teacher"], ["edges", "neighbours"]):
        with pytest.raises(ValueError, match="models with a teacher must precede"):
            ObjectiveEnsemble(names, student, "plain")
    assert ObjectiveEnsemble(["neighbours", "edges"], student, "plain").teachers == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(OBJECTIVES)), min_size=1, max_size=7))
def test_an_ensemble_assigns_each_model_its_objective(names: list[str]) -> None:
    student = stack(whole(TWO, torch.eye(2)), models=1)
    taught = [OBJECTIVES[name].needs_teacher for name in names]
    if taught != sorted(taught, reverse=True):
        with pytest.raises(ValueError, match="must precede"):
            ObjectiveEnsemble(names, student, "plain")
        return
    ensemble = ObjectiveEnsemble(names, student, "plain")
    assigned = {model: type(one) for one, models in ensemble for model in models}
    assert [assigned[model] for model in range(len(names))] == [OBJECTIVES[name] for name in names]
    assert ensemble.teachers == sum(taught)
    assert ensemble.node_by_node == all(OBJECTIVES[name].node_by_node for name in names)
    assert all(one.models == len(models) for one, models in ensemble)
    assert len(ensemble.runs) == len([*groupby(names)])


# In mini-batches


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_each_objective_trains_in_batches(small_mixed: Graph, name: str) -> None:
    kind = OBJECTIVES[name]
    source = batches_of(small_mixed, 30, 4, paired=kind.needs_pairs, dtype=torch.float)
    how = training([name] * 2, **kind.views, mask="random", learning_rate=0.01)
    losses = run(step_of(source, how, [5, 6], chunk=16), how, 20 if name == "edges" else 10)
    assert losses.isfinite().all()
    assert (losses[-3:].mean(dim=0) < 0.95 * losses[:2].mean(dim=0)).all()


@pytest.mark.parametrize("teacher_mode", ["eval", "train"])
def test_a_mixed_stack_trains_in_batches(small_mixed: Graph, teacher_mode: str) -> None:
    source = batches_of(small_mixed, 30, 4, paired=True, dtype=torch.float)
    how = training(MIXED, **PER_MODEL, mask="random", teacher_mode=teacher_mode)
    losses = run(step_of(source, how, SEEDS, 16, **DROPOUT), how, 8)
    assert losses.isfinite().all()
    assert (losses[-3:].mean(dim=0) < losses[:2].mean(dim=0)).all()


def test_rows_are_each_models_own_and_collect_their_gradient() -> None:
    embedding = torch.randn(3, 7, 4, dtype=torch.double, requires_grad=True)
    chosen = torch.randint(7, (3, 11))
    found = take_rows(embedding, chosen)
    wanted = torch.stack([of[those] for of, those in zip(embedding, chosen, strict=True)])
    assert torch.equal(found, wanted)
    slope = torch.randn_like(found)
    (got,) = torch.autograd.grad(found, embedding, slope)
    (expected,) = torch.autograd.grad(wanted, embedding, slope)
    torch.testing.assert_close(got, expected)


def test_masked_features_are_learned_and_repeat_by_seed(small_mixed: Graph) -> None:
    options: dict[str, Any] = {"channels": 8, "heads": 2, "n_models": 2, "learning_rate": 0.01}
    options |= {"mask": "random", "objective": "masked-features", "device": "cpu", "epochs": 30}
    one, again = (H3GNN.from_preset("single", **options).fit(small_mixed) for _ in range(2))
    losses = one.history_["loss"]
    assert (losses[-5:].mean(axis=0) < 0.8 * losses[:2].mean(axis=0)).all()
    assert one.embedding_.shape == (100, 2 * 4 * 8)
    np.testing.assert_array_equal(one.embedding_, again.embedding_)
    assert not np.allclose(
        one.embedding_, H3GNN.from_preset("single", **{**options, "epochs": 0}).fit_transform(small_mixed)
    )
