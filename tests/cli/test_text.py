"""Ids and names that strangers chose: never markup, never half a character, formulas guarded on demand."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from h3gnn import H3GNN, InputError
from h3gnn.cli.app import app
from h3gnn.cli.output import guarded, write_embedding, write_table
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.storage.files import read_json, write_json
from tests.experiments.test_comparison import result_of

SMALL = {"n_models": 1, "channels": 4, "heads": 2, "epochs": 1, "objective": "teacher", "device": "cpu"}
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-1", "@sum(a1)", "\tx", "plain"]


def named(graph: Graph, names: list[str]) -> Graph:
    return check_graph(graph.features, graph.edge_index, node_ids=np.array(names, dtype=object))


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_half_a_character_is_refused_and_nothing_is_written(
    path_graph: Graph, tmp_path: Path, ending: str
) -> None:
    graph = named(path_graph, ["a", "b", "c\ud800", "d", "e"])
    with pytest.raises(InputError, match=r"'c\\ud800' holds half a character") as refused:
        write_embedding(tmp_path / f"x{ending}", np.zeros((5, 2), np.float32), graph)
    assert str(refused.value).isascii() or "\ud800" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_half_a_character_is_refused_by_cluster(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    H3GNN(**SMALL).fit(named(path_graph, ["a", "b", "c\ud800", "d", "e"])).save("run")  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["cluster", "run", "--clusters", "2", "--out", "x.csv"])
    assert isinstance(done.exception, InputError)
    assert "holds half a character" in str(done.exception)
    assert not Path("x.csv").exists()


def test_half_a_character_in_a_name_goes_through_json_and_back(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"graph": "a\udcff.csv", "ä": ["ü"]})
    assert read_json(tmp_path / "x.json") == {"graph": "a\udcff.csv", "ä": ["ü"]}


def test_formulas_are_guarded_where_that_is_asked_for(tmp_path: Path) -> None:
    table = pd.DataFrame({"node": FORMULAS, "cluster": range(6)})
    write_table(tmp_path / "plain.csv", table)
    assert pd.read_csv(tmp_path / "plain.csv")["node"].tolist() == FORMULAS
    write_table(tmp_path / "safe.csv", table, safe=True)
    safe = pd.read_csv(tmp_path / "safe.csv")["node"].tolist()
    assert safe == [*(f"'{one}" for one in FORMULAS[:-1]), "plain"]
    write_table(tmp_path / "x.parquet", table, safe=True)  # a spreadsheet computes nothing in Parquet
    assert pd.read_parquet(tmp_path / "x.parquet")["node"].tolist() == FORMULAS
    assert guarded(-1) == -1


def test_safe_csv_is_an_option_of_what_writes_ids(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    H3GNN(**SMALL).fit(named(path_graph, FORMULAS[:5])).save("run")  # type: ignore[arg-type]
    for command in (
        ("embed", "run", "--out", "x.csv"),
        ("cluster", "run", "--clusters", "2", "--out", "x.csv"),
    ):
        for flag, first in (((), "=cmd"), (("--safe-csv",), "'=cmd")):
            done = CliRunner().invoke(app, [*command, *flag])
            assert done.exit_code == 0, done.output
            assert pd.read_csv("x.csv")["node"][0].startswith(first)


def test_names_are_not_taken_for_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    from h3gnn.cli import compare as command
    from h3gnn.experiments.compare import Comparison

    result = replace(result_of("raw", [[0.5, 0.6]]), method="[/red] mine", graph="[/bold]g")
    out = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=out, width=200))
    command._print_table(Comparison({"raw": result}, 1.0))
    assert "[/red] mine" in out.getvalue()
    assert "[/bold]g" in out.getvalue()


@pytest.mark.parametrize("delimiter", ["::", "ab", "\n"])
def test_a_delimiter_is_one_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delimiter: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\na,b\n")
    Path("f.csv").write_text("id,x\na,1\nb,2\n")
    for command in (("inspect",), ("prepare", "--out", "g")):
        done = CliRunner().invoke(
            app, [*command, "--edges", "e.csv", "--features", "f.csv", "--delimiter", delimiter]
        )
        assert isinstance(done.exception, InputError)
    assert not Path("g").exists()
