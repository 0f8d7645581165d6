"""Protocols: who may look at what while choosing. See docs/evaluation.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import metrics as measures
from h3gnn.evaluation.metrics import rarest_class

EPOCH_RULES = ("last", "validation", "label-free")
"""How the training epoch is chosen: not at all; on each split's validation nodes; or without labels."""
TEST_EPOCH = "best test epoch"
"""The rule of `published`, whatever else was asked for."""

SHARPNESS = tuple(2 ** (step / 2) for step in range(-8, 25))
"""Inverse temperatures to choose from, 1/16 to 4096: strong penalties leave small differences."""

Setting = Mapping[str, float | str]

Answers = Sequence[npt.NDArray[np.int64]]
"""The labels of each split's test nodes."""


@dataclass(frozen=True)
class Candidates:
    """Classifiers of one embedding, for each split one per setting.

    Whoever chooses among them sees how they do on validation nodes. What they say about test nodes is kept
    so that the one chosen can be scored later; the test nodes' labels are not here.

    Attributes:
        settings: what the candidates of a split differ in, such as `{"strength": 0.1}`.
        val_accuracy: on each split's validation nodes, `[splits, settings]`.
        val_loss: mean cross-entropy there, each at the temperature that suits it best (`tempered_loss`),
            `[splits, settings]`.
        val_nodes: how many labelled validation nodes each split has, `[splits]`.
        predicted: of each split, the class that each setting gives each test node, `[settings, nodes]`.
        odds: of each split, log p / (1 − p) of the rare class at the test nodes, `[settings, nodes]`. One
            number for each node: all classes' would be as many times as large, and no measure asks for them.
        classes: how many there are.
        rare: the class that the odds are for, the one with the fewest training and validation nodes.
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
        """How many splits there are."""
        return len(self.predicted)


class SplitOutputs(NamedTuple):
    """Of one split: validation accuracy and loss `[settings]`, number of nodes, test predictions, odds."""

    accuracy: Tensor
    loss: Tensor
    nodes: int
    predicted: Tensor
    odds: Tensor


def summarize_split(log_p: Tensor, labels: Tensor, val: Tensor, test: Tensor, rare: int = 1) -> SplitOutputs:
    """Return what is kept of one split.

    Args:
        log_p: class log-probabilities `[settings, nodes, classes]`.
        labels: int64 `[nodes]`, negative where unknown.
        val, test: bool `[nodes]`; of the validation nodes, only labelled ones count.
        rare: the class whose odds are kept.
    """
    seen = torch.nonzero(val & (labels >= 0)).flatten()
    answers = labels[seen]
    at_val = log_p[:, seen]
    right = (at_val.argmax(dim=-1) == answers).double()
    at_test = log_p[:, torch.nonzero(test).flatten()]
    predicted = at_test.argmax(dim=-1).to(torch.int16)
    accuracy, loss = right.sum(dim=1) / max(1, len(seen)), tempered_loss(at_val, answers)
    return SplitOutputs(accuracy, loss, len(seen), predicted, log_odds(at_test, rare))


def tempered_loss(log_p: Tensor, answers: Tensor) -> Tensor:
    r"""Return the mean cross-entropy of each setting at the temperature that suits it best, `[settings]`.

    .. math:: \min_\beta -\frac1n \sum_v \log \mathrm{Softmax}(\beta \log p(v))_{y_v}

    A strong penalty leaves every probability near its class's share, and the plain cross-entropy large,
    however well the classes are told apart: here a classifier is not judged by how sure it dares to be.

    Args:
        log_p: class log-probabilities `[settings, nodes, classes]`.
        answers: the nodes' classes.
    """
    given, nodes = log_p.double(), max(1, len(answers))
    own = given.gather(-1, answers.expand(len(given), -1)[..., None]).squeeze(-1)
    losses = [((beta * given).logsumexp(dim=-1) - beta * own).sum(dim=1) / nodes for beta in SHARPNESS]
    return torch.stack(losses).amin(dim=0)


def log_odds(log_p: Tensor, chosen: int) -> Tensor:
    """Return log p / (1 − p) of one class from log-probabilities `[..., classes]`, as float32."""
    others = [one for one in range(log_p.shape[-1]) if one != chosen]
    return (log_p[..., chosen] - log_p[..., others].logsumexp(dim=-1)).float()


def stack_splits(
    kept: Sequence[SplitOutputs], settings: Sequence[Setting], classes: int, rare: int = 1
) -> Candidates:
    """Join what was kept of each split."""
    return Candidates(
        tuple(settings),
        torch.stack([one.accuracy for one in kept]).cpu().numpy(),
        torch.stack([one.loss for one in kept]).cpu().numpy(),
        np.array([one.nodes for one in kept]),
        tuple(one.predicted.cpu().numpy() for one in kept),
        tuple(one.odds.cpu().numpy() for one in kept),
        classes,
        rare,
    )


def concat_candidates(several: Mapping[str, Candidates], name: str) -> Candidates:
    """Return candidates of several kinds as one; `name` says in the settings of which kind each is."""
    every = list(several.values())
    splits = range(every[0].splits)
    return Candidates(
        tuple({**setting, name: kind} for kind, one in several.items() for setting in one.settings),
        np.concatenate([one.val_accuracy for one in every], axis=1),
        np.concatenate([one.val_loss for one in every], axis=1),
        every[0].val_nodes,
        tuple(np.concatenate([one.predicted[split] for one in every]) for split in splits),
        tuple(np.concatenate([one.odds[split] for one in every]) for split in splits),
        every[0].classes,
        every[0].rare,
    )


def candidates_from_scores(
    log_p: Tensor, labels: Tensor, val_mask: Tensor, test_mask: Tensor, rare: int = 1
) -> Candidates:
    """Return the candidates of classifiers that were fitted elsewhere, one for each split.

    Args:
        log_p: class log-probabilities `[splits, nodes, classes]`, a supervised network's for instance.
        labels: int64 `[nodes]`, negative where unknown.
        val_mask, test_mask: bool `[nodes, splits]`.
        rare: the class whose odds are kept.
    """
    labels, val, test = (one.to(log_p.device) for one in (labels, val_mask, test_mask))
    kept = [summarize_split(one[None], labels, val[:, i], test[:, i], rare) for i, one in enumerate(log_p)]
    return stack_splits(kept, [{}], log_p.shape[-1], rare)


def count_classes(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return how many classes the training and validation nodes show; test labels are not looked at."""
    seen = labels[(train | val).any(dim=1)]
    return max(2, int(seen.max()) + 1 if len(seen) else 0)


