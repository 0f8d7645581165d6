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
from h3gnn.evaluation.metrics import number_measures, r_squared, rarest_class

EPOCH_RULES = ("last", "validation", "label-free")
"""Choice of the training epoch: the last, by each split's validation nodes, or without labels."""
INVERSE_TEMPERATURES = tuple(2 ** (step / 2) for step in range(-8, 25))
"""1/16 to 4096: strong penalties leave small differences."""
NUMBERS = 0
"""In place of a number of classes: numbers are predicted."""

Setting = Mapping[str, float | str]

HeldOutLabels = Sequence[npt.NDArray[Any]]
"""The labels of each split's test nodes: classes, or numbers."""


@dataclass(frozen=True)
class Candidates:
    """Classifiers or regressions on one embedding, one for each split and setting.

    They hold scores on validation nodes and predictions for test nodes, but no test labels. For numbers,
    `classes` is `NUMBERS`, accuracy is R², loss the squared error, and there are no odds.

    Attributes:
        settings: of each candidate of a split, such as `{"strength": 0.1}`.
        val_accuracy, val_loss: on each split's validation nodes, `[splits, settings]`; see `tempered_loss`.
        val_nodes: number of labelled validation nodes, `[splits]`.
        predicted: for each split, the predicted classes or numbers of its test nodes, `[settings, nodes]`.
        odds: for each split, log p / (1 − p) of the rare class at its test nodes, `[settings, nodes]`.
        rare: the class with the fewest training and validation nodes.
    """

    settings: tuple[Setting, ...]
    val_accuracy: npt.NDArray[np.float64]
    val_loss: npt.NDArray[np.float64]
    val_nodes: npt.NDArray[np.int64]
    predicted: tuple[npt.NDArray[Any], ...]
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


