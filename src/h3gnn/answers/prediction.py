"""Predict classes or numbers of nodes, with calibrated probabilities or intervals, and held-out scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.extend import Extension
from h3gnn.answers.learning import (
    ALL,
    LINKS,
    MEANS,
    MIN_LABELLED,
    OWN,
    PATH,
    STRUCTURE,
    NodeInputs,
    NodeModel,
)
from h3gnn.answers.scores import Problem, Scores, dominant, importance, no_better, score, sentence
from h3gnn.errors import InputError
from h3gnn.evaluation.decisions import Decision, NumberDecider, NumberScale, Rule
from h3gnn.evaluation.heads import Target
from h3gnn.graphs.graph import GraphLike
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.targets import may_have_label
from h3gnn.tables.leaks import Target as LeakTarget
from h3gnn.tables.leaks import again_without, check_leaks, doubts

Embedding = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Progress = Callable[[float], None]

MIN_NUMBERS = 10
"""Labelled nodes that are needed to predict numbers."""
NOTED = ("rows-without-own-time", "other-rows-unlabelled")
"""Reports on the graph that belong to predictions, too."""
RARE_SHARE, RARE_OF_TWO = 0.1, 0.25
"""A class with a smaller share is rare; of two classes, for which a threshold can be learned."""
MAX_PROBABILITY_COLUMNS = 20
"""Largest number of classes for which the table has a column of probabilities each."""


class NodePredictor:
    """Learns the classes or numbers of labelled nodes, and predicts any nodes.

    Args:
        inputs: what is known about the nodes.
        chosen: the labelled nodes.
        values: their classes 0, 1, …, or numbers.
        classes: the number of classes; 0 for numbers.
        rule: how to decide.
        head: which heads are candidates, one of `answers.learning.HEADS`.
        positive: which of two classes is asked for; by default the rarer.
        times: of the nodes, if later ones are to be predicted: held-out folds are then periods.
    """

    def __init__(
        self,
        inputs: NodeInputs,
        chosen: Integers,
        values: npt.NDArray[Any],
        classes: int,
        rule: Rule,
        head: str = "auto",
        *,
        positive: int | None = None,
        seed: int = 0,
        times: Integers | None = None,
        progress: Progress = lambda share: None,
    ) -> None:
        rule.check(classes)
        self.inputs, place = inputs, np.argsort(inputs.order)
        self.by_order = np.argsort(place[chosen])  # folds do not depend on the order of rows
        self.chosen, values = chosen[self.by_order], values[self.by_order]
        scale = NumberScale() if classes else NumberScale.fit(values)
        self.problem = Problem(values, classes, rule, scale, asked=positive)
        target = Target(values if classes else scale(values), classes)
        periods = None if times is None else times[self.chosen]
        self.model = NodeModel(inputs, self.chosen, target, head, seed=seed, times=periods, progress=progress)
        self.decider = self.problem.decider(self.model.held_out(), slice(None))

    def __call__(self, nodes: Integers) -> Any:
        """Decide for fitted nodes: a `Decision` or a `NumberDecision`."""
        return self.decider(self.model(self.inputs.blocks(nodes)))

    def extended(self, graph: GraphLike, embedding: Embedding) -> Any:
        """Decide for nodes that join the graph, from the extended graph and their embedding."""
        inputs = self.inputs.extended(graph, embedding)
        return self.decider(self.model.extended(inputs)(inputs.joining()))

    def how(self) -> str:
        """Return a sentence on what predicts, and how probabilities and marks, or intervals, are computed."""
        weights = self.model.weights()
        total = sum(weights.values()) or 1.0  # of log-probabilities, the sum is an inverse temperature
        heads = "; ".join(f"{title}: {weight / total:.2f}" for title, weight in weights.items())
        found = f"shares of the pooled heads, chosen on held-out labels: {heads}"
        found = heads.rpartition(":")[0] if len(weights) == 1 else found
        if isinstance(self.decider, NumberDecider):
            unit = "factor" if self.decider.scale.log else "distance"
            radius = np.exp(self.decider.radius) if self.decider.scale.log else self.decider.radius
            figure = f"{radius:.4g}" if radius < 1000 else f"{radius:,.0f}"
            share = f"{100 * self.problem.rule.coverage:g} % of the held-out labels"
            return f"{found}. Intervals contain {share} (a {unit} of {figure} either way)"
        cut = self.problem.rule.cannot_tell_below
        marked = "Uncertain classes are marked such that unmarked ones are wrong half as often as all"
        return f"{found}. {marked if cut is None else f'Probabilities below {cut:g} are marked'}"


def check_labels(labels: npt.NDArray[Any], names: tuple[str, ...], table: str = "") -> tuple[str, ...]:
    """Reject labels from which nothing can be learned; return warnings about the others.

    Labels are classes, -1 where unknown, with their names, or numbers, NaN where unknown, without names. Of
    several tables, `table` is that of the labels.
    """
    what = "rows" if table else "nodes"
    more_labels = f"fill in more values in {table}" if table else "label more nodes (--labels FILE)"
    if not names:
        known = labels[~np.isnan(labels)]
        if len(known) < MIN_NUMBERS or len(np.unique(known)) < 2:
            raise InputError(
                f"prediction needs at least {MIN_NUMBERS} labelled {what} with different numbers; found "
                f"{len(known)}; {more_labels}",
                code="too-few-labels",
            )
        return ()
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    enough = np.flatnonzero(counts >= MIN_LABELLED)
    if len(enough) < 2:
        found = ", ".join(f"{names[one]}: {counts[one]}" for one in np.flatnonzero(counts)[:8]) or "none"
        needed = f"at least two classes with {MIN_LABELLED} labelled {what} each"
        raise InputError(
            f"prediction needs {needed}; found {found}; {more_labels}",
            code="too-few-labels",
        )
    notes = []
    few = [names[one] for one in np.flatnonzero((counts > 0) & (counts < MIN_LABELLED))]
    if few:
        more = ", …" if len(few) > 5 else ""
        notes.append(
            f"fewer than {MIN_LABELLED} labelled {what}: {', '.join(few[:5])}{more}; the scores say little "
            "about these classes"
        )
    share = counts[enough].min() / counts.sum()
    two = np.count_nonzero(counts) == 2
    if share < (RARE_OF_TWO if two else RARE_SHARE):
        rare = names[enough[counts[enough].argmin()]]
        measures = "average precision or balanced accuracy" if two else "balanced accuracy"
        remedy = "--class-weight balanced or --threshold auto" if two else "--class-weight balanced"
        notes.append(
            f"{rare} is rare ({100 * share:.1f} % of the labelled {what}): use {measures} as the score; "
            f"{remedy} finds more of it"
        )
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions, one row per node, and held-out scores.

    Columns of the table: `node`; of classes `class`, `probability`, `cannot_tell`, and `p_CLASS` for each
    class; of numbers `number`, `low` and `high`. For labelled nodes, `label` is what was given, and the
    prediction comes from models that did not see it.
    """

    table: pd.DataFrame
    scores: Scores
    how: str  # what predicts, and how probabilities and marks, or intervals, are computed
    weights: dict[str, float]  # of the heads
    importance: tuple[tuple[str, float, float], ...]  # of columns: name, mean, standard error
    notes: tuple[str, ...]  # warnings about the labels
    labelled: int  # number of labelled nodes that heads learn from
    names: tuple[str, ...]  # of the classes; none for numbers

    @property
    def embedding_note(self) -> str | None:
        """A sentence on what the embedding adds."""
        return sentence(self.scores)

    def as_dict(self) -> dict[str, Any]:
        """Return all but the table, for JSON."""
        positive = self.scores.positive
        of_classes: dict[str, Any] = {}
        if self.names:
            of_classes = {
                "cannot_tell": int(self.table["cannot_tell"].sum()),
                "classes": self.table["class"].value_counts().to_dict(),
            }
        return {
            "nodes": len(self.table),
            **of_classes,
            "labelled": self.labelled,
            "held_out": {
                "mean": self.scores.mean,
                "standard_error": self.scores.error,
                "folds": self.scores.folds,
                "majority_share": self.scores.majority,
                "positive_class": None if positive is None else self.names[positive],
                **({} if self.scores.tested is None else {"tested": self.scores.tested}),
            },
            "main_measure": self.scores.main,
            "contributions": [asdict(one) for one in self.scores.contributions],
            "embedding": self.embedding_note,
            "heads": self.weights,
            "importance": [
                {"column": name, "mean": mean, "standard_error": error}
                for name, mean, error in self.importance
            ],
            "how": self.how,
            "notes": list(self.notes),
        }


