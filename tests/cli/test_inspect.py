"""`h3gnn inspect` from the outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from h3gnn.cli.inspect import inspect
from h3gnn.errors import InputError

RUNNER = CliRunner()
EDGES = "source,target\nann,bob\nbob,cid\ncid,ann\ndan,ann\n"
LABELS = "id,label\nann,red\nbob,red\ncid,blue\ndan,blue\n"


def run(*arguments: str | Path) -> Any:
    app = typer.Typer()
    app.command()(inspect)
    return RUNNER.invoke(app, [str(one) for one in arguments])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "e.csv").write_text(EDGES)
    (tmp_path / "y.csv").write_text(LABELS)
    return tmp_path


def test_a_graph_of_the_users_own_as_json(files: Path) -> None:
    result = run("--edges", files / "e.csv", "--labels", files / "y.csv", "--undirected", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["nodes"], told["edges"], told["classes"], told["splits"]) == (4, 8, 2, 10)
    assert told["edge_homophily"] == pytest.approx(2 / 8)
    assert told["directed"] is False
    assert set(told["class_homophily"]) == {"blue", "red"}
    assert [repair["code"] for repair in told["repairs"]] == ["structural-features", "random-splits"]
    expected = (
        "adjusted_homophily label_informativeness components degrees feature_density smoothness verdict"
    )
    assert set(expected.split()) <= set(told)


def test_as_a_table_that_ends_with_the_sentence_and_a_picture(files: Path) -> None:
    result = run("--edges", files / "e.csv", "--labels", files / "y.csv", "--plot", files / "p.png")
    assert result.exit_code == 0, result.output
    for word in ("nodes", "4 directed", "edge homophily", "adjusted homophily", "red", "note: no features"):
        assert word in result.stdout
    assert "Neighbours" in result.stdout.splitlines()[-2]
    assert (files / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_synthetic_graph_and_a_graph_file(tmp_path: Path) -> None:
    assert json.loads(run("synthetic", "--json").stdout)["nodes"] == 1000
    (tmp_path / "g.gml").write_text(
        'graph [ node [ id 0 label "a" ] node [ id 1 label "b" ] edge [ source 0 target 1 ] ]'
    )
    assert json.loads(run(tmp_path / "g.gml", "--json").stdout)["nodes"] == 2


def test_every_column_option_reaches_the_reader(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("9|a|b|2\n8|b|c|3\n")
    (tmp_path / "f.csv").write_text("x|a|1|7\ny|b|2|8\nz|c|3|9\n")
    (tmp_path / "y.csv").write_text("u|r|a|train\nv|s|b|val\nw|r|c|test\n")
    result = run(
        *("--edges", tmp_path / "e.txt", "--features", tmp_path / "f.csv", "--labels", tmp_path / "y.csv"),
        *("--delimiter", "|", "--no-header", "--source-column", "2", "--target-column", "3"),
        *("--weight-column", "4", "--id-column", "2", "--feature-columns", "3,4"),
        *("--label-id-column", "3", "--label-column", "2", "--split-columns", "4", "--json"),
    )
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert (told["nodes"], told["edges"], told["features"], told["classes"], told["splits"]) == (
        3,
        2,
        2,
        2,
        1,
    )
    assert told["weighted"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no graph given"),
        (("corra",), "no graph called 'corra'"),
        (("texas", "--edges", "e.csv"), "not both"),
        (("texas", "--labels", "y.csv"), "--labels needs --edges"),
        (("texas", "--undirected"), "--undirected needs --edges"),
        (("--edges", "none.csv"), "none.csv does not exist"),
        (("none.graphml",), "none.graphml does not exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, InputError)
    assert message in str(error)


@pytest.mark.skipif(not os.environ.get("H3GNN_DATA"), reason="H3GNN_DATA does not point at the raw files")
def test_texas() -> None:
    told = json.loads(run("texas", "--json").stdout)
    assert (told["nodes"], told["edges"]) == (183, 325)
    assert round(told["edge_homophily"], 3) == 0.108
