"""NodeClassifier: classes of nodes as a scikit-learn classifier over a graph."""

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


class NodeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classes of a graph's nodes from the labelled ones, with calibrated probabilities.

    The graph is given once; `fit` and `predict` take nodes. So `cross_val_score` and `GridSearchCV` split the
    nodes and never the graph. With `memory=`, an embedding, which needs no labels, is fitted once for each
    setting, whatever the number of folds.

        nodes = NodeClassifier(H3GNN(epochs=50), graph, memory="cache")
        cross_val_score(nodes, labelled_ids, their_classes)

    Args:
        embedder: an `H3GNN`, or any transformer whose `fit_transform` takes the graph and gives one row for
            each node; None is `H3GNN()`.
        graph: whatever `h3gnn.as_graph` takes: all nodes, all edges, all features.
        edge_index: the edges, where `graph` is a table of features.
        class_weight: "none", or "balanced" to decide as is best for balanced accuracy.
        threshold: of two classes, the probability from which on the rarer one is decided; "auto" learns it.
        cannot_tell_below: probability below which a class is marked; None learns it on held-out nodes.
        memory: a folder or a `joblib.Memory` in which embeddings are cached, as in scikit-learn's `Pipeline`;
            None caches nothing.
        random_state: seed of the folds on which strength and calibration are chosen.

    Attributes:
        classes_: the classes, sorted.
        graph_: the graph as it was read.
        embedding_: its embedding, `[nodes, D]`.
        predictor_: what was learned from the labelled nodes.
    """

    def __init__(
        self,
        embedder: Any = None,
        graph: Any = None,
        *,
        edge_index: Any = None,
        class_weight: str = "none",
        threshold: float | str | None = None,
        cannot_tell_below: float | None = None,
        memory: Any = None,
        random_state: int = 0,
    ) -> None:
        self.embedder = embedder
        self.graph = graph
        self.edge_index = edge_index
        self.class_weight = class_weight
        self.threshold = threshold
        self.cannot_tell_below = cannot_tell_below
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from labelled nodes.

        Args:
            X: their ids; positions, where the graph's nodes have no names.
            y: their classes, numbers or words.
        """
        if self.graph is None:
            raise InputError("NodeClassifier needs the graph that its nodes are of: NodeClassifier(graph=…)")
        self.graph_: Graph = as_graph(self.graph, self.edge_index)
        nodes = self._positions(X)
        self.classes_, labels = self._classes(y, len(nodes))
        check_labels(labels, tuple(str(one) for one in self.classes_))
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
        found: npt.NDArray[Any] = self.classes_[self._decide(X).classes]
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the calibrated probability of each class for each node, `[nodes, classes]`."""
        return self._decide(X).every

    def cannot_tell(self, X: Any) -> npt.NDArray[np.bool_]:  # noqa: N803
        """Tell for each node whether its class is too uncertain to be told."""
        return self._decide(X).cannot_tell

    def predict_rows(self, embedding: npt.NDArray[np.float32]) -> Decision:
        """Say what rows of the embedding are that no fitted node has: of `H3GNN.extend`, say."""
        check_is_fitted(self)
        return self.predictor_(embedding)

    def _decide(self, X: Any) -> Decision:  # noqa: N803
        check_is_fitted(self)
        return self.predictor_(self.embedding_[self._positions(X)])

    def _positions(self, X: Any) -> npt.NDArray[np.int64]:  # noqa: N803
        nodes = np.asarray(X)
        nodes = nodes[:, 0] if nodes.ndim == 2 and nodes.shape[1] == 1 else nodes
        if nodes.ndim != 1:
            raise InputError(
                f"X holds nodes, by id or position, not features: one column, not shape {list(nodes.shape)}; "
                "the features belong to the graph"
            )
        return find_nodes(self.graph_, nodes.tolist())

    @staticmethod
    def _classes(y: Any, nodes: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        given = np.asarray(y)
        if given.shape != (nodes,):
            raise InputError(f"y needs one class for each of {nodes} nodes, not shape {list(given.shape)}")
        missing = [row for row, one in enumerate(given.tolist()) if is_missing(one)]
        if missing:
            raise InputError(f"y, row {missing[0]}: the class is missing; fit on labelled nodes alone")
        classes, labels = np.unique(given, return_inverse=True)
        return classes, labels.astype(np.int64)


def _fit_embedding(key: dict[str, Any], embedder: Any, graph: Graph) -> npt.NDArray[np.float32]:
    """Return the embedding of a graph; `key` identifies it for `memory`."""
    found: npt.NDArray[np.float32] = np.asarray(clone(embedder).fit_transform(graph), dtype=np.float32)
    if len(found) != graph.num_nodes:
        raise InputError(
            f"the embedder returned {len(found)} rows for {graph.num_nodes} nodes", code="embedder-rows"
        )
    return found
