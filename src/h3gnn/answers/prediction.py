"""Rows in few columns, for classifiers that are fitted on few of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn import metrics
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from h3gnn.answers.extend import Extension
from h3gnn.errors import InputError, check_choice, check_number
from h3gnn.evaluation.logistic import fit_logistic, predict_logistic
from h3gnn.evaluation.probe import CONSTANT, span_of
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.scaling import MomentSums
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.resources import one_thread

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
DIRECTIONS = 256
"""Where more labelled nodes than this meet a wider embedding, it is seen in so many principal directions."""
ROWS = 16_384
"""So many rows are worked on at a time."""


class Span:
    """An embedding's rows, standardised over all nodes, and turned into the span of the rows fitted on.

    An L2-regularised classifier lies in the span of its training rows: where these are fewer than the
    columns, nothing is lost by the turn, and the fit is as cheap as its nodes are few.

    Args:
        embedding: of all nodes, `[nodes, D]`; no label is needed to standardise it.
        chosen: positions of the labelled nodes.
    """

    def __init__(self, embedding: Floats, chosen: Whole) -> None:
        every = torch.from_numpy(np.ascontiguousarray(embedding))
        sums = MomentSums(every.shape[1])
        for piece in torch.split(every, ROWS):
            sums.add(piece)
        self.mean, spread = sums.mean, (sums.squares / sums.rows).sqrt()
        self.spread = torch.where(spread > CONSTANT, spread, float("inf"))
        self.directions: Tensor | None = None
        if min(len(chosen), every.shape[1]) > DIRECTIONS:
            self.directions = self._principal(every)
        self.labelled = self.standard(embedding[chosen])

    def standard(self, rows: Floats) -> Tensor:
        """Return rows of any nodes on the scale of the embedding, `[rows, columns]` in float64."""
        found = (torch.from_numpy(np.ascontiguousarray(rows)).double() - self.mean) / self.spread
        return found if self.directions is None else found @ self.directions

    def _principal(self, every: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        some = torch.randperm(len(every), generator=draw)[:ROWS].numpy()
        rows = self.standard(every.numpy()[some])
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        found: Tensor = vectors[:, values.argsort(descending=True)[:DIRECTIONS]]
        return found

    def of(self, seen: Whole) -> Callable[[Whole], Tensor]:
        """Return what gives labelled rows, by their place among the labelled, in the span of those seen."""
        turn = self.turn(seen)
        return lambda places: turn(self.labelled[torch.from_numpy(places)])

    def turn(self, seen: Whole) -> Callable[[Tensor], Tensor]:
        """Return what turns standard rows into the span of the labelled rows seen; the identity if wider."""
        rows = self.labelled[torch.from_numpy(seen)]
        if len(rows) >= rows.shape[1]:
            return lambda given: given.float()
        basis = rows.T @ span_of(rows @ rows.T)
        return lambda given: (given @ basis).float().contiguous()


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


Ids = npt.NDArray[Any]
MOST_COLUMNS = 20
"""Up to so many classes have a column of probabilities each."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What is said about nodes, and how far it can be believed.

    Attributes:
        table: one row per node: `node`, `class`, `probability`, `cannot_tell`, and `p_CLASS` for each class.
            Where labelled nodes were asked for, `label` is theirs, and what is said of them is said by models
            that had not seen it.
        scores: on held-out labelled nodes.
        how: how probabilities and marks came about, in a sentence.
        notes: what should be known of these labels.
        labelled: how many nodes it was learned from.
        names: of the classes.
    """

    table: pd.DataFrame
    scores: Scores
    how: str
    notes: tuple[str, ...]
    labelled: int
    names: tuple[str, ...]

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
    embedding: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    names: tuple[str, ...],
    rule: Rule,
    *,
    extension: Extension | None = None,
    labelled_too: bool = False,
    seed: int = 0,
    watch: Callable[[float], None] = lambda share: None,
) -> Predictions:
    """Say the class of every unlabelled node, or of the nodes that joined the graph.

    Args:
        graph: of the embedding.
        embedding: `[nodes, D]`, in memory or in a file.
        labels: `[nodes]`, -1 where unknown.
        names: of the classes.
        rule: how to decide.
        extension: embeddings of new nodes, which are then the ones that are asked about.
        labelled_too: also say what the labelled nodes would be taken for, each without its own label.
        seed: of the folds.
        watch: is told the share that is done.
    """
    check_ids(graph.node_ids if extension is None else extension.node_ids)
    notes = check_labels(labels, names)
    chosen = np.flatnonzero(labels >= 0)
    present, codes = np.unique(labels[chosen], return_inverse=True)
    names = tuple(names[one] for one in present)
    rule.check(len(names))
    asked = np.flatnonzero(labels < 0)
    if extension is None and not asked.size and not labelled_too:
        raise InputError(
            "every node has a label, so there is nothing to predict: give --labels FILE with some of them, "
            "new nodes, or --all to see what each node would be taken for without its label"
        )
    predictor = NodePredictor(embedding, chosen, codes, len(names), rule, seed)
    scores = score_held_out(predictor.span, codes, len(names), rule, seed=seed, watch=watch)
    if extension is not None:
        new = extension.embedding[-extension.new :]
        parts = [_table(extension.node_ids[-extension.new :], predictor(new), names)]
    else:
        parts = [_table(graph.node_ids[asked], predictor(embedding, asked), names)] if asked.size else []
    if labelled_too:
        own = _table(graph.node_ids[chosen], scores.held_out, names)
        own["label"] = np.array(names, dtype=object)[codes]
        parts.append(own)
    table = pd.concat(parts, ignore_index=True)
    return Predictions(table, scores, predictor.how(), notes, len(chosen), names)


def _table(ids: Ids, said: Decision, names: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "node": ids,
        "class": np.array(names, dtype=object)[said.classes],
        "probability": said.probability,
        "cannot_tell": said.cannot_tell,
    }
    if len(names) <= MOST_COLUMNS:
        columns |= {f"p_{name}": said.every[:, at] for at, name in enumerate(names)}
    return pd.DataFrame(columns)
