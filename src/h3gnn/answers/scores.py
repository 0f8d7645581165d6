"""Held-out scores of predictions: measures with standard errors, what each part contributes, importance.

Every choice (penalties, weights of the pool, thresholds, cuts, intervals) is made without the scored nodes:
those of a fold, or, if labelled nodes are split by time, the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.answers.learning import EMBEDDING, LINKS, NEIGHBOURS, OWN, PARTS, NodeInputs, NodeModel
from h3gnn.evaluation.decisions import (
    ClassDecider,
    Decision,
    NumberDecider,
    NumberDecision,
    NumberScale,
    Rule,
)
from h3gnn.evaluation.heads import Rows
from h3gnn.evaluation.metrics import number_measures

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Measures = dict[str, float]

RESAMPLES, MANY_ROWS = 200, 20_000
"""Resamples of the labelled nodes that give standard errors; a tenth of them with more nodes."""
RARE_SHARE = 0.25
"""Of two classes, average precision is the main measure if the rarer has a smaller share."""
NEARLY_NONE, DOMINANT = 0.1, 0.8
"""Nearly perfect scores have at most this share of the errors of a constant prediction; a column is dominant
with this share of the importance."""
MOST_GROUPS = 30
"""Columns whose importance is measured: those that vary most with the prediction."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is predicted, and how: the truth about the labelled nodes, and the rule of decisions."""

    truth: npt.NDArray[Any]  # classes 0, 1, …, or numbers in their unit
    classes: int  # 0 for numbers
    rule: Rule
    scale: NumberScale = field(default_factory=NumberScale)
    of_test: npt.NDArray[Any] | None = None  # the truth about other nodes, which are scored
    asked: int | None = None  # of two classes, the one that is asked for; by default the rarer

    @property
    def scored(self) -> npt.NDArray[Any]:
        """The truth about the scored nodes."""
        return self.truth if self.of_test is None else self.of_test

    @property
    def positive(self) -> int | None:
        """Of two classes the one that is asked for, or the rarer; None for others."""
        if self.classes != 2 or self.asked is not None:
            return self.asked if self.classes == 2 else None
        return int(np.bincount(self.truth, minlength=2).argmin())

    @property
    def main(self) -> str:
        """The measure by which parts are compared."""
        if not self.classes:
            return "r2"
        rare = self.positive is not None and (self.truth == self.positive).mean() < RARE_SHARE
        return "average_precision" if rare else "accuracy"

    def least_error(self, measure: str) -> float:
        """Return the standard error of a share of which all nodes are alike, by Laplace's rule."""
        if not self.classes or measure == "log_loss":
            return 0.0
        of_positive = measure in ("average_precision", "roc_auc", "precision", "recall")
        nodes = (self.scored == self.positive).sum() if of_positive else len(self.scored)
        return float(1 / (nodes + 2))

    def decider(self, predicted: Floats, nodes: Integers | slice) -> ClassDecider | NumberDecider:
        """Learn to decide from held-out predictions of some labelled nodes."""
        if self.classes:
            return ClassDecider.fit(predicted, self.truth[nodes], self.rule, self.asked)
        return NumberDecider.fit(predicted, self.scale(self.truth[nodes]), self.rule, self.scale)

    def measures(self, decision: Any, nodes: Integers | slice = slice(None)) -> Measures:
        """Return the measures of decisions about some of the scored nodes."""
        if self.classes:
            return class_measures(decision, self.scored[nodes], self.positive)
        return interval_measures(decision, self.scored[nodes])


