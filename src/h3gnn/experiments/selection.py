"""What each split's own nodes like best among the settings that were tried; and what test nodes like.

Two rules stand apart here by what they hold: `OwnNodes` has the labels of a split's own training and
validation nodes and no other; `OnTestNodes`, which only `published` may ask, has the test nodes'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.criteria import RidgeValidation
from h3gnn.graphs.graph import Graph

Changes = dict[str, Any]
"""The settings that a trial changes in a method."""

MOST_DRAWS, DEALT = 10, 5000
"""A split's nodes are dealt anew up to so often to score a setting, until so many were trained on."""


def inner_draws(labels: Tensor, train: Tensor, val: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Deal the training and validation nodes of one split anew: as many of each class for training as before.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train, val: bool `[nodes]`, of the split.
        draws: how often.
        seed: of the chance.

    Returns:
        Two bool masks `[nodes, draws]`; nodes of neither mask are in none.
    """
    generator = torch.Generator().manual_seed(seed)
    own = (train | val) & (labels >= 0)
    inner_train = torch.zeros(len(labels), draws, dtype=torch.bool)
    for one in torch.unique(labels[own]).tolist():
        members = torch.nonzero(own & (labels == one)).flatten()
        many = int((train & (labels == one)).sum())
        many = min(max(1, many), max(1, len(members) - 1))  # one is left to be asked, where there are two
        for draw in range(draws):
            order = torch.randperm(len(members), generator=generator)
            inner_train[members[order[:many]], draw] = True
    return inner_train, own[:, None] & ~inner_train


class Dealt(NamedTuple):
    """The nodes that one split may choose by, dealt anew several times.

    Attributes:
        labels: int64 `[nodes]`, of the split's own training and validation nodes; of all others -1.
        train, val: bool `[nodes, draws]`.
    """

    labels: Tensor
    train: Tensor
    val: Tensor


class OwnNodes:
    """How each split's own training and validation nodes like an embedding.

    For each split it holds the labels of these nodes and no other: whoever chooses by it cannot have seen a
    test node's, of that split, in whichever split else the node is used.

    Args:
        graph: with labels and splits.
        device: where embeddings lie.
        seed: of the dealt nodes.

    Attributes:
        dealt: the nodes of each split.
    """

    def __init__(self, graph: Graph, device: torch.device, seed: int) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        assert graph.val_mask is not None
        self.dealt: list[Dealt] = []
        for split in range(graph.num_splits):
            train, val = graph.train_mask[:, split], graph.val_mask[:, split]
            own = torch.where(train | val, graph.labels, -1)
            draws = min(MOST_DRAWS, DEALT // max(1, int(train.sum())))
            masks = (train[:, None], val[:, None])
            if draws > 1:
                masks = inner_draws(own, train, val, draws, seed + split)
            self.dealt.append(Dealt(own, *masks))
        self.ridge = RidgeValidation.beside([RidgeValidation(*one, device) for one in self.dealt])

    def accuracies(self, rows: Tensor) -> npt.NDArray[np.float64]:
        """Return the mean accuracy over the dealt nodes of each split, `[splits]`."""
        each = self.ridge.accuracies(rows[None])[0]
        splits = int(self.ridge.group.max()) + 1
        total = torch.zeros(2, splits, dtype=torch.float64, device=each.device)
        total.index_add_(1, self.ridge.group, torch.stack([each.double(), torch.ones_like(each).double()]))
        found: npt.NDArray[np.float64] = (total[0] / total[1]).cpu().numpy()
        return found


@dataclass
class Tried:
    """A setting that was trained, with how each split's own nodes liked it.

    Attributes:
        trial: its number.
        drawn: what was drawn for the trial.
        at: after how many epochs, and with which read-out.
        own: the accuracy on each split's dealt nodes, `[splits]`.
        rows: the embedding, as long as some split, or all together, like no other better.
    """

    trial: int
    drawn: Changes
    at: Changes
    own: npt.NDArray[np.float64]
    rows: Tensor | None = None

    @property
    def changes(self) -> Changes:
        """All that differs from the method's own settings."""
        return {**self.drawn, **self.at}

    def as_row(self) -> list[Any]:
        """Return plain values for JSON: the trial, where it was looked at, and how it was liked."""
        return [self.trial, self.at, self.own.round(4).tolist()]


class Preferences:
    """All settings that were tried, and which of them each split likes best."""

    def __init__(self, own_nodes: OwnNodes) -> None:
        self.own_nodes = own_nodes
        self.tried: list[Tried] = []

    def add(self, trial: int, drawn: Changes, at: Changes, rows: Tensor) -> None:
        """Score an embedding `[nodes, D]`; of equal ones a split keeps the first."""
        own = self.own_nodes.accuracies(rows)
        before = self.wanted() if self.tried else set()
        self.tried.append(Tried(trial, drawn, at, own))
        wanted = self.wanted()
        if len(self.tried) - 1 in wanted:
            self.tried[-1].rows = rows.cpu()
        for left in before - wanted:
            self.tried[left].rows = None

    def wanted(self) -> set[int]:
        """Return the positions of what some split, or all together, like best."""
        return {*self.nested(), self.pooled()}

    def nested(self) -> list[int]:
        """Return for each split what its own nodes like best."""
        found: list[int] = np.array([one.own for one in self.tried]).argmax(axis=0).tolist()
        return found

    def pooled(self) -> int:
        """Return what all splits' nodes together like best."""
        return int(np.argmax([one.own.mean() for one in self.tried]))


class OnTestNodes:
    """What `published` goes by: the best accuracy of each setting on test nodes, over its looks."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        assert graph.test_mask is not None
        self.ridge = RidgeValidation(graph.labels, graph.train_mask, graph.test_mask, device)
        self.best: dict[tuple[Any, ...], npt.NDArray[np.float64]] = {}
        self.changes: dict[tuple[Any, ...], Changes] = {}

    def add(self, trial: int, drawn: Changes, at: Changes, rows: Tensor) -> None:
        """Score an embedding on each split's test nodes."""
        found = self.ridge.accuracies(rows[None])[0].cpu().numpy().astype(np.float64)
        read_out = {key: value for key, value in at.items() if key != "epochs"}
        key = (trial, *read_out.values())
        self.best[key] = np.maximum(self.best.get(key, found), found)
        self.changes[key] = {**drawn, **read_out}

    def chosen(self) -> Changes:
        """Return the setting with the best mean over splits; of its epochs, each split has its best."""
        return self.changes[max(self.best, key=lambda key: float(self.best[key].mean()))]
