"""The one training loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support
from h3gnn.training.capture import CapturedStep
from h3gnn.training.collapse import effective_rank, sample_rows
from h3gnn.training.history import History, Recorder, difficulty_quantiles
from h3gnn.training.objective import LatentPrediction, Objective
from h3gnn.training.step import MaskStrategy, Step

Watch = Callable[[int, Recorder], None]
"""Called after each epoch, for a progress bar."""


def train(
    step: Step,
    *,
    epochs: int,
    mask_of: Callable[[int], MaskStrategy],
    learning_rate_of: Callable[[int], float],
    measurements: int = 20,
    watch: Watch | None = None,
    recorder: Recorder | None = None,
) -> History:
    """Train the student(s) of a step in place and return the history.

    Args:
        step: one epoch.
        epochs: how many.
        mask_of: from epoch to the mask strategy of that epoch; the same object for the same strategy, since
            on CUDA a recording is kept for each.
        learning_rate_of: from epoch to the factor of the learning rate.
        measurements: how many times the rank, the teacher's distance and the quantiles of the difficulty are
            measured.
        watch: called after each epoch.
        recorder: the epochs that the step has already made, if it goes on from a checkpoint.
    """
    recorder = Recorder() if recorder is None else recorder
    run = CapturedStep(step) if step.features.device.type == "cuda" else step
    every = max(1, epochs // measurements)
    at_start: dict[str, Tensor] = {}
    if not len(recorder):
        at_start = measure(step.student, step.objective, step.features, step.support)
    step.student.train()
    for epoch in range(len(recorder), epochs):
        step.optimizer.set_learning_rate(learning_rate_of(epoch))
        loss, masked = run(mask_of(epoch))
        measured = at_start if epoch == 0 else {}
        if epoch > 0 and (epoch % every == 0 or epoch == epochs - 1):
            measured = measure(step.student, step.objective, step.features, step.support)
        if measured:
            measured |= difficulty_quantiles(step.difficulty)
        recorder.add(loss=loss, masked=masked, **measured)
        if watch is not None:
            watch(epoch, recorder)
    step.student.eval()
    return recorder.history(step.difficulty)


@torch.no_grad()
def measure(
    student: JointEncoder, objective: Objective, features: FeatureMatrix, support: Support
) -> dict[str, Tensor]:
    """Measure the rank of the student's embedding, and how far the teacher is from it, each `[models]`."""
    training = student.training
    student.eval()
    rows = sample_rows(features.shape[0]).to(features.device)
    tokens = student.tokens(student.project(features), support)
    measured = {"effective_rank": effective_rank(student.fuse(tokens[:, rows]))}
    if isinstance(objective, LatentPrediction):
        measured["teacher_distance"] = teacher_distance(student, objective.teacher.encoder)
    student.train(training)
    return measured


def teacher_distance(student: JointEncoder, teacher: JointEncoder) -> Tensor:
    """Return ‖Φ − Ψ‖ / ‖Φ‖ for each model `[models]`."""
    pairs = list(zip(student.parameters(), teacher.parameters(), strict=True))
    apart = torch.stack([(s - t).flatten(1).square().sum(dim=1) for s, t in pairs]).sum(dim=0)
    size = torch.stack([s.flatten(1).square().sum(dim=1) for s, _ in pairs]).sum(dim=0)
    return (apart / size.clamp_min(torch.finfo(size.dtype).tiny)).sqrt()
