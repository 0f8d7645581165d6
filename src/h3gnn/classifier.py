"""NodeClassifier: a scikit-learn classifier of the nodes of a graph."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted, check_memory

from h3gnn.answers.prediction import Decision, NodePredictor, Rule, check_labels
from h3gnn.answers.similarity import find_nodes
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import is_missing
from h3gnn.tables.leaks import check_leaks


class NodeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Node classification with calibrated probabilities, on an embedding that uses no labels.

    The graph is an argument of the constructor; `fit` and `predict` take nodes. So `cross_val_score` and
    `GridSearchCV` split the nodes and never the graph. With `memory=`, each setting's embedding is fitted
    once, whatever the number of folds.

        nodes = NodeClassifier(H3GNN(epochs=50), graph, memory="cache")
        cross_val_score(nodes, labelled_ids, their_classes)

    Args:
        embedder: an `H3GNN`, or any transformer whose `fit_transform` takes the graph and returns one row per
            node; None is `H3GNN()`.
        graph: anything that `h3gnn.as_graph` takes.
        edge_index, edges: the edges, if `graph` is a table of features; see `as_graph`.
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
        class_weight: str = "none",
        threshold: float | str | None = None,
        cannot_tell_below: float | None = None,
        allow_leaks: bool = False,
        memory: Any = None,
        random_state: int = 0,
    ) -> None:
        self.embedder = embedder
        self.graph = graph
        self.edge_index = edge_index
        self.edges = edges
        self.class_weight = class_weight
        self.threshold = threshold
        self.cannot_tell_below = cannot_tell_below
        self.allow_leaks = allow_leaks
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from labelled nodes.

        Args:
            X: their ids, or positions if the graph's nodes have no ids.
            y: their classes, numbers or text.
        """
        if self.graph is None:
            raise InputError("NodeClassifier needs a graph: NodeClassifier(graph=…)", code="graph-missing")
        self.graph_: Graph = as_graph(self.graph, self.edge_index, edges=self.edges)
        nodes = self._positions(X)
        self.classes_, labels = self._classes(y, len(nodes))
        check_labels(labels, tuple(map(str, self.classes_)))
        if not self.allow_leaks:
            every = np.full(self.graph_.num_nodes, -1)
            every[nodes] = labels
            check_leaks(self.graph_, every, getattr(y, "name", None))
        rule = Rule(self.class_weight, self.threshold, self.cannot_tell_below)
        rule.check(len(self.classes_))
        embedder = H3GNN() if self.embedder is None else self.embedder
        params = embedder.get_params()
        key = {"embedder": str(type(embedder)), "graph": self.graph_.provenance.sha256}
        key |= {name: repr(value) for name, value in params.items()}
        cached = check_memory(self.memory).cache(_fit_embedding, ignore=["embedder", "graph"])
        repeatable = isinstance(params.get("random_state", 0), numbers.Integral)
        self.embedding_ = (cached if repeatable else _fit_embedding)(key, embedder, self.graph_)
        self.predictor_ = NodePredictor(
            self.embedding_, nodes, labels, len(self.classes_), rule, self.random_state
        )
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class of each node."""
        predicted: npt.NDArray[Any] = self.classes_[self._decide(X).classes]
        return predicted

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the calibrated probability of each class for each node, `[nodes, classes]`."""
        return self._decide(X).probabilities

    def cannot_tell(self, X: Any) -> npt.NDArray[np.bool_]:  # noqa: N803
        """Return for each node whether its class is too uncertain."""
        return self._decide(X).cannot_tell

    def predict_rows(self, embedding: npt.NDArray[np.float32]) -> Decision:
        """Predict rows of embeddings of other nodes, for example of `H3GNN.extend`."""
        check_is_fitted(self)
        return self.predictor_(embedding)

    def _decide(self, X: Any) -> Decision:  # noqa: N803
        check_is_fitted(self)
        return self.predictor_(self.embedding_[self._positions(X)])

    def _positions(self, X: Any) -> npt.NDArray[np.int64]:  # noqa: N803
        nodes = np.asarray(X, dtype=None if hasattr(X, "dtype") else object)
        nodes = nodes[:, 0] if nodes.ndim == 2 and nodes.shape[1] == 1 else nodes
        if nodes.ndim != 1:
            raise InputError(
                f"X must be one column of node ids or positions, not shape {list(nodes.shape)}; the features "
                "are in the graph",
                code="nodes-not-one-column",
            )
        return find_nodes(self.graph_, nodes)

    @staticmethod
    def _classes(y: Any, nodes: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        given = np.asarray(y)
        if given.shape != (nodes,):
            shape = list(given.shape)
            raise InputError(
                f"y must be one class for each of {nodes} nodes, not {shape}", code="label-shape"
            )
        missing = [row for row, value in enumerate(given.tolist()) if is_missing(value)]
        if missing:
            raise InputError(
                f"y, row {missing[0]}: the class is missing; fit on labelled nodes only", code="label-missing"
            )
        classes, labels = np.unique(given, return_inverse=True)
        return classes, labels.astype(np.int64)


def _fit_embedding(key: dict[str, Any], embedder: Any, graph: Graph) -> npt.NDArray[np.float32]:
    """Return the embedding of a graph; `key` identifies it for `memory`."""
    embedding = np.asarray(clone(embedder).fit_transform(graph), dtype=np.float32)
    if len(embedding) != graph.num_nodes:
        raise InputError(
            f"the embedder returned {len(embedding)} rows for {graph.num_nodes} nodes", code="embedder-rows"
        )
    return embedding
