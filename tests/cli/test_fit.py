from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from h3gnn import H3GNN
from h3gnn.cli.app import app
from h3gnn.graphs.checks import check_graph
from tests.program import run

QUICK = ("--preset", "single", "--epochs", "3", "--channels", "8")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Six people in a ring, with names, features and groups."""
    names = ["ann", "bob", "cy", "dee", "eve", "fay"]
    edges = [f"{name},{names[(i + 1) % 6]}" for i, name in enumerate(names)]
    (tmp_path / "e.csv").write_text("source,target\n" + "\n".join(edges) + "\n")
    rows = [f"{name},{i},{i * i},{6 - i}" for i, name in enumerate(names)]
    (tmp_path / "f.csv").write_text("id,a,b,c\n" + "\n".join(rows) + "\n")
    (tmp_path / "y.csv").write_text("id,group\n" + "\n".join(f"{n},{i % 2}" for i, n in enumerate(names)))
    return tmp_path


def test_fit_then_embed_gives_the_rows_back_under_their_ids(files: Path) -> None:
    fitted = run("fit", "--edges", "e.csv", "--features", "f.csv", "--out", "run", *QUICK, cwd=files)
    assert fitted.returncode == 0, fitted.stderr
    assert "6 nodes" in fitted.stdout
    for name in ("out.parquet", "out.csv", "out.npy"):
        embedded = run("embed", "run", "--out", name, cwd=files)
        assert embedded.returncode == 0, embedded.stderr
    table = pd.read_parquet(files / "out.parquet")
    assert table["node"].tolist() == ["ann", "bob", "cy", "dee", "eve", "fay"]
    numbers = table.drop(columns="node").to_numpy()
    assert numbers.shape == (6, 32)
    np.testing.assert_allclose(pd.read_csv(files / "out.csv").drop(columns="node"), numbers, atol=1e-6)
    np.testing.assert_array_equal(np.load(files / "out.npy"), numbers)
    assert pd.read_csv(files / "out.ids.csv")["node"].tolist() == table["node"].tolist()


def test_fit_as_json_says_where_everything_came_from(files: Path) -> None:
    arguments = ("fit", "--edges", "e.csv", "--features", "f.csv", "--labels", "y.csv", "--json")
    done = run(
        *arguments, "--embeddings", "out.csv", "--seed", "7", *QUICK, "--set", "mask_ratio=0.5", cwd=files
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["nodes"] == 6
    assert summary["params"]["mask_ratio"] == 0.5
    assert summary["params"]["random_state"] == 7
    assert len(summary["provenance"]["sha256"]) == 64
    assert set(summary["versions"]) == {"h3gnn", "torch", "python"}
    assert not (files / "run").exists()


def test_fit_tells_what_each_member_took(files: Path) -> None:
    arguments = ("fit", "--edges", "e.csv", "--features", "f.csv", "--out", "run", *QUICK)
    one, two = (run(*arguments, "--models", models, cwd=files).stdout for models in ("1", "2"))
    assert "per model" not in one
    assert re.search(r" s, \d+\.\d s and [\d,]+ MB per model \(loss", two)
    cost = H3GNN.load(files / "run").cost_
    assert cost["seconds_per_model"] == pytest.approx(cost["seconds"] / 2, abs=1e-3)
    assert cost["megabytes_per_model"] == pytest.approx(cost["peak_megabytes"] / 2, abs=0.1)


def test_embed_a_new_graph_with_the_same_columns(files: Path) -> None:
    run("fit", "--edges", "e.csv", "--features", "f.csv", "--out", "run", *QUICK, cwd=files)
    (files / "new.csv").write_text("source,target\nann,cy\ncy,gus\n")
    (files / "newf.csv").write_text("id,a,b,c\nann,0,0,6\ncy,2,4,4\ngus,9,9,9\n")
    done = run("embed", "run", "--edges", "new.csv", "--features", "newf.csv", "--out", "n.csv", cwd=files)
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(files / "n.csv")["node"].tolist() == ["ann", "cy", "gus"]


BAD = {
    "unknown node": (("--edges", "stranger.csv", "--features", "f.csv"), "stranger.csv"),
    "infinite feature": (("--edges", "e.csv", "--features", "infinite.csv"), "infinite.csv"),
    "empty graph": (("--edges", "empty.csv"), "empty.csv"),
    "no such path": (("--edges", "nowhere.csv"), "nowhere.csv"),
    "no graph": ((), "no graph given"),
    "unknown name": (("karate-club",), "karate-club"),
    "unknown setting": (("synthetic", "--set", "colour=red"), "colour"),
    "bad setting": (("synthetic", "--set", "mask_ratio=2"), "mask_ratio"),
    "bad device": (("synthetic", "--device", "abacus"), "abacus"),
    "bad preset": (("synthetic", "--preset", "best"), "best"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_exit_code_2_and_one_sentence_and_no_file(files: Path, case: str) -> None:
    (files / "stranger.csv").write_text("source,target\nann,bob\nbob,zoe\n")
    (files / "infinite.csv").write_text("id,a\nann,1\nbob,inf\ncy,1\ndee,1\neve,1\nfay,1\n")
    (files / "empty.csv").write_text("source,target\n")
    before = sorted(files.rglob("*"))
    arguments, place = BAD[case]
    done = run("fit", *arguments, "--out", "run", "--embeddings", "out.csv", *QUICK[2:], cwd=files)
    assert done.returncode == 2, done.stderr
    assert place in done.stderr
    assert done.stderr.startswith("h3gnn: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize("name", ["out.txt", "missing/out.csv", "."])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(files: Path, name: str) -> None:
    arguments = ("fit", "--edges", "e.csv", "--features", "f.csv", "--epochs", "1000000")
    done = run(*arguments, "--embeddings", name, cwd=files)
    assert done.returncode == 2
    assert done.stderr.startswith(f"h3gnn: {name}: the ")


def test_nowhere_to_write_is_said(files: Path) -> None:
    assert "--out FOLDER" in run("fit", "synthetic", cwd=files).stderr
    (files / "full").mkdir()
    (files / "full" / "thesis.txt").write_text("x")
    refused = run("fit", "synthetic", "--out", "full", cwd=files)
    assert refused.returncode == 2
    assert "holds no model" in refused.stderr


PRESSED = """
import os, signal, sys
from h3gnn.cli import main
from h3gnn.training.step import Step

