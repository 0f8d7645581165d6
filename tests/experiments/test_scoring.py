from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.evaluation.clustering import cluster_scores, kmeans_runs
from h3gnn.experiments import scoring
from h3gnn.experiments.scoring import (
    Splits,
    find_clusters,
    homophily_bin,
    probe_predictions,
    reduce_columns,
    score_with_labels,
    score_without_labels,
)
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.report.findings import RAW, TRAINED
from tests.known import known


def easy(nodes: int = 60) -> tuple[np.ndarray, Splits]:
    """Two classes on a line, the last node on the wrong side; one unlabelled node at the start."""
    labels = torch.arange(nodes) % 2
    rows = torch.where(labels == 1, 1.0, -1.0) + 0.1 * torch.linspace(-1, 1, nodes)
    rows[-1] = -1.0
    labels[0] = -1
    order = torch.arange(nodes)
    masks = [torch.stack([order % 3 == part, (order + 1) % 3 == part], dim=1) for part in range(3)]
    for mask in masks:
        mask[-1] = False
    masks[2][-1] = True
    return rows[:, None].numpy(), Splits(labels, *masks)


def test_each_split_is_scored_on_its_own_test_nodes() -> None:
    rows, splits = easy()
    accuracy, predicted, _, _ = probe_predictions(rows, splits)
    assert predicted.shape == (2, 60)
    for split in range(2):
        tested = (splits.test[:, split] & (splits.labels >= 0)).numpy()
        right = predicted[split, tested] == splits.labels.numpy()[tested]
        assert right.sum() == tested.sum() - 1  # all but the last node
        assert accuracy[split] == right.mean()


def test_scores_by_class_and_by_homophily_are_counts_of_test_nodes() -> None:
    rows, splits = easy()
    homophily = np.where(np.arange(60) == 59, 0.05, 0.9)
    homophily[3] = np.nan
    scores, predicted = score_with_labels({RAW: rows, TRAINED: rows}, splits, ("a", "b"), homophily)
    tested, labels = splits.tested, splits.labels.numpy()
    for one in (0, 1):
        assert known(scores.class_counts)[one] == (tested & (labels == one)).sum()
    assert known(scores.confusion).sum() == tested.sum()
    assert known(scores.confusion)[1, 0] == 2  # the last node is tested, and wrong, in both splits
    assert known(scores.homophily_counts).tolist()[:4] == [2, 0, 0, 0]
    assert known(scores.homophily_counts)[4] == tested.sum() - 2 - tested[:, 3].sum()
    trained = scores.rows[1]
    assert trained.by_homophily is not None
    assert trained.by_homophily[0] == 0
    assert np.isnan(trained.by_homophily[1])
    assert trained.by_homophily[4] == 1
    assert predicted[TRAINED][:, 59].tolist() == [0, 0]
    assert [row.representation for row in scores.rows] == [RAW, TRAINED]


def test_borders_of_the_bins() -> None:
    wanted = [0, 0, 1, 2, 3, 4, 4, -1]
    assert homophily_bin(np.array([0, 0.19, 0.2, 0.4, 0.6, 0.8, 1, np.nan])).tolist() == wanted


def test_without_labels_the_silhouette_finds_the_number_of_clusters() -> None:
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(30, 4)) + 20 * np.eye(4)[i] for i in range(4)])
    clusters = find_clusters(rows, None)
    scores = score_without_labels({RAW: random.normal(size=(120, 4)), TRAINED: rows}, clusters)
    assert len(np.unique(clusters)) == 4
    assert all(len(np.unique(clusters[30 * i : 30 * i + 30])) == 1 for i in range(4))
    raw, trained = (row.clustering["silhouette"].mean() for row in scores.rows)
    assert trained > 0.8 > raw
    assert scores.rows[0].probe is None


def test_two_nodes_are_too_few_to_cluster() -> None:
    clusters = find_clusters(np.eye(2), None)
    scores = score_without_labels({TRAINED: np.eye(2)}, clusters)
    assert scores.rows == ()
    assert clusters.tolist() == [0, 0]


def test_principal_directions_keep_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    rows = (random.normal(size=(50, 3)) @ random.normal(size=(3, 9)) + 1).astype(np.float32)
    assert reduce_columns(rows) is rows
    monkeypatch.setattr(scoring, "MANY", 40)
    monkeypatch.setattr(scoring, "DIRECTIONS", 4)
    monkeypatch.setattr(scoring, "DIRECTION_NODES", 20)
    few = reduce_columns(rows)
    assert few.shape == (50, 3)  # the rows lie in three dimensions
    before, after = (np.linalg.norm(one[:, None] - one[None], axis=2) for one in (rows, few))
    np.testing.assert_allclose(before, after, atol=1e-4)
    narrow = rows[:, :4]
    assert reduce_columns(narrow) is narrow


def test_few_splits_of_large_graphs_are_scored(small_mixed: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    ten = with_splits(replace(small_mixed, train_mask=None, val_mask=None, test_mask=None))
    assert Splits.of(ten).test.shape == (100, 10)
    monkeypatch.setattr(scoring, "MANY", 50)
    monkeypatch.setattr(scoring, "TRAINING_NODES", 40)
    splits, homophily = Splits.of(ten), np.zeros(100)
    assert splits.test.shape == (100, 3)
    assert splits.train.sum(dim=0).tolist() == [40, 40, 40]  # of 48
    assert not (splits.train & ~known(ten.train_mask)[:, :3]).any()
    rows = torch.nn.functional.one_hot(known(ten.labels)).float().numpy()
    scores, _ = score_with_labels({RAW: rows}, splits, ten.class_names, homophily)
    assert "over 3 splits" in scores.protocol
    assert "in its first 3 splits at most" in scores.protocol
    assert known(scores.rows[0].probe).tolist() == [1, 1, 1]


def test_some_nodes_of_large_graphs_are_clustered(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MANY", 50)
    monkeypatch.setattr(scoring, "FEW", 25)
    monkeypatch.setattr(scoring, "CLUSTERED", 20)
    seen = []

    def scored(rows: Any, labels: Any, **options: Any) -> Any:
        seen.append((rows[:, 0].tolist(), labels.tolist(), options["n_init"]))
        return cluster_scores(rows, labels, **options)

    def clustered(rows: Any, *arguments: Any, **options: Any) -> Any:
        seen.append((rows[:, 0].tolist(), [], options["n_init"]))
        return kmeans_runs(rows, *arguments, **options)

    monkeypatch.setattr(scoring, "cluster_scores", scored)
    monkeypatch.setattr(scoring, "kmeans_runs", clustered)
    graph = with_splits(small_mixed)
    rows = np.arange(100.0, dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)
    spaced = np.linspace(0, 99, 20).round().astype(np.int64)
    scores, _ = score_with_labels({RAW: rows}, Splits.of(graph), graph.class_names, np.zeros(100))
    assert seen.pop() == (spaced.tolist(), known(graph.labels)[spaced].tolist(), 1)
    assert "k-means on 20 evenly spaced nodes" in scores.protocol
    score_without_labels({TRAINED: rows}, np.arange(100) % 3)
    assert seen == [(spaced.tolist(), [], 1)]
