"""Nodes placed in the plane, kept as small whole numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GRID = 999
"""Places are kept on a grid from 0 to this, along the longer side of the map."""
SHOWN = 1500
"""A map shows no more nodes than this, drawn at random."""


def shown_nodes(nodes: int, seed: int) -> npt.NDArray[np.int64]:
    """Return which nodes a map shows, in growing order."""
    chosen = np.random.default_rng(seed).permutation(nodes)[:SHOWN]
    return np.sort(chosen).astype(np.int64)


def place_in_plane(embedding: npt.NDArray[np.float32], seed: int) -> list[list[int]]:
    """Return t-SNE's place of each node, after PCA to at most 50 dimensions: x of all, then y of all."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    nodes, width = embedding.shape
    reduced = PCA(min(50, nodes, width), svd_solver="randomized", random_state=seed).fit_transform(embedding)
    perplexity = min(30.0, max(1.0, (nodes - 1) / 3))
    places = TSNE(perplexity=perplexity, random_state=seed).fit_transform(reduced)
    places = places - places.min(axis=0)
    on_grid = np.rint(GRID * places / max(float(places.max()), 1e-12)).astype(int)
    found: list[list[int]] = on_grid.T.tolist()
    return found
