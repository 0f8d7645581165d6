"""k-means on embeddings: how well its clusters agree with classes, and how clear they are without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from h3gnn.evaluation import MOST_CLUSTERS
from h3gnn.evaluation.metrics import macro_f1
from h3gnn.evaluation.probe import as_rows

MEASURES = ("acc", "nmi", "ari", "macro_f1")
"""How clusters are compared with classes."""
SEEDS = tuple(range(10))
"""k-means is run once for each, every time as the best of several starts."""
LLOYD_STEPS = 300
"""Lloyd's algorithm ends after so many steps, if it has not come to rest."""
SAMPLE = 5000
"""The silhouette is measured on no more nodes than this, since it needs all distances between them."""
DISTANCES_OF = 500
"""The distances of so many nodes to all others are in memory at once."""

Labels = npt.NDArray[np.int64]


def kmeans_clusters(
    embedding: npt.ArrayLike | Tensor, clusters: int, *, starts: int = 10, seed: int = 0
) -> Labels:
    """Return the cluster of each node, `[nodes]`: the best of several starts by k-means's own loss.

    The embedding is taken as it is, not standardised: in it, distances are what training made them.
    """
    if _on_gpu(embedding):  # ten to some hundred times faster there, see benchmarks/waiting.py
        return lloyd_clusters(as_rows(embedding).float(), clusters, starts, seed).cpu().numpy()
    return _kmeans(compact(embedding), clusters, starts, seed)


def compact(embedding: npt.ArrayLike | Tensor) -> npt.NDArray[np.float32]:
    """Return rows with the same distances between them and no more columns than there are nodes.

    k-means and the silhouette know rows by their distances alone, so a rotation into the rows' own span
    changes neither.
    """
    rows = as_rows(embedding).float()
    rows = rows - rows.mean(dim=0)
    if rows.shape[1] > rows.shape[0]:
        rows = torch.linalg.qr(rows.mT.double(), mode="r").R.mT.float()
    found: npt.NDArray[np.float32] = np.ascontiguousarray(rows.cpu().numpy())
    return found


def clustering_accuracy(clusters: Labels, labels: Labels) -> float:
    """Return the share of nodes whose cluster is matched to their class, under the best matching."""
    return float((match_clusters(clusters, labels) == labels).mean())


def match_clusters(clusters: Labels, labels: Labels) -> Labels:
    """Return for each node the class that its cluster is matched to, under the matching with most hits.

    Clusters beyond the number of classes get numbers of their own, which no label has.
    """
    size = int(max(clusters.max(), labels.max())) + 1
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    _, classes = linear_sum_assignment(counts, maximize=True)
    matched: Labels = np.asarray(classes, dtype=np.int64)[clusters]
    return matched


