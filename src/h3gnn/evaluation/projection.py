"""Places in the plane: t-SNE, by landmarks where there are many nodes, or UMAP."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h3gnn.errors import InputError

MAPS = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
"""The kinds of maps, and what a person calls them."""

LANDMARKS = 4_000
"""Up to so many nodes t-SNE places all; of more it places so many, and the rest go beside these."""

FEW = 1_500
"""Maps of so few nodes have settled after half of t-SNE's usual steps; those of more after three quarters."""

BESIDE = 8
"""How many landmarks decide where another node goes."""

DIRECTIONS = 50
"""t-SNE and UMAP see the first so many principal directions."""


def check_map(method: str, called: str = "map") -> None:
    """Refuse a map that cannot be drawn, before the work and not after it; `called` names the argument."""
    from importlib.util import find_spec

    if method not in MAPS:
        raise InputError(f"{called} {method}: there are {', '.join(MAPS)}")
    if method == "umap" and find_spec("umap") is None:
        raise InputError(f"{called} umap needs umap-learn: pip install 'h3gnn[umap]'")


def project_to_plane(
    embedding: npt.NDArray[np.floating], *, method: str = "tsne", seed: int = 0, landmarks: int = LANDMARKS
) -> npt.NDArray[np.float32]:
    """Return a place in the plane for every node, `[nodes, 2]`, in the square from -1 to 1.

    t-SNE takes minutes beyond some thousand nodes, so it then places evenly spaced landmarks, and every other
    node goes to the mean of its nearest landmarks, weighted by nearness, a little off that point so that
    nodes do not cover one another. Such a map shows groups; within a group, small distances mean little.

    Args:
        embedding: `[nodes, dimensions]`.
        method: "tsne", "umap" (needs umap-learn) or "pca".
        seed: of every draw.
        landmarks: how many nodes t-SNE places itself.
    """
    check_map(method)
    chosen = None
    if method == "tsne" and len(embedding) > landmarks:
        chosen = np.unique(np.linspace(0, len(embedding) - 1, landmarks).round().astype(np.int64))
    rows = _principal(embedding, seed, chosen)
    if method == "pca" or len(rows) < 4:
        return _into_square(_plane(rows))
    if method == "umap":
        return _into_square(_umap(rows, seed))
    if chosen is None:
        return _into_square(_tsne(rows, seed))
    return _into_square(_go_beside(rows, chosen, _tsne(rows[chosen], seed), seed))


def _principal(
    embedding: npt.NDArray[np.floating], seed: int, chosen: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.float32]:
    """Return all nodes in the principal directions of the chosen ones, or of all."""
    from sklearn.decomposition import PCA

    some = embedding if chosen is None else embedding[chosen]
    nodes, width = some.shape
    if nodes < 2 or not np.ptp(some, axis=0).any():
        return np.zeros((len(embedding), 2), dtype=np.float32)
    search = PCA(min(DIRECTIONS, nodes, width), random_state=seed)
    reduced = search.fit_transform(embedding) if chosen is None else search.fit(some).transform(embedding)
    return np.asarray(reduced, dtype=np.float32)


def _plane(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.pad(rows, ((0, 0), (0, max(0, 2 - rows.shape[1]))))[:, :2]


def _tsne(rows: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(1.0, (len(rows) - 1) / 3))
    start = "pca" if rows.shape[1] >= 2 and np.ptp(rows[:, 0]) > 0 else "random"
    steps = 500 if len(rows) <= FEW else 750
    search = TSNE(perplexity=perplexity, init=start, max_iter=steps, random_state=seed)
    places: npt.NDArray[np.float32] = search.fit_transform(rows)
    return places


def _umap(rows: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    from umap import UMAP

    near = min(15, len(rows) - 1)
    start = "spectral" if len(rows) > 50 else "random"
    placed = UMAP(n_neighbors=near, init=start, random_state=seed, n_jobs=1).fit_transform(rows)
    return np.asarray(placed, dtype=np.float32)


def _go_beside(
    rows: npt.NDArray[np.float32], chosen: npt.NDArray[np.int64], placed: npt.NDArray[np.float32], seed: int
) -> npt.NDArray[np.float32]:
    """Place the nodes that are no landmarks; `placed` is where the chosen ones are."""
    from sklearn.neighbors import NearestNeighbors

    others = np.setdiff1d(np.arange(len(rows)), chosen)
    distance, near = NearestNeighbors(n_neighbors=BESIDE).fit(rows[chosen]).kneighbors(rows[others])
    nearness = np.exp(-((distance / np.maximum(distance[:, :1], 1e-12)) ** 2))
    nearness /= nearness.sum(axis=1, keepdims=True)
    middle = np.einsum("nk,nkd->nd", nearness, placed[near])
    gap = NearestNeighbors(n_neighbors=2).fit(placed).kneighbors(placed)[0][:, 1]
    step = np.median(gap) * np.random.default_rng(seed).normal(size=middle.shape)
    places = np.empty((len(rows), 2), dtype=np.float32)
    places[chosen], places[others] = placed, middle + step
    return places


def _into_square(places: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Turn the map, which knows no up, so that it fills a square best, and scale it to that square."""
    turns = [_turned(places, angle) for angle in np.linspace(0, np.pi / 2, 30, endpoint=False)]
    places = min(turns, key=lambda turned: float(np.ptp(turned, axis=0).max()))
    low, high = places.min(axis=0), places.max(axis=0)
    size = float((high - low).max())
    return np.asarray((places - (low + high) / 2) / (size / 2 if size > 0 else 1.0), dtype=np.float32)


def _turned(places: npt.NDArray[np.float32], angle: float) -> npt.NDArray[np.float32]:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.asarray(places @ np.array([[cos, -sin], [sin, cos]]), dtype=np.float32)
