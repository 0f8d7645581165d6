"""k-means on embeddings, agreement of its clusters with classes, silhouettes, and two-dimensional maps.

Maps are t-SNE (with landmarks for many nodes), UMAP or PCA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import MAX_CLUSTERS
from h3gnn.evaluation.metrics import macro_f1
from h3gnn.evaluation.probe import as_rows

MEASURES = ("acc", "nmi", "ari", "macro_f1")
"""Measures of clusters against classes."""
SEEDS = tuple(range(10))
LLOYD_STEPS = 300  # at most
SAMPLE = 5000  # nodes of a silhouette at most: it needs all pairwise distances
DISTANCE_ROWS = 500  # rows of the distance matrix in memory at once

Labels = npt.NDArray[np.int64]


def kmeans_clusters(
    embedding: npt.ArrayLike | Tensor, clusters: int, *, n_init: int = 10, seed: int = 0
) -> Labels:
    """Return the cluster of each node, `[nodes]`: the best of `n_init` runs by the k-means loss.

    The embedding is not standardised: its distances are those that training produced. The first centres are
    drawn in an order of the rows that follows from their values.
    """
    return kmeans_runs(embedding, [(clusters, seed)], n_init=n_init)[0]


def kmeans_runs(
    embedding: npt.ArrayLike | Tensor, runs: Iterable[tuple[int, int]], *, n_init: int = 10
) -> list[Labels]:
    """Return what `kmeans_clusters` finds for each number of clusters and seed."""
    rows = compact(embedding)
    order = row_order(rows)
    rows, back = rows[order], order.argsort()
    return [lloyd_clusters(rows, clusters, n_init, seed)[back].cpu().numpy() for clusters, seed in runs]


def row_order(rows: Tensor) -> Tensor:
    """Return an order of centred rows that follows from the distances between them alone.

    They are sorted by norms and by first and second moments of their products with all rows, which neither
    shuffling nor rotating changes.
    """
    rows = rows.double()
    lengths = rows.square().sum(dim=1)
    largest = lengths.max().clamp_min(1e-300)
    towards = rows @ (rows * lengths[:, None]).sum(dim=0) / largest
    around = ((rows @ (rows.mT @ rows)) * rows).sum(dim=1) / largest
    key = lengths + 0.61 * towards / len(rows) + 0.37 * around / len(rows)
    return (key / largest).mul(1e9).round().argsort(stable=True)


def compact(embedding: npt.ArrayLike | Tensor) -> Tensor:
    """Return centred float32 rows with the same distances and at most as many columns as rows."""
    rows = as_rows(embedding).float()
    rows = rows - rows.mean(dim=0)
    if rows.shape[1] > rows.shape[0]:  # a rotation into the span of the rows
        rows = torch.linalg.qr(rows.mT.double(), mode="r").R.mT.float()
    return rows.contiguous()


def clustering_accuracy(clusters: Labels, labels: Labels) -> float:
    """Return the share of nodes whose cluster is matched to their class, under the best matching."""
    return float((match_clusters(clusters, labels) == labels).mean())


def match_clusters(clusters: Labels, labels: Labels) -> Labels:
    """Return the class matched to each node's cluster by the Hungarian algorithm.

    Clusters beyond the number of classes get numbers that no label has.
    """
    size = int(max(clusters.max(), labels.max())) + 1
    counts = np.zeros((size, size), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    _, classes = linear_sum_assignment(counts, maximize=True)
    return np.asarray(classes[clusters], dtype=np.int64)


def compare_clusters(clusters: Labels, labels: Labels) -> dict[str, float]:
    """Return `MEASURES` of clusters against classes, ignoring nodes with a negative label."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    clusters, labels = clusters[labels >= 0], labels[labels >= 0]
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
    n_init: int = 10,
) -> dict[str, list[float]]:
    """Run k-means once for each seed and return each of `MEASURES` per seed.

    By default there are as many clusters as classes. Nodes with a negative label are clustered but not
    scored.
    """
    known = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels, dtype=np.int64)
    rows = compact(embedding)
    count = clusters or int(np.unique(known[known >= 0]).size)
    found = kmeans_runs(rows, [(count, seed) for seed in seeds], n_init=n_init)
    runs = [compare_clusters(one, known) for one in found]
    return {name: [run[name] for run in runs] for name in MEASURES}


