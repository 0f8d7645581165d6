"""Predictors from tables and labels, a problem on several linked tables, and `predict` as a method.

Gradient boosting, label propagation and Correct & Smooth train on each split's training nodes, and its
validation nodes choose among a few settings, as they do for the other supervised methods. Some methods see
all of several linked tables; the others see the graph of the type whose column is predicted
(`h3gnn.graphs.type_view`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.answers.learning import LINKS, NEIGHBOURS, OWN, NodeColumns, NodeInputs, walk_step
from h3gnn.answers.prediction import NodePredictor, check_labels
from h3gnn.baselines import Progress
from h3gnn.baselines.classics import raw_features
from h3gnn.baselines.supervised import Predictions, best_predictions
from h3gnn.baselines.typed import FLOOR, TypedNetwork, TypedSystem
from h3gnn.evaluation.decisions import Rule
from h3gnn.evaluation.heads import Basis, Floats, Head, LinearHead, Pool, Rows, Target, TreeHead
from h3gnn.evaluation.propagation import PropagationHead, correct_and_smooth
from h3gnn.graphs.graph import Graph, canonical_graph, first_splits, with_hash, with_splits
from h3gnn.graphs.relational import PathFeatures, RelationalGraph
from h3gnn.graphs.type_view import uses_row_times
from h3gnn.tables.database import Predicted

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
    found = list[Floats]()
    for point, target in work:  # in one thread: see `TreeHead.held_out`
        found.append(_learn(learn, target, point))
        watch(len(found) / len(work))
    shape = len(grid), len(targets), *found[0].shape
    scores = torch.from_numpy(np.stack(found)).float().view(shape)
    tried = [Predictions(own, [point] * len(targets)) for point, own in zip(grid, scores, strict=True)]
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


if TYPE_CHECKING:
    from h3gnn.database import Database

CSR = ("indptr", "indices", "data")


@dataclass(frozen=True, eq=False)
class TypedProblem:
    """Several linked tables, and the type whose nodes have labels.

    Attributes:
        tables: all types and relations; the labels are no feature of any node.
        type: the name of the type.
        view: its graph, with labels and splits. The ids of its nodes are the rows of the type.
        earlier_only: whether only rows that are earlier than a node may count.
    """

    tables: RelationalGraph
    type: str
    view: Graph
    earlier_only: bool = False

    @classmethod
    def of(
        cls, tables: RelationalGraph, name: str, view: Graph, *, earlier_only: bool = False
    ) -> TypedProblem:
        """Return the problem of a type from its view, whose nodes are in the order of the rows."""
        numbered = replace(with_splits(view), node_ids=np.arange(view.num_nodes))
        return cls(tables, name, canonical_graph(numbered), earlier_only)

    @classmethod
    def read(
        cls, database: Database, target: str, *, label_time: str | None = None, task: str = "auto"
    ) -> TypedProblem:
        """Return the problem of predicting `TABLE.COLUMN`, or whether a condition on it is met.

        Args:
            database: the tables.
            target: as for `Database.predict`.
            label_time: "row", "now" or None; see `graphs.type_view.type_view`.
            task: "classification", "regression" or "auto".
        """
        wanted = Predicted.parse(target, database.schema.tables)
        view = database.view(wanted.table, wanted.column, task=task, label_time=label_time)
        labels, names = wanted.labels(view)
        if names:
            view = replace(view, labels=torch.from_numpy(labels), class_names=names, targets=None)
        tables = database.graph(f"{wanted.table}.{wanted.column}")
        earlier_only = uses_row_times(PathFeatures(tables, wanted.table), label_time)
        return cls.of(tables, wanted.table, with_hash(view), earlier_only=earlier_only)

    def first_splits(self, splits: int) -> TypedProblem:
        """Return the problem with its first splits only."""
        return replace(self, view=first_splits(self.view, splits))

    @cached_property
    def sha256(self) -> str:
        """The hash of everything that a method may see."""
        digest = hashlib.sha256(f"{self.view.provenance.sha256} {self.earlier_only}".encode())
        for name, table in self.tables.types.items():
            rows: Any = table.features  # dense or sparse
            stored = [getattr(rows, one) for one in CSR] if sp.issparse(rows) else [rows]
            for part in (*stored, table.time):
                _add(digest, name, part)
        for one in self.tables.relations:
            for part in (one.ends, one.time, one.weight):
                _add(digest, f"{one.name} {one.source} {one.target}", part)
        return digest.hexdigest()

    def fit(self, system: TypedSystem, seed: int, device: torch.device) -> Tensor:
        """Return the embedding of the view's nodes, or their predictions in each split, by a system."""
        graph, rows = self.view, torch.from_numpy(np.array(self.view.node_ids))
        known = graph.labels if graph.targets is None else graph.targets
        by_row = rows.argsort()
        times: dict[str, Any] = {}
        if self.earlier_only:  # of a system that `knows_time`
            times["row_times"] = self.tables.type(self.type).time
        parts = [one[by_row] for one in (known, graph.train_mask, graph.val_mask) if one is not None]
        if isinstance(system, TypedNetwork):
            parts = [one.to(device) for one in parts]
        labels, train, val = parts
        found = system.fit(self.tables, self.type, labels, train, val, seed, **times).cpu()
        return found[rows] if system.embeds else found[:, rows]


def _add(digest: Any, name: str, values: npt.NDArray[Any] | None) -> None:
    shape = "none" if values is None else f"{values.dtype.str}{values.shape}"
    digest.update(f"{name} {shape}".encode())
    digest.update(b"" if values is None else np.ascontiguousarray(values).tobytes())


def pooled_heads(
    graph: Graph, embedding: npt.NDArray[np.float32], head: str, seed: int, watch: Progress
) -> Predictions:
    """Return what `h3gnn predict --head HEAD` predicts for all nodes from each split's training nodes."""
    assert graph.train_mask is not None
    inputs, masks = NodeInputs.of(graph, embedding), graph.train_mask.t().numpy()
    found = []
    for at, mask in enumerate(masks):
        found.append(_of_split(graph, inputs, mask, head, seed))
        watch((at + 1) / len(masks))
    return Predictions(torch.from_numpy(np.stack(found)).float(), [{} for _ in masks])


def _of_split(graph: Graph, inputs: NodeInputs, train: npt.NDArray[np.bool_], head: str, seed: int) -> Any:
    """Return log-probabilities `[nodes, classes]` or numbers `[nodes, 1]` of all nodes."""
    everyone = np.arange(graph.num_nodes)
    if graph.targets is not None:
        numbers = np.where(train, graph.targets.numpy(), np.nan)
        check_labels(numbers, ())
        chosen = np.flatnonzero(~np.isnan(numbers))
        predict = NodePredictor(inputs, chosen, numbers[chosen], 0, Rule(), head, seed=seed)
        return predict(everyone).number[:, None]
    assert graph.labels is not None
    labels = np.where(train, graph.labels.numpy(), -1)
    check_labels(labels, graph.class_names)
    chosen = np.flatnonzero(labels >= 0)
    present, values = np.unique(labels[chosen], return_inverse=True)
    predict = NodePredictor(inputs, chosen, values, len(present), Rule(), head, seed=seed)
    p = np.zeros((graph.num_nodes, graph.num_classes))
    p[:, present] = predict(everyone).probabilities
    return np.log(np.maximum(p, FLOOR))
