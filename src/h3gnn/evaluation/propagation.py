"""Label propagation: predictions from the labels of neighbours, alone, as columns, or as a correction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from h3gnn.evaluation.heads import FLOOR, Floats, Head, Integers, LabelColumns, Rows, Target, Values, floored

STEPS, RETURN = 30, 0.1
"""Steps of label propagation, and the probability to end a walk at each."""
PARTS = 4
"""Parts of a training set; the columns of each are computed from the others."""
DIGITS = 5  # of these columns, so that trees do not depend on the order in which numbers were added
MOST_VALUES = 5 * 10**7
"""Values of labels propagated side by side."""


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
        walked = self.walked(trains, [self.nodes[one] for one in wanted])
        return [self._predict(train, one)[None] for train, one in zip(trains, walked, strict=True)]

    def fit(self, variant: int, train: Integers | None = None) -> Callable[[Rows], Floats]:
        """Propagate all labels, or some."""
        known = np.arange(len(self.nodes)) if train is None else train
        values = self._predict(known, self.walked([known], [slice(None)])[0])
        return lambda rows: values[rows.nodes]

    def walked(self, trains: Sequence[Integers], wanted: Sequence[Integers | slice]) -> list[Floats]:
        """Propagate the labels of several training sets side by side; return the rows of some nodes.

        The columns are the classes; of numbers, the sum of their deviations from the mean, and the count.
        """
        width, found = max(2, self.target.classes), list[Floats]()
        at_once = max(1, MOST_VALUES // (self.size * width))
        for first in range(0, len(trains), at_once):
            some = trains[first : first + at_once]
            start: Values = np.zeros((self.size, width * len(some)), dtype=np.float32)
            for at, train in enumerate(some):
                values = self.target.values[train]
                if self.target.classes:
                    start[self.nodes[train], at * width + values] = 1.0
                else:
                    start[self.nodes[train], at * width] = values - values.mean()
                    start[self.nodes[train], at * width + 1] = 1.0
            walked = walk(self.step, start, self.restart, self.steps)
            for at, one in enumerate(wanted[first : first + at_once]):
                found.append(walked[one, at * width : (at + 1) * width].astype(np.float64))
        return found

    def _predict(self, train: Integers, met: Floats) -> Floats:
        values, classes = self.target.values[train], self.target.classes
        if not classes:
            return np.asarray(met[:, :1] / np.maximum(met[:, 1:], FLOOR) + values.mean())
        met = met + FLOOR * np.bincount(values, minlength=classes) / len(train)
        return floored(np.log(np.maximum(met / met.sum(axis=1, keepdims=True), FLOOR)))


@dataclass(frozen=True, eq=False)
class PropagatedLabels(LabelColumns):
    """Shares of the classes, or the mean number, that walks from a node meet, and how much they meet.

    The columns of a training node come from the parts of the training set to which it does not belong.
    """

    head: PropagationHead

    def of(self, trains: Sequence[Integers], wanted: Sequence[Integers]) -> list[tuple[Floats, Floats]]:
        """Return for each training set the columns of its nodes, without their own label, and of others."""
        seen, nodes = list[Integers](), list[Integers]()
        for train, one in zip(trains, wanted, strict=True):
            parts = [train[at::PARTS] for at in range(PARTS)]
            seen += [*(np.setdiff1d(train, part) for part in parts), train]
            nodes += [*(self.head.nodes[part] for part in parts), self.head.nodes[one]]
        walked, found = self.head.walked(seen, nodes), list[tuple[Floats, Floats]]()
        columns = [self._columns(values) for values in walked]
        for at, train in enumerate(trains):
            of_train = np.empty((len(train), columns[0].shape[1]))
            for part in range(PARTS):
                of_train[part::PARTS] = columns[at * (PARTS + 1) + part]
            found.append((of_train, columns[at * (PARTS + 1) + PARTS]))
        return found

    def of_all(self, train: Integers) -> Floats:
        """Return the columns of all nodes from the labels of a training set."""
        return self._columns(self.head.walked([train], [slice(None)])[0])

    def _columns(self, met: Floats) -> Floats:
        if not self.head.target.classes:
            return np.column_stack([met[:, 0] / np.maximum(met[:, 1], FLOOR), met[:, 1]])
        total = met.sum(axis=1, keepdims=True)
        return np.round(np.hstack([met / np.maximum(total, FLOOR), total]), DIGITS)


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
    return floored(np.log(np.maximum(p / p.sum(axis=1, keepdims=True), FLOOR)))


def walk(step: Callable[[Values], Values], start: Values, restart: float, steps: int = STEPS) -> Values:
    r"""Return :math:`r \sum_k (1 - r)^k P^k Z` for values Z `[nodes, D]`, summed up to a longest walk."""
    walked = start
    for _ in range(steps):
        walked = restart * start + (1 - restart) * step(walked)
    return walked