def summarize_runs(values: dict[str, list[float]]) -> dict[str, Any]:
    """Return mean, standard deviation and values of each measure, as stored in results."""
    return {
        name: {"mean": float(np.mean(some)), "std": float(np.std(some)), "values": list(some)}
        for name, some in values.items()
    }


def silhouettes(
    embedding: npt.ArrayLike | Tensor, several: Sequence[Labels], *, seed: int = 0
) -> list[float]:
    r"""Return the mean silhouette of each of several clusterings, on a sample of the nodes.

    .. math:: \frac1n \sum_v \frac{b_v - a_v}{\max(a_v, b_v)}

    a is a node's mean distance to the others of its cluster, b the least mean distance to those of another;
    a node alone in its cluster counts as 0. NaN with fewer than two clusters, or as many as nodes.
    """
    rows = compact(embedding).cpu()
    if len(rows) > SAMPLE:
        chosen = np.random.default_rng(seed).choice(len(rows), SAMPLE, replace=False)
        chosen = row_order(rows).numpy()[chosen]
        rows, several = rows[torch.from_numpy(chosen)], [clusters[chosen] for clusters in several]
    members = [_memberships(clusters) for clusters in several]
    counts = [one.sum(dim=0) for one in members]
    every = _distance_sums(rows, torch.cat(members, dim=1))
    sums = torch.split(every, [one.shape[1] for one in members], dim=1)
    return [_silhouette(*one) for one in zip(sums, members, counts, strict=True)]


def _memberships(clusters: Labels) -> Tensor:
    """Return the one-hot clusters, float64 `[nodes, clusters]`, without empty ones."""
    _, place = np.unique(clusters, return_inverse=True)
    return torch.nn.functional.one_hot(torch.from_numpy(place)).double()


def _distance_sums(rows: Tensor, members: Tensor) -> Tensor:
    """Return the sum of each row's distances to the members of each cluster, `[nodes, clusters]`."""
    every, squares = rows.double(), rows.double().square().sum(dim=1)
    sums = []
    for some in torch.split(torch.arange(len(rows)), DISTANCE_ROWS):
        apart = (squares[some, None] + squares).addmm_(every[some], every.mT, alpha=-2).clamp_min_(0).sqrt_()
        apart[torch.arange(len(some)), some] = 0  # exact, despite rounding
        sums.append(apart @ members)
    return torch.cat(sums)


def _silhouette(sums: Tensor, members: Tensor, counts: Tensor) -> float:
    if not 2 <= len(counts) < len(sums):
        return float("nan")
    own = members.bool()
    inside = sums[own] / (counts - 1).expand_as(sums)[own]
    outside = (sums / counts).masked_fill(own, torch.inf).amin(dim=1)
    values = (outside - inside) / torch.maximum(inside, outside)
    return float(values.nan_to_num(0.0).mean())  # single nodes and identical rows are 0 / 0


def pick_clusters(
    embedding: npt.ArrayLike | Tensor,
    counts: Sequence[int] | None = None,
    *,
    most: int = MAX_CLUSTERS,
    n_init: int = 10,
    seed: int = 0,
) -> tuple[Labels, dict[int, float]]:
    """Return the clustering with the best silhouette, and the silhouette of each number of clusters.

    By default 2 to `most` clusters are tried. Clusters are numbered from the largest to the smallest.
    """
    rows = compact(embedding)
    tried = counts or range(2, max(3, min(most + 1, len(rows))))
    runs = kmeans_runs(rows, [(count, seed) for count in tried], n_init=n_init)
    found = dict(zip(tried, runs, strict=True))
    measured = dict(zip(found, silhouettes(rows, list(found.values()), seed=seed), strict=True))
    best = max(measured, key=lambda count: np.nan_to_num(measured[count], nan=-2.0))
    _, place, sizes = np.unique(found[best], return_inverse=True, return_counts=True)
    rank: Labels = np.argsort(np.argsort(-sizes, kind="stable"))
    return rank[place], measured


