"""k-means of our own against scikit-learn's."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import KMeans

from h3gnn.evaluation.clustering import clustering_accuracy, lloyd_clusters


def loss(rows: torch.Tensor, found: torch.Tensor) -> float:
    clusters = [rows[found == one] for one in range(int(found.max()) + 1)]
    return sum(float((some - some.mean(dim=0)).square().sum()) for some in clusters if len(some))


def test_clear_clusters_are_found() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.arange(4).repeat_interleave(50)
    rows = 10 * torch.eye(4)[truth] + torch.randn(200, 4, generator=draw)
    found = lloyd_clusters(rows, 4, 5, seed=1)
    assert clustering_accuracy(found.numpy(), truth.numpy()) == 1.0


def test_its_loss_is_as_small_as_scikit_learns() -> None:
    rows = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    own = loss(rows, lloyd_clusters(rows, 5, 20, seed=0))
    theirs = KMeans(5, n_init=20, random_state=0).fit(rows.numpy()).inertia_
    assert own < 1.01 * float(theirs)


def test_fewer_distinct_rows_than_clusters_stay_together() -> None:
    assert np.unique(lloyd_clusters(torch.ones(10, 3), 3, 2, seed=0).numpy()).size == 1
    two = torch.tensor([[0.0, 1.0]] * 6 + [[9.0, 4.0]] * 4)
    found = lloyd_clusters(two, 4, 2, seed=0)
    assert clustering_accuracy(found.numpy(), np.repeat([0, 1], [6, 4])) == 1.0
