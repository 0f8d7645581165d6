"""Train models that differ in their seed or their settings: as many at once as memory allows."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from h3gnn.encoder.encode import Allocate
from h3gnn.encoder.stack import EncoderStack, per_model
from h3gnn.encoder.tokens import relation_paths
from h3gnn.resources import check_memory, return_large_blocks
from h3gnn.storage.checkpoint_file import Checkpoints, group_folder, known_group_size
from h3gnn.training.batches import Source, WholeGraph
from h3gnn.training.checkpoints import checkpointing, synchronize
from h3gnn.training.distributed import Ranks
from h3gnn.training.history import History
from h3gnn.training.loop import AfterEpochOf, Snapshots, call_all, progress_bar, train
from h3gnn.training.masking import DifficultyMask, ProbabilityMask, RandomMask
from h3gnn.training.objectives import OBJECTIVES, ObjectiveEnsemble, assign_objectives
from h3gnn.training.optimizer import ParameterStack, StackedAdam, constant, warmup_cosine
from h3gnn.training.resources import (
    MemoryEstimate,
    check_fits,
    free_bytes,
    fusion_bytes,
    models_at_once,
    pick_group,
    use_bfloat16,
)
from h3gnn.training.step import MaskStrategy, Step
from h3gnn.training.teacher import Teacher

PerModel = float | Sequence[float]
"""One number for all models of a stack, or one for each."""
CHUNK = {"cpu": 512, "cuda": 32768}
"""Number of nodes that the fusion block processes at a time: fits a CPU's cache, or keeps a GPU busy."""
MIN_STACK_CHUNK = 256
"""Minimum chunk of a stack of many models: smaller products are slower."""
KEPT_SHARE = 0.25
"""Share of the free memory for the fusion block's intermediate results."""
LARGE_GRAPH = 32_768
"""On a CPU, models of more nodes than this are trained one after another, and nothing is kept for speed."""
ORDER_SALT = 0x5EED