def compare_clusters(clusters: Labels, labels: Labels) -> dict[str, float]:
    """Return `MEASURES` of clusters against classes; nodes with a negative label are left out."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    known = labels >= 0
    clusters, labels = clusters[known], labels[known]
    matched = match_clusters(clusters, labels)
    return {
        "acc": float((matched == labels).mean()),
        "nmi": float(normalized_mutual_info_score(labels, clusters)),
        "ari": float(adjusted_rand_score(labels, clusters)),
        "macro_f1": macro_f1(labels, matched),
    }


def cluster_scores(
    embedding: npt.ArrayLike | Tensor,
    labels: npt.ArrayLike | Tensor,
    clusters: int | None = None,
    *,
    seeds: Sequence[int] = SEEDS,
    starts: int = 10,
) -> dict[str, list[float]]:
    """Run k-means on all nodes once for each seed, and compare the clusters with the classes.

    Args:
        embedding: `[nodes, D]`.
        labels: `[nodes]`; nodes with a negative label are clustered and not scored.
        clusters: how many; by default as many as there are classes.
        seeds: one run of k-means for each.
        starts: of each run, how many starts; the best by k-means's own loss is taken.

    Returns:
        For each of `MEASURES`, one value per seed.
    """
    known = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels, dtype=np.int64)
    rows = embedding if _on_gpu(embedding) else compact(embedding)
    count = clusters or int(np.unique(known[known >= 0]).size)
    found = [kmeans_clusters(rows, count, starts=starts, seed=seed) for seed in seeds]
    runs = [compare_clusters(one, known) for one in found]
    return {name: [run[name] for run in runs] for name in MEASURES}


def spread(values: dict[str, list[float]]) -> dict[str, Any]:
    """Return mean, standard deviation and values of each measure, as results keep them."""
    return {
        name: {"mean": float(np.mean(some)), "std": float(np.std(some)), "values": list(some)}
        for name, some in values.items()
    }


def silhouette(embedding: npt.ArrayLike | Tensor, clusters: Labels, *, seed: int = 0) -> float:
    """Return how much nearer nodes are to their own cluster than to the next, −1 to 1, on a sample.

    NaN where there are fewer than two clusters, or as many as nodes.
    """
    return silhouettes(embedding, [clusters], seed=seed)[0]


def silhouettes(
    embedding: npt.ArrayLike | Tensor, several: Sequence[Labels], *, seed: int = 0
) -> list[float]:
    r"""Return the silhouette of each of several clusterings, from distances that are measured once for all.

    .. math:: \frac1n \sum_v \frac{b_v - a_v}{\max(a_v, b_v)}

    a is a node's mean distance to the others of its cluster, b the least mean distance to those of another;
    a node alone in its cluster counts as 0.
    """
    rows = compact(embedding)
    if len(rows) > SAMPLE:
        chosen = np.random.default_rng(seed).choice(len(rows), SAMPLE, replace=False)
        rows, several = rows[chosen], [clusters[chosen] for clusters in several]
    members = [_memberships(clusters) for clusters in several]
    there = torch.from_numpy(rows)
    counts = [one.sum(dim=0) for one in members]
    every = _distance_sums(there, torch.cat(members, dim=1))
    sums = torch.split(every, [one.shape[1] for one in members], dim=1)
    return [_silhouette(*one) for one in zip(sums, members, counts, strict=True)]


def _memberships(clusters: Labels) -> Tensor:
    """Return 1 where a node is in a cluster, float64 `[nodes, clusters]`; no cluster is empty."""
    _, place = np.unique(clusters, return_inverse=True)
    found: Tensor = torch.nn.functional.one_hot(torch.from_numpy(place)).double()
    return found


def _distance_sums(rows: Tensor, members: Tensor) -> Tensor:
    """Return the sum of each row's distances to the members of each cluster, `[nodes, clusters]`."""
    every, squares = rows.double(), rows.double().square().sum(dim=1)
    sums = []
    for some in torch.split(torch.arange(len(rows)), DISTANCES_OF):
        apart = (squares[some, None] + squares).addmm_(every[some], every.mT, alpha=-2).clamp_min_(0).sqrt_()
        apart[torch.arange(len(some)), some] = 0  # rounding leaves something
        sums.append(apart @ members)
    return torch.cat(sums)


def _silhouette(sums: Tensor, members: Tensor, counts: Tensor) -> float:
    if not 2 <= len(counts) < len(sums):
        return float("nan")
    own = members.bool()
    inside = sums[own] / (counts - 1).expand_as(sums)[own]
    outside = (sums / counts).masked_fill(own, torch.inf).amin(dim=1)
    clear = (outside - inside) / torch.maximum(inside, outside)
    return float(clear.nan_to_num(0.0).mean())  # of a node alone, or of rows that are all the same


