"""k-means on embeddings, and how well its clusters agree with classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment


def kmeans_clusters(
    embedding: npt.NDArray[np.floating], clusters: int, *, starts: int = 10, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Return the cluster of each node, `[nodes]`: the best of several starts by k-means's own loss."""
    from sklearn.cluster import KMeans

    found: npt.NDArray[np.int32] = KMeans(clusters, n_init=starts, random_state=seed).fit_predict(embedding)
    return found.astype(np.int64)


def clustering_accuracy(clusters: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> float:
    """Return the share of nodes whose cluster is matched to their class, under the best matching."""
    size = int(max(clusters.max(), labels.max())) + 1
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    matched = linear_sum_assignment(counts, maximize=True)
    return float(counts[matched].sum() / labels.size)
