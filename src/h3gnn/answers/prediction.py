"""Classes of nodes from the labelled ones: calibrated probabilities, and a mark where none can be told.

A linear classifier of the embedding. Its strength, the temperature that calibrates it, and the probability
below which it cannot tell are learned on labelled nodes that its fit did not see. How good all this is, is
measured on labelled nodes that no part of it saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn import metrics
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from h3gnn.answers.span import ROWS, Span
from h3gnn.errors import InputError, check_choice, check_number
from h3gnn.evaluation.logistic import fit_logistic, predict_logistic
from h3gnn.resources import one_thread

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""The L2 strengths to choose from; fewer than an evaluation's, since every held-out fold chooses anew."""
INNER_FOLDS = 3
"""Folds of the labelled nodes by which strength, temperature and cuts are chosen."""
LEAST = 4
"""So many labelled nodes a class needs, to be in the fit and in both kinds of fold."""
TOLD = 10
"""A cut is learned where at least so many held-out nodes stand above it."""
TOLERANCE = 1e-4
"""Fits end where the mean loss is no further than this from its least value."""
CLASS_WEIGHTS = ("none", "balanced")
RARE = 0.1


@dataclass(frozen=True)
class Rule:
    """How a class is decided from probabilities.

    Attributes:
        class_weight: "none" takes the likeliest class; "balanced" the one that is likeliest relative to its
            share among the labelled nodes, which is best for balanced accuracy. Probabilities stay as
            they are.
        threshold: of two classes, the rarer is decided from this probability on; "auto" learns the one with
            the best F1 on held-out nodes; None leaves it to the class weight.
        cannot_tell_below: the probability of the decided class below which it is marked; None learns one for
            each class on held-out nodes, such that those above it are wrong half as often as all.
    """

    class_weight: str = "none"
    threshold: float | str | None = None
    cannot_tell_below: float | None = None

    def check(self, classes: int) -> None:
        """Refuse what makes no sense."""
        check_choice("class_weight", self.class_weight, CLASS_WEIGHTS)
        if self.threshold is not None:
            if classes != 2:
                raise InputError(f"a threshold parts two classes, and here are {classes}: leave it out")
            if self.class_weight != "none":
                raise InputError("a threshold and class weights both move the border: give one of them")
            if self.threshold != "auto":
                check_number("threshold", self.threshold, 0, 1, closed=True)
        if self.cannot_tell_below is not None:
            check_number("cannot_tell_below", self.cannot_tell_below, 0, 1, closed=True)


@dataclass(frozen=True, eq=False)
class Decision:
    """What is said of some nodes: class, its probability, whether it is marked, and all probabilities."""

    classes: Whole
    probability: Floats
    cannot_tell: npt.NDArray[np.bool_]
    every: Floats


class LabelModel:
    """Learns classes `[0, classes)` of labelled rows; strength, temperature and cuts by held-out folds.

    Args:
        rows: of the labelled nodes, `[labelled, D]`.
        labels: their classes.
        classes: how many there are.
        rule: how to decide.
        seed: of the folds.
    """

    def __init__(self, rows: Tensor, labels: Whole, classes: int, rule: Rule, seed: int = 0) -> None:
        rule.check(classes)
        self.rule, self.shares = rule, np.bincount(labels, minlength=classes) / len(labels)
        targets = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).to(rows.dtype)
        everything = torch.ones(1, len(rows), dtype=torch.bool)
        with one_thread(len(rows)):
            held = _held_out(rows, targets, labels, seed)
            self.strength, log_p = _choose_strength(held, labels)
            self.temperature = _fit_temperature(log_p, labels)
            self.weights = fit_logistic(rows, targets, everything, [self.strength], tolerance=TOLERANCE)[0]
        every = self._calibrated(log_p)
        self.rare = int(np.argmin(np.where(self.shares > 0, self.shares, np.inf)))
        self.threshold = _best_threshold(every[:, self.rare], labels == self.rare, rule.threshold)
        decided = self.decide(every)
        probability = every[np.arange(len(every)), decided]
        self.cuts = _learn_cuts(probability, decided, labels, classes, rule.cannot_tell_below)

    def __call__(self, rows: Tensor) -> Decision:
        """Say what some rows are."""
        log_p = predict_logistic(rows, self.weights)[0].double().numpy()
        every = self._calibrated(log_p)
        decided = self.decide(every)
        probability = every[np.arange(len(every)), decided]
        return Decision(decided, probability, probability < self.cuts[decided], every)

    def decide(self, every: Floats) -> Whole:
        """Return the class that the rule takes, from calibrated probabilities `[nodes, classes]`."""
        if self.threshold is not None:
            return np.where(every[:, self.rare] >= self.threshold, self.rare, 1 - self.rare)
        if self.rule.class_weight == "balanced":
            every = every / np.where(self.shares > 0, self.shares, np.inf)
        found: Whole = every.argmax(axis=1)
        return found

    def _calibrated(self, log_p: Floats) -> Floats:
        sharpened = log_p / self.temperature
        sharpened = np.exp(sharpened - sharpened.max(axis=1, keepdims=True))
        found: Floats = sharpened / sharpened.sum(axis=1, keepdims=True)
        return found


