"""Training models that differ in their seed: as many at once as memory allows, the rest in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support
from h3gnn.encoder.joint import per_model
from h3gnn.masking import DifficultyMask, ProbabilityMask, RandomMask
from h3gnn.storage.checkpoints import Checkpoints, group_folder, known_group_size
from h3gnn.training.checkpoints import checkpointing
from h3gnn.training.history import History
from h3gnn.training.loop import Watch, train
from h3gnn.training.objective import FeatureReconstruction, LatentPrediction, Objective
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.progress import Watching, both, progress_bar
from h3gnn.training.resources import free_bytes, models_at_once
from h3gnn.training.schedules import constant, warmup_cosine
from h3gnn.training.snapshots import Snapshots
from h3gnn.training.step import MaskStrategy, Step
from h3gnn.training.teacher import Teacher

PerModel = float | Sequence[float]
"""One number for all models of a stack, or one for each."""

CHUNK = {"cpu": 512, "cuda": 65536}
"""How many nodes the fusion block sees at a time: what fits a processor's cache, or keeps a GPU busy."""


def default_chunk(device: torch.device, models: int) -> int:
    """Return how many nodes a stack of so many models fuses at a time."""
    return max(1, CHUNK[device.type] // models)


@dataclass(frozen=True)
class Training:
    """How a stack of models is trained; each field is an argument of `H3GNN`, explained there.

    A field that may be a sequence has one value for all models, or one for each.
    """

    objective: str
    teacher_mode: str
    momentum: PerModel
    mask: str
    mask_ratio: PerModel
    exploit_ratio: PerModel
    mask_warmup: int
    epochs: int
    learning_rate: PerModel
    weight_decay: PerModel
    schedule: str
    lr_warmup: int

    def mask_of(self, models: int) -> Callable[[int], MaskStrategy]:
        """Return, for each epoch, its mask strategy: random ones first, since they need no difficulty."""
        ratios, exploits = per_model(self.mask_ratio, models), per_model(self.exploit_ratio, models)
        warming: MaskStrategy = RandomMask(ratios)
        strategy = warming
        if self.mask == "difficulty":
            strategy = DifficultyMask(ratios, exploits)
        elif self.mask == "probability":
            strategy = ProbabilityMask(ratios, exploits)
        return lambda epoch: warming if epoch < max(1, self.mask_warmup) else strategy

    def learning_rate_of(self) -> Callable[[int], float]:
        """Return, for each epoch, the factor of the learning rate."""
        shape = warmup_cosine if self.schedule == "cosine" else constant
        return partial(shape, steps=self.epochs, warmup=self.lr_warmup)


def train_models(
    build: Callable[[int], JointEncoder],
    features: FeatureMatrix,
    support: Support,
    seeds: list[int],
    training: Training,
    *,
    at_once: int | None = None,
    chunk: int | None = None,
    show: bool = False,
    checkpoints: Checkpoints | None = None,
    fingerprint: dict[str, Any] | None = None,
    snapshots: Snapshots | None = None,
    watching: Watching | None = None,
) -> tuple[JointEncoder, History]:
    """Train one model for each seed and return them as one stack, with their history.

    Args:
        build: from a number of models to a stack of them, not yet drawn.
        features: of all nodes, on the device to train on.
        support: where messages may flow.
        seeds: one for each model; a model's result does not depend on the others.
        training: how to train.
        at_once: how many to train as one program; by default as many as memory allows. A run that goes on
            from checkpoints has as many as before.
        chunk: how many nodes the fusion block sees at a time; by default what suits the device.
        show: draw a progress bar.
        checkpoints: where and how often to write down the state; several groups have a subfolder each.
        fingerprint: what the result depends on, by name, for the checkpoints.
        snapshots: after which epochs to hand over the embedding.
        watching: gives what is called after each epoch of the group that starts with a given model.
    """
    known = None if checkpoints is None else known_group_size(Path(checkpoints.folder), len(seeds))
    size = known or at_once or _fitting(build(1), features, len(seeds))
    trained = []
    for start in range(0, len(seeds), size):
        group = seeds[start : start + size]
        place = checkpoints
        if checkpoints is not None and size < len(seeds):
            place = replace(checkpoints, folder=group_folder(Path(checkpoints.folder), start, len(group)))
        told = {**(fingerprint or {}), "seeds": group}
        student = build(len(group))
        step = stack_step(student, features, support, group, training, chunk)
        models = range(start, start + len(group))
        more = None if watching is None else watching(start)
        trained.append(_train_group(step, training, place, told, show, snapshots, models, more))
    students = [student for student, _ in trained]
    history = History.side_by_side([part for _, part in trained])
    history.engine = {
        "device": str(features.device),
        "precision": "bfloat16" if students[0].fuse_in_bfloat16 else "float32",
        "feature_storage": features.storage,
        "models_at_once": size,
    }
    joined = _join(build, students)
    joined.fuse_in_bfloat16 = False  # what users get is computed in full
    return joined, history


def _fitting(one: JointEncoder, features: FeatureMatrix, models: int) -> int:
    parameters = sum(parameter.numel() for parameter in one.parameters())
    values_per_node = 4 * sum(one.input.widths) + 12 * (2 + one.hops) * one.channels
    free = free_bytes(features.device)
    return models_at_once(models, parameters, values_per_node, features.shape[0], free)


def stack_step(
    student: JointEncoder,
    features: FeatureMatrix,
    support: Support,
    seeds: list[int],
    training: Training,
    chunk: int | None = None,
) -> Step:
    """Draw a stack of models, one for each seed, and return the step that trains them as one program."""
    device, models = features.device, len(seeds)
    drawing = [torch.Generator().manual_seed(seed) for seed in seeds]
    student.reset_parameters(drawing, support.start.cpu())
    student.to(device)
    objective: Objective
    trained: list[nn.Module] = [student]
    if training.objective == "teacher":
        momentum = per_model(training.momentum, models)
        teacher = Teacher(student, momentum, live=training.teacher_mode == "train")
        objective = LatentPrediction(teacher)
    else:
        objective = FeatureReconstruction(models, student.out_channels, student.channels, features)
        objective.reset_parameters(drawing)
        trained.append(objective.to(device))
    rates, decays = (per_model(given, models) for given in (training.learning_rate, training.weight_decay))
    optimizer = StackedAdam(trained, rates, decays)
    generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    fused = chunk or default_chunk(device, models)
    return Step(student, objective, optimizer, features, support, generators, fused)


def _train_group(
    step: Step,
    training: Training,
    checkpoints: Checkpoints | None,
    fingerprint: dict[str, Any],
    show: bool,
    snapshots: Snapshots | None,
    models: range,
    more: Watch | None,
) -> tuple[JointEncoder, History]:
    """Train a stack from its start, or from where its checkpoints end."""
    with (
        progress_bar(training.epochs, "training", show=show) as bar,
        checkpointing(checkpoints, step, fingerprint, training.epochs, both(bar, more)) as (
            recorder,
            after_epoch,
        ),
    ):
        watch = after_epoch
        if snapshots is not None:
            snapshots.begin(step, models)
            watch = snapshots.watching(step, models, after_epoch)
        history = train(
            step,
            epochs=training.epochs,
            mask_of=training.mask_of(step.student.models),
            learning_rate_of=training.learning_rate_of(),
            watch=watch,
            recorder=recorder,
        )
    return step.student, history


def _join(build: Callable[[int], JointEncoder], students: list[JointEncoder]) -> JointEncoder:
    """Return the models of several stacks as one."""
    if len(students) == 1:
        return students[0]
    states = [student.state_dict() for student in students]
    joined = build(sum(student.models for student in students))
    joined.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return joined.to(students[0].linear_bias.device).eval()
