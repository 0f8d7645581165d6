"""Choose among trained settings: by each split's own training and validation nodes, or by test nodes.

`SplitValidation` holds the labels of a split's own training and validation nodes and no others, so whatever
chooses by it cannot use test labels. Only the protocol `published` uses `TestSelection`, which holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.baselines.supervised import Predictions
from h3gnn.evaluation.criteria import RidgeValidation
from h3gnn.graphs.graph import Graph

Changes = dict[str, Any]
"""The settings that a trial changes in a method."""

MAX_RESPLITS, RESPLIT_NODES = 10, 5000
"""A split is resplit at most this often, until this many nodes have been trained on."""


def resplit(labels: Tensor, train: Tensor, val: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Redistribute the training and validation nodes of one split, with the same class counts for training.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train, val: bool `[nodes]`, of the split.
        draws: number of random redistributions.
        seed: of the random numbers.

    Returns:
        Training and validation masks, bool `[nodes, draws]`.
    """
    generator = torch.Generator().manual_seed(seed)
    own = (train | val) & (labels >= 0)
    inner_train = torch.zeros(len(labels), draws, dtype=torch.bool)
    for one in torch.unique(labels[own]).tolist():
        members = torch.nonzero(own & (labels == one)).flatten()
        count = int((train & (labels == one)).sum())
        count = min(max(1, count), max(1, len(members) - 1))  # one remains for validation, of two or more
        for draw in range(draws):
            order = torch.randperm(len(members), generator=generator)
            inner_train[members[order[:count]], draw] = True
    return inner_train, own[:, None] & ~inner_train


class Resplit(NamedTuple):
    """The nodes that one split may choose by, redistributed several times.

    Attributes:
        labels: int64 `[nodes]`, of the split's own training and validation nodes; -1 for all others.
        train, val: bool `[nodes, draws]`.
    """

    labels: Tensor
    train: Tensor
    val: Tensor


class SplitValidation:
    """Accuracy of an embedding on each split's own training and validation nodes, which are resplit.

    For each split it holds the labels of these nodes and no others.

    Args:
        graph: with labels and splits.
        device: of the embeddings.
        seed: of the resplits.

    Attributes:
        resplits: the nodes of each split.
    """

    def __init__(self, graph: Graph, device: torch.device, seed: int) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        assert graph.val_mask is not None
        self.resplits: list[Resplit] = []
        for split in range(graph.num_splits):
            train, val = graph.train_mask[:, split], graph.val_mask[:, split]
            own = torch.where(train | val, graph.labels, -1)
            draws = min(MAX_RESPLITS, RESPLIT_NODES // max(1, int(train.sum())))
            masks = (train[:, None], val[:, None])
            if draws > 1:
                masks = resplit(own, train, val, draws, seed + split)
            self.resplits.append(Resplit(own, *masks))
        self.ridge = RidgeValidation.concat([RidgeValidation(*one, device) for one in self.resplits])

    def accuracies(self, rows: Tensor) -> npt.NDArray[np.float64]:
        """Return the mean accuracy over the resplits of each split, `[splits]`."""
        each = self.ridge.accuracies(rows)
        splits = int(self.ridge.group.max()) + 1
        total = torch.zeros(2, splits, dtype=torch.float64, device=each.device)
        total.index_add_(1, self.ridge.group, torch.stack([each.double(), torch.ones_like(each).double()]))
        found: npt.NDArray[np.float64] = (total[0] / total[1]).cpu().numpy()
        return found


@dataclass
class Trial:
    """A trained setting and its score.

    Attributes:
        number: of the drawn setting.
        drawn: the settings that were drawn.
        variant: the number of epochs and the smoothing, which need no training of their own.
        scores: the accuracy on each split's resplit nodes, `[splits]`.
        rows: the embedding, while it is the best for some split or for all together.
    """

    number: int
    drawn: Changes
    variant: Changes
    scores: npt.NDArray[np.float64]
    rows: Tensor | None = None

    @property
    def changes(self) -> Changes:
        """All differences from the method's own settings."""
        return {**self.drawn, **self.variant}

    def as_row(self) -> list[Any]:
        """Return plain values for JSON."""
        return [self.number, self.variant, self.scores.round(4).tolist()]


class Trials:
    """All trials, and the best of them for each split."""

    def __init__(self, validation: SplitValidation) -> None:
        self.validation = validation
        self.all: list[Trial] = []

    def add(self, number: int, drawn: Changes, variant: Changes, rows: Tensor) -> None:
        """Score an embedding `[nodes, D]`; of equal ones a split keeps the first."""
        scores = self.validation.accuracies(rows)
        before = self._best() if self.all else set()
        self.all.append(Trial(number, drawn, variant, scores))
        best = self._best()
        if len(self.all) - 1 in best:
            self.all[-1].rows = rows.cpu()
        for position in before - best:
            self.all[position].rows = None

    def _best(self) -> set[int]:
        return {*self._of_splits(), self._of_all()}

    def _of_splits(self) -> list[int]:
        found: list[int] = np.array([one.scores for one in self.all]).argmax(axis=0).tolist()
        return found

    def _of_all(self) -> int:
        return int(np.argmax([one.scores.mean() for one in self.all]))

    def nested(self) -> list[Trial]:
        """Return the best trial of each split, by its own nodes."""
        return [self.all[position] for position in self._of_splits()]

    def pooled(self) -> Trial:
        """Return the best trial by the nodes of all splits together."""
        return self.all[self._of_all()]


class TestSelection:
    """The choice of `published`: the best accuracy of each setting on test nodes, over its epochs."""

    __test__ = False  # not a test case

    def __init__(self, graph: Graph, device: torch.device) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        assert graph.test_mask is not None
        self.ridge = RidgeValidation(graph.labels, graph.train_mask, graph.test_mask, device)
        self.best: dict[tuple[Any, ...], npt.NDArray[np.float64]] = {}
        self.changes: dict[tuple[Any, ...], Changes] = {}

    def add(self, number: int, drawn: Changes, variant: Changes, rows: Tensor) -> None:
        """Score an embedding on each split's test nodes."""
        found = self.ridge.accuracies(rows).cpu().numpy().astype(np.float64)
        read_out = {key: value for key, value in variant.items() if key != "epochs"}
        key = (number, *read_out.values())
        self.best[key] = np.maximum(self.best.get(key, found), found)
        self.changes[key] = {**drawn, **read_out}

    def chosen(self) -> Changes:
        """Return the setting with the best mean over splits, each at its best epoch."""
        return self.changes[max(self.best, key=lambda key: float(self.best[key].mean()))]


def best_predictions(found: Sequence[Predictions], graph: Graph) -> list[int]:
    """Return for each split the position of the predictions with the best accuracy on its validation nodes.

    Ties are broken by the cross-entropy there.
    """
    assert graph.labels is not None
    assert graph.val_mask is not None
    known = graph.val_mask & (graph.labels >= 0)[:, None]
    labels = graph.labels.clamp_min(0)
    best = []
    for split in range(graph.num_splits):
        own = known[:, split]
        accuracy, loss = [], []
        for one in found:
            scores = one.scores[split][own]
            accuracy.append(float((scores.argmax(dim=-1) == labels[own]).float().mean()))
            loss.append(-float(scores.gather(1, labels[own][:, None]).mean()))
        best.append(min(range(len(found)), key=lambda at: (-accuracy[at], loss[at])))
    return best
