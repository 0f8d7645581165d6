"""From predicted probabilities to classes and marks, and from predicted numbers to intervals.

Thresholds, cuts and interval widths are learned from predictions for held-out labelled nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn import metrics

from h3gnn.errors import InputError, check_choice, check_number

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MIN_CONFIDENT = 10
"""Held-out nodes above a cut that are needed to learn it."""


@dataclass(frozen=True)
class Rule:
    """How a class is predicted from probabilities, which do not change, and how wide intervals are.

    Attributes:
        class_weight: "none" predicts the most probable class; "balanced" the most probable one relative to
            its share among the labelled nodes, which is best for balanced accuracy.
        threshold: the probability from which the rarer of two classes is predicted; "auto" learns the one
            with the best F1 on held-out nodes.
        cannot_tell_below: predictions with a lower probability are marked; None learns a cut for each class
            such that held-out nodes above it are wrong half as often as all.
        coverage: of numbers, the share of nodes whose number lies inside its interval.
    """

    class_weight: str = "none"
    threshold: float | str | None = None
    cannot_tell_below: float | None = None
    coverage: float = 0.9

    def check(self, classes: int) -> None:
        """Reject invalid combinations; `classes` is 0 for numbers."""
        check_choice("class_weight", self.class_weight, ("none", "balanced"))
        check_number("coverage", self.coverage, 0.5, 0.99, closed=True)
        given = self.class_weight != "none", self.threshold is not None, self.cannot_tell_below is not None
        if not classes and any(given):
            options = ("class_weight", "threshold", "cannot_tell_below")
            name = options[given.index(True)]
            message = f"{name} is for classes, and the label is a number; omit it, or read classes"
            raise InputError(f"{message} (--task classification)", code="option-needs-classes")
        if self.threshold is not None and classes != 2:
            message = f"a threshold needs two classes, but there are {classes}; omit it"
            raise InputError(message, code="threshold-needs-two-classes")
        if self.threshold is not None and self.class_weight != "none":
            message = "give either a threshold or class weights, not both"
            raise InputError(message, code="threshold-and-class-weight")
        if self.threshold not in (None, "auto"):
            check_number("threshold", self.threshold, 0, 1, closed=True)
        if self.cannot_tell_below is not None:
            check_number("cannot_tell_below", self.cannot_tell_below, 0, 1, closed=True)


@dataclass(frozen=True, eq=False)
class Decision:
    """Predictions for some nodes: class, its probability, whether it is marked, and all probabilities."""

    classes: Integers
    probability: Floats
    cannot_tell: Mask
    probabilities: Floats  # [nodes, classes]


@dataclass(frozen=True, eq=False)
class NumberDecision:
    """Predicted numbers of some nodes, and their intervals."""

    number: Floats
    low: Floats
    high: Floats


def joined(parts: list[Decision]) -> Decision:
    """Return the decisions of several blocks of nodes as one."""
    names = [one.name for one in fields(Decision)]
    return Decision(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class ClassDecider:
    """Decides by log-probabilities; the threshold and the cuts are learned from held-out nodes."""

    rule: Rule
    shares: Floats  # of each class among the labelled nodes
    rare: int
    threshold: float | None
    cuts: Floats  # of each class

    @classmethod
    def fit(cls, log_p: Floats, labels: Integers, rule: Rule, asked: int | None = None) -> Self:
        """Learn from held-out log-probabilities `[nodes, classes]` of labelled nodes.

        The threshold is that of the rarer of two classes, or of the one that is `asked` for.
        """
        probabilities, classes = np.exp(log_p), log_p.shape[1]
        shares = np.bincount(labels, minlength=classes) / len(labels)
        rare = int(np.argmin(np.where(shares > 0, shares, np.inf))) if asked is None else asked
        threshold = best_threshold(probabilities[:, rare], labels == rare, rule.threshold)
        plain = cls(rule, shares, rare, threshold, np.zeros(classes))(log_p)
        cuts = learn_cuts(plain.probability, plain.classes, labels, classes, rule.cannot_tell_below)
        return cls(rule, shares, rare, threshold, cuts)

    def __call__(self, log_p: Floats) -> Decision:
        """Decide for some nodes."""
        probabilities = np.exp(log_p)
        if self.threshold is not None:
            decided = np.where(probabilities[:, self.rare] >= self.threshold, self.rare, 1 - self.rare)
        elif self.rule.class_weight == "balanced":
            decided = (probabilities / np.where(self.shares > 0, self.shares, np.inf)).argmax(axis=1)
        else:
            decided = probabilities.argmax(axis=1)
        probability = probabilities[np.arange(len(decided)), decided]
        return Decision(decided, probability, probability < self.cuts[decided], probabilities)


@dataclass(frozen=True)
class NumberScale:
    """The scale on which numbers are learned: as they are, or the logarithm of positive skewed ones."""

    log: bool = False

    @classmethod
    def fit(cls, numbers: Floats) -> Self:
        """Use the logarithm if it makes a distribution of positive numbers clearly less skewed."""
        if numbers.min(initial=1.0) <= 0:
            return cls()
        return cls(abs(skewness(np.log(numbers))) < 0.5 * abs(skewness(numbers)) and skewness(numbers) > 1)

    def __call__(self, numbers: Floats) -> Floats:
        """Return numbers on this scale."""
        return np.log(numbers) if self.log else numbers

    def back(self, scaled: Floats) -> Floats:
        """Return scaled numbers as they were."""
        return np.exp(np.minimum(scaled, 700.0)) if self.log else scaled


@dataclass(frozen=True)
class NumberDecider:
    """Split-conformal intervals: predicted numbers plus and minus a quantile of held-out errors.

    On a logarithmic scale the intervals are relative.
    """

    scale: NumberScale
    radius: float

    @classmethod
    def fit(cls, predicted: Floats, numbers: Floats, rule: Rule, scale: NumberScale) -> Self:
        """Learn from held-out predictions `[nodes, 1]` and the numbers, both on the scale."""
        errors, size = np.sort(np.abs(predicted[:, 0] - numbers)), len(numbers)
        rank = int(np.ceil(rule.coverage * (size + 1)))
        return cls(scale, float(errors[rank - 1]) if rank <= size else float("inf"))

    def __call__(self, predicted: Floats) -> NumberDecision:
        """Return predictions `[nodes, 1]` in their unit."""
        middle, radius = predicted[:, 0], self.radius
        return NumberDecision(*(self.scale.back(middle + one) for one in (0.0, -radius, radius)))


def skewness(numbers: Floats) -> float:
    """Return the third standardized moment; 0 for a constant."""
    apart = numbers - numbers.mean()
    variance = float((apart**2).mean())
    return float((apart**3).mean() / variance**1.5) if variance > 0 else 0.0


def best_threshold(probability: Floats, truth: Mask, threshold: float | str | None) -> float | None:
    """Return the given threshold, or for "auto" the one with the best F1."""
    if threshold != "auto":
        return None if threshold is None else float(threshold)
    precision, recall, thresholds = metrics.precision_recall_curve(truth, probability)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[int(f1[:-1].argmax())])


def learn_cuts(
    probability: Floats, decided: Integers, labels: Integers, classes: int, given: float | None
) -> Floats:
    """Return for each class the lowest probability above which held-out nodes are wrong half as often."""
    if given is not None:
        return np.full(classes, given)
    correct = decided == labels
    cuts = np.full(classes, _lowest_cut(probability, correct))
    for label in range(classes):
        own = decided == label
        if own.sum() >= 2 * MIN_CONFIDENT:
            cuts[label] = _lowest_cut(probability[own], correct[own])
    return cuts


def _lowest_cut(probability: Floats, correct: Mask) -> float:
    """Return the lowest probability above which nodes are wrong half as often as all, or infinity."""
    order = np.argsort(-probability, kind="stable")
    accuracy = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    reached = np.flatnonzero(accuracy >= (1 + accuracy[-1]) / 2)
    reached = reached[reached >= MIN_CONFIDENT - 1]
    return float(probability[order[reached[-1]]]) if reached.size else float("inf")
