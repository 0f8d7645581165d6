from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.profile import profile
from h3gnn.report.figures import plot_profile
from tests.rejects import rejects

EDGES = np.array([[0, 1, 2, 3], [1, 0, 3, 2]])


@pytest.mark.parametrize(("labels", "suffix"), [(None, "png"), ([0, 0, 1, 0], "svg"), (range(4), "png")])
def test_profile_is_drawn(tmp_path: Path, labels: Any, suffix: str) -> None:
    path = tmp_path / "folder" / f"picture.{suffix}"
    known = None if labels is None else np.array(labels)
    plot_profile(profile(check_graph(np.eye(4), EDGES, labels=known)), path)
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_many_classes_with_long_names(tmp_path: Path) -> None:
    nodes = np.arange(60)
    names = [f"a very long name of the class number {number}" for number in range(30)]
    edges = np.stack([nodes, np.roll(nodes, 1)])
    measured = profile(check_graph(np.eye(60), edges, labels=nodes % 30, class_names=names))
    plot_profile(measured, tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 10_000


def test_unwritable_files_are_rejected(tmp_path: Path) -> None:
    measured = profile(check_graph(np.eye(4), EDGES))
    with rejects("file-ending"):
        plot_profile(measured, tmp_path / "picture.docx")
    (tmp_path / "file").touch()
    with rejects("cannot-write"):
        plot_profile(measured, tmp_path / "file" / "picture.png")
