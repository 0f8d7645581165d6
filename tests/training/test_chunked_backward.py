from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.encoder.noise import SequentialNoise
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import Batch, WholeGraph
from h3gnn.training.distributed import Ranks
from h3gnn.training.models import Training, stack_step
from h3gnn.training.objectives import (
    OBJECTIVES,
    FeatureReconstruction,
    LatentPrediction,
    MaskedReconstruction,
    View,
    standardize,
)
from h3gnn.training.teacher import Teacher

MODELS = 2


def setting(graph: Graph, **options: Any) -> tuple[EncoderStack, WholeGraph]:
    """A drawn encoder and the graph as one batch, in float64."""
    support = build_support(graph.edge_index, graph.num_nodes)
    options = {"heads": 2, "models": MODELS, **options}
    encoder = EncoderStack(graph.num_features, options.pop("channels", 8), support.entries, **options)
    drawing = [torch.Generator().manual_seed(i) for i in range(encoder.models)]
    encoder.reset_parameters(drawing, support.start)
    features = FeatureMatrix(graph.dense_features().double())
    return encoder.double(), WholeGraph(features, support.to(features.device, torch.double), 2)


def batch_of(source: WholeGraph) -> Batch:
    return source.batch_of(torch.arange(source.nodes))


def view_of(batch: Batch, mask: Tensor | None = None, teacher: Any = None) -> View:
    if mask is None:
        mask = torch.zeros(MODELS, batch.part.counts[0], dtype=torch.bool)
    drawing = [torch.Generator().manual_seed(i) for i in range(len(mask))]
    return View(batch, teacher, mask, None, drawing, Ranks())


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_change_neither_difficulty_nor_gradients(
    small_mixed: Graph, objective: str, dropout: float, chunk: int
) -> None:
    how = Training.of(
        H3GNN.from_preset("single", n_models=MODELS, objective=objective, edge_drop=dropout).get_settings()
    )
    mask = torch.zeros(MODELS, small_mixed.num_nodes, dtype=torch.bool)
    mask[:, ::2] = True

    def gradients(size: int) -> dict[str, Tensor]:
        encoder, source = setting(small_mixed, token_dropout=dropout, attention_dropout=dropout)
        step = stack_step(encoder.train(), source, [0, 1], how, chunk=size)
        difficulty = step._forward_backward(batch_of(source), mask)
        trained = dict(step.student.named_parameters()) | dict(step.objectives.named_parameters())
        found = {name: p.grad for name, p in trained.items() if p.grad is not None}
        assert found.keys() >= {"input.weight", "edges.logit", "fusion.qkv.weight"}
        return {"difficulty": difficulty, **found}

    whole = gradients(small_mixed.num_nodes)
    assert float(whole["difficulty"].abs().sum()) > 0
    for name, ours in gradients(chunk).items():
        # heads are kept in float32
        exact: dict[str, Any] = {} if ours.dtype == torch.double else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(ours, whole[name], msg=name, **exact)


