"""Training supervised classifiers on every split, with everything chosen on that split's validation nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.classifiers import GAT, GCN, H2GCN, MLP, Classifier, Ground, bytes_each, ground_of
from h3gnn.baselines.stacks import Member, Noise, Setting, WideAdam
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import fit_scaler

CLASSIFIERS: dict[str, type[Classifier]] = {"mlp": MLP, "gcn": GCN, "gat": GAT, "h2gcn": H2GCN}

GRIDS: dict[str, tuple[Setting, ...]] = {
    "small": tuple(Setting(*one) for one in product((64,), (0.2, 0.6), (0.01,), (5e-4, 5e-3))),
    "full": tuple(
        Setting(*one) for one in product((32, 128), (0.2, 0.5, 0.8), (0.01, 0.003), (5e-5, 5e-4, 5e-3))
    ),
}
"""Hyper-parameters to choose from on validation nodes, by name."""

EPOCHS = 400
PATIENCE = 100
Watch = Callable[[float], None]
"""Told the share of the work that is done."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class log-probabilities of every node, with what validation nodes chose; test nodes were not looked at.

    Attributes:
        scores: float32 `[seeds, splits, nodes, classes]`, on the CPU.
        chosen: per seed and split, the epoch and the setting.
    """

    scores: Tensor
    chosen: list[list[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class Trained:
    """The best epoch of each model of a stack: scores `[nodes, models, classes]`, the rest `[models]`."""

    scores: Tensor
    accuracy: Tensor
    loss: Tensor
    epoch: Tensor


def predict(
    method: str,
    graph: Graph,
    seeds: Sequence[int],
    *,
    device: torch.device,
    memory: int,
    grid: Sequence[Setting] = GRIDS["small"],
    epochs: int = EPOCHS,
    patience: int = PATIENCE,
    watch: Watch | None = None,
) -> Predictions:
    """Train a classifier on each split of a graph and return its predictions for all nodes.

    With the first seed every setting of the grid is trained on every split; each split keeps the setting with
    the best accuracy on its validation nodes (ties: the smaller loss). The other seeds train each split with
    its setting. The epoch is chosen in the same way, for every model.

    Args:
        method: "mlp", "gcn", "gat" or "h2gcn".
        graph: with labels and splits.
        seeds: of the starts and of dropout.
        device: where to train.
        memory: bytes that a stack of models may take; more models are trained one stack after another.
        grid: the settings to choose from.
        epochs: at most so many steps.
        patience: a model whose validation score has not risen for so many epochs is finished.
        watch: told the share of the work that is done.
    """
    kind = CLASSIFIERS[method]
    scaled = fit_scaler(graph.features, "auto")(graph.features)
    trainer = _Trainer(kind, graph, ground_of(kind, graph, scaled, device), device, memory, epochs, patience)
    splits = range(graph.num_splits)
    search = [Member(seeds[0], split, setting) for setting in sorted(grid) for split in splits]
    later, report = len(seeds[1:]) * len(splits), watch or (lambda share: None)
    total = len(search) + later
    found = trainer.train(search, part_of(report, 0, len(search), total))
    best = [_best(search, found, split) for split in splits]
    settings = [search[position].setting for position in best]
    again = [Member(seed, split, settings[split]) for seed in seeds[1:] for split in splits]
    again.sort(key=lambda member: (member.setting.width, member.seed, member.setting, member.split))
    repeated = trainer.train(again, part_of(report, len(search), later, total))
    models = {(seeds[0], split): found[best[split]] for split in splits}
    models |= {(member.seed, member.split): one for member, one in zip(again, repeated, strict=True)}
    every = [[models[seed, split] for split in splits] for seed in seeds]
    chosen = [[one.described(settings[split]) for split, one in enumerate(row)] for row in every]
    return Predictions(torch.stack([torch.stack([one.scores for one in row]) for row in every]), chosen)


@dataclass(frozen=True, eq=False)
class _Model:
    """One trained model: its scores `[nodes, classes]` and how it did on validation nodes."""

    scores: Tensor
    accuracy: float
    loss: float
    epoch: int

    def described(self, setting: Setting) -> dict[str, Any]:
        return {"epoch": self.epoch, **setting.as_dict()}


def _best(members: Sequence[Member], models: Sequence[_Model], split: int) -> int:
    """Return the position of the best model of a split: best validation accuracy, then smallest loss."""
    own = [i for i, member in enumerate(members) if member.split == split]
    return min(own, key=lambda i: (-models[i].accuracy, models[i].loss))


class _Trainer:
    """Trains any number of models of one kind on one graph, as many at once as fit into memory."""

    def __init__(
        self,
        kind: type[Classifier],
        graph: Graph,
        ground: Ground,
        device: torch.device,
        memory: int,
        epochs: int,
        patience: int,
    ) -> None:
        if graph.labels is None or graph.train_mask is None or graph.val_mask is None:
            raise InputError("a supervised classifier needs labels and splits")
        self.kind, self.ground, self.device, self.memory = kind, ground, device, memory
        self.epochs, self.patience = epochs, patience
        self.labels = graph.labels.to(device)
        known = graph.labels >= 0
        self.train_share, self.val_share = (
            _shares(mask & known[:, None]).to(device) for mask in (graph.train_mask, graph.val_mask)
        )

    def train(self, members: Sequence[Member], watch: Watch) -> list[_Model]:
        """Train all, a stack at a time; settings of one width stand together in a stack."""
        done: list[_Model] = []
        for group in self._groups(members):
            trained = train_stack(
                self.kind(self.ground, group, self.device),
                group,
                self.labels,
                self.train_share,
                self.val_share,
                epochs=self.epochs,
                patience=self.patience,
                watch=part_of(watch, len(done), len(group), len(members)),
            )
            done += _read_back(trained)
        return done

    def _groups(self, members: Sequence[Member]) -> list[list[Member]]:
        groups: list[list[Member]] = []
        for member in members:
            room = self.memory // bytes_each(self.kind, self.ground, member.setting.width)
            last = groups[-1] if groups else []
            if last and last[0].setting.width == member.setting.width and len(last) < room:
                last.append(member)
            else:
                groups.append([member])
        return groups


def part_of(watch: Watch, before: int, size: int, total: int) -> Watch:
    """Return what tells `watch` of a part: `size` models after `before` of `total`."""
    return lambda share: watch((before + share * size) / total)


def _read_back(trained: Trained) -> list[_Model]:
    scores = trained.scores.transpose(0, 1).cpu()
    figures = zip(trained.accuracy.tolist(), trained.loss.tolist(), trained.epoch.tolist(), strict=True)
    return [_Model(one, *figure) for one, figure in zip(scores, figures, strict=True)]


def _shares(mask: Tensor) -> Tensor:
    """Return what each node counts in the mean over a split's nodes, float `[nodes, splits]`."""
    return mask / mask.sum(dim=0).clamp_min(1)


