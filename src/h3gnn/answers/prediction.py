"""Node classification by logistic regression on an embedding, with calibrated probabilities.

The L2 penalty, the temperature that calibrates probabilities, and the probability below which a class is
marked as uncertain are learned on held-out labelled nodes; scores are measured on yet other labelled nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn import metrics
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from h3gnn.answers.extend import Extension
from h3gnn.errors import InputError, check_choice, check_number
from h3gnn.evaluation.logistic import fit_logistic, predict_logistic
from h3gnn.evaluation.probe import CONSTANT, projection_basis
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.scaling import MomentSums
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.resources import one_thread
from h3gnn.tables.leaks import check_leaks

Embedding = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Progress = Callable[[float], None]

MAX_COMPONENTS = 256
"""If there are more columns and more labelled nodes, the embedding is reduced to principal components."""
ROWS = 16_384
"""Rows processed at a time."""
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""L2 penalties to choose from; fewer than in an evaluation, since every held-out fold chooses again."""
INNER_FOLDS = 3
"""Folds that choose penalty, temperature and cuts."""
OUTER_FOLDS, REPEATS, MANY_LABELS = 5, 3, 300
"""Folds that measure the scores, and their repetitions; one above MANY_LABELS labelled nodes."""
MIN_LABELLED = 4
"""Labelled nodes that a class needs, to be in the fit and in both kinds of fold."""
MIN_CONFIDENT = 10
"""Held-out nodes above a cut that are needed to learn it."""
TOLERANCE = 1e-4
"""Distance from the smallest mean loss at which a fit ends."""
RARE_SHARE = 0.1
MAX_PROBABILITY_COLUMNS = 20
"""Largest number of classes for which the table has a column of probabilities each."""


@dataclass(frozen=True)
class Rule:
    """How a class is predicted from probabilities, which do not change.

    Attributes:
        class_weight: "none" predicts the most probable class; "balanced" the most probable one relative to
            its share among the labelled nodes, which is best for balanced accuracy.
        threshold: the probability from which the rarer of two classes is predicted; "auto" learns the one
            with the best F1 on held-out nodes.
        cannot_tell_below: predictions with a lower probability are marked; None learns a cut for each class
            such that held-out nodes above it are wrong half as often as all.
    """

    class_weight: str = "none"
    threshold: float | str | None = None
    cannot_tell_below: float | None = None

    def check(self, classes: int) -> None:
        """Reject invalid combinations."""
        check_choice("class_weight", self.class_weight, ("none", "balanced"))
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

    @property
    def every(self) -> Floats:
        """Former name of `probabilities`."""
        return self.probabilities


FIELDS = [one.name for one in fields(Decision)]


