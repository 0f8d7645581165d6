from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.cluster import KMeans

from h3gnn.evaluation.clustering import (
    cluster_scores,
    clustering_accuracy,
    compact,
    compare_clusters,
    kmeans_clusters,
    lloyd_clusters,
    pick_clusters,
    row_order,
    silhouettes,
    summarize_runs,
)


def blobs(apart: float = 8.0, width: int = 6) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    centres = apart * torch.nn.functional.one_hot(torch.arange(3), width).float()
    return centres[labels] + torch.randn(90, width, generator=generator), labels.numpy()


def test_clustering_accuracy_uses_the_best_matching() -> None:
    clusters = np.array([2, 2, 2, 0, 0, 1])
    assert clustering_accuracy(clusters, np.array([0, 0, 0, 1, 1, 2])) == 1.0
    assert clustering_accuracy(clusters, np.array([0, 0, 1, 1, 1, 2])) == pytest.approx(5 / 6)
    assert clustering_accuracy(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])) == pytest.approx(0.5)


def test_other_measures_by_hand() -> None:
    clusters, labels = np.array([1, 1, 0, 0, 0]), np.array([0, 0, 1, 1, -1])
    assert compare_clusters(clusters, labels) == {"acc": 1.0, "nmi": 1.0, "ari": 1.0, "macro_f1": 1.0}
    # matched 1->0, 0->1: predictions 0 0 1 1 1 1 against 0 0 0 1 1 1
    found = compare_clusters(np.array([1, 1, 0, 0, 0, 0]), np.array([0, 0, 0, 1, 1, 1]))
    assert found["macro_f1"] == pytest.approx((4 / 5 + 6 / 7) / 2)
    # 15 pairs, 7 together in clusters, 6 in classes, 4 in both: (4 − 7·6/15) / ((7 + 6)/2 − 7·6/15)
    assert found["ari"] == pytest.approx((4 - 2.8) / (6.5 - 2.8))


def test_kmeans_finds_blobs_and_is_repeatable() -> None:
    rows, labels = blobs()
    clusters = kmeans_clusters(rows, 3)
    assert clustering_accuracy(clusters, labels) == 1.0
    np.testing.assert_array_equal(clusters, kmeans_clusters(rows, 3))


def test_compact_keeps_distances() -> None:
    rows = torch.randn(30, 400, generator=torch.Generator().manual_seed(0))
    few = compact(rows)
    assert few.shape == (30, 30)
    torch.testing.assert_close(torch.pdist(few), torch.pdist(rows), rtol=1e-4, atol=1e-4)


def test_scores_have_one_value_per_seed_and_ignore_unknown_labels() -> None:
    rows, labels = blobs()
    hidden = labels.copy()
    hidden[:5] = -1
    found = cluster_scores(rows, torch.from_numpy(hidden), seeds=(0, 1), n_init=2)
    assert set(found) == {"acc", "nmi", "ari", "macro_f1"}
    assert found["acc"] == [1.0, 1.0]
    assert summarize_runs({"acc": [0.5, 1.0]})["acc"] == {"mean": 0.75, "std": 0.25, "values": [0.5, 1.0]}


def test_the_silhouette_finds_the_number_of_blobs() -> None:
    rows, labels = blobs()
    clusters, measured = pick_clusters(rows, range(2, 7), n_init=3)
    assert max(measured, key=lambda count: measured[count]) == 3
    assert clustering_accuracy(clusters, labels) > 0.95
    assert silhouettes(rows, [clusters]) == pytest.approx([measured[3]])
    assert np.isnan(silhouettes(rows, [np.zeros(90, dtype=np.int64)])).all()


def test_range_and_numbering_of_clusters() -> None:
    rows, _ = blobs()
    assert list(pick_clusters(rows, n_init=1)[1]) == list(range(2, 13))
    assert list(pick_clusters(rows, most=4, n_init=1)[1]) == [2, 3, 4]
    assert list(pick_clusters(rows[:4], n_init=1)[1]) == [2, 3]
    assert list(pick_clusters(rows[:2], n_init=1)[1]) == [2]
    uneven = torch.cat([rows[2::3][:3], rows[0::3], rows[1::3][:9]])  # 3, 30 and 9 of each blob
    assert pick_clusters(uneven, [3], n_init=3)[0].tolist() == [2] * 3 + [0] * 30 + [1] * 9


def test_silhouettes_equal_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.metrics import silhouette_score

    rows, labels = blobs(apart=2.0)
    rows[7] = rows[4]  # two nodes at the same place
    alone = labels.copy()
    alone[0] = 9  # a cluster of one node, and a number that is not the next
    several = [labels, alone, labels % 2]
    theirs = [silhouette_score(rows.numpy(), clusters) for clusters in several]
    assert silhouettes(rows, several) == pytest.approx(theirs, abs=1e-6)
    assert np.isnan(silhouettes(rows, [np.arange(90)])).all()
    monkeypatch.setattr("h3gnn.evaluation.clustering.DISTANCE_ROWS", 7)
    assert silhouettes(rows, several) == pytest.approx(theirs, abs=1e-6)


def loss(rows: torch.Tensor, found: torch.Tensor) -> float:
    clusters = [rows[found == one] for one in range(int(found.max()) + 1)]
    return sum(float((some - some.mean(dim=0)).square().sum()) for some in clusters if len(some))


@pytest.mark.parametrize(("nodes", "columns"), [(300, 6), (60, 200)])
def test_loss_is_as_small_as_that_of_scikit_learn(nodes: int, columns: int) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(nodes, columns, generator=draw)
    rows += 2 * torch.randn(6, columns, generator=draw).repeat(nodes // 6, 1)
    for seed in range(3):
        own = loss(rows, torch.from_numpy(kmeans_clusters(rows, 5, n_init=20, seed=seed)))
        theirs = KMeans(5, n_init=20, random_state=seed).fit(rows.numpy()).inertia_
        assert own <= 1.001 * float(theirs)


def test_scikit_learns_kmeans_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KMeans, "fit", lambda *_, **__: pytest.fail("scikit-learn's k-means"))
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    order = row_order(compact(rows))
    np.testing.assert_array_equal(
        kmeans_clusters(rows.numpy(), 3, n_init=2, seed=5)[order],
        lloyd_clusters(compact(rows)[order], 3, 2, 5).numpy(),
    )
    pick_clusters(rows, [2, 3], n_init=1)


def test_fewer_distinct_rows_than_clusters() -> None:
    assert np.unique(kmeans_clusters(torch.ones(10, 3), 3, n_init=2)).size == 1
    two = torch.tensor([[0.0, 1.0]] * 6 + [[9.0, 4.0]] * 4)
    found = lloyd_clusters(two, 4, 2, seed=0)
    assert clustering_accuracy(found.numpy(), np.repeat([0, 1], [6, 4])) == 1.0
