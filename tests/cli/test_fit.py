from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from h3gnn import H3GNN, UnfinishedWarning, read_graph
from h3gnn.cli.app import app
from tests.program import call, run
from tests.rejects import rejects

QUICK = ("--preset", "single", "--epochs", "3", "--channels", "8")
TABLES = ("--edges", "e.csv", "--features", "f.csv")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six people in a ring, with names, features and groups, in the current folder."""
    names = ["ann", "bob", "cy", "dee", "eve", "fay"]
    edges = [f"{name},{names[(i + 1) % 6]}" for i, name in enumerate(names)]
    (tmp_path / "e.csv").write_text("source,target\n" + "\n".join(edges) + "\n")
    rows = [f"{name},{i},{i * i},{6 - i}" for i, name in enumerate(names)]
    (tmp_path / "f.csv").write_text("id,a,b,c\n" + "\n".join(rows) + "\n")
    (tmp_path / "y.csv").write_text("id,group\n" + "\n".join(f"{n},{i % 2}" for i, n in enumerate(names)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_then_embed(files: Path) -> None:
    assert "6 nodes" in call("fit", *TABLES, "--out", "run", *QUICK)
    for name in ("out.parquet", "out.csv", "out.npy"):
        call("embed", "run", "--out", name)
    table = pd.read_parquet("out.parquet")
    assert table["node"].tolist() == ["ann", "bob", "cy", "dee", "eve", "fay"]
    numbers = table.drop(columns="node").to_numpy()
    assert numbers.shape == (6, 32)
    np.testing.assert_allclose(pd.read_csv("out.csv").drop(columns="node"), numbers, atol=1e-6)
    np.testing.assert_array_equal(np.load("out.npy"), numbers)
    assert pd.read_csv("out.ids.csv")["node"].tolist() == table["node"].tolist()
    Path("new.csv").write_text("source,target\nann,cy\ncy,gus\n")
    Path("newf.csv").write_text("id,a,b,c\nann,0,0,6\ncy,2,4,4\ngus,9,9,9\n")
    call("embed", "run", "--edges", "new.csv", "--features", "newf.csv", "--out", "n.csv")
    assert pd.read_csv("n.csv")["node"].tolist() == ["ann", "cy", "gus"]


def test_the_summary_of_a_fit_as_json(files: Path) -> None:
    given = (*TABLES, "--labels", "y.csv", "--embeddings", "out.csv", "--seed", "7", *QUICK)
    summary = call("fit", *given, "--set", "mask_ratio=0.5", "--json")
    assert summary["nodes"] == 6
    assert (summary["params"]["mask_ratio"], summary["params"]["random_state"]) == (0.5, 7)
    assert len(summary["provenance"]["sha256"]) == 64
    assert set(summary["versions"]) == {"h3gnn", "torch", "python"}
    assert not (files / "run").exists()


def test_an_ensemble_reports_the_cost_of_each_model(files: Path) -> None:
    one, two = (call("fit", *TABLES, "--out", "run", *QUICK, "--models", count) for count in (1, 2))
    assert "per model" not in one
    assert re.search(r" s, \d+\.\d s and [\d,]+ MB per model \(loss", two)
    cost = H3GNN.load(files / "run").cost_
    assert cost["seconds_per_model"] == pytest.approx(cost["seconds"] / 2, abs=1e-3)
    assert cost["megabytes_per_model"] == pytest.approx(cost["peak_megabytes"] / 2, abs=0.1)


INVALID = {
    "unknown node": (("--edges", "unknown.csv", "--features", "f.csv"), "node-unknown"),
    "infinite feature": (("--edges", "e.csv", "--features", "infinite.csv"), "feature-not-finite"),
    "empty graph": (("--edges", "empty.csv"), "table-empty"),
    "no such path": (("--edges", "nowhere.csv"), "file-missing"),
    "no graph": ((), "no-graph"),
    "unknown name": (("karate-club",), "graph-unknown"),
    "unknown setting": (("synthetic", "--set", "colour=red"), "unknown-setting"),
    "bad setting": (("synthetic", "--set", "mask_ratio=2"), "value-invalid"),
    "bad preset": (("synthetic", "--preset", "best"), "unknown-preset"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_input_is_rejected_without_a_trace(files: Path, case: str) -> None:
    Path("unknown.csv").write_text("source,target\nann,bob\nbob,zoe\n")
    Path("infinite.csv").write_text("id,a\nann,1\nbob,inf\ncy,1\ndee,1\neve,1\nfay,1\n")
    Path("empty.csv").write_text("source,target\n")
    before = sorted(files.rglob("*"))
    arguments, code = INVALID[case]
    with rejects(code) as error:
        call("fit", *arguments, "--out", "run", "--embeddings", "out.csv", *QUICK[2:])
    assert len(error.message.splitlines()) == 1
    assert sorted(files.rglob("*")) == before


def test_an_error_is_one_line_and_exit_code_2(files: Path) -> None:
    done = run("fit", "karate-club", "--out", "run", cwd=files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("h3gnn: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--embeddings", "out.txt"), "file-ending"),
        (("--embeddings", "missing/out.csv"), "no-such-folder"),
        (("--embeddings", "folder.csv"), "is-a-folder"),
        ((), "no-output"),
    ],
)
def test_an_output_that_cannot_be_written_is_rejected_before_the_work(
    files: Path, arguments: tuple[str, ...], code: str
) -> None:
    (files / "folder.csv").mkdir()
    with rejects(code):
        call("fit", *TABLES, "--epochs", "1000000", *arguments)


def test_a_folder_with_other_files_is_not_overwritten(files: Path) -> None:
    (files / "full").mkdir()
    (files / "full" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="full"):
        call("fit", "synthetic", "--out", "full")
    assert [path.name for path in (files / "full").iterdir()] == ["thesis.txt"]


PRESSED = """
import os, signal, sys
from h3gnn.cli import main
from h3gnn.training.step import Step

