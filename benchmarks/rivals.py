"""What a user would write in place of `h3gnn predict`: scikit-learn on columns, and labels of neighbours.

Each rival gets the graph and the labelled nodes and predicts all nodes, probabilities `[nodes, classes]` or
numbers `[nodes]`. Settings are chosen by three folds of the labelled nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

from h3gnn.answers.learning import LINKS, NEIGHBOURS, OWN, NodeColumns, walk_step
from h3gnn.evaluation.heads import FLOOR, Target
from h3gnn.evaluation.propagation import PropagationHead, correct_and_smooth
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import scipy_features

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 3
MANY_FEATURES = 256
"""With more features, rows are divided by their length instead of standardizing columns."""
RESTARTS = (0.02, 0.1, 0.3, 0.6)


@dataclass(frozen=True, eq=False)
class Table:
    """The inputs of the rivals: columns and neighbours of the nodes of a graph."""

    graph: Graph

    @cached_property
    def columns(self) -> NodeColumns:
        """The columns by name."""
        return NodeColumns.fit(self.graph, np.zeros((self.graph.num_nodes, 1), dtype=np.float32))

    def part(self, *parts: str) -> Floats:
        """Return the columns of some parts."""
        return np.asarray(self.columns.values[:, self.columns.positions(*parts)])

    @cached_property
    def features(self) -> Any:
        """The features, sparse with rows of length 1 if there are many."""
        held = self.graph.features
        rows = scipy_features(held) if str(held.layout) == "torch.sparse_csr" else held.numpy()
        return normalize(sp.csr_array(rows)) if rows.shape[1] > MANY_FEATURES else rows

    @cached_property
    def with_neighbours(self) -> Any:
        """The features beside their means over neighbours."""
        rows = self.graph.adjacency(undirected=True, self_loops=False)
        size = self.graph.num_nodes
        weight = np.ones(len(rows.cols)) if rows.weight is None else rows.weight
        links = normalize(sp.csr_array((weight, rows.cols, rows.crow), shape=(size, size)), norm="l1")
        both: list[Any] = [self.features, links @ self.features]
        return sp.csr_array(sp.hstack(both)) if sp.issparse(self.features) else np.hstack(both)


def folds_of(known: Target) -> list[tuple[Integers, Integers]]:
    """Return training and held-out positions of the folds; the classes are spread evenly."""
    order = np.random.default_rng(0).permutation(len(known.values))
    order = order[np.argsort(known.values[order], kind="stable")]
    return [(np.sort(np.delete(order, np.s_[at::FOLDS])), np.sort(order[at::FOLDS])) for at in range(FOLDS)]


def best(options: Sequence[Any], losses: Callable[[Any], float]) -> Any:
    """Return the option with the smallest loss."""
    found = [losses(one) for one in options]
    return options[int(np.argmin(found))]


def fitted(model: Any, rows: Any, known: Target) -> Callable[[Any], Floats]:
    """Fit a model; return the function that predicts log-probabilities `[rows, classes]` or `[rows, 1]`."""
    with warnings.catch_warnings(action="ignore"):  # of logistic regressions that stop early
        model = clone(model).fit(rows, known.values)
    if not known.classes:
        return lambda some: np.asarray(model.predict(some))[:, None]

    def log_p(some: Any) -> Floats:
        p = np.full((some.shape[0], known.classes), FLOOR)
        p[:, model.classes_] = np.maximum(model.predict_proba(some), FLOOR)
        return np.asarray(np.log(p / p.sum(axis=1, keepdims=True)))

    return log_p


def tuned(models: Sequence[Any], rows: Any, nodes: Integers, known: Target) -> Floats:
    """Choose a model by folds of the labelled nodes, and predict all rows."""
    labelled, folds = rows[nodes], folds_of(known)

    def loss(model: Any) -> float:
        each = [
            known.of(hidden).losses(fitted(model, labelled[train], known.of(train))(labelled[hidden])).sum()
            for train, hidden in folds
        ]
        return float(sum(each))

    return fitted(best(models, loss), labelled, known)(rows)


def boostings(classes: int) -> list[Any]:
    """Return gradient boosting with several settings."""
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return [
        kind(max_leaf_nodes=leaves, min_samples_leaf=least, early_stopping=False, random_state=0)
        for leaves, least in ((8, 3), (31, 20))
    ]


def forests(classes: int) -> list[Any]:
    """Return random forests with several settings."""
    kind = RandomForestClassifier if classes else RandomForestRegressor
    return [kind(300, min_samples_leaf=least, random_state=0) for least in (1, 3)]


def linears(classes: int, *, sparse: bool) -> list[Any]:
    """Return linear models with several penalties."""
    strengths = (1, 10, 100, 1000) if sparse else (0.01, 0.1, 1, 10)
    models = [LogisticRegression(C=one, max_iter=1000) if classes else Ridge(1 / one) for one in strengths]
    return models if sparse else [make_pipeline(StandardScaler(), one) for one in models]


def linear(rows: Any, nodes: Integers, known: Target) -> Floats:
    """Return a linear model of rows."""
    return tuned(linears(known.classes, sparse=sp.issparse(rows)), rows, nodes, known)


def propagated(table: Table, nodes: Integers, known: Target) -> Floats:
    """Return label propagation; the folds choose the restart probability."""
    step, size = walk_step(table.graph), table.graph.num_nodes
    trains, hidden = map(list, zip(*folds_of(known), strict=True))

    def loss(restart: float) -> float:
        head = PropagationHead(step, size, nodes, known, restart=restart)
        found = zip(hidden, head.held_out(trains, hidden), strict=True)
        return float(sum(known.of(one).losses(predicted[0]).sum() for one, predicted in found))

    spread = np.full(size, -1 if known.classes else np.nan, dtype=known.values.dtype)
    spread[nodes] = known.values
    head = PropagationHead(
        step, size, np.arange(size), Target(spread, known.classes), restart=best(RESTARTS, loss)
    )
    return np.asarray(head.held_out([nodes], [np.arange(size)])[0][0])


def corrected(table: Table, nodes: Integers, known: Target) -> Floats:
    """Return a linear model of the features with Correct & Smooth; of numbers, the residuals are propagated.

    The folds choose the restart probability, with base models that do not see the fold.
    """
    step = walk_step(table.graph)

    def of(train: Integers, base: Floats, restart: float) -> Floats:
        own = known.values[train]
        if known.classes:
            return correct_and_smooth(base, nodes[train], own, step, restart=restart)
        rest = np.zeros(len(base))
        rest[nodes[train]] = own - base[nodes[train], 0]
        head = PropagationHead(step, len(base), np.arange(len(base)), Target(rest, 0), restart=restart)
        return np.asarray(base + head.held_out([nodes[train]], [np.arange(len(base))])[0][0])

    held = [
        (train, hidden, linear(table.features, nodes[train], known.of(train)))
        for train, hidden in folds_of(known)
    ]

    def loss(restart: float) -> float:
        each = [
            known.of(hidden).losses(of(train, base, restart)[nodes[hidden]]).sum()
            for train, hidden, base in held
        ]
        return float(sum(each))

    restart = best(RESTARTS, loss)
    return of(np.arange(len(nodes)), linear(table.features, nodes, known), restart)


RIVALS: dict[str, tuple[str, Callable[[Table, Integers, Target], Floats]]] = {
    "boosting": (
        "boosting",
        lambda table, nodes, known: tuned(boostings(known.classes), table.part(OWN), nodes, known),
    ),
    "boosting-neighbours": (
        "boosting + neighbours",
        lambda table, nodes, known: tuned(
            boostings(known.classes), table.part(OWN, LINKS, NEIGHBOURS), nodes, known
        ),
    ),
    "forest": (
        "random forest",
        lambda table, nodes, known: tuned(forests(known.classes), table.part(OWN, LINKS), nodes, known),
    ),
    "logistic-links": (
        "linear, link columns",
        lambda table, nodes, known: linear(table.part(OWN, LINKS), nodes, known),
    ),
    "logistic-neighbours": (
        "linear, neighbours",
        lambda table, nodes, known: linear(table.with_neighbours, nodes, known),
    ),
    "label-propagation": ("label propagation", propagated),
    "correct-smooth": ("Correct & Smooth", corrected),
}
"""Each rival's title, and the function that predicts all nodes.

Boosting has the nodes' own columns; the random forest and "link columns" have own and link columns;
"neighbours" adds means over neighbours, and to boosting also two hops, degrees and link columns.
"""