class Basis:
    """Rows of an embedding, standardized over all nodes and projected onto the span of the training rows.

    An L2-regularized classifier lies in the span of its training rows. If these are fewer than the columns,
    the projection loses nothing and makes fits cheap.
    """

    def __init__(self, embedding: Embedding, chosen: Integers) -> None:
        rows = torch.from_numpy(np.ascontiguousarray(embedding))
        sums = MomentSums(rows.shape[1])
        for block in torch.split(rows, ROWS):
            sums.add(block)
        self.mean, std = sums.mean, (sums.squares / sums.rows).sqrt()
        self.std = torch.where(std > CONSTANT, std, float("inf"))
        self.components: Tensor | None = None
        if min(len(chosen), rows.shape[1]) > MAX_COMPONENTS:
            self.components = self._principal(rows)
        self.labelled = self.standardize(embedding[chosen])

    def standardize(self, rows: Embedding) -> Tensor:
        """Return rows of any nodes on the scale of the embedding, `[rows, columns]` in float64."""
        scaled = (torch.from_numpy(np.ascontiguousarray(rows)).double() - self.mean) / self.std
        return scaled if self.components is None else scaled @ self.components

    def _principal(self, rows: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        sample = torch.randperm(len(rows), generator=generator)[:ROWS].numpy()
        scaled = self.standardize(rows.numpy()[sample])
        values, vectors = torch.linalg.eigh(scaled.T @ scaled)
        components: Tensor = vectors[:, values.argsort(descending=True)[:MAX_COMPONENTS]]
        return components

    def projection(self, train: Integers) -> Callable[[Tensor], Tensor]:
        """Return the projection of standardized rows onto the span of some labelled rows."""
        rows = self.labelled[torch.from_numpy(train)]
        if len(rows) >= rows.shape[1]:
            return lambda given: given.float()
        basis = rows.T @ projection_basis(rows @ rows.T)
        return lambda given: (given @ basis).float().contiguous()


class LabelModel:
    """Logistic regression on labelled rows; penalty, temperature and cuts by held-out folds."""

    def __init__(self, rows: Tensor, labels: Integers, classes: int, rule: Rule, seed: int = 0) -> None:
        rule.check(classes)
        self.rule, self.shares = rule, np.bincount(labels, minlength=classes) / len(labels)
        targets = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).to(rows.dtype)
        everything = torch.ones(1, len(rows), dtype=torch.bool)
        with one_thread(len(rows)):
            held_out = _held_out(rows, targets, labels, seed)
            true_log_p = held_out[:, torch.arange(len(labels)), torch.from_numpy(labels)].double()
            best = int((-true_log_p.mean(dim=1)).argmin())
            self.l2, log_p = PENALTIES[best], held_out[best].double().numpy()
            self.temperature = _fit_temperature(log_p, labels)
            self.weights = fit_logistic(rows, targets, everything, [self.l2], tolerance=TOLERANCE)[0]
        probabilities = self._calibrated(log_p)
        self.rare = int(np.argmin(np.where(self.shares > 0, self.shares, np.inf)))
        self.threshold = _best_threshold(probabilities[:, self.rare], labels == self.rare, rule.threshold)
        decided = self.decide(probabilities)
        probability = probabilities[np.arange(len(decided)), decided]
        self.cuts = _learn_cuts(probability, decided, labels, classes, rule.cannot_tell_below)

    def __call__(self, rows: Tensor) -> Decision:
        """Predict some rows."""
        probabilities = self._calibrated(predict_logistic(rows, self.weights)[0].double().numpy())
        decided = self.decide(probabilities)
        probability = probabilities[np.arange(len(decided)), decided]
        return Decision(decided, probability, probability < self.cuts[decided], probabilities)

    def decide(self, probabilities: Floats) -> Integers:
        """Return the classes that the rule predicts from calibrated probabilities `[nodes, classes]`."""
        if self.threshold is not None:
            return np.where(probabilities[:, self.rare] >= self.threshold, self.rare, 1 - self.rare)
        if self.rule.class_weight == "balanced":
            probabilities = probabilities / np.where(self.shares > 0, self.shares, np.inf)
        decided: Integers = probabilities.argmax(axis=1)
        return decided

    def _calibrated(self, log_p: Floats) -> Floats:
        return np.asarray(softmax(log_p / self.temperature, axis=1))


