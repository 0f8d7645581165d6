from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import H3GNN, Graph
from h3gnn.answers.similarity import nearest_to_all
from h3gnn.experiments.report_data import (
    collect_findings,
    edge_changes,
    neighbor_weights,
    run_log,
)
from h3gnn.report.findings import TRAINED
from h3gnn.training.history import History
from tests.known import known

QUICK: dict[str, Any] = {"epochs": 4, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_preset("single", **QUICK, n_models=2).fit(small_mixed)


def test_findings_of_a_saved_model(fitted: H3GNN, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    found = collect_findings(H3GNN.load(tmp_path / "run"))
    assert found.nodes == 100
    assert [one.key for one in found.categories] == ["class", "predicted", "wrong", "cluster", "split"]
    assert [one.key for one in found.measures[:4]] == ["homophily", "degree", "difficulty", "attention"]
    np.testing.assert_allclose(known(found.attention).sum(axis=1), 1, atol=1e-5)
    difficulty, kept = found.measure("difficulty"), fitted.history_.difficulty
    np.testing.assert_allclose(known(difficulty).values, known(kept).mean(dim=0), rtol=1e-5)
    assert known(kept).mean().item() == pytest.approx(fitted.history_["loss"][-1].mean(), rel=1e-4)
    assert found.run.facts["seconds"] > 0
    assert [len(row.probe) for row in known(found.scores).rows if row.probe is not None] == [3, 3, 3]


def test_the_weights_are_those_of_the_encoder(fitted: H3GNN) -> None:
    weights = collect_findings(fitted).neighbors
    assert weights is not None
    learned = torch.sigmoid(fitted.encoder_.edges.logit).mean(dim=0).detach()
    np.testing.assert_allclose(weights.weight, learned, rtol=1e-6)
    node = 17
    rows = fitted.support_.pattern.rows == node
    mine = weights.sources[weights.crow[node] : weights.crow[node + 1]]
    assert mine.tolist() == fitted.support_.pattern.cols[rows].tolist()
    edges = fitted.graph_.edge_index
    assert set(mine.tolist()) == set(edges[0, edges[1] == node].tolist()) | set(
        edges[1, edges[0] == node].tolist()
    )


def test_degree_counts_neighbours_once(path_graph: Graph) -> None:
    found = collect_findings(H3GNN.from_preset("single", **QUICK).fit(path_graph))
    degree, homophily = found.measure("degree"), found.measure("homophily")
    assert known(degree).values.tolist() == [1, 2, 2, 2, 1]
    assert known(homophily).values.tolist() == [1, 1, 0.5, 0.5, 1]


def test_without_labels_there_are_clusters(small_mixed: Graph) -> None:
    bare = replace(small_mixed, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)
    found = collect_findings(H3GNN.from_preset("single", **QUICK, fusion="mlp").fit(bare))
    assert [one.key for one in found.categories] == ["cluster"]
    assert found.attention is None  # there is none to show with this fusion
    assert [one.key for one in found.measures] == ["degree", "difficulty"]
    assert found.measure("homophily") is None
    assert known(found.scores).confusion is None
    assert set(known(found.scores).rows[0].clustering) == {"silhouette"}


def test_labels_without_splits_are_split(small_mixed: Graph) -> None:
    bare = replace(small_mixed, train_mask=None, val_mask=None, test_mask=None)
    found = collect_findings(H3GNN.from_preset("single", **QUICK).fit(bare))
    assert len(known(known(found.scores).rows[0].probe)) == 10


def test_some_of_many_nodes_are_shown_and_all_are_scored(fitted: H3GNN) -> None:
    every, some = collect_findings(fitted), collect_findings(fitted, most_nodes=25)
    assert some.nodes == 25 == len(some.embeddings[TRAINED])
    assert some.shown.startswith("25 of 100 nodes")
    assert every.shown == ""
    assert np.array_equal(known(some.scores).rows[2].probe, known(every.scores).rows[2].probe)  # type: ignore[arg-type]
    assert known(some.nearest).max() < 25


def test_a_collapse_is_reported(fitted: H3GNN) -> None:
    model = H3GNN.from_preset("single", **QUICK)
    model.__dict__.update(fitted.__dict__)
    model.history_ = History({"effective_rank": np.array([[50.0, 40.0], [1.5, 39.0]])})
    assert "Model 0: the representation collapsed: at epoch 1 its effective rank fell to 1.5 from 50.0" in (
        run_log(model).collapsed
    )
    assert run_log(fitted).collapsed == ""


def test_a_folder_of_an_older_version_still_loads(fitted: H3GNN, tmp_path: Path) -> None:
    import json

    fitted.history_.difficulty, kept = None, fitted.history_.difficulty
    fitted.save(tmp_path)
    fitted.history_.difficulty = kept
    description = json.loads((tmp_path / "model.json").read_text())
    del description["cost"]
    (tmp_path / "model.json").write_text(json.dumps(description))
    found = collect_findings(H3GNN.load(tmp_path))
    assert found.measure("difficulty") is None
    assert "seconds" not in found.run.facts


# 1 has the neighbours 0 and 2; 2 has 0; 3 has 0, 1 and 2
RECEIVERS, SOURCES = np.array([1, 1, 2, 3, 3, 3]), np.array([0, 2, 0, 0, 1, 2])
START = np.full(6, 0.5)
WEIGHT = np.array([0.6, 0.4, 0.5, 0.55, 0.3, 0.5])


def test_nearest_nodes_agree_with_the_plain_formula() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    found, similarity = nearest_to_all(rows, 4)
    centred = rows - rows.mean(axis=0)
    for node in range(50):
        cosine = centred @ centred[node] / np.linalg.norm(centred, axis=1) / np.linalg.norm(centred[node])
        cosine[node] = -np.inf
        best = np.argsort(-cosine)[:4]
        assert found[node].tolist() == best.tolist()
        np.testing.assert_allclose(similarity[node], cosine[best], atol=1e-5)


def test_a_node_alone_has_no_nearest() -> None:
    found, similarity = nearest_to_all(np.ones((1, 3), dtype=np.float32), 4)
    assert found.shape == similarity.shape == (1, 0)


def test_weights_of_the_neighbours_of_each_node() -> None:
    weights = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.arange(5))
    assert weights.crow.tolist() == [0, 0, 2, 3, 6, 6]
    assert weights.sources.tolist() == SOURCES.tolist()
    assert weights.total.tolist() == [0, 2, 1, 3, 0]


def test_edges_between_shown_nodes_are_kept() -> None:
    weights = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.array([1, 2, 3]))
    assert weights.crow.tolist() == [0, 1, 1, 3]
    assert weights.sources.tolist() == [1, 0, 1]  # new numbers: 1 has 2; 3 has 1 and 2
    assert weights.weight.tolist() == [0.4, 0.3, 0.5]
    assert weights.total.tolist() == [2, 1, 3]


def test_of_too_many_weights_the_most_changed_are_kept() -> None:
    weights = neighbor_weights(RECEIVERS, SOURCES, WEIGHT, START, np.arange(4), most=5)
    assert weights.crow.tolist() == [0, 0, 2, 3, 5]
    assert weights.sources.tolist() == [0, 2, 0, 0, 1]  # node 3 drops the unchanged edge
    assert weights.total.tolist() == [0, 2, 1, 3]
    turned = np.array([*WEIGHT[:5], -0.5])  # of the other sign
    weights = neighbor_weights(RECEIVERS, SOURCES, turned, START, np.arange(4), most=5)
    assert weights.sources.tolist() == [0, 2, 0, 1, 2]


def test_changes_by_kind_of_edge() -> None:
    every, within, between = edge_changes(RECEIVERS, SOURCES, WEIGHT, START, np.array([0, 0, 1, -1]))
    assert (every.edges, within.edges, between.edges) == (6, 1, 2)
    assert within.mean_change == pytest.approx(0.2)
    assert between.mean_change == pytest.approx(-0.1)
    assert between.turned_down == 0.5
    assert [one.kind for one in edge_changes(RECEIVERS, SOURCES, WEIGHT, START, None)] == ["all edges"]