@dataclass(frozen=True)
class Contribution:
    """The main measure of the heads that use the parts up to one, and what that part adds."""

    part: str
    score: float
    error: float
    gain: float | None = None
    gain_error: float | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Held-out scores.

    Attributes:
        mean, error: of each measure the value, and its standard error over resampled labelled nodes.
        majority: the share of the largest class; None for numbers.
        folds: the number of folds, over all repetitions.
        positive: of two classes the one that is asked for, or the rarer; None for others.
        rate: the share of the positive class.
        main: the measure of the contributions.
        contributions: of the parts, if the choice is among all heads.
        held_out: predictions for the scored nodes by models that did not see them.
        tested: the number of scored nodes, if they are others than those that heads learn from; else None.
    """

    mean: Measures
    error: Measures
    majority: float | None
    folds: int
    positive: int | None
    main: str
    contributions: tuple[Contribution, ...]
    held_out: Any = field(repr=False)
    tested: int | None = None
    rate: float | None = None


def score(
    model: NodeModel,
    problem: Problem,
    seed: int = 0,
    test: tuple[Integers, npt.NDArray[Any]] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Scores:
    """Score the whole procedure by nested cross-validation, or on other nodes, given with their truth."""
    if test is not None:
        problem = replace(problem, of_test=test[1])

    def decisions(heads: Sequence[int] | None = None) -> list[Any]:
        return _decisions(model, problem, heads) if test is None else _on_test(model, problem, test[0], heads)

    every = decisions()
    size, main = len(problem.scored), problem.main
    draws = _resamples(size, seed)
    mean = _mean([problem.measures(one) for one in every])
    resampled = [_mean([problem.measures(_take(one, draw), draw) for one in every]) for draw in draws]
    spread = {name: [one[name] for one in resampled if name in one] or [0.0] for name in mean}
    error = {name: max(problem.least_error(name), float(np.std(found))) for name, found in spread.items()}
    if problem.classes:
        mean["calibration_error"] = float(
            np.mean([calibration_error(one.probabilities, problem.scored) for one in every])
        )
    contributions, before = list[Contribution](), None
    parts = model.parts() if model.head == "auto" else []
    for number, part in enumerate(parts):
        progress((number + 1) / (len(parts) + 1))
        own = every if part == parts[-1] else decisions(model.up_to(part))
        drawn = resampled  # of all heads; fewer heads are scored anew
        if own is not every:
            drawn = [_mean([problem.measures(_take(one, at), at) for one in own]) for at in draws]
        found = np.array([one.get(main, np.nan) for one in drawn])  # a draw may lack a class
        value = _mean([problem.measures(one) for one in own])[main]
        gain = (None, None) if before is None else (value - before[0], float(np.nanstd(found - before[1])))
        spread_of = max(problem.least_error(main), float(np.nanstd(found)))
        contributions.append(Contribution(model.part_title(part), value, spread_of, *gain))
        before = value, found
    majority = float(np.bincount(problem.scored).max() / size) if problem.classes else None
    folds = sum(len(one.folds) for one in model.repeats)
    tested = None if test is None else size
    positive = problem.positive
    rate = None if positive is None else float((problem.scored == positive).mean())
    return Scores(mean, error, majority, folds, positive, main, tuple(contributions), every[0], tested, rate)


def _on_test(model: NodeModel, problem: Problem, nodes: Integers, heads: Sequence[int] | None) -> list[Any]:
    """Return the decisions about other nodes by the pool of some heads, chosen and fitted without these."""
    used = model if heads is None else model.of_heads(heads)
    return [problem.decider(used.held_out(), slice(None))(used(used.inputs.blocks(nodes)))]


def _decisions(model: NodeModel, problem: Problem, heads: Sequence[int] | None = None) -> list[Any]:
    """Return for each repetition the held-out decisions about all labelled nodes."""
    found = []
    for repeat in range(len(model.repeats)):
        nodes, parts = list[Integers](), list[Any]()
        for fold in model.folds(repeat, heads):
            nodes.append(fold.held_out)
            parts.append(problem.decider(fold.chosen_by, fold.seen)(fold.predicted))
        back = np.argsort(np.concatenate(nodes))
        kind = Decision if problem.classes else NumberDecision
        names = list(kind.__dataclass_fields__)
        found.append(kind(*(np.concatenate([vars(one)[name] for one in parts])[back] for name in names)))
    return found


def _take(decision: Any, nodes: Integers) -> Any:
    return type(decision)(*(one[nodes] for one in vars(decision).values()))


def _resamples(size: int, seed: int) -> list[Integers]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, size, size) for _ in range(RESAMPLES if size <= MANY_ROWS else RESAMPLES // 10)]


def _mean(found: Sequence[Measures]) -> Measures:
    """Return the mean of each measure over the repetitions in which it is defined."""
    values = {name: np.array([one[name] for one in found]) for name in found[0]}
    return {name: float(np.nanmean(one)) for name, one in values.items() if not np.isnan(one).all()}


def class_measures(decision: Decision, truth: Integers, positive: int | None) -> Measures:
    """Return the measures of predicted classes; those of the rarer of two classes where it occurs."""
    correct = decision.classes == truth
    true_probability = decision.probabilities[np.arange(len(truth)), truth]
    unmarked = ~decision.cannot_tell
    found = {
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float(np.mean([correct[truth == one].mean() for one in np.unique(truth)])),
        "log_loss": float(-np.log(np.maximum(true_probability, 1e-12)).mean()),
        "unmarked": float(unmarked.mean()),
        "accuracy_unmarked": float(correct[unmarked].mean()) if unmarked.any() else float("nan"),
    }
    if positive is None:
        return found
    is_positive, decided = truth == positive, decision.classes == positive
    if not 0 < is_positive.sum() < len(truth):
        return found | dict.fromkeys(("average_precision", "roc_auc", "precision", "recall"), float("nan"))
    probability = decision.probabilities[:, positive]
    return found | {
        **ranking_measures(probability, is_positive),
        "precision": float(is_positive[decided].mean()) if decided.any() else float("nan"),
        "recall": float(decided[is_positive].mean()),
    }


def ranking_measures(score: Floats, positive: npt.NDArray[np.bool_]) -> Measures:
    """Return average precision and the area under the ROC curve; resamples need them thousands of times."""
    order = np.argsort(-score, kind="stable")
    hits, last = np.cumsum(positive[order]), np.append(np.diff(score[order]) != 0, True)  # one per tie
    found, true = (np.flatnonzero(last) + 1).astype(np.float64), hits[last].astype(np.float64)
    gained, false = np.diff(true, prepend=0.0), found - true
    pairs = (np.diff(false, prepend=0.0) * (true - gained / 2)).sum()
    return {
        "average_precision": float((gained * true / found).sum() / true[-1]),
        "roc_auc": float(pairs / (true[-1] * false[-1])),
    }


def interval_measures(decision: NumberDecision, truth: Floats) -> Measures:
    """Return the measures of predicted numbers, and the coverage and median width of their intervals."""
    inside = (decision.low <= truth) & (truth <= decision.high)
    width = float(np.median(decision.high - decision.low))
    return number_measures(truth, decision.number) | {"coverage": float(inside.mean()), "width": width}


def calibration_error(probabilities: Floats, truth: Integers, bins: int = 10) -> float:
    """Return the expected calibration error of the most probable class, over ten bins."""
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    bin_of = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(bin_of, weights=confidence - correct, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))


def importance(
    model: NodeModel, chosen: Integers, seed: int = 0, progress: Callable[[float], None] = lambda share: None
) -> list[tuple[str, float, float]]:
    """Return the permutation importance of columns, the largest first: name, mean and standard error.

    A column is shuffled among the nodes of a fold that the heads did not see; its importance is the increase
    of the log loss, or of the squared error relative to the variance. Embeddings and labels of neighbours
    stay as they are. Of many columns, those that vary most with the prediction are measured.
    """
    groups = _groups(model.inputs)
    if not groups or all(one.part == len(PARTS) - 1 for one in model.candidates):
        return []
    rng, losses = np.random.default_rng(seed), {name: list[Floats]() for name in groups}
    for number, fold in enumerate(model.repeats[0].folds):
        train = np.setdiff1d(np.arange(len(chosen)), fold)
        predict, target = model.refitted(train), model.target.of(fold)
        rows = model.inputs.rows(chosen[fold])
        base = predict(rows)
        if number == 0:
            groups = _most_related(groups, rows.columns, base)
        before = target.losses(base)
        for name, at in groups.items():
            shuffled = rows.columns.copy()
            shuffled[:, at] = shuffled[rng.permutation(len(fold))][:, at]
            after = target.losses(predict(Rows(rows.embedding, shuffled, rows.nodes)))
            losses[name].append(after - before)
        progress((number + 1) / len(model.repeats[0].folds))
    unit = 1.0 if model.target.classes else max(float(np.var(model.target.values)), 1e-30)
    found = [(name, np.concatenate(losses[name]) / unit) for name in groups]
    ranked = [(name, float(one.mean()), float(one.std() / len(one) ** 0.5)) for name, one in found]
    return sorted(ranked, key=lambda one: -one[1])


def _groups(inputs: NodeInputs) -> dict[str, list[int]]:
    """Return the columns that are shuffled together, by name: those of one column of a table."""
    groups: dict[str, list[int]] = {}
    for at, column in enumerate(inputs.columns.columns):
        if column.part in (OWN, LINKS):
            groups.setdefault(column.source or column.name, []).append(at)
        elif column.part == NEIGHBOURS:
            name = f"{column.source}, neighbours" if column.source else column.name
            groups.setdefault(name, []).append(at)
        elif column.part == EMBEDDING:
            groups.setdefault("directions of the embedding", []).append(at)
    return groups


def _most_related(groups: dict[str, list[int]], columns: Any, predicted: Floats) -> dict[str, list[int]]:
    """Return the groups whose columns correlate most with the predictions."""
    if len(groups) <= MOST_GROUPS:
        return groups
    apart, wanted = columns - columns.mean(axis=0), predicted - predicted.mean(axis=0)
    size = np.linalg.norm(apart, axis=0)[:, None] * np.linalg.norm(wanted, axis=0)[None]
    related = np.abs(apart.T @ wanted / np.where(size > 0, size, np.inf)).max(axis=1)
    best = sorted(groups, key=lambda name: -related[groups[name]].max())[:MOST_GROUPS]
    return {name: groups[name] for name in best}


def dominant(scores: Scores, important: Sequence[tuple[str, float, float]]) -> list[str]:
    """Return the column that nearly all of the importance belongs to, if the scores are nearly perfect."""
    if scores.majority is None:
        perfect = scores.mean["r2"] >= 1 - NEARLY_NONE
    else:
        perfect = 1 - scores.mean["accuracy"] <= NEARLY_NONE * (1 - scores.majority)
    total = sum(max(mean, 0.0) for _, mean, _ in important)
    return [name for name, mean, _ in important[:1] if perfect and mean >= DOMINANT * total > 0]


def no_better(scores: Scores) -> str | None:
    """Return a sentence if the scores are, within their errors, no better than a constant prediction's."""
    value, error = (one[scores.main] for one in (scores.mean, scores.error))
    constant = {"r2": 0.0, "accuracy": scores.majority, "average_precision": scores.rate}[scores.main]
    if constant is None or value - error > constant:
        return None
    what = {
        "r2": ("R²", "0, which is that of the mean"),
        "accuracy": ("accuracy", f"{constant:.3f}, which is that of the largest class for all"),
        "average_precision": ("average precision", f"{constant:.3f}, which is that of chance"),
    }[scores.main]
    return (
        f"the {what[0]} of {value:.3f} ± {error:.3f} is not clearly above {what[1]}: the columns and links "
        "say little or nothing about what is predicted"
    )


def sentence(scores: Scores) -> str | None:
    """Return a sentence on what the embedding adds to the other parts, if that was measured."""
    last = scores.contributions[-1] if scores.contributions else None
    if last is None or last.part != EMBEDDING or last.gain is None or last.gain_error is None:
        return None
    measure = "R²" if scores.main == "r2" else scores.main.replace("_", " ")
    gain = f"{last.gain + 0.0:+.3f} ± {last.gain_error:.3f}"
    if last.gain <= 2 * last.gain_error:
        return f"the trained embedding adds nothing significant on this graph ({measure} {gain})"
    return f"the trained embedding adds {gain} to the {measure} of columns and neighbours"
