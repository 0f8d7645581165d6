"""Predictors of classes or numbers of nodes: linear models, trees on columns, neighbours' labels.

Each head predicts every labelled node from training sets that leave it out, and after that any rows. `Pool`
weighs the heads by these held-out predictions. Nothing is stored: a head is fitted again in seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from h3gnn.evaluation.metrics import solve_ridge
from h3gnn.evaluation.probe import CONSTANT, fit_logistic, predict_logistic, projection_basis
from h3gnn.resources import one_thread

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
PENALTIES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""L2 penalties of linear models."""
TOLERANCE = 1e-4
"""Distance from the smallest mean loss at which a logistic regression ends."""
MANY_ROWS = 2_000
"""With more labelled nodes, trees grow larger."""
TREES = 100
"""Trees of a forest."""
SHRINKAGE = 1.0
"""Penalty that keeps the weights of a pool near each other, divided by the number of labelled nodes."""


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
    def fit(self, variant: int, train: Integers | None = None) -> Callable[[Rows], Floats]:
        """Fit one variant to all labelled nodes, or to some; return the prediction of rows."""

    def describe(self, variant: int) -> str:
        """Return a few words about a variant."""
        return self.title


class Basis:
    """Columns of nodes, centred, scaled, and projected onto the span of the labelled rows.

    A linear model with an L2 penalty lies in the span of its training rows. If these are fewer than the
    columns, the projection loses nothing and makes fits cheap. The columns of an embedding share one scale,
    since its blocks have weights; columns of a table are standardized. Samples are drawn in `order`, by
    default that of the rows.

    Args:
        values: of all nodes `[nodes, D]`.
        chosen: positions of the labelled nodes.
        used: the columns to use.
        standardize: one scale for each column in place of one for all.
        factors: of the used columns after scaling; the penalty of a column is divided by its square.
    """

    def __init__(
        self,
        values: Embedding,
        chosen: Integers,
        used: Integers | slice = slice(None),
        *,
        standardize: bool = False,
        factors: Floats | None = None,
        order: Integers | None = None,
    ) -> None:
        self.used = used
        blocks = [slice(first, first + ROWS) for first in range(0, len(values), ROWS)]
        sums = [self._read(values, some).sum(dim=0) for some in blocks]
        self.mean = torch.stack(sums).sum(dim=0) / len(values)
        squares = sum((self._read(values, some) - self.mean).square().sum(dim=0) for some in blocks)
        assert isinstance(squares, Tensor)
        variance = squares / len(values)
        spread = (variance if standardize else variance.mean(dim=0, keepdim=True)).sqrt()
        self.spread = torch.where(spread > CONSTANT, spread, float("inf"))
        if factors is not None:
            self.spread = self.spread / torch.from_numpy(factors)
        self.projection: Tensor | None = None
        labelled = self.scale(values[np.sort(chosen)])[np.argsort(np.argsort(chosen))]
        if len(chosen) < labelled.shape[1] and len(chosen) <= MAX_COMPONENTS * 4:
            self.projection = labelled.mT @ projection_basis(labelled @ labelled.mT)
        elif labelled.shape[1] > MAX_COMPONENTS:
            self.projection = self._principal(values, np.arange(len(values)) if order is None else order)
        self.labelled = labelled if self.projection is None else labelled @ self.projection

    def scale(self, rows: Embedding) -> Tensor:
        """Return rows of any nodes in the coordinates of the basis, float64."""
        scaled = (self._read(rows, slice(None)) - self.mean) / self.spread
        return scaled if self.projection is None else scaled @ self.projection

    def _read(self, values: Embedding, some: slice) -> Tensor:
        return torch.from_numpy(np.array(values[some][:, self.used], dtype=np.float64, order="C"))

    def _principal(self, values: Embedding, order: Integers) -> Tensor:
        sample = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))[:ROWS].numpy()]
        rows = self.scale(values[np.sort(sample)])
        sizes, vectors = torch.linalg.eigh(rows.mT @ rows)
        directions: Tensor = vectors[:, sizes.argsort(descending=True)[:MAX_COMPONENTS]]
        return directions