def lloyd_clusters(rows: Tensor, clusters: int, n_init: int, seed: int) -> Tensor:
    r"""Return the cluster of each row `[nodes]`: the best of `n_init` runs by the k-means loss.

    Lloyd's algorithm with k-means++ initialisation (Arthur and Vassilvitskii, 2007) on float32 rows, on any
    device. Squared distances of all runs come from one product,
    :math:`|x - c|^2 = |x|^2 - 2 x^\top c + |c|^2`.
    """
    rows = rows - rows.mean(dim=0)
    squares = rows.square().sum(dim=1)
    generator = torch.Generator(rows.device).manual_seed(seed)
    centres = _plus_plus(rows, squares, clusters, n_init, generator)  # [n_init, clusters, D]
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
    rows: Tensor, squares: Tensor, clusters: int, n_init: int, generator: torch.Generator
) -> Tensor:
    """Draw each centre with probability proportional to the squared distance to the nearest one so far."""
    weight = torch.ones(n_init, len(rows), device=rows.device)
    nearest = torch.full_like(weight, torch.inf)
    centres = []
    for _ in range(clusters):
        drawn = torch.multinomial(weight, 1, generator=generator).flatten()
        centre = rows[drawn]  # [n_init, D]
        centres.append(centre)
        apart = squares - 2 * centre @ rows.mT + squares[drawn][:, None]
        nearest = torch.minimum(nearest, apart.clamp_min(0))
        weight = nearest + torch.finfo(torch.float32).tiny  # rows may be identical
    return torch.stack(centres, dim=1)


def _nearest(rows: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's nearest centre and its squared distance, both `[n_init, nodes]`."""
    n_init, clusters, width = centres.shape
    products = (rows @ centres.view(-1, width).mT).view(-1, n_init, clusters)
    apart = squares[:, None, None] - 2 * products + centres.square().sum(dim=2)
    distance, found = apart.min(dim=2)
    return found.mT, distance.mT


def _means(rows: Tensor, found: Tensor, centres: Tensor) -> Tensor:
    """Return the mean of each cluster; an empty one keeps its centre."""
    n_init, clusters, width = centres.shape
    members = torch.nn.functional.one_hot(found, clusters).to(rows.dtype).mT.reshape(n_init * clusters, -1)
    counts = members.sum(dim=1).view(n_init, clusters, 1)
    sums = (members @ rows).view(n_init, clusters, width)
    return torch.where(counts > 0, sums / counts.clamp_min(1), centres)


MAPS = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
"""Methods and their titles."""
LANDMARKS = 4_000
"""Maximum number of nodes of t-SNE; the others are interpolated between landmarks."""
SMALL = 1_500  # maps of at most this many nodes converge in 500 steps of t-SNE, larger ones in 750
NEIGHBOURS = 8  # landmarks that determine the position of another node
COMPONENTS = 50  # principal components that t-SNE and UMAP use

Rows = npt.NDArray[np.float32]


def check_map(method: str, called: str = "map") -> None:
    """Raise if a map cannot be computed; `called` is the argument's name in the message."""
    if method not in MAPS:
        raise InputError(f"{called} {method}: choose one of {', '.join(MAPS)}", code="unknown-map")
    if method == "umap" and find_spec("umap") is None:
        raise InputError(f"{called} umap needs umap-learn: pip install 'h3gnn[umap]'", code="umap-missing")


def project_to_plane(
    embedding: npt.NDArray[np.floating], *, method: str = "tsne", seed: int = 0, landmarks: int = LANDMARKS
) -> Rows:
    """Return two-dimensional positions in the square from -1 to 1, `[nodes, 2]`.

    t-SNE takes minutes beyond some thousand nodes. It then places evenly spaced landmarks only; each other
    node is placed at the weighted mean of its nearest landmarks, with a small random offset so that nodes do
    not overlap. Such a map shows groups; distances within a group mean little.

    Args:
        embedding: `[nodes, dimensions]`.
        method: "tsne", "umap" (needs umap-learn) or "pca".
        landmarks: maximum number of nodes that t-SNE places itself.
    """
    check_map(method)
    order = row_order(torch.from_numpy(embedding - embedding.mean(axis=0))).numpy()
    return _placed(embedding[order], method, seed, landmarks)[np.argsort(order)]


def _placed(embedding: npt.NDArray[np.floating], method: str, seed: int, landmarks: int) -> Rows:
    chosen = None
    if method == "tsne" and len(embedding) > landmarks:
        chosen = np.unique(np.linspace(0, len(embedding) - 1, landmarks).round().astype(np.int64))
    rows = _principal(embedding, seed, chosen)
    if method == "pca" or len(rows) < 4:
        return _fit_square(np.pad(rows, ((0, 0), (0, max(0, 2 - rows.shape[1]))))[:, :2])
    if method == "umap":
        return _fit_square(_umap(rows, seed))
    if chosen is None:
        return _fit_square(_tsne(rows, seed))
    return _fit_square(_interpolate(rows, chosen, _tsne(rows[chosen], seed), seed))


def _principal(embedding: npt.NDArray[np.floating], seed: int, chosen: npt.NDArray[np.int64] | None) -> Rows:
    """Return all nodes in the principal components of the chosen ones, or of all."""
    from sklearn.decomposition import PCA

    sample = embedding if chosen is None else embedding[chosen]
    nodes, width = sample.shape
    if nodes < 2 or not np.ptp(sample, axis=0).any():
        return np.zeros((len(embedding), 2), dtype=np.float32)
    pca = PCA(min(COMPONENTS, nodes, width), random_state=seed)
    reduced = pca.fit_transform(embedding) if chosen is None else pca.fit(sample).transform(embedding)
    return np.asarray(reduced, dtype=np.float32)


def _tsne(rows: Rows, seed: int) -> Rows:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(1.0, (len(rows) - 1) / 3))
    start = "pca" if rows.shape[1] >= 2 and np.ptp(rows[:, 0]) > 0 else "random"
    steps = 500 if len(rows) <= SMALL else 750
    tsne = TSNE(perplexity=perplexity, init=start, max_iter=steps, random_state=seed)
    return np.asarray(tsne.fit_transform(rows), dtype=np.float32)