def labelled_folds(labels: Integers, folds: int, seed: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield train and held-out nodes of stratified folds; at most as many folds as a class has nodes."""
    counts = np.bincount(labels)
    folds = max(2, min(folds, int(counts[counts >= MIN_LABELLED].min(initial=folds))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `check_labels` reports classes with fewer nodes than folds
        yield from StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)


def _held_out(rows: Tensor, targets: Tensor, labels: Integers, seed: int) -> Tensor:
    """Return held-out log-probabilities, `[penalties, nodes, classes]`."""
    folds = list(labelled_folds(labels, INNER_FOLDS, seed))
    train = torch.zeros(len(folds), len(rows), dtype=torch.bool)
    for fold, (seen, _) in enumerate(folds):
        train[fold, seen] = True
    weights = fit_logistic(rows, targets, train, PENALTIES, tolerance=TOLERANCE)
    log_p = torch.zeros(len(PENALTIES), len(rows), targets.shape[1], dtype=rows.dtype)
    for (_, hidden), own in zip(folds, weights, strict=True):
        log_p[:, hidden] = predict_logistic(rows[hidden], own)
    return log_p


def _fit_temperature(log_p: Floats, labels: Integers) -> float:
    """Return the temperature with the smallest held-out log loss."""

    def loss(log_temperature: float) -> float:
        scaled = log_p / np.exp(log_temperature)
        norm = np.logaddexp.reduce(scaled, axis=1)
        return float((norm - scaled[np.arange(len(labels)), labels]).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded").x))


def _best_threshold(probability: Floats, truth: Mask, threshold: float | str | None) -> float | None:
    """Return the given threshold, or for "auto" the one with the best F1."""
    if threshold != "auto":
        return None if threshold is None else float(threshold)
    precision, recall, thresholds = metrics.precision_recall_curve(truth, probability)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[int(f1[:-1].argmax())])


def _learn_cuts(
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


class NodePredictor:
    """Learns the classes of the labelled nodes `chosen`, and predicts any rows of the embedding."""

    def __init__(
        self,
        embedding: Embedding,
        chosen: Integers,
        labels: Integers,
        classes: int,
        rule: Rule,
        seed: int = 0,
    ) -> None:
        self.basis = Basis(embedding, chosen)
        self.project = self.basis.projection(np.arange(len(chosen)))
        self.model = LabelModel(self.project(self.basis.labelled), labels, classes, rule, seed)

    def __call__(self, rows: Embedding, nodes: Integers | None = None) -> Decision:
        """Predict rows of the embedding, in memory or in a file; `nodes` selects some of them."""
        wanted = np.arange(len(rows)) if nodes is None else nodes
        blocks = (rows[wanted[at : at + ROWS]] for at in range(0, max(1, len(wanted)), ROWS))
        parts = [self.model(self.project(self.basis.standardize(block))) for block in blocks]
        return Decision(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))

    def how(self) -> str:
        """Return one sentence on how probabilities and marks are computed."""
        cut = self.model.rule.cannot_tell_below
        marked = "classes are marked below the probability above which held-out nodes err half as often"
        if cut is not None:
            marked = f"classes with a probability below {cut:g} are marked"
        return (
            f"logistic regression on the embedding, L2 penalty {self.model.l2:g} and temperature "
            f"{self.model.temperature:.2f} chosen on held-out labelled nodes; {marked}"
        )


def check_labels(labels: Integers, names: tuple[str, ...]) -> tuple[str, ...]:
    """Reject labels from which nothing can be learned; return warnings about the others."""
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    enough = np.flatnonzero(counts >= MIN_LABELLED)
    if len(enough) < 2:
        found = ", ".join(f"{names[one]}: {counts[one]}" for one in np.flatnonzero(counts)[:8]) or "none"
        needed = f"at least two classes with {MIN_LABELLED} labelled nodes each"
        raise InputError(
            f"prediction needs {needed}; found {found}; label more nodes (--labels FILE)",
            code="too-few-labels",
        )
    notes = []
    few = [names[one] for one in np.flatnonzero((counts > 0) & (counts < MIN_LABELLED))]
    if few:
        notes.append(
            f"fewer than {MIN_LABELLED} labelled nodes: {', '.join(few[:5])}; the scores do not cover these"
        )
    share = counts[enough].min() / counts.sum()
    if share < RARE_SHARE:
        rare = names[enough[counts[enough].argmin()]]
        notes.append(
            f"{rare} is rare ({100 * share:.1f} % of the labelled nodes): use average precision or balanced "
            "accuracy as the score; --class-weight balanced or --threshold find more of it"
        )
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class Scores:
    """Held-out scores by name, mean and standard deviation over folds.

    Attributes:
        mean, std: accuracy, balanced accuracy, log loss, share of unmarked nodes ("told"), accuracy there;
            for two classes also average precision, precision and recall of the rarer. The calibration error
            has no standard deviation.
        majority: the share of the largest class.
        folds: the number of folds.
        positive: the rarer of two classes; None for more classes.
        held_out: predictions for the labelled nodes by models that did not see them.
    """

    mean: dict[str, float]
    std: dict[str, float]
    majority: float
    folds: int
    positive: int | None
    held_out: Decision = field(repr=False)


def cross_validate(
    basis: Basis,
    labels: Integers,
    classes: int,
    rule: Rule,
    *,
    seed: int = 0,
    progress: Progress = lambda share: None,
) -> Scores:
    """Score the whole procedure by stratified folds: every choice is made without the held-out fold."""
    repeats, size = REPEATS if len(labels) <= MANY_LABELS else 1, len(labels)
    folds = [fold for at in range(repeats) for fold in labelled_folds(labels, OUTER_FOLDS, seed + 1000 * at)]
    counts = np.bincount(labels, minlength=classes)
    positive = int(counts.argmin()) if classes == 2 else None
    held_out = Decision(
        np.zeros(size, np.int64), np.zeros(size), np.zeros(size, bool), np.zeros((size, classes))
    )
    scores = []
    for number, (seen, hidden) in enumerate(folds):
        project = basis.projection(seen)
        train, test = (project(basis.labelled[torch.from_numpy(part)]) for part in (seen, hidden))
        decision = LabelModel(train, labels[seen], classes, rule, seed)(test)
        scores.append(_scores(decision, labels[hidden], positive))
        if number < len(folds) // repeats:  # the first repeat covers every node once
            for name in FIELDS:
                getattr(held_out, name)[hidden] = getattr(decision, name)
        progress((number + 1) / len(folds))
    columns = {name: np.array([fold[name] for fold in scores]) for name in scores[0]}
    mean = {name: float(np.nanmean(one)) for name, one in columns.items() if not np.isnan(one).all()}
    std = {name: float(np.nanstd(columns[name])) for name in mean}
    mean["calibration_error"] = calibration_error(held_out.probabilities, labels)  # too noisy within a fold
    return Scores(mean, std, float(counts.max() / len(labels)), len(folds), positive, held_out)


def _scores(decision: Decision, truth: Integers, positive: int | None) -> dict[str, float]:
    correct = decision.classes == truth
    true_probability = decision.probabilities[np.arange(len(truth)), truth]
    unmarked = ~decision.cannot_tell
    recalls = [correct[truth == label].mean() for label in np.unique(truth)]
    scores = {
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "log_loss": float(-np.log(np.maximum(true_probability, 1e-12)).mean()),
        "told": float(unmarked.mean()),
        "accuracy_where_told": float(correct[unmarked].mean()) if unmarked.any() else float("nan"),
    }
    if positive is not None:
        is_positive, decided = truth == positive, decision.classes == positive
        probability = decision.probabilities[:, positive]
        scores["average_precision"] = float(metrics.average_precision_score(is_positive, probability))
        scores["precision"] = float(is_positive[decided].mean()) if decided.any() else float("nan")
        scores["recall"] = float(decided[is_positive].mean())
    return scores


def calibration_error(probabilities: Floats, truth: Integers, bins: int = 10) -> float:
    """Return the expected calibration error of the most probable class, over ten bins."""
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    bin_of = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(bin_of, weights=confidence - correct, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted classes, one row per node, and held-out scores.

    Columns of the table: `node`, `class`, `probability`, `cannot_tell`, and `p_CLASS` for each class; for
    labelled nodes, `label` is the given class, and the prediction comes from models that did not see it.
    """

    table: pd.DataFrame
    scores: Scores
    how: str  # one sentence on how probabilities and marks are computed
    notes: tuple[str, ...]  # warnings about the labels
    labelled: int  # number of labelled nodes
    names: tuple[str, ...]  # of the classes

    def as_dict(self) -> dict[str, Any]:
        """Return all but the table, for JSON."""
        positive = self.scores.positive
        return {
            "nodes": len(self.table),
            "cannot_tell": int(self.table["cannot_tell"].sum()),
            "classes": self.table["class"].value_counts().to_dict(),
            "labelled": self.labelled,
            "held_out": {
                "mean": self.scores.mean,
                "std": self.scores.std,
                "folds": self.scores.folds,
                "majority_share": self.scores.majority,
                "positive_class": None if positive is None else self.names[positive],
            },
            "how": self.how,
            "notes": list(self.notes),
        }


def predict_classes(
    graph: Graph | MappedGraph,
    embedding: Embedding,
    labels: Integers,
    names: tuple[str, ...],
    rule: Rule,
    *,
    extension: Extension | None = None,
    labelled_too: bool = False,
    label_name: str | None = None,
    allow_leaks: bool = False,
    seed: int = 0,
    progress: Progress = lambda share: None,
) -> Predictions:
    """Predict the class of every unlabelled node, or of the nodes of an extension.

    `labels` are -1 where unknown. With `labelled_too`, labelled nodes are predicted, too, by models that did
    not see them. Features that contain the class, which `label_name` names, are an error unless allowed
    (`allow_leaks`). `progress` is called with the completed share.
    """
    if not allow_leaks:
        check_leaks(graph, labels, label_name)
    check_ids(graph.node_ids if extension is None else extension.node_ids)
    notes = check_labels(labels, names)
    chosen, unlabelled = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
    present, codes = np.unique(labels[chosen], return_inverse=True)
    names = tuple(names[one] for one in present)
    rule.check(len(names))
    if extension is None and not unlabelled.size and not labelled_too:
        raise InputError(
            "every node has a label, so there is nothing to predict: give --labels FILE with some of them, "
            "new nodes, or --all to predict labelled nodes too",
            code="nothing-to-predict",
        )
    predictor = NodePredictor(embedding, chosen, codes, len(names), rule, seed)
    scores = cross_validate(predictor.basis, codes, len(names), rule, seed=seed, progress=progress)
    parts: list[pd.DataFrame] = []
    if extension is not None:
        new = slice(-extension.new, None)
        parts.append(_table(extension.node_ids[new], predictor(extension.embedding[new]), names))
    elif unlabelled.size:
        parts.append(_table(graph.node_ids[unlabelled], predictor(embedding, unlabelled), names))
    if labelled_too:
        own = _table(graph.node_ids[chosen], scores.held_out, names)
        own["label"] = np.array(names, dtype=object)[codes]
        parts.append(own)
    table = pd.concat(parts, ignore_index=True)
    return Predictions(table, scores, predictor.how(), notes, len(chosen), names)


def _table(ids: npt.NDArray[Any], decision: Decision, names: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "node": ids,
        "class": np.array(names, dtype=object)[decision.classes],
        "probability": decision.probability,
        "cannot_tell": decision.cannot_tell,
    }
    if len(names) <= MAX_PROBABILITY_COLUMNS:
        columns |= {f"p_{name}": decision.probabilities[:, at] for at, name in enumerate(names)}
    return pd.DataFrame(columns)