def summarize_numbers(
    predicted: Tensor, numbers: Tensor, val: Tensor, test: Tensor, settings: Sequence[Setting]
) -> Candidates:
    """Return the candidates of one split from predicted numbers `[settings, nodes]`.

    `numbers` are `[nodes]`, NaN where unknown; `val` and `test` are bool `[nodes]`.
    """
    labelled = torch.nonzero(val & ~numbers.isnan()).flatten()
    truth, found = numbers[labelled].double(), predicted[:, labelled].double()
    loss = (found - truth).square().sum(dim=1) / max(1, len(labelled))
    spread = float((truth - truth.mean()).square().mean()) if len(labelled) else 0.0
    at_test = predicted[:, torch.nonzero(test).flatten()].double().cpu().numpy()
    return Candidates(
        tuple(settings),
        (1 - loss / max(spread, 1e-300))[None].cpu().numpy(),
        loss[None].cpu().numpy(),
        np.array([len(labelled)]),
        (at_test,),
        (np.empty((len(at_test), 0), dtype=np.float32),),
        NUMBERS,
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

    Log-probabilities are `[splits, nodes, classes]`, numbers `[splits, nodes, 1]`, masks `[nodes, splits]`.
    The odds are of `rare`.
    """
    labels, val, test = (one.to(log_p.device) for one in (labels, val_mask, test_mask))
    if labels.is_floating_point():
        each = enumerate(log_p[..., 0])
        return join_splits(
            [summarize_numbers(one[None], labels, val[:, i], test[:, i], [{}]) for i, one in each]
        )
    return join_splits(
        [summarize_split(one[None], labels, val[:, i], test[:, i], [{}], rare) for i, one in enumerate(log_p)]
    )


def count_classes(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the number of classes of the training and validation nodes; `NUMBERS` for numbers."""
    if labels.is_floating_point():
        return NUMBERS
    known = labels[(train | val).any(dim=1)]
    return max(2, int(known.max()) + 1 if len(known) else 0)


def rarest_known_class(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the class with the fewest training and validation nodes; 0 for numbers."""
    if labels.is_floating_point():
        return 0
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
    """A rule for choosing among candidates; its description is shown next to results."""

    name: str
    uses_test_labels: bool
    description: str

    def epoch_rule(self, requested: str) -> str:
        """Return the epoch rule under this protocol."""
        if requested not in EPOCH_RULES:
            message = f"unknown epoch rule {requested!r}; choose one of {', '.join(EPOCH_RULES)}"
            raise InputError(message, code="unknown-epoch-rule")
        return "best test epoch" if self.uses_test_labels else requested

    def choose(
        self, by_epoch: Mapping[int, Candidates], test_labels: HeldOutLabels | None = None
    ) -> list[Choice]:
        """Choose an epoch and a setting for each split.

        `published` takes the best test accuracy. The others consider all candidates whose validation accuracy
        is within one standard error of the best, and take the one with the smallest validation loss
        (`tempered_loss`): a few dozen nodes do not separate such candidates by accuracy, but often by loss
        (`python -m benchmarks.choosing`). Numbers are chosen by the squared error. Only protocols that use
        test labels accept them.
        """
        if self.uses_test_labels != (test_labels is not None):
            needs = "needs" if self.uses_test_labels else "must not see"
            raise ValueError(f"{self.name} {needs} test labels")
        every = [
            Choice(epoch, position, setting)
            for epoch, candidates in by_epoch.items()
            for position, setting in enumerate(candidates.settings)
        ]
        chosen, numbers = [], next(iter(by_epoch.values())).classes == NUMBERS
        measure = r_squared if numbers else metrics.accuracy
        for split, val_nodes in enumerate(by_epoch[every[0].epoch].val_nodes.tolist()):
            loss = np.concatenate([one.val_loss[split] for one in by_epoch.values()])
            if test_labels is None:
                accuracy = np.concatenate([one.val_accuracy[split] for one in by_epoch.values()])
            else:
                predicted = np.concatenate([one.predicted[split] for one in by_epoch.values()])
                accuracy = np.array([measure(test_labels[split], one) for one in predicted])
            if numbers:
                chosen.append(every[int(loss.argmin() if test_labels is None else accuracy.argmax())])
                continue
            position = one_standard_error_rule(accuracy, loss, 0 if self.uses_test_labels else val_nodes)
            chosen.append(every[position])
        return chosen


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
        message = f"unknown protocol {name!r}; choose one of {', '.join(PROTOCOLS)}"
        raise InputError(message, code="unknown-protocol")
    return PROTOCOLS[name]


@dataclass(frozen=True)
class SplitScores:
    """Scores of each split's chosen classifier; `secondary` has `metrics.secondary_measures`.

    For numbers, accuracy is R², macro-F1 is NaN, and `secondary` has the other `number_measures`.
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

        def join(name: str) -> list[Any]:
            return [value for one in several for value in getattr(one, name)]

        auc = None if any(one.roc_auc is None for one in several) else join("roc_auc")
        secondary = {
            name: [value for one in several for value in one.secondary[name]] for name in several[0].secondary
        }
        return cls(join("accuracy"), join("macro_f1"), auc, join("validation"), join("chosen"), secondary)


def score(
    by_epoch: Mapping[int, Candidates],
    choices: Sequence[Choice],
    test_labels: HeldOutLabels,
    top: int | None = None,
) -> SplitScores:
    """Score the chosen candidates, the only use of test labels under `validation`; for `top` see `Result`."""
    accuracy, f1, auc, validation = [], [], [], []
    secondary: list[dict[str, float]] = []
    for split, choice in enumerate(choices):
        candidates, position, labels = by_epoch[choice.epoch], choice.position, test_labels[split]
        predicted, odds = candidates.predicted[split][position], candidates.odds[split][position]
        validation.append(float(candidates.val_accuracy[split, position]))
        if candidates.classes == NUMBERS:
            measures = number_measures(labels, predicted)
            accuracy.append(measures.pop("r2"))
            f1.append(float("nan"))
            secondary.append(measures)
            continue
        accuracy.append(metrics.accuracy(labels, predicted))
        f1.append(metrics.macro_f1(labels, predicted))
        if candidates.classes == 2:
            auc.append(metrics.roc_auc(labels, odds, candidates.rare))
        secondary.append(metrics.secondary_measures(labels, predicted, odds, candidates.rare, top))
    each = {name: [one[name] for one in secondary] for name in secondary[0]} if secondary else {}
    return SplitScores(accuracy, f1, auc or None, validation, [choice.as_dict() for choice in choices], each)


def held_out_labels(labels: Tensor, test_mask: Tensor) -> list[npt.NDArray[Any]]:
    """Return the labels of each split's test nodes, in node order."""
    known, masks = labels.cpu().numpy(), test_mask.cpu().numpy()
    return [known[masks[:, split]] for split in range(masks.shape[1])]