def _umap(rows: Rows, seed: int) -> Rows:
    from umap import UMAP

    start = "spectral" if len(rows) > 50 else "random"
    umap = UMAP(n_neighbors=min(15, len(rows) - 1), init=start, random_state=seed, n_jobs=1)
    return np.asarray(umap.fit_transform(rows), dtype=np.float32)


def _interpolate(rows: Rows, chosen: npt.NDArray[np.int64], placed: Rows, seed: int) -> Rows:
    """Place the other nodes between the landmarks, whose positions are `placed`."""
    from sklearn.neighbors import NearestNeighbors

    others = np.setdiff1d(np.arange(len(rows)), chosen)
    distance, near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(rows[chosen]).kneighbors(rows[others])
    weight = np.exp(-((distance / np.maximum(distance[:, :1], 1e-12)) ** 2))
    weight /= weight.sum(axis=1, keepdims=True)
    middle = np.einsum("nk,nkd->nd", weight, placed[near])
    gap = NearestNeighbors(n_neighbors=2).fit(placed).kneighbors(placed)[0][:, 1]
    offset = np.median(gap) * np.random.default_rng(seed).normal(size=middle.shape)
    positions = np.empty((len(rows), 2), dtype=np.float32)
    positions[chosen], positions[others] = placed, middle + offset
    return positions


def _fit_square(positions: Rows) -> Rows:
    """Rotate the map so that it fills a square best, and scale it to that square."""
    turns = [_rotated(positions, angle) for angle in np.linspace(0, np.pi / 2, 30, endpoint=False)]
    positions = min(turns, key=lambda turned: float(np.ptp(turned, axis=0).max()))
    low, high = positions.min(axis=0), positions.max(axis=0)
    size = float((high - low).max())
    return np.asarray((positions - (low + high) / 2) / (size / 2 if size > 0 else 1.0), dtype=np.float32)


def _rotated(positions: Rows, angle: float) -> Rows:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.asarray(positions @ np.array([[cos, -sin], [sin, cos]]), dtype=np.float32)