def pick_clusters(
    embedding: npt.ArrayLike | Tensor,
    counts: Sequence[int] | None = None,
    *,
    most: int = MOST_CLUSTERS,
    starts: int = 10,
    seed: int = 0,
) -> tuple[Labels, dict[int, float]]:
    """Return the clusters whose number has the best silhouette, and the silhouette of each number tried.

    The numbers tried are those given; by default all from 2 to `most`, fewer than there are nodes. Clusters
    are numbered from the largest to the smallest.
    """
    rows = compact(embedding)
    tried = counts or range(2, max(3, min(most + 1, len(rows))))
    found = {count: _kmeans(rows, count, starts, seed) for count in tried}
    measured = dict(zip(found, silhouettes(rows, list(found.values()), seed=seed), strict=True))
    best = max(measured, key=lambda count: np.nan_to_num(measured[count], nan=-2.0))
    return _by_size(found[best]), measured


def _on_gpu(embedding: npt.ArrayLike | Tensor) -> bool:
    return isinstance(embedding, Tensor) and embedding.device.type == "cuda"


def _by_size(clusters: Labels) -> Labels:
    _, place, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    rank: Labels = np.argsort(np.argsort(-counts, kind="stable"))
    return rank[place]


def _kmeans(rows: npt.NDArray[np.float32], clusters: int, starts: int, seed: int) -> Labels:
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        found: npt.NDArray[np.int32] = KMeans(clusters, n_init=starts, random_state=seed).fit_predict(rows)
    return found.astype(np.int64)


def lloyd_clusters(rows: Tensor, clusters: int, starts: int, seed: int) -> Tensor:
    r"""Return the cluster of each row, int64 `[nodes]`: the best of several starts by the k-means loss.

    Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii, 2007). Squared distances come from
    inner products, :math:`|x - c|^2 = |x|^2 - 2 x^\top c + |c|^2`, of all starts in one product.

    Args:
        rows: float32 `[nodes, D]`, on any device.
        clusters: how many.
        starts: how many runs.
        seed: of the starts.
    """
    rows = rows - rows.mean(dim=0)
    squares = rows.square().sum(dim=1)
    generator = torch.Generator(rows.device).manual_seed(seed)
    centres = _plus_plus(rows, squares, clusters, starts, generator)  # [starts, clusters, D]
    found = _nearest(rows, squares, centres)[0]
    for _ in range(LLOYD_STEPS):
        centres = _means(rows, found, centres)
        again, _ = _nearest(rows, squares, centres)
        if torch.equal(again, found):
            break
        found = again
    loss = _nearest(rows, squares, centres)[1].sum(dim=1)
    return found[int(loss.argmin())]


def _plus_plus(
    rows: Tensor, squares: Tensor, clusters: int, starts: int, generator: torch.Generator
) -> Tensor:
    """Draw each next centre with a probability in proportion to the squared distance to those drawn."""
    weight = torch.ones(starts, len(rows), device=rows.device)
    nearest = torch.full_like(weight, torch.inf)
    centres = []
    for _ in range(clusters):
        drawn = torch.multinomial(weight, 1, generator=generator).flatten()
        centre = rows[drawn]  # [starts, D]
        centres.append(centre)
        apart = squares - 2 * centre @ rows.mT + squares[drawn][:, None]
        nearest = torch.minimum(nearest, apart.clamp_min(0))
        weight = nearest + torch.finfo(torch.float32).tiny  # rows may all be the same
    return torch.stack(centres, dim=1)


def _nearest(rows: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's nearest centre and its squared distance, both `[starts, nodes]`."""
    starts, clusters, width = centres.shape
    products = (rows @ centres.view(-1, width).mT).view(-1, starts, clusters)
    apart = squares[:, None, None] - 2 * products + centres.square().sum(dim=2)
    distance, found = apart.min(dim=2)
    return found.mT, distance.mT


def _means(rows: Tensor, found: Tensor, centres: Tensor) -> Tensor:
    """Return the mean of each cluster; an empty one keeps its centre."""
    starts, clusters, width = centres.shape
    members = torch.nn.functional.one_hot(found, clusters).to(rows.dtype).mT.reshape(starts * clusters, -1)
    counts = members.sum(dim=1).view(starts, clusters, 1)
    sums = (members @ rows).view(starts, clusters, width)
    return torch.where(counts > 0, sums / counts.clamp_min(1), centres)
