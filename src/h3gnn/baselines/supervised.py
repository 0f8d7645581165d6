"""Supervised classifiers: stacks of models over one graph, selected on each split's validation nodes.

Values are `[rows, models, channels]` and weights `[in, models, out]`, so that one product with a shared
matrix (features, adjacency) serves all models of a stack without a copy. All models of a seed share initial
weights and dropout masks, so that a model's result does not depend on the other models of its stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby, product
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.layers import Features, SparseMatrix, scaled_features
from h3gnn.baselines.registry import Sizes
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.resources import map_in_threads
from h3gnn.training.optimizer import Group, StackedAdam

COINS = 2**32
"""Offset of the dropout seeds from the seeds of the weights."""


@dataclass(frozen=True, order=True)
class GridPoint:
    """One point of the hyper-parameter grid."""

    width: int
    dropout: float
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class Member:
    """One model of a stack."""

    seed: int
    split: int
    point: GridPoint


class Noise:
    """Dropout for a stack: random numbers per seed, rates per model."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        seeds = list(dict.fromkeys(member.seed for member in members))
        self.generators = [torch.Generator(device).manual_seed(seed + COINS) for seed in seeds]
        self.seed_of = [seeds.index(member.seed) for member in members]
        self.index = torch.tensor(self.seed_of, device=device)
        self.rate_of = [member.point.dropout for member in members]
        self.rates = torch.tensor(self.rate_of, device=device)[:, None]

    def at(self, rate: float) -> Noise:
        """Return the same generators with one rate for all models, for dropout outside the grid."""
        other = object.__new__(Noise)
        rates = torch.full_like(self.rates, rate)
        other.__dict__.update(self.__dict__, rate_of=[rate] * len(self.rate_of), rates=rates)
        return other

    def drop(self, x: Tensor) -> Tensor:
        """Zero values of `[rows, models, channels]`, each model at its own rate, and scale up the rest."""
        shape, device = (x.shape[0], x.shape[2]), self.index.device
        drawn = [torch.rand(shape, generator=generator, device=device) for generator in self.generators]
        coins = torch.stack(drawn, dim=1)
        kept = (coins if len(drawn) == 1 else coins.index_select(1, self.index)) >= self.rates
        return x * (kept / (1 - self.rates))

    def runs(self) -> list[tuple[int, int, float]]:
        """Return the runs of models with one seed and rate: how many, the seed's position, and the rate."""
        keys = zip(self.seed_of, self.rate_of, strict=True)
        return [(len(list(models)), *key) for key, models in groupby(keys)]


class Factors(NamedTuple):
    """Factors of a tensor's learning rate and weight decay."""

    rate: float = 1.0
    decay: float = 1.0


