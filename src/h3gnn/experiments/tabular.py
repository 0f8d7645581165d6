"""Predictors from tables and from labels: gradient boosting, label propagation, Correct & Smooth.

A few lines of other libraries do the same. Each split trains on its training nodes, and its validation nodes
choose among a few settings, as they do for the other supervised methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from h3gnn.answers.columns import LINKS, NEIGHBOURS, OWN, NodeColumns, walk_step
from h3gnn.baselines import Progress
from h3gnn.baselines.classics import raw_features
from h3gnn.baselines.supervised import Predictions, best_predictions, joint_progress
from h3gnn.evaluation.heads import Basis, Floats, Head, LinearHead, Pool, Rows, Target, TreeHead
from h3gnn.evaluation.propagation import PropagationHead, correct_and_smooth
from h3gnn.graphs.graph import Graph

Point = Mapping[str, Any]
Learner = Callable[[Target, Point], Floats]
"""Returns log-probabilities `[nodes, classes]` or numbers `[nodes, 1]` of all nodes; a target is -1 or NaN
for all but training nodes."""

FOLDS = 3
"""Folds of the training nodes that choose the penalty of a logistic regression."""
TREES: Mapping[str, tuple[Any, ...]] = {
    "max_leaf_nodes": (8, 31),
    "min_samples_leaf": (3, 20),
    "learning_rate": (0.1, 0.03),
    "max_iter": (100, 300),
    "l2_regularization": (1.0, 0.0),
}
WALKS: Mapping[str, tuple[Any, ...]] = {"restart": (0.1, 0.03, 0.3, 0.5), "steps": (30, 3, 100)}
CORRECTED: Mapping[str, tuple[Any, ...]] = {
    "base": ("linear", "boosting", "boosting-neighbours"),
    "restart": (0.2, 0.05, 0.5),
}
"""The values that a search chooses from, the default first."""


def predict_splits(
    learner: Callable[[Graph], Learner], graph: Graph, grid: Sequence[dict[str, Any]], watch: Progress
) -> Predictions:
    """Train on each split with every point of a grid, and choose on the split's validation nodes."""
    assert graph.train_mask is not None
    known = graph.labels if graph.targets is None else graph.targets
    assert known is not None
    learn, unknown = learner(graph), -1 if graph.targets is None else np.nan
    masks = graph.train_mask.t().numpy()
    targets = [Target(np.where(mask, known.numpy(), unknown), graph.num_classes) for mask in masks]
    work = [(point, target) for point in grid for target in targets]
    parts = joint_progress(watch, [1] * len(work))

    def run(job: tuple[tuple[dict[str, Any], Target], Progress]) -> Floats:
        (point, target), done = job
        found = _learn(learn, target, point)
        done(1.0)
        return found

    found = [run(job) for job in zip(work, parts, strict=True)]  # see `TreeHead.held_out`
    splits = len(targets)
    tried = [
        Predictions(
            torch.from_numpy(np.stack(found[at * splits : (at + 1) * splits])).float(), [point] * splits
        )
        for at, point in enumerate(grid)
    ]
    best = best_predictions(tried, graph)
    scores = torch.stack([tried[at].scores[split] for split, at in enumerate(best)])
    return Predictions(scores, [tried[at].chosen[split] for split, at in enumerate(best)])


def _learn(learn: Learner, target: Target, point: Point) -> Floats:
    """Return a learner's prediction; without two classes among the training nodes, all nodes are alike."""
    present = np.unique(target.values[target.labelled])
    if len(present) > 1:
        return learn(target, point)
    if not target.classes:
        return np.full((len(target.values), 1), present.sum())
    p = np.full((len(target.values), target.classes), 1e-5)
    p[:, present] = 1.0
    return np.asarray(np.log(p / p.sum(axis=1, keepdims=True)))


def boosting(*parts: str) -> Callable[[Graph], Learner]:
    """Return gradient boosting on some parts of the nodes' columns."""

    def prepare(graph: Graph) -> Learner:
        found = NodeColumns.fit(graph, np.zeros((graph.num_nodes, 1), dtype=np.float32))
        used = found.positions(*parts)

        def learn(target: Target, point: Point) -> Floats:
            trees = TreeHead(found.values, used, target, "boosting", options=point)
            return _of_all(trees, target)

        return learn

    return prepare


def linear(graph: Graph) -> Learner:
    """Return logistic regression on the features; folds of the training nodes choose its penalty."""
    rows, everyone = raw_features(graph), np.arange(graph.num_nodes)

    def learn(target: Target, point: Point) -> Floats:
        nodes = target.labelled
        known = target.of(nodes)
        head, fold = LinearHead(Basis(rows, nodes), known, "logistic"), np.arange(len(nodes)) % FOLDS
        trains, hidden = zip(*[(fold != one, fold == one) for one in range(FOLDS)], strict=True)
        found = head.held_out(
            [np.flatnonzero(one) for one in trains], [np.flatnonzero(one) for one in hidden]
        )
        order = np.concatenate([np.flatnonzero(one) for one in hidden])
        pool = Pool.fit([np.concatenate(found, axis=1)], known.of(order))
        return head.fit(pool.variants[0])(Rows(rows, rows[:, :0], everyone))

    return learn


def propagation(graph: Graph) -> Learner:
    """Return label propagation over the edges in both directions."""
    step, everyone = walk_step(graph), np.arange(graph.num_nodes)

    def learn(target: Target, point: Point) -> Floats:
        head = PropagationHead(step, len(everyone), everyone, target, **point)
        return _of_all(head, target)

    return learn


def _of_all(head: Head, target: Target) -> Floats:
    """Return the prediction of all nodes by a head that is trained on the nodes with a class."""
    everyone = np.arange(len(target.values))
    (found,) = head.held_out([target.labelled], [everyone])
    return np.asarray(found[0])


def corrected(graph: Graph) -> Learner:
    """Return Correct & Smooth after a base that does not know labels of neighbours."""
    step, trees = walk_step(graph), {name: values[0] for name, values in TREES.items()}
    bases = {
        "linear": linear,
        "boosting": boosting(OWN),
        "boosting-neighbours": boosting(OWN, LINKS, NEIGHBOURS),
    }

    @cache
    def prepared(base: str) -> Learner:
        return bases[base](graph)

    @cache
    def predicted(base: str, target: Target) -> Floats:
        return prepared(base)(target, trees)

    def learn(target: Target, point: Point) -> Floats:
        nodes = target.labelled
        base = predicted(point["base"], target)
        return correct_and_smooth(base, nodes, target.values[nodes], step, restart=point["restart"])

    return learn
