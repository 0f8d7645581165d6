"""Evaluation protocols: the labels that each choice may use. See docs/evaluation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import metrics
from h3gnn.evaluation.metrics import rarest_class

EPOCH_RULES = ("last", "validation", "label-free")
"""Choice of the training epoch: the last, by each split's validation nodes, or without labels."""
TEST_EPOCH = "best test epoch"
"""The epoch rule of `published`."""

INVERSE_TEMPERATURES = tuple(2 ** (step / 2) for step in range(-8, 25))
"""1/16 to 4096: strong penalties leave small differences."""

Setting = Mapping[str, float | str]

HeldOutLabels = Sequence[npt.NDArray[np.int64]]
"""The labels of each split's test nodes."""


@dataclass(frozen=True)
class Candidates:
    """Classifiers of one embedding, one for each split and setting.

    They hold scores on validation nodes and predictions for test nodes, but no test labels.

    Attributes:
        settings: of each candidate of a split, such as `{"strength": 0.1}`.
        val_accuracy: on each split's validation nodes, `[splits, settings]`.
        val_loss: mean cross-entropy there at the best temperature (`tempered_loss`), `[splits, settings]`.
        val_nodes: labelled validation nodes of each split, `[splits]`.
        predicted: for each split, the predicted classes of its test nodes, `[settings, nodes]`.
        odds: for each split, log p / (1 − p) of the rare class at its test nodes, `[settings, nodes]`.
        classes: number of classes.
        rare: the class with the fewest training and validation nodes.
    """

    settings: tuple[Setting, ...]
    val_accuracy: npt.NDArray[np.float64]
    val_loss: npt.NDArray[np.float64]
    val_nodes: npt.NDArray[np.int64]
    predicted: tuple[npt.NDArray[np.int16], ...]
    odds: tuple[npt.NDArray[np.float32], ...]
    classes: int
    rare: int = 1

    @property
    def splits(self) -> int:
        """Number of splits."""
        return len(self.predicted)


def summarize_split(
    log_p: Tensor, labels: Tensor, val: Tensor, test: Tensor, settings: Sequence[Setting], rare: int = 1
) -> Candidates:
    """Return the candidates of one split from class log-probabilities `[settings, nodes, classes]`.

    `labels` are int64 `[nodes]`, negative where unknown; `val` and `test` are bool `[nodes]`.
    """
    labelled = torch.nonzero(val & (labels >= 0)).flatten()
    classes = labels[labelled]
    at_val, at_test = log_p[:, labelled], log_p[:, torch.nonzero(test).flatten()]
    correct = (at_val.argmax(dim=-1) == classes).double().sum(dim=1)
    return Candidates(
        tuple(settings),
        (correct / max(1, len(labelled)))[None].cpu().numpy(),
        tempered_loss(at_val, classes)[None].cpu().numpy(),
        np.array([len(labelled)]),
        (at_test.argmax(dim=-1).to(torch.int16).cpu().numpy(),),
        (log_odds(at_test, rare).cpu().numpy(),),
        log_p.shape[-1],
        rare,
    )


def tempered_loss(log_p: Tensor, labels: Tensor) -> Tensor:
    r"""Return the mean cross-entropy of each setting at its best temperature, `[settings]`.

    .. math:: \min_\beta -\frac1n \sum_v \log \mathrm{Softmax}(\beta \log p(v))_{y_v}

    A strong penalty moves all probabilities towards the class shares and makes the plain cross-entropy large,
    however well the classes are separated. The best temperature removes this effect.
    """
    given, nodes = log_p.double(), max(1, len(labels))
    own = given.gather(-1, labels.expand(len(given), -1)[..., None]).squeeze(-1)
    losses = [
        ((beta * given).logsumexp(dim=-1) - beta * own).sum(dim=1) / nodes for beta in INVERSE_TEMPERATURES
    ]
    return torch.stack(losses).amin(dim=0)


def log_odds(log_p: Tensor, chosen: int) -> Tensor:
    """Return log p / (1 − p) of one class from log-probabilities `[..., classes]`, float32."""
    others = [one for one in range(log_p.shape[-1]) if one != chosen]
    return (log_p[..., chosen] - log_p[..., others].logsumexp(dim=-1)).float()