def predict_nodes(
    graph: GraphLike,
    embedding: Embedding,
    labels: npt.NDArray[Any],
    names: tuple[str, ...],
    rule: Rule | None = None,
    head: str = "auto",
    *,
    extension: Extension | None = None,
    test: npt.NDArray[np.bool_] | None = None,
    labelled_too: bool = False,
    label_name: str | None = None,
    table: str = "",
    times: Integers | None = None,
    allow_leaks: bool = False,
    measure_importance: bool = True,
    seed: int = 0,
    progress: Progress = lambda share: None,
) -> Predictions:
    """Predict the class or number of every unlabelled node, or of the nodes of an extension.

    Nodes of a type of which no node is labelled get no prediction, and are reported.

    Labels are classes, -1 where unknown, with their `names`, or numbers, NaN where unknown, without names.
    With `labelled_too`, labelled nodes are predicted, too, by models that did not see them. The nodes in
    `test` are predicted and scored, and nothing learns from their labels. With the `times` of the nodes,
    held-out folds are periods if all that is predicted is later than the labelled nodes. Features that
    contain the label, which `label_name` and, of several tables, `table` name, are an error unless allowed
    (`allow_leaks`), and columns that nearly determine it are noted. Where the classes are "not" the label's
    name and that name, a condition is asked for, and measures are of the rows that meet it. `progress` is
    called with the completed share.
    """
    known, rule = (labels >= 0 if names else ~np.isnan(labels)), rule or Rule()
    if test is not None and labelled_too:
        message = "--test-from scores the labelled rows of a date or later: omit --all"
        raise InputError(message, code="test-and-all")
    if not allow_leaks:
        classes = labels if names else LeakTarget.of_numbers(label_name, labels).classes
        check_leaks(graph, classes, label_name, table)
    check_ids(graph.node_ids if extension is None else extension.node_ids)
    learned = known if test is None else known & ~test
    notes = check_labels(labels[learned], names, table)
    can, repairs = may_have_label(graph, known)
    doubtful = doubts(graph, labels, table, label_name) if names and not allow_leaks else ()
    added = () if extension is None else extension.repairs
    noted = (*(one for one in graph.provenance.repairs if one.code in NOTED), *doubtful, *repairs, *added)
    notes = (*notes, *dict.fromkeys(one.message for one in noted))
    chosen, unlabelled = np.flatnonzero(learned), np.flatnonzero(~known & can)
    if names:
        present = np.unique(labels[chosen])
        names = tuple(names[one] for one in present)
        labels = np.where(np.isin(labels, present), np.searchsorted(present, labels), -1)
    tested, more = _tested(labels, known, test, bool(names))
    notes, values = (*notes, *more), labels[chosen]
    rule.check(len(names))
    if extension is None and not unlabelled.size and not labelled_too and tested is None:
        raise InputError(
            "every node has a label, so there is nothing to predict: give --labels FILE with some of them, "
            "new nodes, or --all to predict labelled nodes too",
            code="nothing-to-predict",
        )
    wanted = unlabelled if test is None else np.flatnonzero(test)
    if times is not None and (extension is not None or not _are_later(times, wanted, chosen)):
        times = None
    if times is not None:
        message = (
            "all rows to predict are later than the labelled ones, so that each held-out fold is a period"
        )
        notes = (*notes, f"{message}, which heads that learn from the other periods predict")
    predictor = NodePredictor(
        NodeInputs.of(graph, embedding),
        chosen,
        values,
        len(names),
        rule,
        head,
        positive=names.index(label_name) if names == (f"not {label_name}", label_name) else None,
        seed=seed,
        times=times,
        progress=lambda share: progress(0.6 * share),
    )
    scores = score(
        predictor.model, predictor.problem, seed, tested, lambda share: progress(0.6 + 0.2 * share)
    )
    own = None
    if labelled_too or tested is not None:
        own = (predictor.chosen, predictor.problem.truth) if tested is None else tested
    rows = _predicted(predictor, extension, unlabelled, own, scores, names)
    important = list[tuple[str, float, float]]()
    if measure_importance:
        important = importance(
            predictor.model, predictor.chosen, seed, lambda share: progress(0.8 + 0.2 * share)
        )
    progress(1.0)
    notes = (
        *notes,
        *_about_scores(
            scores, () if doubtful or allow_leaks else important, predictor.inputs, table, label_name
        ),
    )
    weights = predictor.model.weights()
    return Predictions(rows, scores, predictor.how(), weights, tuple(important), notes, len(chosen), names)


