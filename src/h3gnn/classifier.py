"""NodeClassifier and NodeRegressor: scikit-learn estimators of the nodes of a graph."""

from __future__ import annotations

import numbers
from typing import Any, Self

import joblib  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted, check_memory

from h3gnn import __version__
from h3gnn.answers.extend import Extension
from h3gnn.answers.learning import NodeInputs
from h3gnn.answers.prediction import NodePredictor, check_labels
from h3gnn.answers.similarity import find_nodes
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.decisions import Rule
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import is_missing
from h3gnn.resources import read_only
from h3gnn.tables.leaks import Target as LeakTarget
from h3gnn.tables.leaks import check_leaks

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class _NodeEstimator(BaseEstimator):  # type: ignore[misc]
    """What `NodeClassifier` and `NodeRegressor` share: the graph, its embedding, and how nodes are named."""

    def __init__(
        self,
        embedder: Any,
        graph: Any,
        edge_index: Any,
        edges: Any,
        head: str,
        leaks: bool,
        memory: Any,
        seed: int,
    ) -> None:
        self.embedder, self.memory, self.random_state = embedder, memory, seed
        self.graph, self.edge_index, self.edges = graph, edge_index, edges
        self.head, self.allow_leaks = head, leaks

    def _learn(
        self, nodes: Integers, values: npt.NDArray[Any], classes: int, rule: Rule, name: str | None
    ) -> None:
        rule.check(classes)
        if not self.allow_leaks:
            known = values if classes else LeakTarget.of_numbers(name, values).classes
            every = np.full(self.graph_.num_nodes, -1)
            every[nodes] = known
            check_leaks(self.graph_, every, name)
        embedder = H3GNN() if self.embedder is None else self.embedder
        params = embedder.get_params()
        graph = self.graph_.provenance.sha256, self.graph_.feature_names
        key = "" if self.memory is None else joblib.hash((__version__, str(type(embedder)), params, graph))
        cached = check_memory(self.memory).cache(_fit_embedding, ignore=["embedder", "graph"])
        repeatable = isinstance(params.get("random_state", 0), numbers.Integral)
        self.embedding_ = read_only((cached if repeatable else _fit_embedding)(key, embedder, self.graph_))
        inputs = NodeInputs.of(self.graph_, self.embedding_)
        self.predictor_ = NodePredictor(
            inputs, nodes, values, classes, rule, self.head, seed=self.random_state
        )

    def _given(self, X: Any, y: Any) -> tuple[Integers, npt.NDArray[Any]]:  # noqa: N803
        """Return the labelled nodes and their labels, none of them missing."""
        if self.graph is None:
            name = type(self).__name__
            raise InputError(f"{name} needs a graph: {name}(graph=…)", code="graph-missing")
        self.graph_: Graph = as_graph(self.graph, self.edge_index, edges=self.edges)
        nodes, given = self._positions(X), np.asarray(y)
        if given.shape != (len(nodes),):
            message = f"y must be one label for each of {len(nodes)} nodes, not {list(given.shape)}"
            raise InputError(message, code="label-shape")
        missing = [row for row, value in enumerate(given.tolist()) if is_missing(value)]
        if missing:
            message = f"y, row {missing[0]}: the label is missing; fit on labelled nodes only"
            raise InputError(message, code="label-missing")
        return nodes, given

    def _decide(self, X: Any) -> Any:  # noqa: N803
        check_is_fitted(self)
        return self.predictor_(self._positions(X))

    def predict_new(self, extension: Extension) -> Any:
        """Predict nodes that join the graph, from `H3GNN.extend` of a model with the same embedding."""
        check_is_fitted(self)
        embedding = extension.embedding[len(extension.embedding) - extension.new :]
        return self.predictor_.extended(extension.graph, embedding)

    def _positions(self, X: Any) -> Integers:  # noqa: N803
        nodes = np.asarray(X, dtype=None if hasattr(X, "dtype") else object)
        nodes = nodes[:, 0] if nodes.ndim == 2 and nodes.shape[1] == 1 else nodes
        if nodes.ndim != 1:
            raise InputError(
                f"X must be one column of node ids or positions, not shape {list(nodes.shape)}; the features "
                "are in the graph",
                code="nodes-not-one-column",
            )
        return find_nodes(self.graph_, nodes)


