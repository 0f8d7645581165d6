from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from h3gnn.cli import options
from h3gnn.graphs.synthetic import mixed_graph
from tests.program import call
from tests.rejects import rejects


@pytest.mark.parametrize("nodes", [60, pytest.param(None, marks=pytest.mark.slow)])
def test_h3gnn_scores_best_in_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int | None
) -> None:
    if nodes:  # scores of few epochs on a small graph are not compared
        smaller, usual = mixed_graph(nodes, splits=2), options.build_estimator
        monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", lambda: smaller)
        few = {"epochs": 2, "channels": 8}
        monkeypatch.setattr(
            options,
            "build_estimator",
            lambda preset, named, *more, **how: usual(preset, named | few, *more, **how),
        )
    picture = tmp_path / "demo.png"
    result = call("demo", "--json", "--out", picture)
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["raw features", "untrained encoder", "H3GNN"]
    for column in ("probe_accuracy", "kmeans_accuracy"):
        others = [rows["raw features"][column], rows["untrained encoder"][column]]
        assert nodes or rows["H3GNN"][column] > max(others) + 0.03, column
    assert result["protocol"] == "validation"
    with Image.open(picture) as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 100  # not blank
    assert "H3GNN embedding" not in (tmp_path / "demo.html").read_text()  # the data is packed
    assert (tmp_path / "demo.html").stat().st_size > 50_000


def test_the_picture_must_have_a_known_ending(tmp_path: Path) -> None:
    with rejects("file-ending"):
        call("demo", "--out", tmp_path / "demo.gif")
