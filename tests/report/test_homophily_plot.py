"""The picture of a graph's profile is drawn, with labels and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.profile import profile
from h3gnn.report.figures import plot_profile
from tests.rejects import rejects

EDGES = np.array([[0, 1, 2, 3], [1, 0, 3, 2]])


@pytest.mark.parametrize("labels", [None, np.array([0, 0, 1, 0]), np.arange(4)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, labels: np.ndarray | None, suffix: str) -> None:
    path = tmp_path / "folder" / f"picture.{suffix}"
    plot_profile(profile(check_graph(np.eye(4), EDGES, labels=labels)), path)
    start = path.read_bytes()[:300]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start


def test_many_classes_and_long_names_fit(tmp_path: Path) -> None:
    nodes = 60
    labels = np.arange(nodes) % 30
    names = [f"a very long name of the class number {number}" for number in range(30)]
    edges = np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)])
    graph = check_graph(np.eye(nodes), edges, labels=labels, class_names=names)
    plot_profile(profile(graph), tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 10_000


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    measured = profile(check_graph(np.eye(4), EDGES))
    with rejects("file-ending"):
        plot_profile(measured, tmp_path / "picture.docx")
    (tmp_path / "file").touch()
    with rejects("cannot-write"):
        plot_profile(measured, tmp_path / "file" / "picture.png")