class NodeClassifier(ClassifierMixin, _NodeEstimator):  # type: ignore[misc]
    """Node classification with calibrated probabilities, on columns, neighbours and an embedding.

    The graph is an argument of the constructor; `fit` and `predict` take nodes. So `cross_val_score` and
    `GridSearchCV` split the nodes and never the graph. The embedding uses no labels; with `memory=`, each
    setting's is fitted once, whatever the number of folds.

        nodes = NodeClassifier(H3GNN(epochs=50), graph, memory="cache")
        cross_val_score(nodes, labelled_ids, their_classes)

    Args:
        embedder: an `H3GNN`, or any transformer whose `fit_transform` takes the graph and returns one row per
            node; None is `H3GNN()`.
        graph: anything that `h3gnn.as_graph` takes.
        edge_index, edges: the edges, if `graph` is a table of features; see `as_graph`.
        head: "auto" pools linear models, trees and neighbours' labels by cross-validation; "logistic" is
            logistic regression on the embedding, "boosting" gradient boosting on columns of the nodes, their
            neighbours and the embedding, "blend" a pool of these two.
        class_weight: "none", or "balanced" to optimize balanced accuracy.
        threshold: of two classes, the probability from which the rarer one is predicted; "auto" learns it.
        cannot_tell_below: probability below which `cannot_tell` is True; None learns it on held-out nodes.
        allow_leaks: accept features that contain the class; otherwise they are an error.
        memory: a folder or a `joblib.Memory` in which embeddings are cached, as in scikit-learn's `Pipeline`.
        random_state: seed of the folds that choose penalty and calibration.

    Attributes:
        classes_: the classes, sorted.
        graph_: the graph as it was read.
        embedding_: its embedding, `[nodes, D]`.
        predictor_: the fitted `NodePredictor`.
    """

    def __init__(
        self,
        embedder: Any = None,
        graph: Any = None,
        *,
        edge_index: Any = None,
        edges: Any = None,
        head: str = "auto",
        class_weight: str = "none",
        threshold: float | str | None = None,
        cannot_tell_below: float | None = None,
        allow_leaks: bool = False,
        memory: Any = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(embedder, graph, edge_index, edges, head, allow_leaks, memory, random_state)
        self.class_weight = class_weight
        self.threshold = threshold
        self.cannot_tell_below = cannot_tell_below

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from labelled nodes.

        Args:
            X: their ids, or positions if the graph's nodes have no ids.
            y: their classes, numbers or text.
        """
        nodes, given = self._given(X, y)
        self.classes_, labels = np.unique(given, return_inverse=True)
        check_labels(labels, tuple(map(str, self.classes_)))
        rule = Rule(self.class_weight, self.threshold, self.cannot_tell_below)
        self._learn(nodes, labels.astype(np.int64), len(self.classes_), rule, getattr(y, "name", None))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class of each node."""
        predicted: npt.NDArray[Any] = self.classes_[self._decide(X).classes]
        return predicted

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Return the calibrated probability of each class for each node, `[nodes, classes]`."""
        return np.asarray(self._decide(X).probabilities)

    def cannot_tell(self, X: Any) -> npt.NDArray[np.bool_]:  # noqa: N803
        """Return for each node whether its class is too uncertain."""
        return np.asarray(self._decide(X).cannot_tell)


class NodeRegressor(RegressorMixin, _NodeEstimator):  # type: ignore[misc]
    """Regression of numbers of nodes, with prediction intervals; see `NodeClassifier`.

    Positive numbers whose logarithm is clearly less skewed are learned on a logarithmic scale.

    Args:
        embedder, graph, edge_index, edges: as of `NodeClassifier`.
        head: as of `NodeClassifier`; "logistic" means ridge regression on the embedding.
        coverage: the share of nodes whose number lies inside its interval.
        allow_leaks, memory, random_state: as of `NodeClassifier`.

    Attributes:
        graph_: the graph as it was read.
        embedding_: its embedding, `[nodes, D]`.
        predictor_: the fitted `NodePredictor`.
    """

    def __init__(
        self,
        embedder: Any = None,
        graph: Any = None,
        *,
        edge_index: Any = None,
        edges: Any = None,
        head: str = "auto",
        coverage: float = 0.9,
        allow_leaks: bool = False,
        memory: Any = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(embedder, graph, edge_index, edges, head, allow_leaks, memory, random_state)
        self.coverage = coverage

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from labelled nodes: their ids or positions, and their numbers."""
        nodes, given = self._given(X, y)
        try:
            values = given.astype(np.float64)
        except (TypeError, ValueError):
            message = "y holds words: NodeRegressor needs numbers; NodeClassifier predicts classes"
            raise InputError(message, code="label-not-numeric") from None
        check_labels(values, ())
        self._learn(nodes, values, 0, Rule(coverage=self.coverage), getattr(y, "name", None))
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """Return the number of each node."""
        return np.asarray(self._decide(X).number)

    def predict_interval(self, X: Any) -> Floats:  # noqa: N803
        """Return the ends of each node's interval, `[nodes, 2]`."""
        decision = self._decide(X)
        return np.column_stack([decision.low, decision.high])


def _fit_embedding(key: str, embedder: Any, graph: Graph) -> npt.NDArray[np.float32]:
    """Return the embedding of a graph; `key` identifies it for `memory`."""
    embedding = np.asarray(clone(embedder).fit_transform(graph), dtype=np.float32)
    if len(embedding) != graph.num_nodes:
        message = f"the embedder returned {len(embedding)} rows for {graph.num_nodes} nodes"
        raise InputError(message, code="embedder-rows")
    return embedding
