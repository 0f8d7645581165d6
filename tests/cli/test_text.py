"""Untrusted ids and names: markup has no effect, lone surrogates are rejected, formulas quoted on request."""

from __future__ import annotations

import csv
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from h3gnn import H3GNN
from h3gnn.answers.export import guarded
from h3gnn.cli.output import write_rows, write_table
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from reproduction.files import read_json, write_json
from tests.experiments.test_comparison import result_of
from tests.program import call, invoke
from tests.rejects import rejects

SMALL = {"n_models": 1, "channels": 4, "heads": 2, "epochs": 1, "objective": "teacher", "device": "cpu"}
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-1", "@sum(a1)", "\tx", "plain"]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_lone_surrogates_are_not_written(tmp_path: Path, ending: str) -> None:
    ids = np.array(["a", "b", "c\ud800", "d", "e"], dtype=object)
    with rejects("id-not-utf8") as error:
        write_rows(tmp_path / f"x{ending}", np.zeros((5, 2), np.float32), ids)
    assert "\ud800" not in error.message
    assert list(tmp_path.iterdir()) == []


WRITING = {
    "embed": ("embed", "run", "--out", "x.csv"),
    "embed as npy": ("embed", "run", "--out", "x.npy"),
    "cluster": ("cluster", "run", "--clusters", "2", "--out", "x.csv"),
    "predict": ("predict", "run", "--head", "logistic", "--all", "--out", "x.csv"),
    "similar": ("similar", "run", "plain5", "plain6", "plain7", "--k", "29", "--out", "x.csv"),
    "anomalies": ("anomalies", "run", "--out", "x.csv"),
    "links": ("links", "run", "--check", "none", "--top", "1000", "--out", "x.csv"),
    "export to csv": ("export", "run", "--to", "csv", "--out", "x.csv"),
    "export to neo4j": ("export", "run", "--to", "neo4j", "--out", "x"),
    "export to tensorboard": ("export", "run", "--to", "tensorboard", "--out", "x"),
}
"""Every command that writes ids or names into text files."""
SHOWING = {
    "similar": ("similar", "run", "plain5"),
    "anomalies": ("anomalies", "run"),
    "links": ("links", "run", "--check", "none"),
    "report with a table": ("report", "run", "--out", "x.html", "--table", "x.parquet"),
    "export to graphml": ("export", "run", "--to", "graphml", "--out", "x.graphml"),
    "embed as parquet": ("embed", "run", "--out", "x.parquet"),
}


def labelled(names: list[str]) -> Graph:
    """Thirty nodes in three classes, with untrusted names."""
    source = np.repeat(np.arange(30), 2)
    ring = np.stack([source, (source + np.tile([1, 3], 30)) % 30])
    return check_graph(
        np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32),
        ring,
        labels=np.arange(30) % 3,
        class_names=("=class", "blue", "@red"),
        node_ids=np.array(names + [f"plain{i}" for i in range(len(names), 30)], dtype=object),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose ids have a lone surrogate and one whose ids are formulas."""
    folder = tmp_path_factory.mktemp("runs")
    for name, ids in (("surrogates", ["a", "b", "c\ud800", "d", "e"]), ("formulas", FORMULAS[:2])):
        H3GNN.from_settings(SMALL).fit(labelled(ids)).save(folder / name)
    return folder


@pytest.mark.parametrize("command", [*WRITING.values(), *SHOWING.values()], ids=[*WRITING, *SHOWING])
def test_every_command_rejects_lone_surrogates(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(runs / "surrogates")
    with rejects("id-not-utf8"):
        call(*command)
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_lone_surrogates_are_not_row_names() -> None:
    model = H3GNN.from_settings(SMALL).set_output(transform="pandas")
    with rejects("id-not-utf8"):
        model.fit_transform(labelled(["c\ud800"]))


def test_lone_surrogates_survive_json(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"graph": "a\udcff.csv", "ä": ["ü"]})
    assert read_json(tmp_path / "x.json") == {"graph": "a\udcff.csv", "ä": ["ü"]}


def test_formulas_are_quoted_on_request(tmp_path: Path) -> None:
    table = pd.DataFrame({"node": FORMULAS, "cluster": range(6)})
    write_table(tmp_path / "plain.csv", table)
    assert pd.read_csv(tmp_path / "plain.csv")["node"].tolist() == FORMULAS
    write_table(tmp_path / "safe.csv", table, safe=True)
    safe = pd.read_csv(tmp_path / "safe.csv")["node"].tolist()
    assert safe == [*(f"'{one}" for one in FORMULAS[:-1]), "plain"]
    write_table(tmp_path / "x.parquet", table, safe=True)
    assert pd.read_parquet(tmp_path / "x.parquet")["node"].tolist() == FORMULAS
    assert guarded(-1) == -1


def cells() -> list[str]:
    """Return all texts of the written tables, including column names."""
    found = []
    for path in [*Path().glob("x*.csv"), *Path().glob("x/*.csv"), *Path().glob("x/*.tsv")]:
        if path.suffix == ".tsv":
            found += re.split(r"[\t\n]", path.read_text())
            continue
        with path.open(newline="") as file:
            found += [cell for row in csv.reader(file) for cell in row]
    return [one for one in found if not re.fullmatch(r"[-+]?[\d.]+(e[-+]\d+)?", one)]


@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
def test_safe_csv_quotes_formulas(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(runs / "formulas")
    for flags, unquoted in (((), True), (("--safe-csv",), False)):
        call(*command, *flags)
        assert any(one.startswith(("=", "+", "@")) for one in cells()) == unquoted
    assert f"'{FORMULAS[0]}" in cells()


def test_a_resumed_fit_remembers_safe_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\n=a,b\nb,c\nc,d\n")
    Path("f.csv").write_text("id,x\n=a,1\nb,2\nc,3\nd,4\n")
    fit = ["fit", "--edges", "e.csv", "--features", "f.csv", "--preset", "single", "--epochs", "2"]
    ends = ["--out", "run", "--embeddings", "x.csv", "--safe-csv", "--checkpoint-every", "1"]
    with monkeypatch.context() as patch:  # the end after the training, before the model is written
        patch.setattr("h3gnn.cli.training.Training.write", lambda _: sys.exit(9))
        assert invoke(*fit, *ends).exit_code == 9
    call("fit", "--resume", "run")
    assert pd.read_csv("x.csv")["node"][0] == "'=a"


def test_markup_in_names_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
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
        with pytest.raises(ValueError, match="delimiter"):
            call(*command, "--edges", "e.csv", "--features", "f.csv", "--delimiter", delimiter)
    assert not Path("g").exists()


@pytest.mark.parametrize("command", ["embed", "cluster", "evaluate"])
@pytest.mark.parametrize("option", [("--labels", "y.csv"), ("--undirected",), ("--delimiter", ";")])
def test_options_of_a_graph_need_a_graph(command: str, option: tuple[str, ...]) -> None:
    with rejects("option-needs-edges") as error:
        call(command, "run", *option)
    assert option[0] in error.message


def test_an_export_removes_the_parts_of_a_killed_one(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(runs / "formulas")
    (tmp_path / ".x.abcd_123.part").mkdir()
    (tmp_path / ".x.abcd_123.part" / "nodes.csv").write_text("half")
    call(*WRITING["export to neo4j"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run", "x"]