@pytest.mark.parametrize("targets", ["plain", "standardized"])
def test_the_loss_is_the_squared_distance_to_the_teacher(path_graph: Graph, targets: str) -> None:
    encoder, source = setting(path_graph)
    batch = batch_of(source)
    weights = encoder.edges(batch.factor, batch.start)
    teacher = Teacher(encoder, [0.9, 0.9])(batch.part, None, weights, None, SequentialNoise([]))
    compare = LatentPrediction(MODELS, encoder, targets).compare(view_of(batch, teacher=teacher.embedding))
    target = encoder(batch.part, weights)
    if targets == "standardized":
        target = (target - target.mean(dim=1, keepdim=True)) / target.std(dim=1, keepdim=True, correction=0)
        torch.testing.assert_close(standardize(encoder(batch.part, weights)), target, rtol=1e-4, atol=1e-4)
    shifted = target + 2.0  # every coordinate is 2 away, D = 4 tokens · 8 channels
    wanted = torch.full((2, 5), 4.0 * 32, dtype=torch.double)
    exact: dict[str, Any] = (
        {} if targets == "plain" else {"rtol": 1e-4, "atol": 1e-4}
    )  # the variance is kept from 0
    torch.testing.assert_close(compare(shifted, slice(None)), wanted, **exact)
    torch.testing.assert_close(compare(shifted[:, 1:3], slice(1, 3)), wanted[:, 1:3], **exact)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [("squared", [4.0, 5.0, 20.0]), ("cosine", [0.0, 1.0, 0.4]), ("scaled-cosine", [0.0, 1.0, 0.16])],
)
def test_losses_worked_by_hand(path_graph: Graph, loss: str, wanted: list[float]) -> None:
    encoder, source = setting(path_graph, models=1)
    embedding = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [4.0, 3.0]]], dtype=torch.double, requires_grad=True)
    target = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 5.0]]], dtype=torch.double)
    view = view_of(batch_of(source), teacher=lambda rows: target[:, rows])
    shares = LatentPrediction(1, encoder, "plain", loss).compare(view)(embedding, slice(0, 3))
    torch.testing.assert_close(shares, torch.tensor([wanted], dtype=torch.double))
    shares.sum().backward()  # type: ignore[no-untyped-call]
    assert embedding.grad is not None
    assert embedding.grad.isfinite().all()


def test_the_decoder_is_asked_for_the_raw_features(path_graph: Graph) -> None:
    encoder, source = setting(path_graph)
    batch = batch_of(source)
    objective = FeatureReconstruction(MODELS, encoder, "plain").double()
    objective.reset_parameters([torch.Generator().manual_seed(i) for i in range(2)])
    embedding = encoder(batch.part, encoder.edges(batch.factor, batch.start))
    decoded = objective.decoder(embedding[:, 1:3])
    wanted = (decoded - path_graph.dense_features().double()[1:3]).square().sum(dim=-1)
    compare = objective.compare(view_of(batch))
    torch.testing.assert_close(compare(embedding[:, 1:3], slice(1, 3)), wanted)


@pytest.fixture
def rebuilder() -> tuple[MaskedReconstruction, Batch]:
    """Three nodes in a row whose features are rebuilt by the mean over neighbours, and nothing else."""
    path = check_graph(
        torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    )
    encoder, source = setting(path, models=1, channels=2, heads=1, output="first")
    objective = MaskedReconstruction(1, encoder, "plain").double()
    objective.reset_parameters([torch.Generator().manual_seed(0)])
    with torch.no_grad():
        objective.inner.weight.copy_(torch.eye(2))
        objective.outer.weight.copy_(torch.eye(2))
        assert objective.outer.bias is not None
        objective.outer.bias.zero_()
    return objective, batch_of(source)


def test_the_error_of_masked_features_by_hand(rebuilder: tuple[MaskedReconstruction, Batch]) -> None:
    objective, batch = rebuilder
    compare = objective.compare(view_of(batch, torch.tensor([[True, True, False]])))
    embedding = torch.tensor([[[7.0, 7.0], [8.0, 9.0], [0.0, -1.0]]], dtype=torch.double)
    # Node 0 hears only node 1, which is hidden: the cosine is 0. Node 1 hears (0, 0) and (0, -1): it is -1.
    shares = compare(embedding, slice(None)).detach()
    assert shares.flatten().tolist() == pytest.approx([3 / 2 * 1, 3 / 2 * 4, 0])
    assert float(shares.mean()) == pytest.approx((1 + 4) / 2)  # the mean over masked nodes


def test_masked_features_are_rebuilt_without_a_look_at_masked_nodes(
    rebuilder: tuple[MaskedReconstruction, Batch],
) -> None:
    objective, batch = rebuilder
    compare = objective.compare(view_of(batch, torch.tensor([[False, True, False]])))
    embedding = torch.randn(1, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    other = embedding.clone()
    other[:, 1] += 1
    assert torch.equal(compare(embedding, slice(None)), compare(other, slice(None)))
    other[:, 2] += 1
    assert not torch.equal(compare(embedding, slice(None))[:, 1], compare(other, slice(None))[:, 1])


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
