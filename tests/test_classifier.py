from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from h3gnn import H3GNN, Graph, NodeClassifier, NodeRegressor
from tests.rejects import rejects

QUICK: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 1, "device": "cpu"}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the epochs of every fit."""
    epochs: list[int] = []
    fit = H3GNN.fit

    def counting(self: H3GNN, *given: Any, **named: Any) -> H3GNN:
        epochs.append(self.epochs)
        return fit(self, *given, **named)

    monkeypatch.setattr(H3GNN, "fit", counting)
    return epochs


def test_cross_validation_fits_one_embedding(small_mixed: Graph, fits: list[int], tmp_path: Path) -> None:
    assert small_mixed.labels is not None
    nodes = NodeClassifier(H3GNN.from_settings(QUICK), small_mixed, head="logistic", memory=str(tmp_path))
    scores = cross_val_score(nodes, np.arange(100), small_mixed.labels.numpy(), cv=3)
    assert scores.shape == (3,)
    assert fits == [2]
    alone = NodeClassifier(H3GNN.from_settings(QUICK), small_mixed, head="logistic")
    alone.fit(np.arange(100), small_mixed.labels.numpy())
    assert fits == [2, 2]  # no cache without `memory`


def test_a_grid_search_fits_each_setting_once(small_mixed: Graph, fits: list[int], tmp_path: Path) -> None:
    assert small_mixed.labels is not None
    nodes = NodeClassifier(H3GNN.from_settings(QUICK), small_mixed, head="logistic", memory=str(tmp_path))
    grid = {"embedder__epochs": [0, 2], "class_weight": ["none", "balanced"]}
    search = GridSearchCV(nodes, grid, cv=2).fit(np.arange(100), small_mixed.labels.numpy())
    assert sorted(fits) == [0, 2]
    assert search.best_params_.keys() == grid.keys()


def test_clones_share_the_graph_only(small_mixed: Graph) -> None:
    nodes = NodeClassifier(H3GNN.from_settings(QUICK), small_mixed, threshold=0.2)
    other = clone(nodes)
    assert other.graph is small_mixed
    assert other.threshold == 0.2
    assert other.get_params()["embedder__epochs"] == 2
    assert other.set_params(embedder__epochs=5).embedder.epochs == 5
    assert nodes.embedder.epochs == 2


def test_nodes_and_classes_may_be_text() -> None:
    graph = nx.Graph()
    for side in ("a", "b"):
        for one in range(12):
            graph.add_node(f"{side}{one}", x=[float(side == "a"), one / 12])
            graph.add_edge(f"{side}{one}", f"{side}{(one + 1) % 12}")
    nodes = NodeClassifier(H3GNN.from_settings({**QUICK, "smoothing": 0.5}), graph)
    known = [f"{side}{one}" for side in "ab" for one in range(6)]
    nodes.fit(known, ["left"] * 6 + ["right"] * 6)
    queries = ["a7", "b7", "b11"]
    assert nodes.predict(queries).tolist() == ["left", "right", "right"]
    assert nodes.classes_.tolist() == ["left", "right"]
    probabilities = nodes.predict_proba(queries)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert nodes.cannot_tell(queries).dtype == bool
    assert nodes.score(queries, ["left", "right", "right"]) == 1
    with rejects("unknown-node"):
        nodes.predict(["c1"])


def test_numbers_with_intervals_and_nodes_that_join(small_mixed: Graph) -> None:
    random = np.random.default_rng(0)
    columns = small_mixed.dense_features().numpy()
    numbers = 10 + 3 * columns[:, 0] + columns[:, 1] + 0.1 * random.normal(size=len(columns))
    model = H3GNN.from_settings(QUICK).fit(small_mixed)
    nodes = NodeRegressor(model, model.graph_, coverage=0.8).fit(np.arange(80), numbers[:80])
    rest = np.arange(80, len(columns))
    assert nodes.score(rest, numbers[80:]) > 0.5
    ends = nodes.predict_interval(rest)
    assert (ends[:, 0] < nodes.predict(rest)).all()
    assert (nodes.predict(rest) < ends[:, 1]).all()
    extension = model.extend(columns[80:83], np.array([[80, 100, 101], [100, 101, 102]]) % 103)
    found = nodes.predict_new(extension)
    np.testing.assert_allclose(found.number, numbers[80:83], atol=2.5)
    with rejects("label-not-numeric"):
        NodeRegressor(model, model.graph_).fit([0, 1], ["a", "b"])
    with rejects("too-few-labels"):
        NodeRegressor(model, model.graph_).fit([0, 1], [1.0, 2.0])


def test_invalid_nodes_and_labels_are_rejected(small_mixed: Graph) -> None:
    with rejects("graph-missing"):
        NodeClassifier().fit([0], [1])
    nodes = NodeClassifier(H3GNN.from_settings(QUICK), small_mixed)
    with rejects("nodes-not-one-column"):
        nodes.fit(np.ones((5, 3)), np.zeros(5))
    with rejects("label-missing"):
        nodes.fit([0, 1], [1.0, np.nan])
    with rejects("label-shape"):
        nodes.fit([0, 1], [1])
