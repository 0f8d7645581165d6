"""Protocols: who may look at what while choosing. See docs/evaluation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import measures
from h3gnn.evaluation.candidates import Candidates, Setting

EPOCH_RULES = ("last", "validation", "label-free")
"""How the training epoch is chosen: not at all; on each split's validation nodes; or without labels."""
TEST_EPOCH = "best test epoch"
"""The rule of `published`, whatever else was asked for."""

Answers = Sequence[npt.NDArray[np.int64]]
"""The labels of each split's test nodes."""


@dataclass(frozen=True)
class Choice:
    """The epoch and the setting that one split's classifier has."""

    epoch: int
    position: int
    setting: Setting

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"epoch": self.epoch, **self.setting}


@dataclass(frozen=True)
class Protocol:
    """A rule for choosing among candidates, and what it may look at.

    Attributes:
        name: "validation", "nested", "pooled" or "published".
        sees_test: whether test labels are handed to it.
        words: what has to be said beside its numbers.
    """

    name: str
    sees_test: bool
    words: str

    def epoch_rule(self, asked: str) -> str:
        """Return how the epoch is chosen under this protocol."""
        if asked not in EPOCH_RULES:
            raise InputError(f"there is no epoch rule {asked!r}; the rules are {', '.join(EPOCH_RULES)}")
        return TEST_EPOCH if self.sees_test else asked

    def choose(self, by_epoch: Mapping[int, Candidates], answers: Answers | None = None) -> list[Choice]:
        """Choose an epoch and a setting for each split.

        `validation` asks the split's validation nodes: of all whose accuracy there is within one standard
        error of the best, it takes the one with the smallest loss there (`tempered_loss`). A few dozen nodes
        cannot tell such candidates apart by accuracy; the loss, which hears of each node how sure a
        classifier is, often can (`python -m benchmarks.choosing`). `published` takes the best accuracy on
        the test nodes.

        Args:
            by_epoch: the candidates of each epoch that may be chosen; for the rules "last" and "label-free"
                that is one.
            answers: labels of the test nodes, for a protocol that sees them; for any other they are refused.
        """
        if self.sees_test != (answers is not None):
            raise ValueError(f"{self.name} {'needs' if self.sees_test else 'must not see'} test labels")
        if not by_epoch:
            raise ValueError("there is nothing to choose from")
        splits = range(next(iter(by_epoch.values())).splits)
        return [
            self._choose(by_epoch, split, None if answers is None else answers[split]) for split in splits
        ]

    def _choose(
        self, by_epoch: Mapping[int, Candidates], split: int, answers: npt.NDArray[np.int64] | None
    ) -> Choice:
        every = [
            (Choice(epoch, position, setting), candidates)
            for epoch, candidates in by_epoch.items()
            for position, setting in enumerate(candidates.settings)
        ]
        loss = np.array([found.val_loss[split, choice.position] for choice, found in every])
        if answers is None:
            right = np.array([found.val_accuracy[split, choice.position] for choice, found in every])
            nodes = int(every[0][1].val_nodes[split])
        else:
            right = np.array([measures.accuracy(answers, f.predicted[split][c.position]) for c, f in every])
            nodes = 0
        return every[best_within_error(right, loss, nodes)][0]


def best_within_error(right: npt.NDArray[Any], loss: npt.NDArray[Any], nodes: int) -> int:
    r"""Return the first with the smallest loss among those whose accuracy is as good as the best.

    As good as the best accuracy p is what lies no more than its standard error :math:`\sqrt{p (1 - p) / n}`
    below it; with no number of nodes n, only the best itself.
    """
    best = float(right.max())
    error = (best * (1 - best) / nodes) ** 0.5 if nodes else 0.0
    near = np.flatnonzero(right >= best - error)
    return int(near[loss[near].argmin()])


VALIDATION = Protocol(
    "validation",
    False,
    "epoch and probe chosen on validation nodes or without labels; test nodes only score what was chosen",
)
PUBLISHED = Protocol(
    "published", True, "epoch and probe chosen on TEST nodes, only to compare with the paper's tables"
)
NESTED = Protocol(
    "nested",
    False,
    "settings of each split chosen by its own training and validation nodes alone; test nodes only score",
)
POOLED = Protocol(
    "pooled",
    False,
    "settings chosen once for all splits, by the training and validation nodes of all together: where splits "
    "overlap, test nodes of one are among those that choose",
)
EVERY = {protocol.name: protocol for protocol in (VALIDATION, NESTED, POOLED, PUBLISHED)}
"""All protocols that a result may name."""
PROTOCOLS = {protocol.name: protocol for protocol in (VALIDATION, PUBLISHED)}
"""Those that choose the epoch and the probe of one training."""


def find_protocol(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}; the protocols are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


@dataclass(frozen=True)
class SplitScores:
    """How the chosen classifier of each split does on its test nodes, and on its validation nodes.

    `beside` holds what stands beside accuracy, see `measures.measures_beside`.
    """

    accuracy: list[float]
    macro_f1: list[float]
    roc_auc: list[float] | None
    validation: list[float]
    chosen: list[dict[str, Any]]
    beside: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def joined(cls, several: Sequence[SplitScores]) -> SplitScores:
        """Return the scores of splits that were scored apart, in their order."""
        aucs = [one.roc_auc for one in several if one.roc_auc is not None]
        return cls(
            [value for one in several for value in one.accuracy],
            [value for one in several for value in one.macro_f1],
            [value for one in aucs for value in one] if len(aucs) == len(several) else None,
            [value for one in several for value in one.validation],
            [value for one in several for value in one.chosen],
            {name: [value for one in several for value in one.beside[name]] for name in several[0].beside},
        )


def score(
    by_epoch: Mapping[int, Candidates], choices: Sequence[Choice], answers: Answers, top: int | None = None
) -> SplitScores:
    """Score what was chosen: the one moment at which `validation` looks at test labels.

    Args:
        by_epoch: the candidates of each epoch.
        choices: one for each split.
        answers: labels of the test nodes.
        top: the k of recall at k; by default as many as the rare class has test nodes.
    """
    right, f1, auc, validation = [], [], [], []
    beside: list[dict[str, float]] = []
    for split, choice in enumerate(choices):
        candidates, position, asked = by_epoch[choice.epoch], choice.position, answers[split]
        predicted, odds = candidates.predicted[split][position], candidates.odds[split][position]
        right.append(measures.accuracy(asked, predicted))
        f1.append(measures.macro_f1(asked, predicted))
        if candidates.classes == 2:
            auc.append(measures.roc_auc(asked, odds, candidates.rare))
        beside.append(measures.measures_beside(asked, predicted, odds, candidates.rare, top))
        validation.append(float(candidates.val_accuracy[split, position]))
    each = {name: [one[name] for one in beside] for name in beside[0]} if beside else {}
    return SplitScores(right, f1, auc or None, validation, [choice.as_dict() for choice in choices], each)


def answers_of(labels: Tensor, test_mask: Tensor) -> list[npt.NDArray[np.int64]]:
    """Return the labels of each split's test nodes, in the order of the nodes."""
    known, masks = labels.cpu().numpy(), test_mask.cpu().numpy()
    return [known[masks[:, split]] for split in range(masks.shape[1])]