def join_splits(several: Sequence[Candidates]) -> Candidates:
    """Return the candidates of several splits."""
    return replace(
        several[0],
        val_accuracy=np.concatenate([one.val_accuracy for one in several]),
        val_loss=np.concatenate([one.val_loss for one in several]),
        val_nodes=np.concatenate([one.val_nodes for one in several]),
        predicted=tuple(array for one in several for array in one.predicted),
        odds=tuple(array for one in several for array in one.odds),
    )


def concat_candidates(several: Mapping[str, Candidates], name: str) -> Candidates:
    """Concatenate candidates of several kinds; `name` is the key of the kind in their settings."""
    every = list(several.values())
    splits = range(every[0].splits)
    return replace(
        every[0],
        settings=tuple({**setting, name: kind} for kind, one in several.items() for setting in one.settings),
        val_accuracy=np.concatenate([one.val_accuracy for one in every], axis=1),
        val_loss=np.concatenate([one.val_loss for one in every], axis=1),
        predicted=tuple(np.concatenate([one.predicted[split] for one in every]) for split in splits),
        odds=tuple(np.concatenate([one.odds[split] for one in every]) for split in splits),
    )


def candidates_from_scores(
    log_p: Tensor, labels: Tensor, val_mask: Tensor, test_mask: Tensor, rare: int = 1
) -> Candidates:
    """Return the candidates of one fitted classifier per split, such as a supervised network.

    Args:
        log_p: class log-probabilities `[splits, nodes, classes]`.
        labels: int64 `[nodes]`, negative where unknown.
        val_mask, test_mask: bool `[nodes, splits]`.
        rare: class of the odds.
    """
    labels, val, test = (one.to(log_p.device) for one in (labels, val_mask, test_mask))
    return join_splits(
        [summarize_split(one[None], labels, val[:, i], test[:, i], [{}], rare) for i, one in enumerate(log_p)]
    )


def count_classes(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the number of classes of the training and validation nodes."""
    known = labels[(train | val).any(dim=1)]
    return max(2, int(known.max()) + 1 if len(known) else 0)


def rarest_known_class(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the class with the fewest training and validation nodes."""
    return rarest_class(labels[(train | val).any(dim=1)].cpu().numpy())


@dataclass(frozen=True)
class Choice:
    """The epoch and the setting chosen for one split."""

    epoch: int
    position: int
    setting: Setting

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"epoch": self.epoch, **self.setting}


@dataclass(frozen=True)
class Protocol:
    """A rule for choosing among candidates.

    Attributes:
        name: "validation", "nested", "pooled" or "published".
        uses_test_labels: whether the choice is made on test nodes.
        description: shown next to its results.
    """

    name: str
    uses_test_labels: bool
    description: str

    def epoch_rule(self, requested: str) -> str:
        """Return the epoch rule under this protocol."""
        if requested not in EPOCH_RULES:
            raise InputError(
                f"unknown epoch rule {requested!r}; choose one of {', '.join(EPOCH_RULES)}",
                code="unknown-epoch-rule",
            )
        return TEST_EPOCH if self.uses_test_labels else requested

    def choose(
        self, by_epoch: Mapping[int, Candidates], test_labels: HeldOutLabels | None = None
    ) -> list[Choice]:
        """Choose an epoch and a setting for each split.

        `published` takes the best test accuracy. The others consider all candidates whose validation accuracy
        is within one standard error of the best, and take the one with the smallest validation loss
        (`tempered_loss`): a few dozen nodes do not separate such candidates by accuracy, but often by loss
        (`python -m benchmarks.choosing`).

        Args:
            by_epoch: the candidates of each epoch; one epoch for the rules "last" and "label-free".
            test_labels: only for a protocol that uses them.
        """
        if self.uses_test_labels != (test_labels is not None):
            raise ValueError(
                f"{self.name} {'needs' if self.uses_test_labels else 'must not see'} test labels"
            )
        if not by_epoch:
            raise ValueError("no candidates to choose from")
        splits = range(next(iter(by_epoch.values())).splits)
        return [
            self._choose(by_epoch, split, None if test_labels is None else test_labels[split])
            for split in splits
        ]

    def _choose(
        self, by_epoch: Mapping[int, Candidates], split: int, labels: npt.NDArray[np.int64] | None
    ) -> Choice:
        every = [
            (Choice(epoch, position, setting), candidates)
            for epoch, candidates in by_epoch.items()
            for position, setting in enumerate(candidates.settings)
        ]
        loss = np.array([found.val_loss[split, choice.position] for choice, found in every])
        if labels is None:
            accuracy = np.array([found.val_accuracy[split, choice.position] for choice, found in every])
            nodes = int(every[0][1].val_nodes[split])
        else:
            accuracy = np.array([metrics.accuracy(labels, f.predicted[split][c.position]) for c, f in every])
            nodes = 0
        return every[one_standard_error_rule(accuracy, loss, nodes)][0]


