"""Many models at once: each one's result is the one that it has alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support, build_support
from h3gnn.encoder.propagation import DENSE_NODES
from h3gnn.graphs.graph import Graph
from h3gnn.masking import DifficultyMask, ProbabilityMask
from h3gnn.training.models import Training, train_models
from h3gnn.training.objective import LatentPrediction
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.resources import models_at_once, use_bfloat16
from h3gnn.training.step import Step
from h3gnn.training.teacher import Teacher

TRAINING = Training(
    objective="teacher",
    teacher_mode="eval",
    momentum=0.9,
    mask="probability",
    mask_ratio=0.5,
    exploit_ratio=0.5,
    mask_warmup=2,
    epochs=12,
    learning_rate=0.005,
    weight_decay=0.0,
    schedule="cosine",
    lr_warmup=2,
)


def setting(graph: Graph) -> tuple[FeatureMatrix, Support]:
    return FeatureMatrix(graph.dense_features()), build_support(graph.edge_index, graph.num_nodes)


def builder(graph: Graph, support: Support, dropout: float = 0.2) -> Callable[[int], JointEncoder]:
    return lambda models: JointEncoder(
        graph.num_features,
        8,
        support.pattern.entries,
        heads=2,
        token_dropout=dropout,
        attention_dropout=dropout,
        batch_norm=True,
        models=models,
    )


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_groups_give_what_all_at_once_give(small_mixed: Graph, at_once: int) -> None:
    features, support = setting(small_mixed)
    build = builder(small_mixed, support)
    seeds = [11, 22, 33]
    together, history = train_models(build, features, support, seeds, TRAINING, at_once=3)
    grouped, parts = train_models(build, features, support, seeds, TRAINING, at_once=at_once)
    torch.testing.assert_close(
        grouped(features, support), together.eval()(features, support), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(parts["loss"], history["loss"], rtol=1e-3)
    assert parts.engine["models_at_once"] == at_once
    assert history.engine["feature_storage"] in ("csr", "dense")


def stack(
    graph: Graph, rates: list[float], ratios: list[float], momenta: list[float], seeds: list[int]
) -> tuple[Step, ProbabilityMask]:
    """A stack in which every model has settings of its own."""
    features, support = setting(graph)
    count = len(rates)
    student = builder(graph, support, 0.0)(count)
    student.reset_parameters([torch.Generator().manual_seed(seed) for seed in seeds], support.start)
    objective = LatentPrediction(Teacher(student, momenta))
    optimizer = StackedAdam([student], rates, [0.0] * count)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    step = Step(student.train(), objective, optimizer, features, support, generators, chunk=40)
    return step, ProbabilityMask(ratios, [0.5] * count)


def test_every_model_has_its_own_settings_and_equals_itself_alone(small_mixed: Graph) -> None:
    rates, ratios, momenta, seeds = [0.001, 0.01, 0.003], [0.3, 0.5, 0.8], [0.9, 0.99, 0.5], [1, 2, 3]
    together, masks = stack(small_mixed, rates, ratios, momenta, seeds)
    losses = [together(masks)[0] for _ in range(8)]
    for model in range(3):
        pick = slice(model, model + 1)
        alone, mask = stack(small_mixed, rates[pick], ratios[pick], momenta[pick], seeds[pick])
        for loss in losses:
            torch.testing.assert_close(alone(mask)[0], loss[pick], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dense", [True, False])
def test_a_model_that_diverges_disturbs_no_other(
    small_mixed: Graph, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DENSE_NODES, "cpu", 256 if dense else 0)
    rates, ratios, momenta, seeds = [0.001, 0.001], [0.5, 0.5], [0.9, 0.9], [1, 2]
    good, masks = stack(small_mixed, rates, ratios, momenta, seeds)
    wanted = [good(masks)[0, 0] for _ in range(6)]
    torn, masks = stack(small_mixed, rates, ratios, momenta, seeds)
    with torch.no_grad():
        torn.student.input.weight[1] = float("nan")
    found = [torn(masks)[0] for _ in range(6)]
    assert found[-1][1].isnan()
    torch.testing.assert_close(torch.stack([loss[0] for loss in found]), torch.stack(wanted))


def test_memory_decides_how_many_fit() -> None:
    # One model: 4 · (6 · 1000 + 10 · 100) = 28,000 bytes, of which 60 % of the free memory may be used.
    assert models_at_once(8, 1000, 100, 10, free=1_000_000) == 8
    assert models_at_once(64, 1000, 100, 10, free=1_000_000) == 21
    assert models_at_once(8, 1000, 100, 10, free=10) == 1


def test_precision_is_what_was_asked_for() -> None:
    cpu = torch.device("cpu")
    assert use_bfloat16("bfloat16", cpu)
    assert not use_bfloat16("float32", cpu)
    assert isinstance(use_bfloat16("auto", cpu), bool)


def test_bfloat16_in_the_fusion_block_stays_close(small_mixed: Graph) -> None:
    features, support = setting(small_mixed)
    encoder = builder(small_mixed, support, 0.0)(1)
    encoder.reset_parameters([torch.Generator().manual_seed(0)], support.start)
    exact = encoder.eval()(features, support)
    encoder.fuse_in_bfloat16 = True
    rough = encoder(features, support)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert (rough - exact).abs().max() < 0.1


def test_difficulty_masks_train_too(small_mixed: Graph) -> None:
    step, _ = stack(small_mixed, [0.001], [0.5], [0.9], [1])
    _, masked = step(DifficultyMask([0.5], [0.5]))
    assert masked.item() == 50
    assert (step.difficulty > 0).any()