def _about_scores(
    scores: Scores,
    important: Sequence[tuple[str, float, float]],
    inputs: NodeInputs,
    table: str,
    label_name: str | None,
) -> Iterator[str]:
    """Yield what is suspicious about scores: one column explains them, or they are those of a constant."""
    parts = (OWN, LINKS) if table else (OWN,)
    columns = {one.source for one in inputs.columns.columns if one.part in parts}
    for one in dominant(scores, important):
        if one in columns - {STRUCTURE, MEANS, ALL}:
            name = one.removeprefix(PATH)
            named = f"{table}.{name}" if table and "." not in name and name == one else name
            again = again_without([named], inputs.graph, table, label_name)
            yield (
                f"the held-out scores are nearly perfect, and {named} alone matters for them. Where it is "
                f"known only after what is predicted, {again}"
            )
    if (message := no_better(scores)) is not None:
        yield message


def _predicted(
    predictor: NodePredictor,
    extension: Extension | None,
    unlabelled: Integers,
    own: tuple[Integers, npt.NDArray[Any]] | None,
    scores: Scores,
    names: tuple[str, ...],
) -> pd.DataFrame:
    """Return the predictions of new nodes, or of unlabelled ones, and held-out ones of nodes with labels."""
    parts, ids = list[pd.DataFrame](), predictor.inputs.graph.node_ids
    if extension is not None:
        new = slice(-extension.new, None)
        decision = predictor.extended(extension.graph, extension.embedding[new])
        parts.append(_table(extension.node_ids[new], decision, names))
    elif unlabelled.size:
        parts.append(_table(ids[unlabelled], predictor(unlabelled), names))
    if own is not None:
        nodes, given = own
        found = _table(ids[nodes], scores.held_out, names)
        found["label"] = np.array(names, dtype=object)[given] if names else given
        parts.append(found.iloc[np.argsort(nodes)])
    return pd.concat(parts, ignore_index=True)


