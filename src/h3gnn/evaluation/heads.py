"""Predictors of classes or numbers of nodes: linear models, trees on columns, neighbours' labels.

Each head predicts every labelled node from training sets that leave it out, and after that any rows. `Pool`
weighs the heads by these held-out predictions. Nothing is stored: a head is fitted again in seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from h3gnn.evaluation.logistic import fit_logistic, predict_logistic
from h3gnn.evaluation.probe import CONSTANT, projection_basis
from h3gnn.resources import map_in_threads, one_thread

Embedding = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Values = npt.NDArray[Any]  # classes 0, 1, …, or numbers

ROWS = 16_384
"""Rows processed at a time."""
FLOOR = 1e-5
"""The smallest probability that a head may predict."""
MAX_COMPONENTS = 256
"""If there are more columns and more labelled nodes, the embedding is reduced to principal components."""
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""L2 penalties of linear models."""
TOLERANCE = 1e-4
"""Distance from the smallest mean loss at which a logistic regression ends."""
MANY_ROWS = 2_000
"""With more labelled nodes, trees grow larger."""
TREES, FOREST_ROWS = 150, 5_000
"""Trees of a forest, and the most labelled nodes to which one is fitted."""
STEPS, RETURN = 30, 0.1
"""Steps of label propagation, and the probability to end a walk at each."""
SHRINKAGE = 0.01
"""Penalty that keeps the weights of a pool near each other."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What heads know about some nodes."""

    embedding: Embedding  # [nodes, D]
    columns: Embedding  # [nodes, columns]
    nodes: Integers  # their positions, for label propagation

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, eq=False)
class Target:
    """The classes or numbers of the labelled nodes; `classes` is 0 for numbers."""

    values: Values
    classes: int

    def of(self, chosen: Integers) -> Target:
        """Return the target of some of the nodes."""
        return Target(self.values[chosen], self.classes)

    @property
    def labelled(self) -> Integers:
        """Positions of the values that are not missing: -1, or NaN."""
        known = self.values >= 0 if self.classes else ~np.isnan(self.values)
        return np.flatnonzero(known)

    @property
    def outputs(self) -> int:
        """Number of predicted values per node."""
        return max(1, self.classes)

    def losses(self, predicted: Floats) -> Floats:
        """Return the log loss or squared error of each node, from predictions `[nodes, outputs]`."""
        if self.classes:
            return np.asarray(-predicted[np.arange(len(self.values)), self.values])
        return np.asarray((predicted[:, 0] - self.values) ** 2)