def rarest_known_class(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the class that the fewest training and validation nodes have; test labels are not looked at."""
    return rarest_class(labels[(train | val).any(dim=1)].cpu().numpy())


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
        uses_test_labels: whether test labels are handed to it.
        words: what has to be said beside its numbers.
    """

    name: str
    uses_test_labels: bool
    description: str

    def epoch_rule(self, asked: str) -> str:
        """Return how the epoch is chosen under this protocol."""
        if asked not in EPOCH_RULES:
            raise InputError(f"there is no epoch rule {asked!r}; the rules are {', '.join(EPOCH_RULES)}")
        return TEST_EPOCH if self.uses_test_labels else asked

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
        if self.uses_test_labels != (answers is not None):
            raise ValueError(
                f"{self.name} {'needs' if self.uses_test_labels else 'must not see'} test labels"
            )
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
        return every[one_standard_error_rule(right, loss, nodes)][0]


def one_standard_error_rule(right: npt.NDArray[Any], loss: npt.NDArray[Any], nodes: int) -> int:
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

    `beside` holds what stands beside accuracy, see `measures.secondary_measures`.
    """

    accuracy: list[float]
    macro_f1: list[float]
    roc_auc: list[float] | None
    validation: list[float]
    chosen: list[dict[str, Any]]
    secondary: dict[str, list[float]] = field(default_factory=dict)

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
            {
                name: [value for one in several for value in one.secondary[name]]
                for name in several[0].secondary
            },
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
    secondary: list[dict[str, float]] = []
    for split, choice in enumerate(choices):
        candidates, position, asked = by_epoch[choice.epoch], choice.position, answers[split]
        predicted, odds = candidates.predicted[split][position], candidates.odds[split][position]
        right.append(measures.accuracy(asked, predicted))
        f1.append(measures.macro_f1(asked, predicted))
        if candidates.classes == 2:
            auc.append(measures.roc_auc(asked, odds, candidates.rare))
        secondary.append(measures.secondary_measures(asked, predicted, odds, candidates.rare, top))
        validation.append(float(candidates.val_accuracy[split, position]))
    each = {name: [one[name] for one in secondary] for name in secondary[0]} if secondary else {}
    return SplitScores(right, f1, auc or None, validation, [choice.as_dict() for choice in choices], each)


def held_out_labels(labels: Tensor, test_mask: Tensor) -> list[npt.NDArray[np.int64]]:
    """Return the labels of each split's test nodes, in the order of the nodes."""
    known, masks = labels.cpu().numpy(), test_mask.cpu().numpy()
    return [known[masks[:, split]] for split in range(masks.shape[1])]