def _are_later(times: Integers, some: Integers, others: Integers) -> bool:
    """Whether some nodes are later than all others."""
    return bool(len(some)) and bool(times[some].min() >= times[others].max())


def _tested(
    labels: npt.NDArray[Any], known: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_] | None, classes: bool
) -> tuple[tuple[Integers, npt.NDArray[Any]] | None, tuple[str, ...]]:
    """Return the nodes to score and their labels, and a note on those whose class no other node has."""
    if test is None:
        return None, ()
    strange = test & known & (labels < 0) if classes else np.zeros(len(labels), bool)
    nodes = np.flatnonzero(test & known & ~strange)
    if not nodes.size:
        message = "no row to score has a class that an earlier row has: choose a later date (--test-from)"
        raise InputError(message, code="nothing-to-score")
    count = int(strange.sum())
    note = f"{count:,} rows are not scored, since no earlier row has their class"
    return (nodes, labels[nodes]), (note,) * bool(count)


def _table(ids: npt.NDArray[Any], decision: Any, names: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, Any] = {"node": ids}
    if not isinstance(decision, Decision):
        return pd.DataFrame(columns | vars(decision))
    columns |= {
        "class": np.array(names, dtype=object)[decision.classes],
        "probability": decision.probability,
        "cannot_tell": decision.cannot_tell,
    }
    if len(names) <= MAX_PROBABILITY_COLUMNS:
        columns |= {f"p_{name}": decision.probabilities[:, at] for at, name in enumerate(names)}
    return pd.DataFrame(columns)