def default_chunk(device: torch.device, models: int) -> int:
    """Return the number of nodes that a stack of models fuses at a time."""
    return max(MIN_STACK_CHUNK, CHUNK[device.type] // models)


def _may_keep(student: EncoderStack, source: Source) -> bool:
    """Whether the fusion block's intermediate results for all nodes of a step fit into memory."""
    heads = getattr(student.fusion, "heads", 0)
    size = fusion_bytes(student.models, student.fused_tokens, student.channels, heads) * source.in_a_step
    size = size // 2 if student.fuse_in_bfloat16 else size
    return size <= KEPT_SHARE * free_bytes(source.device)


class FromSettings:
    """A dataclass whose fields are arguments of `H3GNN`, explained there."""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Take the fields from arguments by name."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: params[name] for name in names})


class PathCounts(NamedTuple):
    """The relations among the nodes of a type, and the columns of each path to other types."""

    relations: int = 0
    widths: tuple[int, ...] = ()

    def tokens(self, hops: int, most: int) -> dict[str, Any]:
        """Return the paths that have a token, up to `most`: those among the nodes first.

        Beside paths to other types, one step along each relation suffices.
        """
        among = relation_paths(self.relations, 1 if self.widths else hops, most)
        return {"paths": among, "path_widths": self.widths[: most - len(among)]}


@dataclass(frozen=True)
class Shape(FromSettings):
    """Architecture of a stack of encoders; a dropout rate may be a list with one value per model."""

    channels: int
    hops: int
    max_paths: int
    min_layers: int
    hidden_channels: int | None
    heads: int
    norm: str
    activation: str
    fusion: str
    output: str
    batch_norm: bool
    edge_weights: str
    token_dropout: PerModel
    attention_dropout: PerModel
    mask_token: str
    precision: str

    def check_memory(self, features: int, models: int) -> None:
        """Raise an error if the weights of the first layers and the hops do not fit into memory.

        Training needs six copies: weight, gradient, two moments, the teacher, and a temporary one.
        """
        mlp, hop = self.hidden_channels or 4 * self.channels, self.hidden_channels or self.channels
        weights = features * (self.channels + mlp + self.hops * hop) + self.hops * self.hops // 2 * hop * hop
        check_memory(
            6 * 4 * models * weights,
            f"the weights of {models} model(s) with {features:,} feature columns, {self.hops:,} hop(s) and "
            f"{self.channels:,} channels",
        )

    def build(
        self, features: int, entries: int, models: int, device: torch.device, paths: PathCounts | None = None
    ) -> EncoderStack:
        """Return an uninitialized stack of encoders; the device decides the memory layout of its weights."""
        self.check_memory(features, 1)
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        options |= (paths or PathCounts()).tokens(self.hops, options.pop("max_paths"))
        options["fuse_in_bfloat16"] = use_bfloat16(options.pop("precision"), device)
        options |= {"side_by_side": device.type == "cuda", "models": models}
        return EncoderStack(features, options.pop("channels"), entries, **options)


@dataclass(frozen=True)
class Training(FromSettings):
    """Training of a stack of models; a sequence has one value per model."""

    objective: Sequence[str]
    targets: str
    loss: str
    feature_drop: PerModel
    edge_drop: PerModel
    teacher_mode: str
    momentum: PerModel
    mask: str
    mask_ratio: PerModel
    hard_fraction: PerModel
    mask_size: str
    replace_rate: PerModel
    mask_warmup: int
    epochs: int
    learning_rate: PerModel
    weight_decay: PerModel
    schedule: str
    warmup_epochs: int
    edge_rate: float

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Take the fields from arguments by name; rates that are "auto" come from each model's objective."""
        names = assign_objectives(params["objective"], params["n_models"])
        own = {
            name: [OBJECTIVES[one].views[name] for one in names]
            for name in ("feature_drop", "edge_drop", "mask_ratio")
            if params[name] == "auto"
        }
        return super().of({**params, **own, "objective": names})

    def of_models(self, models: Sequence[int]) -> Training:
        """Return the training of some of the models."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {n: [v[m] for m in models] for n, v in values.items() if isinstance(v, list | tuple)}
        return replace(self, **cast(Any, own))

    def mask_of(self, models: int) -> Callable[[int], MaskStrategy]:
        """Return each epoch's mask strategy; the first ones are random, since they need no difficulty."""
        ratios, exploits = per_model(self.mask_ratio, models), per_model(self.hard_fraction, models)
        warming: MaskStrategy = RandomMask(ratios)
        strategy = warming
        if self.mask == "difficulty":
            strategy = DifficultyMask(ratios, exploits)
        elif self.mask == "probability":
            strategy = ProbabilityMask(ratios, exploits, self.mask_size)
        return lambda epoch: warming if epoch < max(1, self.mask_warmup) else strategy

    def learning_rate_of(self) -> Callable[[int], float]:
        """Return the factor of the learning rate for each epoch."""
        shape = warmup_cosine if self.schedule == "cosine" else constant
        return partial(shape, steps=self.epochs, warmup=self.warmup_epochs)


def train_models(
    build: Callable[[int], EncoderStack],
    source: Source,
    seeds: list[int],
    training: Training,
    *,
    at_once: int | None = None,
    chunk: int | None = None,
    show: bool = False,
    checkpoints: Checkpoints | None = None,
    fingerprint: dict[str, Any] | None = None,
    snapshots: Snapshots | None = None,
    after_epoch_of: AfterEpochOf | None = None,
    ranks: Ranks | None = None,
) -> tuple[EncoderStack, History]:
    """Train one model for each seed and return them as one stack, with their history.

    A model's result does not depend on the others.

    Args:
        build: from a number of models to an uninitialized stack.
        source: the batches of the graph.
        seeds: one for each model.
        training: how to train.
        at_once: number of models trained as one program; by default as many as memory allows on the whole
            graph, and all in mini-batches. A resumed run trains as many as before.
        chunk: number of nodes that are fused at a time; by default chosen by device.
        show: draw a progress bar.
        checkpoints: where and how often to store the state; several groups have a subfolder each.
        fingerprint: everything that the result depends on, for the checkpoints.
        snapshots: epochs after which to pass on the embedding.
        after_epoch_of: from the first model of a group to the callback for its epochs.
        ranks: the processes that share the mini-batches.
    """
    ranks = ranks or Ranks()
    first = ranks.rank == 0
    policy = checkpoints if first else None
    known = None if policy is None else known_group_size(Path(policy.folder), len(seeds))
    size = known or at_once or (_count_fitting(build(1), source, len(seeds)) if source.whole else len(seeds))
    students: list[EncoderStack] = []
    histories: list[History] = []
    for start in range(0, len(seeds), size):
        models = range(start, min(start + size, len(seeds)))
        group = seeds[start : models.stop]
        own = training.of_models(models)
        step = stack_step(build(len(group)), source, group, own, chunk, ranks)
        students.append(step.student)
        if histories and histories[-1].stopped is not None:  # a signal ended the group before
            step.student.eval()
            histories.append(History({"loss": np.full((1, len(group)), np.nan)}))
            histories[-1].stopped = histories[-2].stopped
            continue
        folder = policy
        if policy is not None and size < len(seeds):
            folder = replace(policy, folder=group_folder(Path(policy.folder), start, len(group)))
        with (
            progress_bar(training.epochs, "training", show=show and first) as bar,
            checkpointing(folder, step, {**(fingerprint or {}), "seeds": group}, training.epochs) as begun,
        ):
            recorder, write = begun
            snapshot = None if snapshots is None else snapshots.begin(step, models)
            watch = after_epoch_of(start) if after_epoch_of is not None and first else None
            history = train(
                step,
                epochs=training.epochs,
                mask_of=own.mask_of(len(group)),
                learning_rate_of=training.learning_rate_of(),
                after_epoch=call_all(bar, watch, write, snapshot),
                recorder=synchronize(step, recorder),
            )
        histories.append(history)
        del step  # before the next one is built
    history = History.side_by_side(histories)
    history.stopped = histories[-1].stopped
    history.engine = {
        "device": str(source.device),
        "precision": "bfloat16" if students[0].fuse_in_bfloat16 else "float32",
        "models_at_once": size,
        **({"feature_storage": source.features.storage} if isinstance(source, WholeGraph) else {}),
        **({} if source.whole else {"processes": ranks.size}),
    }
    joined = _join(build, students)
    joined.fuse_in_bfloat16 = False  # the final embeddings are computed in float32
    return joined, history


def _count_fitting(one: EncoderStack, source: Source, models: int) -> int:
    parameters = sum(parameter.numel() for parameter in one.parameters())
    values_per_node = 4 * sum(one.input.widths) + 12 * one.num_tokens * one.channels
    return models_at_once(models, parameters, values_per_node, source.nodes, free_bytes(source.device))


def stack_step(
    student: EncoderStack,
    source: Source,
    seeds: Sequence[int],
    training: Training,
    chunk: int | None = None,
    ranks: Ranks | None = None,
) -> Step:
    """Initialize a stack of models, one for each seed, and return the step that trains them."""
    device, models = source.device, len(seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    student.reset_parameters(generators, source.support.start.cpu() if source.whole else torch.empty(0))
    student.to(device)
    objectives = ObjectiveEnsemble(training.objective, student, training.targets, training.loss)
    objectives.reset_parameters(generators)
    objectives.to(device)
    rates, decays = (per_model(given, models) for given in (training.learning_rate, training.weight_decay))
    momentum = per_model(training.momentum, models)[: objectives.teachers]
    teacher = Teacher(student, momentum, training.teacher_mode == "train") if momentum else None
    stacks = [
        ParameterStack(student.dense_parameters(), range(models)),
        ParameterStack([student.edges.logit], range(models), training.edge_rate),
    ]
    stacks += [ParameterStack(list(member.parameters()), own) for member, own in objectives]
    if source.whole:  # one sample for every stack, so that a model's result does not depend on the others
        order = torch.Generator(device).manual_seed(ORDER_SALT)
    else:
        order = torch.Generator().manual_seed(seeds[0] ^ ORDER_SALT)
    return Step(
        student,
        teacher,
        objectives,
        StackedAdam(stacks, rates, decays),
        source,
        per_model(training.feature_drop, models),
        per_model(training.edge_drop, models),
        per_model(training.replace_rate, models),
        [torch.Generator(device).manual_seed(seed) for seed in seeds],
        order,
        chunk or default_chunk(device, models),
        ranks or Ranks(),
        keep=chunk is None and _may_keep(student, source),
    )


def _join(build: Callable[[int], EncoderStack], students: list[EncoderStack]) -> EncoderStack:
    """Return the models of several stacks as one."""
    if len(students) == 1:
        return students[0]
    states = [student.state_dict() for student in students]
    joined = build(sum(student.models for student in students))
    joined.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return joined.to(students[0].device).eval()


def derive_seeds(random_state: int | np.random.RandomState | None, models: int) -> list[int]:
    """Return one seed per model; a larger number of models starts with the same seeds."""
    seed = random_state
    if not isinstance(seed, numbers.Integral):
        seed = check_random_state(random_state).randint(2**31)
    streams = np.random.SeedSequence(int(seed)).spawn(models)
    return [int(stream.generate_state(1)[0]) for stream in streams]


def plan_memory(
    params: Mapping[str, Any],
    nodes: int,
    entries: int,
    features: int,
    device: torch.device,
    budget: int | None,
    paths: PathCounts | None = None,
) -> tuple[int | None, int | None]:
    """Return how many models to train at once and nodes to fuse at a time in a budget; None is automatic."""
    if params["batch_size"] is not None:
        return None, None
    with torch.device("meta"):
        one = Shape.of(params).build(features, 0, 1, device, paths)
    size = MemoryEstimate(
        nodes=nodes,
        entries=entries,
        features=features,
        channels=params["channels"],
        hops=one.num_tokens - 2,
        first_width=sum(one.input.widths),
        mlp_width=one.input.widths[1],
        heads=params["heads"],
        models=params["n_models"],
        fused_tokens=one.fused_tokens,
    )
    if budget is None:
        check_fits(size, device)
        if nodes <= LARGE_GRAPH or device.type != "cpu":
            return None, None
        return_large_blocks()
        return 1, default_chunk(device, 1)
    return pick_group(budget, size, default_chunk(device, 1))


def files_in(folder: Path) -> Allocate:
    """Return an allocator of zero tensors in files, which the system may write out and drop."""

    def allocate(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = int(np.prod(shape))
        path = folder / name
        with path.open("wb") as file:
            file.truncate(count * torch.empty(0, dtype=dtype).element_size())
        mapped: Any = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
        tensor: Tensor = mapped.view(shape)
        return tensor

    return allocate
