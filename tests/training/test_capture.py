"""On a GPU the step is recorded and replayed: what it learns is what the plain step learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, build_support
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.training.batches import WholeGraph
from h3gnn.training.loop import EAGER_STEPS, CapturedStep
from h3gnn.training.models import Shape, Training, stack_step
from h3gnn.training.objectives import OBJECTIVES
from h3gnn.training.step import MaskStrategy, Step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE, MODELS, EPOCHS = torch.device("cuda"), 2, 4 * EAGER_STEPS
"""The first half has random masks, the second masks by difficulty: each is recorded and replayed."""
BASE: dict[str, Any] = {"channels": 8, "heads": 2, "hops": 2, "learning_rate": 0.01, "precision": "float32"}
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"asked for {name}": {"objective": name, "edge_drop": 0.2} for name in OBJECTIVES},
    "with noise": {"token_dropout": 0.3, "attention_dropout": 0.3, "feature_drop": 0.2, "edge_drop": 0.2},
    "with a live teacher": {"teacher_mode": "train", "token_dropout": 0.3, "batch_norm": True},
    "with standard targets": {"targets": "standardized", "mask": "difficulty"},
    "each its own": {"learning_rate": [0.01, 0.002], "momentum": [0.9, 0.5], "mask_ratio": [0.3, 0.7]},
    "with free weights": {"edge_weights": "free", "mask_size": "free"},
    "with swapped nodes": {"replace_rate": 0.4, "loss": "scaled-cosine", "min_layers": 2},
    "with hops first": {
        "fusion": "hierarchical",
        "attention_dropout": 0.3,
        "output": "max",
        "loss": "cosine",
    },
    "in exact masks": {"mask_size": "exact", "hard_fraction": 1.0},
    "in bfloat16": {"precision": "bfloat16"},
}


def train(graph: Graph, setting: dict[str, Any], runner: Callable[[Step], Any]) -> tuple[Step, Tensor, Any]:
    """Train on the GPU; return the step, the loss and mask size of every epoch, and what ran the step."""
    params = (
        H3GNN.from_preset("single", **BASE, n_models=MODELS).get_settings()
        | setting
        | {"epochs": EPOCHS, "mask_warmup": EPOCHS // 2}
    )
    support = build_support(graph.edge_index, graph.num_nodes)
    source = WholeGraph(FeatureMatrix(graph.features.to(DEVICE)), support.to(DEVICE), 2)
    how = Training.of(params)
    student = Shape.of(params).build(graph.num_features, support.entries, MODELS, DEVICE)
    step = stack_step(student, source, [1, 2], how)
    run, mask_of, rate_of = runner(step), how.mask_of(MODELS), how.learning_rate_of()
    step.student.train()
    recorded = []
    for epoch in range(EPOCHS):
        step.optimizer.set_learning_rate(rate_of(epoch))
        recorded.append(run(mask_of(epoch)))
    return step, torch.stack(recorded), run


@pytest.mark.parametrize("case", SETTINGS)
def test_the_recorded_step_learns_what_the_plain_step_learns(small_mixed: Graph, case: str) -> None:
    plain, wanted, _ = train(small_mixed, SETTINGS[case], lambda step: step)
    captured, found, run = train(small_mixed, SETTINGS[case], CapturedStep)
    assert len(run._graphs) == 2  # neither kind of mask was refused, which would also be a warning
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(captured.difficulty, plain.difficulty, rtol=1e-2, atol=1e-3)
    pairs = [(captured.student, plain.student), (captured.objectives, plain.objectives)]
    if captured.teacher is not None and plain.teacher is not None:
        pairs.append((captured.teacher.encoder, plain.teacher.encoder))
    for mine, theirs in pairs:
        for (name, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.parametrize("nodes", [100, 400])  # multiplied dense, and sparse
def test_a_fit_on_the_gpu_replays_and_gives_what_a_plain_fit_gives(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = mixed_graph(nodes, words=60, splits=1)
    replays: list[torch.cuda.CUDAGraph] = []
    usual = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replays.append(graph)
        usual(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    options: dict[str, Any] = {**BASE, "epochs": EPOCHS, "mask_warmup": 2, "n_models": 2, "device": "cuda"}
    captured = H3GNN.from_preset("single", **options).fit(graph)
    assert len(replays) == EPOCHS - 2 - EAGER_STEPS

    def as_it_is(step: Step) -> Callable[[MaskStrategy], Tensor]:
        return step

    monkeypatch.setattr("h3gnn.training.loop.CapturedStep", as_it_is)
    plain = H3GNN.from_preset("single", **options).fit(graph)
    assert len(replays) == EPOCHS - 2 - EAGER_STEPS
    np.testing.assert_allclose(captured.history_["loss"], plain.history_["loss"], rtol=1e-3)
    np.testing.assert_allclose(captured.embedding_, plain.embedding_, atol=1e-2)


COMMITTEE: dict[str, Any] = {
    "channels": 16,
    "n_models": 4,
    "epochs": 4 * EAGER_STEPS,
    "mask_warmup": 2 * EAGER_STEPS,
    "device": "cuda",
}


@pytest.mark.parametrize("nodes_per_step", [None, 200])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_fit_on_the_gpu_twice_and_one_that_is_resumed_give_the_same_bits(
    tmp_path: Path, precision: str, nodes_per_step: int | None
) -> None:
    graph = mixed_graph(400, words=60, splits=1)
    settings = {**COMMITTEE, "precision": precision, "nodes_per_step": nodes_per_step}
    once, twice = (H3GNN.from_settings(settings).fit(graph).embedding_ for _ in range(2))
    np.testing.assert_array_equal(once, twice)

    def dying(_: int) -> Callable[[int, Any], None]:
        def look(epoch: int, _: Any) -> None:
            if epoch == 3 * EAGER_STEPS:  # both kinds of mask have been recorded by then
                raise RuntimeError("power cut")

        return look

    policy = Checkpoints(tmp_path / "checkpoints", every=1)
    with pytest.raises(RuntimeError, match="power cut"):
        H3GNN.from_settings(settings).fit(graph, checkpoints=policy, after_epoch_of=dying)
    np.testing.assert_array_equal(
        H3GNN.from_settings(settings).fit(graph, checkpoints=policy).embedding_, once
    )


@pytest.mark.parametrize("preset", ["single", "paper", "later"])
def test_presets_on_the_gpu_give_the_same_bits_twice(preset: str) -> None:
    graph = mixed_graph(400, words=60, splits=1)
    settings: dict[str, Any] = {"channels": 16, "epochs": 3 * EAGER_STEPS, "device": "cuda"}
    once, twice = (H3GNN.from_preset(preset, **settings).fit(graph).embedding_ for _ in range(2))
    np.testing.assert_array_equal(once, twice)
