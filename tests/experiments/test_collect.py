from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import H3GNN, Graph
from h3gnn.experiments.report_data import collect_findings, run_log
from h3gnn.report.findings import TRAINED
from h3gnn.training.history import History

QUICK: dict[str, Any] = {"epochs": 4, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_preset("single", **QUICK, n_models=2).fit(small_mixed)


def test_all_is_collected_from_a_saved_model(fitted: H3GNN, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    found = collect_findings(H3GNN.load(tmp_path / "run"))
    assert found.nodes == 100
    assert [one.key for one in found.categories] == ["class", "predicted", "wrong", "cluster", "split"]
    assert [one.key for one in found.measures[:4]] == ["homophily", "degree", "difficulty", "attention"]
    assert found.attention is not None
    np.testing.assert_allclose(found.attention.sum(axis=1), 1, atol=1e-5)
    difficulty, kept = found.measure("difficulty"), fitted.history_.difficulty
    assert difficulty is not None
    assert kept is not None
    np.testing.assert_allclose(difficulty.values, kept.mean(dim=0), rtol=1e-5)
    assert kept.mean().item() == pytest.approx(fitted.history_["loss"][-1].mean(), rel=1e-4)
    assert found.run.facts["seconds"] > 0
    assert found.scores is not None
    assert [len(row.probe) for row in found.scores.rows if row.probe is not None] == [3, 3, 3]


def test_the_weights_are_those_of_the_encoder(fitted: H3GNN) -> None:
    heard = collect_findings(fitted).neighbors
    assert heard is not None
    learned = torch.sigmoid(fitted.encoder_.edges.logit).mean(dim=0).detach()
    np.testing.assert_allclose(heard.weight, learned, rtol=1e-6)
    node = 17
    rows = fitted.support_.pattern.rows == node
    mine = heard.sources[heard.crow[node] : heard.crow[node + 1]]
    assert mine.tolist() == fitted.support_.pattern.cols[rows].tolist()
    edges = fitted.graph_.edge_index
    assert set(mine.tolist()) == set(edges[0, edges[1] == node].tolist()) | set(
        edges[1, edges[0] == node].tolist()
    )


def test_degree_counts_neighbours_once(path_graph: Graph) -> None:
    found = collect_findings(H3GNN.from_preset("single", **QUICK).fit(path_graph))
    degree, homophily = found.measure("degree"), found.measure("homophily")
    assert degree is not None
    assert homophily is not None
    assert degree.values.tolist() == [1, 2, 2, 2, 1]
    assert homophily.values.tolist() == [1, 1, 0.5, 0.5, 1]


def test_without_labels_there_are_clusters(small_mixed: Graph) -> None:
    bare = replace(small_mixed, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)
    found = collect_findings(H3GNN.from_preset("single", **QUICK, fusion="mlp").fit(bare))
    assert [one.key for one in found.categories] == ["cluster"]
    assert found.attention is None  # there is none to show with this fusion
    assert [one.key for one in found.measures] == ["degree", "difficulty"]
    assert found.measure("homophily") is None
    assert found.scores is not None
    assert found.scores.confusion is None
    assert set(found.scores.rows[0].clustering) == {"silhouette"}


def test_labels_without_splits_get_some(small_mixed: Graph) -> None:
    bare = replace(small_mixed, train_mask=None, val_mask=None, test_mask=None)
    found = collect_findings(H3GNN.from_preset("single", **QUICK).fit(bare))
    assert found.scores is not None
    assert found.scores.rows[0].probe is not None
    assert len(found.scores.rows[0].probe) == 10


def test_of_many_nodes_some_are_shown_and_all_are_scored(fitted: H3GNN) -> None:
    every, some = collect_findings(fitted), collect_findings(fitted, most_nodes=25)
    assert some.nodes == 25 == len(some.embeddings[TRAINED])
    assert some.shown.startswith("25 of 100 nodes")
    assert every.shown == ""
    assert some.scores is not None
    assert every.scores is not None
    assert np.array_equal(some.scores.rows[2].probe, every.scores.rows[2].probe)  # type: ignore[arg-type]
    assert some.nearest is not None
    assert some.nearest.max() < 25


def test_a_collapse_is_told(fitted: H3GNN) -> None:
    told = H3GNN.from_preset("single", **QUICK)
    told.__dict__.update(fitted.__dict__)
    told.history_ = History({"effective_rank": np.array([[50.0, 40.0], [1.5, 39.0]])})
    assert "Model 0: the representation collapsed: at epoch 1 its effective rank fell to 1.5 from 50.0" in (
        run_log(told).collapsed
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
