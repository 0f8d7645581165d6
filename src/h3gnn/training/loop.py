"""The one training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support
from h3gnn.encoder.layers import Dropout
from h3gnn.training.collapse import effective_rank, sample_rows
from h3gnn.training.history import History, Recorder, difficulty_quantiles
from h3gnn.training.objective import LatentPrediction, Objective, backward_by_chunks
from h3gnn.training.optimizer import StackedAdam

MaskStrategy = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From difficulty `[models, nodes]` and one generator per model to a mask, bool `[models, nodes]`."""

Watch = Callable[[int, Recorder], None]
"""Called after each epoch, for a progress bar."""


def train(
    student: JointEncoder,
    objective: Objective,
    optimizer: StackedAdam,
    features: FeatureMatrix,
    support: Support,
    *,
    mask_of: Callable[[int], MaskStrategy],
    generators: Sequence[torch.Generator],
    epochs: int,
    chunk: int = 1024,
    measurements: int = 20,
    watch: Watch | None = None,
) -> History:
    """Train the student(s) in place and return the history.

    Args:
        student: a stack of one or more models.
        objective: what the student is asked for; it holds the teacher.
        optimizer: over the student's parameters (and the decoder's, without a teacher).
        features: of all nodes.
        support: where messages may flow.
        mask_of: from epoch to the mask strategy of that epoch.
        generators: one per model, on the features' device.
        epochs: how many steps to make.
        chunk: how many nodes the fusion block sees at a time.
        measurements: how many times the rank and the teacher's distance are measured.
        watch: called after each epoch.
    """
    recorder = Recorder()
    dropout = Dropout(generators)
    difficulty = torch.zeros(student.models, features.shape[0], device=features.device)
    every = max(1, epochs // measurements)
    recorder_start = _measure(student, objective, features, support)
    student.train()
    for epoch in range(epochs):
        mask = mask_of(epoch)(difficulty, generators)
        projected = student.project(features)
        tokens = student.tokens(projected, support, mask, dropout=dropout)
        kept = student.attention_keep(features.shape[0], dropout)
        distance = objective.distance(projected, support, dropout)
        difficulty = backward_by_chunks(student.fuse, distance, tokens, kept, chunk)
        optimizer.step(epoch)
        objective.update(student)
        measured = recorder_start if epoch == 0 else {}
        if epoch > 0 and (epoch % every == 0 or epoch == epochs - 1):
            measured = _measure(student, objective, features, support)
        recorder.add(
            loss=difficulty.mean(dim=1),
            masked=mask.sum(dim=1),
            **difficulty_quantiles(difficulty),
            **measured,
        )
        if watch is not None:
            watch(epoch, recorder)
    student.eval()
    return recorder.history()


@torch.no_grad()
def _measure(
    student: JointEncoder, objective: Objective, features: FeatureMatrix, support: Support
) -> dict[str, Tensor]:
    """Measure the rank of the student's embedding, and how far the teacher is from it."""
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
