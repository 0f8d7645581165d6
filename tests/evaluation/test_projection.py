from __future__ import annotations

import sys

import numpy as np
import pytest

from h3gnn.evaluation.clustering import project_to_plane
from tests.rejects import rejects


def blobs(each: int) -> np.ndarray:
    """Three groups, far apart."""
    random = np.random.default_rng(0)
    return np.concatenate([random.normal(10 * i, 0.5, size=(each, 8)) for i in range(3)]).astype(np.float32)


@pytest.mark.parametrize(("method", "landmarks"), [("tsne", 1000), ("tsne", 60), ("pca", 1000)])
def test_groups_stay_separate(method: str, landmarks: int) -> None:
    places = project_to_plane(blobs(80), method=method, landmarks=landmarks)
    assert places.shape == (240, 2)
    assert np.abs(places).max() == pytest.approx(1, abs=1e-5)
    centres = places.reshape(3, 80, 2).mean(axis=1)
    own = np.linalg.norm(places.reshape(3, 80, 2) - centres[:, None], axis=2).max()
    apart = min(np.linalg.norm(centres[i] - centres[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert own < apart / 2
    assert len(np.unique(places, axis=0)) == 240  # nodes do not overlap


def test_maps_are_reproducible() -> None:
    np.testing.assert_array_equal(project_to_plane(blobs(20), seed=3), project_to_plane(blobs(20), seed=3))


@pytest.mark.parametrize("rows", [np.zeros((1, 3)), np.ones((3, 2)), np.eye(2), np.ones((9, 4)), np.eye(5)])
def test_tiny_and_constant_embeddings(rows: np.ndarray) -> None:
    places = project_to_plane(rows.astype(np.float32))
    assert places.shape == (len(rows), 2)
    assert np.isfinite(places).all()


def test_unknown_and_missing_methods_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with rejects("unknown-map"):
        project_to_plane(blobs(5), method="mds")
    monkeypatch.setitem(sys.modules, "umap", None)
    with rejects("umap-missing"):
        project_to_plane(blobs(5), method="umap")
