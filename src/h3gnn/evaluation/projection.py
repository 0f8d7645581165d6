"""Two-dimensional maps of embeddings: t-SNE (with landmarks for many nodes), UMAP or PCA."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import InputError
from h3gnn.evaluation.clustering import row_order

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