def train_stack(
    classifier: Classifier,
    members: Sequence[Member],
    labels: Tensor,
    train_share: Tensor,
    val_share: Tensor,
    *,
    epochs: int,
    patience: int,
    watch: Watch | None = None,
) -> Trained:
    """Train a stack; keep each model's scores at the epoch with the best validation accuracy.

    Nothing is read back from the device but, every fifty epochs, whether any model is still rising.

    Args:
        classifier: the stack.
        members: its models.
        labels: `[nodes]`, negative where unknown.
        train_share, val_share: what each node counts, `[nodes, splits]`.
        epochs, patience: how long.
        watch: told the share of the epochs that is done.
    """
    device = labels.device
    split_of = torch.tensor([member.split for member in members], device=device)
    train, val = train_share.index_select(1, split_of), val_share.index_select(1, split_of)
    noise = Noise(members, device)
    adam = WideAdam(list(classifier.weights.tensors.values()), members)
    best = Best(labels, val, patience)
    for epoch in range(epochs):
        own = _own(classifier.logits(noise).log_softmax(dim=-1), labels)
        (-(own * train).sum()).backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            best.look(classifier.logits(None).log_softmax(dim=-1), epoch)
        if epoch % 50 == 49:
            if watch is not None:
                watch((epoch + 1) / epochs)
            if best.finished(epoch):
                break
    assert best.scores is not None
    return Trained(best.scores, best.accuracy, best.loss, best.epoch)


class Best:
    """The best epoch of each model so far, by validation accuracy and then validation loss."""

    def __init__(self, labels: Tensor, val_share: Tensor, patience: int) -> None:
        models, device = val_share.shape[1], labels.device
        self.labels, self.val_share, self.patience = labels, val_share, patience
        self.accuracy = torch.full((models,), -1.0, device=device)
        self.loss = torch.full((models,), torch.inf, device=device)
        self.epoch = torch.zeros(models, dtype=torch.int64, device=device)
        self.scores: Tensor | None = None

    def look(self, scores: Tensor, epoch: int) -> None:
        """Take this epoch's log-probabilities `[nodes, models, classes]` where they are better."""
        right = (scores.argmax(dim=-1) == self.labels[:, None]).to(scores.dtype)
        accuracy = (right * self.val_share).sum(dim=0)
        loss = -(_own(scores, self.labels) * self.val_share).sum(dim=0)
        rounding = 1e-6
        better = (accuracy > self.accuracy + rounding) | (
            (accuracy > self.accuracy - rounding) & (loss < self.loss)
        )
        better &= epoch - self.epoch <= self.patience
        self.accuracy = torch.where(better, accuracy, self.accuracy)
        self.loss = torch.where(better, loss, self.loss)
        self.epoch = torch.where(better, epoch, self.epoch)
        self.scores = scores if self.scores is None else torch.where(better[:, None], scores, self.scores)

    def finished(self, epoch: int) -> bool:
        """Tell whether every model's patience is at its end."""
        return bool((epoch - self.epoch > self.patience).all())


def _own(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each node's own class, `[nodes, models]`; unknown ones take class 0."""
    index = labels.clamp_min(0)[:, None, None].expand(-1, scores.shape[1], 1)
    return scores.gather(2, index).squeeze(2)