class Weights:
    """The trainable tensors of a stack by name, each `[in, models, out]`; `factors` are those of `Factors`.

    Initial values are sampled on the CPU, once per seed, so that they are the same on every device.
    """

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self.members, self.device = members, device
        self.seeds = list(dict.fromkeys(member.seed for member in members))
        self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        self.tensors: dict[str, Tensor] = {}
        self.factors: dict[str, Factors] = {}

    def glorot(self, name: str, rows: int, columns: int, fan: int | None = None, **factors: float) -> None:
        """Add a tensor, uniform in ±√(6 / (in + out)); `fan` replaces in + out if given."""
        self.uniform(name, rows, columns, math.sqrt(6 / (fan or rows + columns)), **factors)

    def uniform(self, name: str, rows: int, columns: int, bound: float, **factors: float) -> None:
        """Add a tensor, uniform in ±bound."""
        drawn = {
            seed: torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
            for seed, generator in zip(self.seeds, self.generators, strict=True)
        }
        start = torch.stack([drawn[member.seed] for member in self.members], dim=1)
        self._add(name, start, Factors(**factors))

    def linear(self, name: str, rows: int, columns: int, gain: int = 1) -> None:
        """Add a Glorot tensor, its variance multiplied by a gain, and its bias."""
        self.glorot(name, rows, columns, fan=max(1, (rows + columns) // gain))
        self.zeros(f"{name} bias", columns)

    def zeros(self, name: str, columns: int, **factors: float) -> None:
        self.constant(name, torch.zeros(1, columns), **factors)

    def constant(self, name: str, start: Tensor, **factors: float) -> None:
        """Add a tensor with the same initial values `[in, out]` in every model."""
        self._add(name, torch.stack([start] * len(self.members), dim=1), Factors(**factors))

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def _add(self, name: str, start: Tensor, factors: Factors) -> None:
        self.tensors[name] = start.to(self.device).requires_grad_()
        self.factors[name] = factors


def stacked_adam(weights: Weights) -> StackedAdam:
    """Return Adam over a stack's weights; rates and decays broadcast along the models' axis."""

    def column(name: str) -> Tensor:
        values = [getattr(member.point, name) for member in weights.members]
        return torch.tensor(values, device=weights.device)[:, None]

    rates, decays = column("learning_rate"), column("weight_decay")
    groups = [
        Group(
            [tensor for name, tensor in weights.tensors.items() if weights.factors[name] == factors],
            [],
            factors.rate,
            rates * factors.rate,
            decays * factors.decay,
        )
        for factors in dict.fromkeys(weights.factors.values())
    ]
    return StackedAdam.of_groups(groups)


USUAL_WIDTH, USUAL_CLASSES = 64, 16
"""Assumed for the memory estimate before grid and classes are known."""


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of every classifier; a subclass adds its own, the same for all models of a stack.

    Width, dropout, learning rate and weight decay are points of a grid, see `GridPoint`.

    Attributes:
        epochs: maximum number of epochs.
        patience: a model stops after this many epochs without a better validation score.
        scale_features: as for `H3GNN`, or "sums": divide rows by their sum.
    """

    epochs: int = 400
    patience: int = 100
    scale_features: str = "auto"


@dataclass(frozen=True, eq=False)
class Ground:
    """Data shared by all models of a system: features, number of classes, matrices by name, settings."""

    features: Features
    classes: int
    matrices: dict[str, SparseMatrix] = field(default_factory=dict)
    settings: Any = ClassifierSettings()


class Classifier:
    """A stack of models over one graph; a subclass defines `build` and `logits`."""

    settings_class: type[Any] = ClassifierSettings

    def __init_subclass__(cls, settings: type[Any] | None = None) -> None:
        super().__init_subclass__()
        cls.settings_class = settings or cls.settings_class

    def __init__(self, ground: Ground, members: Sequence[Member], device: torch.device) -> None:
        self.ground, self.settings = ground, ground.settings
        self.in_channels = ground.features.shape[1]
        self.width = members[0].point.width
        self.weights = Weights(members, device)
        self.build()

    @classmethod
    def on(cls, graph: Graph, device: torch.device, settings: Any) -> Ground:
        """Return the data of a graph that all models share."""
        made = cls.matrices(graph, settings)
        matrices = {name: matrix.to(device) for name, matrix in made.items()}
        features = scaled_features(graph, device, settings.scale_features)
        return Ground(features, graph.num_classes, matrices, settings)

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return the matrices of the models by name."""
        return {}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Estimate the memory of training one model."""
        weights, rows = 6 * sizes.features * USUAL_WIDTH, sizes.nodes * (12 * USUAL_WIDTH + sizes.features)
        more = cls.extra_values(sizes, settings, USUAL_WIDTH, USUAL_CLASSES)
        return 4 * (weights + rows + 10 * sizes.edges + more)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        (nodes, features), classes = ground.features.shape, ground.classes
        edges = ground.matrices["source"].shape[0] if "source" in ground.matrices else 0
        more = cls.extra_values(Sizes(nodes, edges, features), ground.settings, width, classes)
        return 4 * (6 * features * width + nodes * (10 * width + 12 * classes) + more)

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        """Estimate how many values a model keeps for its backward pass beyond those of an MLP."""
        return 0

    def build(self) -> None:
        raise NotImplementedError

    def logits(self, noise: Noise | None) -> Tensor:
        """Return logits `[nodes, models, classes]`; `noise` applies dropout in training."""
        raise NotImplementedError

    @staticmethod
    def dropped(x: Tensor, noise: Noise | None) -> Tensor:
        return x if noise is None else noise.drop(x)

    def dense(self, x: Tensor, name: str) -> Tensor:
        """Return `x W` for each model's own rows `[nodes, models, in]`."""
        return torch.einsum("nmc,cmk->nmk", x, self.weights[name])


GRIDS: dict[str, tuple[GridPoint, ...]] = {
    "small": tuple(GridPoint(*one) for one in product((64,), (0.2, 0.6), (0.01,), (5e-4, 5e-3))),
    "full": tuple(
        GridPoint(*one) for one in product((32, 128), (0.2, 0.5, 0.8), (0.01, 0.003), (5e-5, 5e-4, 5e-3))
    ),
}
"""Hyper-parameter grids by name."""
ROUNDING = 1e-6
"""Tolerance for equal accuracies."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Log-probabilities `[splits, nodes, classes]` from one seed, and each split's epoch and grid point."""

    scores: Tensor
    chosen: list[dict[str, Any]]


def predict(
    kind: type[Classifier],
    graph: Graph,
    seeds: Sequence[int],
    *,
    device: torch.device,
    memory: int,
    grid: Sequence[GridPoint] = GRIDS["small"],
    settings: Any = ClassifierSettings(),  # noqa: B008
    watch: Progress = unwatched,
) -> list[Predictions]:
    """Train a classifier on each split of a graph and return its predictions, for each seed.

    The first seed trains every point of the grid on every split; each split keeps the point with the best
    validation accuracy (ties: the smaller loss), with which the other seeds train. The epoch of every model
    is selected likewise. `memory` limits the bytes of a stack; further models form further stacks.
    """
    trainer = _Trainer(kind, graph, device, memory, settings)
    splits = range(graph.num_splits)
    search = [Member(seeds[0], split, point) for point in sorted(grid) for split in splits]
    later = len(seeds[1:]) * len(splits)
    total = len(search) + later
    found = trainer.train(search, part_of(watch, 0, len(search), total))
    by_score = sorted(range(len(search)), key=lambda i: (-found[i].accuracy, found[i].loss))
    best = [next(i for i in by_score if search[i].split == split) for split in splits]
    points = [search[position].point for position in best]
    again = [Member(seed, split, points[split]) for seed in seeds[1:] for split in splits]
    again.sort(key=lambda member: (member.point.width, member.seed, member.point, member.split))
    repeated = trainer.train(again, part_of(watch, len(search), later, total))
    models = {(seeds[0], split): found[best[split]] for split in splits}
    models |= {(member.seed, member.split): one for member, one in zip(again, repeated, strict=True)}
    return [
        Predictions(
            torch.stack([models[seed, split].scores for split in splits]),
            [{"epoch": models[seed, split].epoch, **asdict(points[split])} for split in splits],
        )
        for seed in seeds
    ]


def best_predictions(found: Sequence[Predictions], graph: Graph) -> list[int]:
    """Return for each split the position of the predictions with the best accuracy on its validation nodes.

    Ties are broken by the cross-entropy there. Numbers are ranked by the squared error.
    """
    known = graph.labels if graph.targets is None else graph.targets
    assert known is not None
    assert graph.val_mask is not None
    masks, best = graph.val_mask.t() & torch.from_numpy(graph.labelled), []
    for split, own in enumerate(masks):
        ranks, wanted = list[tuple[float, ...]](), known[own]
        for scores in (one.scores[split][own] for one in found):
            if graph.targets is not None:
                ranks.append((float((scores[:, 0] - wanted).square().sum()),))
                continue
            accuracy = float((scores.argmax(dim=-1) == wanted).float().mean())
            ranks.append((-accuracy, -float(scores.gather(1, wanted[:, None]).mean())))
        best.append(ranks.index(min(ranks)))
    return best


def part_of(watch: Progress, before: int, size: int, total: int) -> Progress:
    """Return the progress of a part: `size` pieces of work after `before` of `total`."""
    return lambda share: watch((before + share * size) / total)


def joint_progress(watch: Progress, sizes: Sequence[int]) -> list[Progress]:
    """Return the progress of each of several pieces of work, which threads may report."""
    shares, lock = [0.0] * len(sizes), Lock()

    def report(which: int, share: float) -> None:
        with lock:
            if share != shares[which]:
                shares[which] = share
                watch(sum(one * size for one, size in zip(shares, sizes, strict=True)) / sum(sizes))

    return [partial(report, which) for which in range(len(sizes))]


class _Model(NamedTuple):
    """One trained model: its scores `[nodes, classes]` and validation results."""

    scores: Tensor
    accuracy: float
    loss: float
    epoch: int


class _Trainer:
    """Trains models of one class on one graph, as many at once as fit into memory."""

    def __init__(
        self, kind: type[Classifier], graph: Graph, device: torch.device, memory: int, settings: Any
    ) -> None:
        if graph.labels is None or graph.train_mask is None or graph.val_mask is None:
            raise InputError("a supervised classifier needs labels and splits", code="no-labels")
        self.kind, self.device, self.memory = kind, device, memory
        self.ground = kind.on(graph, device, settings)
        self.epochs, self.patience = settings.epochs, settings.patience
        self.labels = graph.labels.to(device)
        known = (graph.labels >= 0)[:, None]
        self.train_share, self.val_share = (  # weights of the nodes in the mean over a split
            ((mask & known) / (mask & known).sum(dim=0).clamp_min(1)).to(device)
            for mask in (graph.train_mask, graph.val_mask)
        )

    def train(self, members: Sequence[Member], watch: Progress) -> list[_Model]:
        """Train all models, in stacks of one width; on a CPU, stacks of a small graph in parallel threads."""
        stacks = self._groups(members)
        parts = joint_progress(watch, [len(stack) for stack in stacks])
        work = list(zip(stacks, parts, strict=True))
        found = map_in_threads(lambda one: self._train_stack(*one), work, len(self.labels), self.device.type)
        return [model for models in found for model in models]

    def _groups(self, members: Sequence[Member]) -> list[list[Member]]:
        groups: list[list[Member]] = []
        for member in members:
            capacity = self.memory // self.kind.bytes_each(self.ground, member.point.width)
            last = groups[-1] if groups else []
            if last and last[0].point.width == member.point.width and len(last) < capacity:
                last.append(member)
            else:
                groups.append([member])
        return groups

    def _train_stack(self, members: Sequence[Member], watch: Progress) -> list[_Model]:
        split_of = torch.tensor([member.split for member in members], device=self.device)
        train, val = (share.index_select(1, split_of) for share in (self.train_share, self.val_share))
        stack, noise = self.kind(self.ground, members, self.device), Noise(members, self.device)
        adam = stacked_adam(stack.weights)
        best = BestEpochs(self.labels, val, self.patience)
        check_every = 1 if self.device.type == "cpu" else 50  # the test synchronizes with a GPU
        for epoch in range(self.epochs):
            own = _own(stack.logits(noise).log_softmax(dim=-1), self.labels)
            (-(own * train).sum()).backward()  # type: ignore[no-untyped-call]
            adam.step()
            with torch.no_grad():
                best.update(stack.logits(None).log_softmax(dim=-1), epoch)
            if epoch % 50 == 49:
                watch((epoch + 1) / self.epochs)
            if epoch % check_every == check_every - 1 and best.finished(epoch):
                break
        watch(1.0)
        return best.models()


class BestEpochs:
    """The best epoch of each model, by validation accuracy and then validation loss."""

    def __init__(self, labels: Tensor, val_share: Tensor, patience: int) -> None:
        models, device = val_share.shape[1], labels.device
        self.labels, self.val_share, self.patience = labels, val_share, patience
        self.accuracy = torch.full((models,), -1.0, device=device)
        self.loss = torch.full((models,), torch.inf, device=device)
        self.epoch = torch.zeros(models, dtype=torch.int64, device=device)
        self.scores: Tensor | None = None

    def update(self, scores: Tensor, epoch: int) -> None:
        """Keep the log-probabilities `[nodes, models, classes]` of improved models."""
        right = (scores.argmax(dim=-1) == self.labels[:, None]).to(scores.dtype)
        accuracy = (right * self.val_share).sum(dim=0)
        loss = -(_own(scores, self.labels) * self.val_share).sum(dim=0)
        as_good = (accuracy > self.accuracy - ROUNDING) & (loss < self.loss)
        better = (accuracy > self.accuracy + ROUNDING) | as_good
        better &= epoch - self.epoch <= self.patience
        self.accuracy = torch.where(better, accuracy, self.accuracy)
        self.loss = torch.where(better, loss, self.loss)
        self.epoch = torch.where(better, epoch, self.epoch)
        self.scores = scores if self.scores is None else torch.where(better[:, None], scores, self.scores)

    def finished(self, epoch: int) -> bool:
        return bool((epoch - self.epoch > self.patience).all())

    def models(self) -> list[_Model]:
        assert self.scores is not None
        figures = zip(self.accuracy.tolist(), self.loss.tolist(), self.epoch.tolist(), strict=True)
        scores = self.scores.transpose(0, 1).cpu()
        return [_Model(one, *figure) for one, figure in zip(scores, figures, strict=True)]


def _own(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each node's class `[nodes, models]`; class 0 if unknown."""
    index = labels.clamp_min(0)[:, None, None].expand(-1, scores.shape[1], 1)
    return scores.gather(2, index).squeeze(2)