def labelled_folds(labels: Whole, folds: int, seed: int) -> Iterator[tuple[Whole, Whole]]:
    """Yield the seen and the held-out nodes of each fold, stratified; no more folds than nodes of a class."""
    counts = np.bincount(labels)
    folds = max(2, min(folds, int(counts[counts >= LEAST].min(initial=folds))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class with fewer nodes than folds is told of by `check_labels`
        yield from StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)


def _held_out(rows: Tensor, targets: Tensor, labels: Whole, seed: int) -> Tensor:
    """Return what each strength says of labelled nodes that it has not seen, `[strengths, nodes, C]`."""
    parts = list(labelled_folds(labels, INNER_FOLDS, seed))
    used = torch.zeros(len(parts), len(rows), dtype=torch.bool)
    for fold, (seen, _) in enumerate(parts):
        used[fold, seen] = True
    weights = fit_logistic(rows, targets, used, STRENGTHS, tolerance=TOLERANCE)
    log_p = torch.zeros(len(STRENGTHS), len(rows), targets.shape[1], dtype=rows.dtype)
    for (_, hidden), own in zip(parts, weights, strict=True):
        log_p[:, hidden] = predict_logistic(rows[hidden], own)
    return log_p


def _choose_strength(held: Tensor, labels: Whole) -> tuple[float, Floats]:
    """Return the strength with the least held-out loss, and what it says."""
    of_truth = held[:, torch.arange(len(labels)), torch.from_numpy(labels)].double()
    best = int((-of_truth.mean(dim=1)).argmin())
    return STRENGTHS[best], held[best].double().numpy()


def _fit_temperature(log_p: Floats, labels: Whole) -> float:
    """Return what to divide log-probabilities by so that held-out nodes are least surprising."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        scaled = log_p / np.exp(log_temperature)
        norm = np.logaddexp.reduce(scaled, axis=1)
        return float((norm - scaled[np.arange(len(labels)), labels]).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded").x))


def _best_threshold(probability: Floats, truth: npt.NDArray[np.bool_], asked: Any) -> float | None:
    if asked != "auto":
        return None if asked is None else float(asked)
    precision, recall, at = metrics.precision_recall_curve(truth, probability)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(at[int(f1[:-1].argmax())])


def _learn_cuts(
    probability: Floats, decided: Whole, labels: Whole, classes: int, told: float | None
) -> Floats:
    """Return for each class the lowest probability above which held-out nodes are wrong half as often."""
    if told is not None:
        return np.full(classes, told)
    right = decided == labels
    cuts = np.full(classes, _lowest_cut(probability, right))
    for one in range(classes):
        mine = decided == one
        if mine.sum() >= 2 * TOLD:  # of fewer nodes nothing of their own is known
            cuts[one] = _lowest_cut(probability[mine], right[mine])
    return cuts


def _lowest_cut(probability: Floats, right: npt.NDArray[np.bool_]) -> float:
    """Return the lowest probability above which nodes are wrong half as often as all, or infinity."""
    order = np.argsort(-probability, kind="stable")
    share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    reached = np.flatnonzero(share >= (1 + share[-1]) / 2)
    reached = reached[reached >= TOLD - 1]
    return float(probability[order[reached[-1]]]) if reached.size else float("inf")


class NodePredictor:
    """Learns the classes of a graph's labelled nodes, and says those of any rows of its embedding.

    Args:
        embedding: of all nodes, `[nodes, D]`.
        chosen: positions of the labelled nodes.
        labels: their classes, `[labelled]`, from 0 on.
        classes: how many there are.
        rule: how to decide.
        seed: of the folds.
    """

    def __init__(
        self,
        embedding: npt.NDArray[np.float32],
        chosen: Whole,
        labels: Whole,
        classes: int,
        rule: Rule,
        seed: int = 0,
    ) -> None:
        self.span = Span(embedding, chosen)
        self.turn = self.span.turn(np.arange(len(chosen)))
        self.model = LabelModel(self.turn(self.span.labelled), labels, classes, rule, seed)

    def __call__(self, rows: npt.NDArray[np.float32], nodes: Whole | None = None) -> Decision:
        """Say what rows of the embedding are: of fitted nodes, or of nodes that joined later.

        Args:
            rows: `[nodes, D]`, in memory or in a file.
            nodes: the positions that are asked for; all by default. Some are read at a time.
        """
        asked = np.arange(len(rows)) if nodes is None else nodes
        pieces = (rows[asked[at : at + ROWS]] for at in range(0, max(1, len(asked)), ROWS))
        said = [self.model(self.turn(self.span.standard(piece))) for piece in pieces]
        return Decision(
            *(np.concatenate([getattr(one, name) for one in said]) for name in Decision.__annotations__)
        )

    def how(self) -> str:
        """Return how the probabilities and marks came about, in a sentence."""
        rule = self.model.rule
        marked = (
            f"the mark is for probabilities below {rule.cannot_tell_below:g}"
            if rule.cannot_tell_below is not None
            else "the mark is for probabilities under those above which held-out nodes err half as often"
        )
        return (
            f"logistic regression on the embedding, strength {self.model.strength:g} and temperature "
            f"{self.model.temperature:.2f} chosen on held-out labelled nodes; {marked}"
        )


def check_labels(labels: Whole, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse labels that nothing can be learned from; return what should be said about the others."""
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    enough = np.flatnonzero(counts >= LEAST)
    if len(enough) < 2:
        told = ", ".join(f"{names[one]}: {counts[one]}" for one in np.flatnonzero(counts)[:8]) or "none"
        raise InputError(
            f"predicting classes needs at least two with {LEAST} labelled nodes each, and there are {told}: "
            "label more nodes (--labels FILE)"
        )
    few = [names[one] for one in np.flatnonzero((counts > 0) & (counts < LEAST))]
    notes = []
    if few:
        named = ", ".join(few[:5])
        notes.append(f"fewer than {LEAST} labelled nodes: {named}; the scores say next to nothing on these")
    share = counts[enough].min() / counts.sum()
    if share < RARE:
        rare = names[enough[counts[enough].argmin()]]
        notes.append(
            f"{rare} is rare ({100 * share:.1f} % of the labelled nodes): see its average precision or "
            "balanced accuracy; --class-weight balanced or --threshold find more of it"
        )
    return tuple(notes)
