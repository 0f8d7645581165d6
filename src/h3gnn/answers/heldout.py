"""How good predicted classes are: scores on labelled nodes that no part of the procedure saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn import metrics

from h3gnn.answers.prediction import Decision, Floats, LabelModel, Rule, Whole, labelled_folds
from h3gnn.answers.span import Span

OUTER_FOLDS, REPEATS, MANY = 5, 3, 300
"""Folds that score, and how often they are drawn; beyond MANY labelled nodes, once."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Held-out scores by name, mean and standard deviation over folds; and the held-out decisions.

    Attributes:
        mean, std: of accuracy, balanced accuracy, log loss, the share that is told, the accuracy there; of
            two classes also average precision, precision and recall of the rarer. The calibration error is
            that of all held-out nodes together, without a deviation.
        majority: the share of the largest class.
        folds: how many folds were scored.
        positive: the rarer of two classes, None of more.
        held_out: what was said of each labelled node by a model that had not seen it.
    """

    mean: dict[str, float]
    std: dict[str, float]
    majority: float
    folds: int
    positive: int | None
    held_out: Decision = field(repr=False)


def score_held_out(
    span: Span,
    labels: Whole,
    classes: int,
    rule: Rule,
    *,
    seed: int = 0,
    watch: Callable[[float], None] = lambda share: None,
) -> Scores:
    """Score the whole procedure by stratified folds: all that is chosen is chosen without the held-out fold.

    Args:
        span: of the labelled rows.
        labels: their classes `[labelled]`.
        classes: how many there are.
        rule: how to decide.
        seed: of the folds.
        watch: is told the share that is done.
    """
    repeats = REPEATS if len(labels) <= MANY else 1
    drawn = [
        fold for one in range(repeats) for fold in labelled_folds(labels, OUTER_FOLDS, seed + 1000 * one)
    ]
    per_repeat = len(drawn) // repeats
    counts = np.bincount(labels, minlength=classes)
    positive = int(counts.argmin()) if classes == 2 else None
    found, kept = [], []
    for number, (seen, hidden) in enumerate(drawn):
        rows = span.of(seen)
        said = LabelModel(rows(seen), labels[seen], classes, rule, seed)(rows(hidden))
        found.append(_measure(said, labels[hidden], positive))
        if number < per_repeat:
            kept.append((hidden, said))
        watch((number + 1) / len(drawn))
    names = found[0].keys()
    columns = {name: np.array([one[name] for one in found]) for name in names}
    mean = {name: float(np.nanmean(one)) for name, one in columns.items() if not np.isnan(one).all()}
    std = {name: float(np.nanstd(columns[name])) for name in mean}
    held, majority = _in_order(kept, len(labels), classes), float(counts.max() / len(labels))
    mean["calibration_error"] = calibration_error(held.every, labels)  # of few nodes it would say little
    return Scores(mean, std, majority, len(drawn), positive, held)


def _in_order(parts: list[tuple[Whole, Decision]], nodes: int, classes: int) -> Decision:
    whole = Decision(
        np.zeros(nodes, dtype=np.int64), np.zeros(nodes), np.zeros(nodes, bool), np.zeros((nodes, classes))
    )
    for hidden, said in parts:
        whole.classes[hidden], whole.probability[hidden] = said.classes, said.probability
        whole.cannot_tell[hidden], whole.every[hidden] = said.cannot_tell, said.every
    return whole


def _measure(said: Decision, truth: Whole, positive: int | None) -> dict[str, float]:
    right = said.classes == truth
    own = said.every[np.arange(len(truth)), truth]
    told = ~said.cannot_tell
    each = [right[truth == one].mean() for one in np.unique(truth)]
    measured = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(np.mean(each)),
        "log_loss": float(-np.log(np.maximum(own, 1e-12)).mean()),
        "told": float(told.mean()),
        "accuracy_where_told": float(right[told].mean()) if told.any() else float("nan"),
    }
    if positive is not None:
        is_it, decided = truth == positive, said.classes == positive
        measured["average_precision"] = float(metrics.average_precision_score(is_it, said.every[:, positive]))
        measured["precision"] = float(is_it[decided].mean()) if decided.any() else float("nan")
        measured["recall"] = float(decided[is_it].mean())
    return measured


def calibration_error(every: Floats, truth: Whole, bins: int = 10) -> float:
    """Return how far the likeliest class's probability is from the share that is right, over ten bins."""
    sure, right = every.max(axis=1), every.argmax(axis=1) == truth
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, weights=sure - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))