class Head(ABC):
    """Learns from labelled nodes; for classes it predicts log-probabilities, for numbers the number.

    A head may have several variants, such as penalties, of which held-out nodes choose one.
    """

    title: str

    @abstractmethod
    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from models of others, `[variants, wanted, outputs]` for each training set.

        Args:
            trains: for each model, positions among the labelled nodes.
            wanted: for each model, the positions to predict.
        """

    @abstractmethod
    def fit(self, variant: int) -> Callable[[Rows], Floats]:
        """Fit one variant to all labelled nodes; return the prediction of rows, `[rows, outputs]`."""

    def describe(self, variant: int) -> str:
        """Return a few words about a variant."""
        return self.title


class Basis:
    """Rows of an embedding, centred and on one scale, projected onto the span of the labelled rows.

    A linear model with an L2 penalty lies in the span of its training rows. If these are fewer than the
    columns, the projection loses nothing and makes fits cheap. All columns share one scale, since the blocks
    of an embedding have weights. Samples are drawn in `order`, by default that of the rows.
    """

    def __init__(
        self,
        embedding: Embedding,
        chosen: Integers,
        columns: slice = slice(None),
        order: Integers | None = None,
    ) -> None:
        self.columns = columns
        blocks = [slice(first, first + ROWS) for first in range(0, len(embedding), ROWS)]
        sums = [_tensor(embedding[some, columns]).double().sum(dim=0) for some in blocks]
        self.mean = torch.stack(sums).sum(dim=0) / len(embedding)
        squares = sum(
            float((_tensor(embedding[some, columns]) - self.mean).square().sum()) for some in blocks
        )
        spread = (squares / (len(embedding) * len(self.mean))) ** 0.5
        self.spread = spread if spread > CONSTANT else float("inf")
        self.projection: Tensor | None = None
        labelled = self.scale(embedding[np.sort(chosen)])[np.argsort(np.argsort(chosen))]
        if len(chosen) < labelled.shape[1] and len(chosen) <= MAX_COMPONENTS * 4:
            self.projection = labelled.mT @ projection_basis(labelled @ labelled.mT)
        elif labelled.shape[1] > MAX_COMPONENTS:
            self.projection = self._principal(
                embedding, np.arange(len(embedding)) if order is None else order
            )
        self.labelled = labelled if self.projection is None else labelled @ self.projection

    def scale(self, rows: Embedding) -> Tensor:
        """Return rows of any nodes in the coordinates of the basis, float64."""
        scaled = (_tensor(rows[:, self.columns]).double() - self.mean) / self.spread
        return scaled if self.projection is None else scaled @ self.projection

    def _principal(self, embedding: Embedding, order: Integers) -> Tensor:
        sample = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))[:ROWS].numpy()]
        rows = self.scale(embedding[np.sort(sample)])
        values, vectors = torch.linalg.eigh(rows.mT @ rows)
        directions: Tensor = vectors[:, values.argsort(descending=True)[:MAX_COMPONENTS]]
        return directions


class LinearHead(Head):
    """Logistic or ridge regression on an embedding."""

    def __init__(self, basis: Basis, target: Target, title: str) -> None:
        self.basis, self.target, self.title = basis, target, title
        self.rows = basis.labelled.float()

    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from models of others; one variant for each penalty."""
        weights = self._solve(trains, PENALTIES)
        return [self._predict(self.rows[one], own) for one, own in zip(wanted, weights, strict=True)]

    def fit(self, variant: int) -> Callable[[Rows], Floats]:
        """Fit one penalty to all labelled nodes."""
        weights = self._solve([np.arange(len(self.rows))], [PENALTIES[variant]])[0]
        return lambda rows: self._predict(self.basis.scale(rows.embedding).float(), weights)[0]

    def describe(self, variant: int) -> str:
        """Return the title and the penalty."""
        return f"{self.title} (L2 penalty {PENALTIES[variant]:g})"

    def _solve(self, trains: Sequence[Integers], penalties: Sequence[float]) -> Tensor:
        """Return weights `[models, penalties, columns + 1, outputs]`."""
        with one_thread(len(self.rows)):
            if not self.target.classes:
                return torch.stack([self._ridge(train, penalties) for train in trains])
            used = torch.zeros(len(trains), len(self.rows), dtype=torch.bool)
            for at, train in enumerate(trains):
                used[at, torch.from_numpy(train)] = True
            labels = torch.from_numpy(self.target.values)
            targets = torch.nn.functional.one_hot(labels, self.target.classes).to(self.rows.dtype)
            return fit_logistic(self.rows, targets, used, penalties, tolerance=TOLERANCE)

    def _ridge(self, train: Integers, penalties: Sequence[float]) -> Tensor:
        rows, values = self.rows[train].double(), torch.from_numpy(self.target.values[train]).double()
        centre, mean = rows.mean(dim=0), values.mean()
        rows = rows - centre
        squares, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
        along = vectors.mT @ (rows.mT @ (values - mean)) / len(rows)
        found = [vectors @ (along / (squares.clamp_min(0) + penalty)) for penalty in penalties]
        return torch.stack([torch.cat([one, (mean - centre @ one)[None]])[:, None] for one in found]).float()

    def _predict(self, rows: Tensor, weights: Tensor) -> Floats:
        if self.target.classes:
            return _floored(predict_logistic(rows, weights).double().numpy())
        return np.asarray((rows @ weights[:, :-1] + weights[:, -1:]).double().numpy())