place, moment = sys.argv.pop(1), int(sys.argv.pop(1))
home, name = {"epoch": (Step, "__call__"), "write": (os, "fsync")}[place]
usual = getattr(home, name)

def pressed(*arguments):
    global moment
    moment -= 1
    if moment == 0:
        signal.raise_signal(signal.SIGINT)
    return usual(*arguments)

setattr(home, name, pressed)
main()
"""


def press_ctrl_c(place: str, moment: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in which Ctrl-C is pressed as an epoch begins, or in the middle of writing a file."""
    return run(place, moment, *arguments, cwd=cwd, code=PRESSED)


def test_ctrl_c_in_training_keeps_the_model_as_it_is_and_says_how_to_go_on(files: Path) -> None:
    arguments = ("fit", "--edges", "e.csv", "--features", "f.csv", "--out", "run", "--embeddings", "out.csv")
    stopped = press_ctrl_c("epoch", 5, *arguments, "--epochs", "100000", cwd=files)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped after epoch 5 of 100000" in stopped.stderr
    assert stopped.stderr.endswith("continue with `h3gnn fit --resume run`\n")
    assert stopped.stdout == ""
    assert len(H3GNN.load(files / "run").history_) == 5
    assert len(pd.read_csv(files / "out.csv")) == 6
    assert not list(files.rglob("*.part"))  # nothing half-written


@pytest.mark.parametrize(
    "moment", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_ctrl_c_while_a_model_is_written_leaves_the_old_one_or_the_new_one(files: Path, moment: int) -> None:
    edges, features = pd.read_csv(files / "e.csv"), pd.read_csv(files / "f.csv")
    ends = [edges[end].map({name: at for at, name in enumerate(features["id"])}) for end in edges]
    graph = check_graph(
        features.drop(columns="id").to_numpy(np.float32), np.stack(ends), node_ids=features["id"].to_numpy()
    )
    old, new = (
        H3GNN.from_preset("single", epochs=3, channels=8, random_state=seed).fit(graph) for seed in (0, 1)
    )
    old.save(files / "run")
    arguments = ("fit", "--edges", "e.csv", "--features", "f.csv", "--out", "run", *QUICK, "--seed", "1")
    stopped = press_ctrl_c("write", moment, *arguments, "--embeddings", "out.csv", cwd=files)
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr == "h3gnn: stopped; nothing is half-written\n"
    assert not (files / "out.csv").exists()
    assert not list(files.rglob(".*"))  # files in the making are hidden
    left = H3GNN.load(files / "run")
    wanted = new if left.random_state == 1 else old
    assert moment > 1 or wanted is old
    np.testing.assert_allclose(left.embedding_, wanted.embedding_, atol=1e-5)
    again = run(*arguments, cwd=files)  # nothing stands in the way of the next one
    assert again.returncode == 0, again.stderr
    np.testing.assert_allclose(H3GNN.load(files / "run").embedding_, new.embedding_, atol=1e-5)
    assert len(list((files / "run").iterdir())) == 3


LESSONS = {
    "demo": "Fit the built-in graph and compare with raw features and an untrained encoder.",
    "fit": "h3gnn fit --edges edges.csv --features features.csv --out run/",
    "embed": "Write the embeddings of a saved model",
    "inspect": "Show size, degrees and homophily of a graph",
    "datasets": "List the benchmark graphs",
}


def test_help_teaches(files: Path) -> None:
    for command, lesson in LESSONS.items():
        text = run(command, "--help", cwd=files).stdout
        assert f"h3gnn {command} [OPTIONS]" in text
        assert lesson in text
    assert run("--version", cwd=files).stdout.startswith("h3gnn ")


def test_every_option_of_every_command_is_explained() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert commands.keys() >= LESSONS.keys()
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            explained = getattr(parameter, "help", None) or ""
            assert len(explained.split()) > 1, f"{name} {parameter.name}"
