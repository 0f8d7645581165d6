"""`h3gnn inspect` and `h3gnn datasets`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.program import call
from tests.rejects import rejects

NEEDS_DATA = pytest.mark.skipif(
    not os.environ.get("H3GNN_DATA"), reason="H3GNN_DATA does not point at the raw files"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "e.csv").write_text("source,target\nann,bob\nbob,cid\ncid,ann\ndan,ann\n")
    (tmp_path / "y.csv").write_text("id,label\nann,red\nbob,red\ncid,blue\ndan,blue\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_profile_as_json(files: Path) -> None:
    profile = call("inspect", "--edges", "e.csv", "--labels", "y.csv", "--undirected", "--json")
    sizes = [profile[name] for name in ("nodes", "edges", "classes", "splits")]
    assert sizes == [4, 8, 2, 10]
    assert profile["edge_homophily"] == pytest.approx(2 / 8)
    assert profile["directed"] is False
    assert set(profile["class_homophily"]) == {"blue", "red"}
    assert [repair["code"] for repair in profile["repairs"]] == ["structural-features", "random-splits"]
    names = "adjusted_homophily label_informativeness components degrees feature_density smoothness verdict"
    assert set(names.split()) <= set(profile)


def test_the_profile_as_a_table_and_a_picture(files: Path) -> None:
    printed = call("inspect", "--edges", "e.csv", "--labels", "y.csv", "--plot", "p.png")
    for word in ("nodes", "4 directed", "edge homophily", "adjusted homophily", "red", "note: no features"):
        assert word in printed
    assert "Neighbours" in printed.splitlines()[-2]
    assert (files / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_synthetic_graph_and_a_graph_file(tmp_path: Path) -> None:
    assert call("inspect", "synthetic", "--json")["nodes"] == 1000
    nodes = 'node [ id 0 label "a" ] node [ id 1 label "b" ]'
    (tmp_path / "g.gml").write_text(f"graph [ {nodes} edge [ source 0 target 1 ] ]")
    assert call("inspect", tmp_path / "g.gml", "--json")["nodes"] == 2


def test_every_column_option_reaches_the_reader(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("9|a|b|2\n8|b|c|3\n")
    (tmp_path / "f.csv").write_text("x|a|1|7\ny|b|2|8\nz|c|3|9\n")
    (tmp_path / "y.csv").write_text("u|r|a|train\nv|s|b|val\nw|r|c|test\n")
    profile = call(
        *("inspect", "--edges", tmp_path / "e.txt", "--features", tmp_path / "f.csv"),
        *("--labels", tmp_path / "y.csv"),
        *("--delimiter", "|", "--no-header", "--source-column", "2", "--target-column", "3"),
        *("--weight-column", "4", "--id-column", "2", "--feature-columns", "3,4"),
        *("--label-id-column", "3", "--label-column", "2", "--split-columns", "4", "--json"),
    )
    sizes = [profile[name] for name in ("nodes", "edges", "features", "classes", "splits")]
    assert sizes == [3, 2, 2, 2, 1]
    assert profile["weighted"] is True


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "no-graph"),
        (("corra",), "graph-unknown"),
        (("texas", "--edges", "e.csv"), "two-graphs"),
        (("texas", "--labels", "y.csv"), "option-needs-edges"),
        (("texas", "--undirected"), "option-needs-edges"),
        (("--edges", "none.csv"), "file-missing"),
        (("none.graphml",), "file-missing"),
    ],
)
def test_invalid_graphs_are_rejected(arguments: tuple[str, ...], code: str) -> None:
    with rejects(code):
        call("inspect", *arguments)


@NEEDS_DATA
def test_texas() -> None:
    profile = call("inspect", "texas", "--json")
    assert (profile["nodes"], profile["edges"], round(profile["edge_homophily"], 3)) == (183, 325, 0.108)


def test_the_benchmarks_as_json(tmp_path: Path) -> None:
    rows = call("datasets", "--json", "--data-dir", tmp_path)
    assert len(rows) == 9
    texas = next(row for row in rows if row["name"] == "texas")
    assert (texas["nodes"], texas["edges"], texas["edge_homophily"]) == (183, 325, 0.108)
    assert all(row["source"] and row["licence"] and row["cached"] is False for row in rows)


def test_the_benchmarks_as_a_table(tmp_path: Path) -> None:
    lines = call("datasets", "--data-dir", tmp_path).splitlines()
    assert all(len(line) <= 80 for line in lines[:10])
    assert any("chameleon-filtered" in line and "0.236" in line for line in lines)
    assert any("byte for byte" in line for line in lines)


@NEEDS_DATA
def test_the_shared_files_count_as_cached() -> None:
    assert all(row["cached"] for row in call("datasets", "--json"))