class LinearHead(Head):
    """Logistic or ridge regression on an embedding, or on columns (`of_columns`)."""

    def __init__(self, basis: Basis, target: Target, title: str, *, of_columns: bool = False) -> None:
        self.basis, self.target, self.title, self.of_columns = basis, target, title, of_columns
        self.rows = basis.labelled.float()

    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from models of others; one variant for each penalty."""
        weights = self._solve(trains, PENALTIES)
        return [self._predict(self.rows[one], own) for one, own in zip(wanted, weights, strict=True)]

    def fit(self, variant: int, train: Integers | None = None) -> Callable[[Rows], Floats]:
        """Fit one penalty."""
        train = np.arange(len(self.rows)) if train is None else train
        weights = self._solve([train], [PENALTIES[variant]])[0]

        def predict(rows: Rows) -> Floats:
            values = rows.columns if self.of_columns else rows.embedding
            found: Floats = self._predict(self.basis.scale(values).float(), weights)[0]
            return found

        return predict

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
        numbers = torch.from_numpy(np.asarray(self.target.values[train], dtype=np.float64))
        return solve_ridge(self.rows[train].double(), numbers, penalties)[:, :, None].float()

    def _predict(self, rows: Tensor, weights: Tensor) -> Floats:
        if self.target.classes:
            return floored(predict_logistic(rows, weights).double().numpy())
        return np.asarray((rows @ weights[:, :-1] + weights[:, -1:]).double().numpy())


class LabelColumns(ABC):
    """Columns computed from the labels of neighbours, for nodes whose own label is not used."""

    @abstractmethod
    def of(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[tuple[Floats, Floats]]:
        """Return for each training set the columns of its nodes, without their own label, and of others."""

    @abstractmethod
    def of_all(self, train: Integers) -> Floats:
        """Return the columns of all nodes from the labels of a training set."""


class TreeHead(Head):
    """Trees on columns: histogram gradient boosting or a forest of randomized trees.

    Args:
        columns: of the labelled nodes.
        used: the columns to use.
        target: of the labelled nodes.
        title: for messages.
        labels: further columns, from the labels of neighbours.
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
        labels: LabelColumns | None = None,
        forest: bool = False,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        varies = np.ptp(columns[:, used], axis=0) > 0 if len(columns) else np.ones(len(used), bool)
        self.used = used[varies] if varies.any() else used[:1]
        self.columns, self.target, self.title = columns[:, self.used], target, title
        self.labels, self.forest, self.seed, self.options = labels, forest, seed, options or {}

    def held_out(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[Floats]:
        """Predict labelled nodes from models of others."""
        nothing = np.empty((len(self.columns), 0))
        more = [(nothing[train], nothing[one]) for train, one in zip(trains, wanted, strict=True)]
        more = more if self.labels is None else self.labels.of(trains, wanted)

        found = []
        with one_thread(len(self.columns)):  # scikit-learn changes filters of warnings: no threads around it
            for train, one, (of_train, of_one) in zip(trains, wanted, more, strict=True):
                model = self._fitted(np.hstack([self.columns[train], of_train]), self.target.of(train))
                found.append(self._predict(model, np.hstack([self.columns[one], of_one]))[None])
        return found

    def fit(self, variant: int, train: Integers | None = None) -> Callable[[Rows], Floats]:
        """Fit the trees."""
        train, labels = np.arange(len(self.columns)) if train is None else train, self.labels
        columns, around = self.columns[train], np.empty((0, 0))
        if labels is not None:
            columns = np.hstack([columns, labels.of([train], [train[:0]])[0][0]])
            around = labels.of_all(train)
        with one_thread(len(self.columns)):
            model = self._fitted(columns, self.target.of(train))

        def predict(rows: Rows) -> Floats:
            own = rows.columns[:, self.used]
            own = own if labels is None else np.hstack([own, around[rows.nodes]])
            return self._predict(model, own)

        return predict

    def _fitted(self, columns: Any, target: Target) -> Any:
        rows, width = columns.shape
        if self.forest:
            from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

            kind = ExtraTreesClassifier if target.classes else ExtraTreesRegressor
            features = "sqrt" if target.classes else 1 / 3
            model = kind(TREES, min_samples_leaf=2, max_features=features, random_state=self.seed)
        else:
            from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

            kind = HistGradientBoostingClassifier if target.classes else HistGradientBoostingRegressor
            small = rows < MANY_ROWS
            model = kind(
                max_iter=60 if small else 150,
                max_leaf_nodes=8 if small else 31,
                max_bins=31 if small else 127,
                min_samples_leaf=max(3, min(20, rows // 40)),
                max_features=min(1.0, max(0.2, 12 / max(1, width))),
                l2_regularization=1.0,
                early_stopping=False,
                random_state=self.seed,
            )
        model.set_params(**self.options)
        with _unchecked():
            return model.fit(columns, target.values)

    def _predict(self, model: Any, columns: Any) -> Floats:
        if not len(columns):
            return np.empty((0, self.target.outputs))
        with _unchecked():
            if not self.target.classes:
                return np.asarray(model.predict(columns), dtype=np.float64)[:, None]
            probabilities = np.zeros((len(columns), self.target.classes))
            probabilities[:, model.classes_] = model.predict_proba(columns)
        return floored(np.log(np.maximum(probabilities, FLOOR)))


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
    own, penalty = predictions[:, np.arange(nodes), target.values].mean(axis=1), SHRINKAGE / nodes

    def loss(weights: Floats) -> tuple[float, Floats]:
        total = np.tensordot(weights, predictions, axes=1)
        norm = np.logaddexp.reduce(total, axis=1, keepdims=True)
        expected = (np.exp(total - norm) * predictions).sum(axis=2).mean(axis=1)
        apart = weights - 1 / heads
        value = norm.mean() - weights @ own + penalty * apart @ apart
        return float(value), expected - own + 2 * penalty * apart

    start = np.full(heads, 1 / heads)
    return np.asarray(minimize(loss, start, jac=True, bounds=[(0, 3)] * heads, method="L-BFGS-B").x)


def _fit_number_weights(predictions: Floats, values: Floats) -> tuple[Floats, float]:
    """Minimize the squared error of the pooled numbers `[heads, nodes]`, relative to their variance."""
    heads, penalty = len(predictions), SHRINKAGE / len(values)
    centre, mean = predictions.mean(axis=1), float(values.mean())
    apart, wanted = predictions - centre[:, None], values - mean
    variance = max(float(wanted @ wanted) / len(values), 1e-30)
    square, along = apart @ apart.T / len(values) / variance, apart @ wanted / len(values) / variance

    def loss(weights: Floats) -> tuple[float, Floats]:
        off = weights - 1 / heads
        value = weights @ square @ weights - 2 * along @ weights + penalty * off @ off
        return float(value), 2 * (square @ weights - along + penalty * off)

    start = np.full(heads, 1 / heads)
    found = minimize(loss, start, jac=True, bounds=[(0, 1.5)] * heads, method="L-BFGS-B").x
    return np.asarray(found), mean - float(found @ centre)


def _unchecked() -> Any:
    """Return a context in which scikit-learn does not validate, which takes half the time of small fits."""
    from sklearn import config_context

    return config_context(skip_parameter_validation=True, assume_finite=True)


def floored(log_p: Any) -> Floats:
    """Return log-probabilities of at least `FLOOR`, normalized."""
    raised = np.maximum(log_p, np.log(FLOOR))
    return np.asarray(raised - np.logaddexp.reduce(raised, axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Fold:
    """The pooled predictions of one fold, and those by which its pool was chosen.

    Attributes:
        held_out: positions of the fold among the labelled nodes.
        predicted: for them `[nodes, outputs]`.
        seen: positions of the other labelled nodes.
        chosen_by: the pool's held-out predictions for these, `[nodes, outputs]`.
    """

    held_out: Integers
    predicted: Floats
    seen: Integers
    chosen_by: Floats


class FoldPredictions:
    """The predictions of heads for every fold, from models without it, and without it and another.

    Args:
        heads: of the same labelled nodes.
        folds: the positions of each fold.
        progress: receives the share of the heads that are done.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        folds: Sequence[Integers],
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.folds, self.size = list(folds), sum(map(len, folds))
        pairs = list(combinations(range(len(folds)), 2))
        left_out = [folds[at] for at in range(len(folds))]
        left_out += [np.concatenate([folds[one], folds[other]]) for one, other in pairs]
        everyone = np.arange(self.size)
        trains = [np.setdiff1d(everyone, one) for one in left_out]
        self.single: list[Floats] = []
        self.pairs: list[dict[tuple[int, int], Floats]] = []
        """For each head, by fold that is left out and fold that is predicted."""
        for number, head in enumerate(heads):
            found = head.held_out(trains, left_out)
            shape = len(found[0]), self.size, found[0].shape[2]
            single = np.empty(shape)
            for fold, predicted in zip(folds, found, strict=False):
                single[:, fold] = predicted
            self.single.append(single)
            of_pairs = {}
            for (one, other), predicted in zip(pairs, found[len(folds) :], strict=True):
                of_pairs[other, one] = predicted[:, : len(folds[one])]
                of_pairs[one, other] = predicted[:, len(folds[one]) :]
            self.pairs.append(of_pairs)
            progress((number + 1) / len(heads))

    def nested(self, target: Target, heads: Sequence[int]) -> Iterator[Fold]:
        """Yield the predictions of a pool of some heads, fold by fold."""
        for fold, held_out in enumerate(self.folds):
            others = [one for one in range(len(self.folds)) if one != fold]
            seen = np.concatenate([self.folds[one] for one in others])
            inner = [
                np.concatenate([self.pairs[head][fold, other] for other in others], axis=1) for head in heads
            ]
            pool = Pool.fit(inner, target.of(seen))
            outer = pool.select([self.single[head][:, held_out] for head in heads])
            yield Fold(held_out, pool(outer), seen, pool(pool.select(inner)))

    def pool(self, target: Target, heads: Sequence[int]) -> Pool:
        """Return the pool of some heads chosen by all folds."""
        return Pool.fit([self.single[head] for head in heads], target)