class TreeHead(Head):
    """Trees on columns: histogram gradient boosting or a forest of randomized trees.

    Args:
        columns: of the labelled nodes.
        used: the columns to use.
        target: of the labelled nodes.
        title: for messages.
        forest: a forest in place of boosting.
        seed: of random columns.
        options: settings of the trees in place of those that suit the number of rows.
    """

    def __init__(
        self,
        columns: Embedding,
        used: Integers,
        target: Target,
        title: str,
        *,
        forest: bool = False,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns, self.used, self.target, self.title = columns[:, used], used, target, title
        self.forest, self.seed, self.options = forest, seed, options or {}

    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from models of others."""

        def predict(job: tuple[Integers, Integers]) -> Floats:
            train, one = job
            return self._predict(self._fitted(train), self.columns[one])[None]

        return map_in_threads(predict, zip(trains, wanted, strict=True), len(self.columns))

    def fit(self, variant: int) -> Callable[[Rows], Floats]:
        """Fit the trees to all labelled nodes."""
        with one_thread(len(self.columns)):
            model = self._fitted(np.arange(len(self.columns)))
        return lambda rows: self._predict(model, rows.columns[:, self.used])

    def _fitted(self, train: Integers) -> Any:
        rows = len(train)
        if self.forest:
            from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

            kind = ExtraTreesClassifier if self.target.classes else ExtraTreesRegressor
            features = "sqrt" if self.target.classes else 1 / 3
            model = kind(TREES, min_samples_leaf=2, max_features=features, random_state=self.seed)
        else:
            from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

            small = rows < MANY_ROWS
            model = (
                HistGradientBoostingClassifier if self.target.classes else HistGradientBoostingRegressor
            )(
                max_iter=60 if small else 150,
                max_leaf_nodes=8 if small else 31,
                max_bins=31 if small else 127,
                min_samples_leaf=max(3, min(20, rows // 40)),
                max_features=min(1.0, max(0.2, 12 / max(1, self.columns.shape[1]))),
                l2_regularization=1.0,
                early_stopping=False,
                random_state=self.seed,
            )
        model.set_params(**self.options)
        return model.fit(self.columns[train], self.target.values[train])

    def _predict(self, model: Any, columns: Embedding) -> Floats:
        if not self.target.classes:
            return np.asarray(model.predict(columns), dtype=np.float64)[:, None]
        probabilities = np.zeros((len(columns), self.target.classes))
        probabilities[:, model.classes_] = model.predict_proba(columns)
        return _floored(np.log(np.maximum(probabilities, FLOOR)))


class PropagationHead(Head):
    r"""Neighbours' labels: the mean over labelled nodes that random walks from a node meet.

    .. math:: Z = \sum_k r (1 - r)^k P^k Y

    P steps to the node itself or to a neighbour (Zhu and Ghahramani, 2002; Zhou et al., 2004). Nodes from
    which no labelled node is reached get the mean of all.

    Args:
        step: multiplies values `[size, D]` with P, of a graph that begins with the nodes of the fitted one.
        size: number of its nodes.
        nodes: positions of the labelled nodes.
        target: their classes or numbers.
        restart: r, the probability to end a walk at each step.
        steps: the longest walk.
    """

    title = "label propagation"

    def __init__(
        self,
        step: Callable[[Values], Values],
        size: int,
        nodes: Integers,
        target: Target,
        *,
        restart: float = RETURN,
        steps: int = STEPS,
    ) -> None:
        self.step, self.size, self.nodes, self.target = step, size, nodes, target
        self.restart, self.steps = restart, steps

    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from the labels of others."""
        return [
            self._propagate(train, self.nodes[one])[None] for train, one in zip(trains, wanted, strict=True)
        ]

    def fit(self, variant: int) -> Callable[[Rows], Floats]:
        """Propagate all labels."""
        values = self._propagate(np.arange(len(self.nodes)), slice(None))
        return lambda rows: values[rows.nodes]

    def _propagate(self, train: Integers, wanted: Integers | slice) -> Floats:
        values, classes = self.target.values[train], self.target.classes
        start: Values = np.zeros((self.size, max(2, classes)), dtype=np.float32)
        if classes:
            start[self.nodes[train], values] = 1.0
        else:  # the sum of the numbers, and how many there are
            start[self.nodes[train]] = np.column_stack([values - values.mean(), np.ones(len(train))])
        walked = walk(self.step, start, self.restart, self.steps)
        met = walked[wanted].astype(np.float64)
        if not classes:
            return np.asarray(met[:, :1] / np.maximum(met[:, 1:], FLOOR) + values.mean())
        met += FLOOR * np.bincount(values, minlength=classes) / len(train)
        return _floored(np.log(np.maximum(met / met.sum(axis=1, keepdims=True), FLOOR)))


def correct_and_smooth(
    log_p: Floats,
    nodes: Integers,
    values: Integers,
    step: Callable[[Values], Values],
    *,
    restart: float = 0.2,
) -> Floats:
    r"""Correct the log-probabilities of all nodes by labels, and smooth them (Huang et al., 2021).

    The errors of the labelled nodes are propagated with :func:`walk`; each node's is scaled to the mean
    absolute error of the labelled ones and added. Then the labels and the corrected probabilities of the
    others are propagated. A node that no label reaches keeps its prediction.

    Args:
        log_p: `[nodes, classes]`.
        nodes, values: positions and classes of the labelled nodes.
        step: multiplies values `[nodes, classes]` with P.
        restart: the probability to end a walk at each step.
    """
    p, truth = np.exp(log_p), np.eye(log_p.shape[1])[values]
    error = np.zeros_like(p)
    error[nodes] = truth - p[nodes]
    size = np.abs(error[nodes]).sum(axis=1).mean()
    error = walk(step, error, restart)
    length = np.abs(error).sum(axis=1, keepdims=True)
    p = np.clip(p + size * error / np.maximum(length, FLOOR) * (length > FLOOR), 0, None)
    p[nodes] = truth
    p = walk(step, p, restart)
    return _floored(np.log(np.maximum(p / p.sum(axis=1, keepdims=True), FLOOR)))


def walk(step: Callable[[Values], Values], start: Values, restart: float, steps: int = STEPS) -> Values:
    r"""Return :math:`r \sum_k (1 - r)^k P^k Z` for values Z `[nodes, D]`, summed up to a longest walk."""
    walked = start
    for _ in range(steps):
        walked = restart * start + (1 - restart) * step(walked)
    return walked


@dataclass(frozen=True, eq=False)
class Pool:
    """Weights of heads: a weighted sum of log-probabilities, or of numbers with an intercept.

    The weights of log-probabilities also calibrate: their sum is an inverse temperature.
    """

    variants: list[int]
    weights: Floats
    target: Target = field(repr=False)
    intercept: float = 0.0

    @classmethod
    def fit(cls, predictions: Sequence[Floats], target: Target) -> Pool:
        """Choose each head's variant and the weights by held-out predictions `[variants, nodes, outputs]`."""
        losses = [[target.losses(one).mean() for one in variants] for variants in predictions]
        variants = [int(np.argmin(one)) for one in losses]
        chosen = np.stack([one[variant] for one, variant in zip(predictions, variants, strict=True)])
        if target.classes:
            return cls(variants, _fit_log_weights(chosen, target), target)
        weights, intercept = _fit_number_weights(chosen[:, :, 0], target.values)
        return cls(variants, weights, target, intercept)

    def __call__(self, predictions: Sequence[Floats]) -> Floats:
        """Return the prediction of the pool from those of each head's chosen variant `[nodes, outputs]`."""
        total = np.tensordot(self.weights, np.stack(predictions), axes=1)
        if self.target.classes:
            return np.asarray(total - np.logaddexp.reduce(total, axis=1, keepdims=True))
        return np.asarray(total + self.intercept)

    def select(self, predictions: Sequence[Floats]) -> list[Floats]:
        """Return each head's chosen variant."""
        return [one[variant] for one, variant in zip(predictions, self.variants, strict=True)]


def _fit_log_weights(predictions: Floats, target: Target) -> Floats:
    """Minimize the log loss of the pooled log-probabilities `[heads, nodes, classes]`, a convex problem."""
    heads, nodes = predictions.shape[:2]
    own = predictions[:, np.arange(nodes), target.values].mean(axis=1)

    def loss(weights: Floats) -> tuple[float, Floats]:
        total = np.tensordot(weights, predictions, axes=1)
        norm = np.logaddexp.reduce(total, axis=1, keepdims=True)
        expected = (np.exp(total - norm) * predictions).sum(axis=2).mean(axis=1)
        apart = weights - 1 / heads
        value = norm.mean() - weights @ own + SHRINKAGE * apart @ apart
        return float(value), expected - own + 2 * SHRINKAGE * apart

    start = np.full(heads, 1 / heads)
    return np.asarray(minimize(loss, start, jac=True, bounds=[(0, 3)] * heads, method="L-BFGS-B").x)


def _fit_number_weights(predictions: Floats, values: Floats) -> tuple[Floats, float]:
    """Minimize the squared error of the pooled numbers `[heads, nodes]`, relative to their variance."""
    heads = len(predictions)
    centre, mean = predictions.mean(axis=1), float(values.mean())
    apart, wanted = predictions - centre[:, None], values - mean
    variance = max(float(wanted @ wanted) / len(values), 1e-30)
    square, along = apart @ apart.T / len(values) / variance, apart @ wanted / len(values) / variance

    def loss(weights: Floats) -> tuple[float, Floats]:
        off = weights - 1 / heads
        value = weights @ square @ weights - 2 * along @ weights + SHRINKAGE * off @ off
        return float(value), 2 * (square @ weights - along + SHRINKAGE * off)

    start = np.full(heads, 1 / heads)
    found = minimize(loss, start, jac=True, bounds=[(0, 1.5)] * heads, method="L-BFGS-B").x
    return np.asarray(found), mean - float(found @ centre)


def _floored(log_p: Floats) -> Floats:
    """Return log-probabilities of at least `FLOOR`, normalized."""
    raised = np.maximum(log_p, np.log(FLOOR))
    return np.asarray(raised - np.logaddexp.reduce(raised, axis=-1, keepdims=True))


def _tensor(rows: Embedding) -> Tensor:
    return torch.from_numpy(np.array(rows, order="C"))