moment, count = sys.argv.pop(1), int(sys.argv.pop(1))
owner, name = {"epoch": (Step, "__call__"), "write": (os, "fsync")}[moment]
usual = getattr(owner, name)

def pressed(*arguments):
    global count
    count -= 1
    if count == 0:
        signal.raise_signal(signal.SIGINT)
    return usual(*arguments)

setattr(owner, name, pressed)
main()
"""


def press_ctrl_c(moment: str, count: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in which Ctrl-C is pressed as an epoch begins, or while a file is written."""
    return run(moment, count, *arguments, cwd=cwd, code=PRESSED)


def test_ctrl_c_in_training_saves_the_model(files: Path) -> None:
    arguments = ("fit", *TABLES, "--out", "run", "--embeddings", "out.csv", *QUICK, "--epochs", "100000")
    stopped = press_ctrl_c("epoch", 5, *arguments, cwd=files)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped after epoch 5 of 100000" in stopped.stderr
    assert stopped.stderr.endswith("continue with `h3gnn fit --resume run`\n")
    assert stopped.stdout == ""
    with pytest.warns(UnfinishedWarning):
        assert len(H3GNN.load(files / "run").history_) == 5
    assert len(pd.read_csv(files / "out.csv")) == 6
    assert not list(files.rglob("*.part"))


@pytest.mark.parametrize(
    "count", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_ctrl_c_while_a_model_is_written_leaves_the_old_or_the_new_one(files: Path, count: int) -> None:
    graph = read_graph("e.csv", features="f.csv")
    old, new = (
        H3GNN.from_preset("single", epochs=3, channels=8, random_state=seed).fit(graph) for seed in (0, 1)
    )
    old.save("run")
    arguments = ("fit", *TABLES, "--out", "run", *QUICK, "--seed", "1")
    stopped = press_ctrl_c("write", count, *arguments, "--embeddings", "out.csv", cwd=files)
    assert stopped.returncode == 130, stopped.stderr
    assert len(stopped.stderr.splitlines()) == 1
    assert not Path("out.csv").exists()
    assert not list(files.rglob(".*"))  # unfinished files are hidden
    left = H3GNN.load("run")
    expected = new if left.random_state == 1 else old
    assert count > 1 or expected is old
    np.testing.assert_allclose(left.embedding_, expected.embedding_, atol=1e-5)
    call(*arguments)
    np.testing.assert_allclose(H3GNN.load("run").embedding_, new.embedding_, atol=1e-5)
    assert len(list(Path("run").iterdir())) == 5  # two of the embedding


LESSONS = {
    "demo": "Fit the built-in graph and compare with raw features and an untrained encoder.",
    "fit": "h3gnn fit --edges edges.csv --features features.csv --out run/",
    "embed": "Write the embeddings of a saved model",
    "inspect": "Show a graph (size, homophily, encoding of columns)",
    "datasets": "List the benchmark graphs",
    "download": "h3gnn download bitcoin-otc --out bitcoin/",
}


@pytest.mark.parametrize("command", LESSONS)
def test_help_teaches(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = call(command, "--help")
    assert f"{command} [OPTIONS]" in text
    assert LESSONS[command] in text


def test_the_version_is_printed() -> None:
    assert call("--version").startswith("h3gnn ")


def test_every_option_of_every_command_is_explained() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert commands.keys() >= LESSONS.keys()
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            explained = getattr(parameter, "help", None) or ""
            assert len(explained.split()) > 1, f"{name} {parameter.name}"