def one_standard_error_rule(accuracy: npt.NDArray[Any], loss: npt.NDArray[Any], nodes: int) -> int:
    r"""Return the position of the smallest loss among accuracies within one standard error of the best.

    The standard error of an accuracy p on n nodes is :math:`\sqrt{p (1 - p) / n}`; it is 0 for `nodes=0`.
    """
    best = float(accuracy.max())
    error = (best * (1 - best) / nodes) ** 0.5 if nodes else 0.0
    near = np.flatnonzero(accuracy >= best - error)
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
"""All protocols of results."""
PROTOCOLS = {protocol.name: protocol for protocol in (VALIDATION, PUBLISHED)}
"""The protocols that choose the epoch and the probe of one training run."""


def find_protocol(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise InputError(
            f"unknown protocol {name!r}; choose one of {', '.join(PROTOCOLS)}", code="unknown-protocol"
        )
    return PROTOCOLS[name]


@dataclass(frozen=True)
class SplitScores:
    """Test scores of each split's chosen classifier, its validation accuracy, and the choices.

    `secondary` has `metrics.secondary_measures`.
    """

    accuracy: list[float]
    macro_f1: list[float]
    roc_auc: list[float] | None
    validation: list[float]
    chosen: list[dict[str, Any]]
    secondary: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def joined(cls, several: Sequence[SplitScores]) -> SplitScores:
        """Concatenate the scores of splits that were scored separately."""
        aucs = [one.roc_auc for one in several if one.roc_auc is not None]
        names = several[0].secondary
        return cls(
            [value for one in several for value in one.accuracy],
            [value for one in several for value in one.macro_f1],
            [value for one in aucs for value in one] if len(aucs) == len(several) else None,
            [value for one in several for value in one.validation],
            [value for one in several for value in one.chosen],
            {name: [value for one in several for value in one.secondary[name]] for name in names},
        )


def score(
    by_epoch: Mapping[int, Candidates],
    choices: Sequence[Choice],
    test_labels: HeldOutLabels,
    top: int | None = None,
) -> SplitScores:
    """Score the chosen candidates, the only use of test labels under `validation`.

    `top` is the k of recall at k; by default the number of test nodes of the rare class.
    """
    accuracy, f1, auc, validation = [], [], [], []
    secondary: list[dict[str, float]] = []
    for split, choice in enumerate(choices):
        candidates, position, labels = by_epoch[choice.epoch], choice.position, test_labels[split]
        predicted, odds = candidates.predicted[split][position], candidates.odds[split][position]
        accuracy.append(metrics.accuracy(labels, predicted))
        f1.append(metrics.macro_f1(labels, predicted))
        if candidates.classes == 2:
            auc.append(metrics.roc_auc(labels, odds, candidates.rare))
        secondary.append(metrics.secondary_measures(labels, predicted, odds, candidates.rare, top))
        validation.append(float(candidates.val_accuracy[split, position]))
    each = {name: [one[name] for one in secondary] for name in secondary[0]} if secondary else {}
    return SplitScores(accuracy, f1, auc or None, validation, [choice.as_dict() for choice in choices], each)


def held_out_labels(labels: Tensor, test_mask: Tensor) -> list[npt.NDArray[np.int64]]:
    """Return the labels of each split's test nodes, in node order."""
    known, masks = labels.cpu().numpy(), test_mask.cpu().numpy()
    return [known[masks[:, split]] for split in range(masks.shape[1])]
