from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from h3gnn import InputError
from tests import program

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
ENVIRONMENT |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
QUICK: tuple[str, ...] = (
    "--preset",
    "single",
    "--epochs",
    "3",
    "--channels",
    "8",
    "--batch-size",
    "40",
    "--fan-out",
    "3,2",
)
QUICK += ("--set", "edge_weights=fixed")
EXACT = (*QUICK, "--models", "2", "--set", "precision=float32")


def run(*arguments: object, cwd: Path, processes: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a command, in several processes as a person starts them."""
    if processes == 1:
        return program.run(*arguments, cwd=cwd)
    command = [sys.executable, *launcher(processes), "-m", "h3gnn", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=170
    )


def launcher(processes: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred nodes with names, in a random graph."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    names = np.array([f"n{i}" for i in range(200)])
    ends = random.integers(0, 200, (2, 900))
    pd.DataFrame({"source": names[ends[0]], "target": names[ends[1]]}).to_csv(folder / "e.csv", index=False)
    columns = {f"f{i}": random.normal(size=200).round(3) for i in range(6)}
    pd.DataFrame({"id": names, **columns}).to_csv(folder / "f.csv", index=False)
    done = run("prepare", "--edges", "e.csv", "--features", "f.csv", "--out", "graph", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == 200
    return folder


def embedding(path: Path) -> np.ndarray:
    table = pd.read_parquet(path)
    assert table["node"].tolist() == [f"n{i}" for i in range(200)]
    values: np.ndarray = table.drop(columns="node").to_numpy()
    return values


@pytest.mark.slow
def test_a_prepared_graph_trains_as_the_same_graph_in_memory(files: Path) -> None:
    mapped = run("fit", "graph", "--embeddings", "mapped.parquet", "--out", "run", *QUICK, cwd=files)
    assert mapped.returncode == 0, mapped.stderr
    inside = ("--edges", "e.csv", "--features", "f.csv")
    memory = run("fit", *inside, "--embeddings", "memory.parquet", *QUICK, cwd=files)
    assert memory.returncode == 0, memory.stderr
    np.testing.assert_allclose(
        embedding(files / "mapped.parquet"), embedding(files / "memory.parquet"), atol=2e-4
    )
    again = run("embed", "run", "--out", "again.parquet", cwd=files)
    assert again.returncode == 0, again.stderr
    np.testing.assert_array_equal(embedding(files / "again.parquet"), embedding(files / "mapped.parquet"))


@pytest.mark.slow
def test_a_memory_budget_changes_nothing_but_the_memory(files: Path) -> None:
    graph = ("--edges", "e.csv", "--features", "f.csv", *QUICK[:6])
    for name, budget in (("plain", ()), ("budget", ("--memory", "0.45GB"))):
        done = run("fit", *graph, *budget, "--embeddings", f"{name}.parquet", cwd=files)
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        embedding(files / "budget.parquet"), embedding(files / "plain.parquet"), atol=1e-5
    )
    refused = run("fit", *graph, "--memory", "1MB", "--embeddings", "x.parquet", cwd=files)
    assert refused.returncode == 2
    assert "--batch-size" in refused.stderr


def test_labels_of_a_graph_in_files_score_and_teach_as_in_memory(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from h3gnn.cli.app import app

    monkeypatch.chdir(files)
    tables = ("--edges", "e.csv", "--features", "f.csv", "--labels", "l.csv")
    classes = ["left" if i % 3 else "right" for i in range(200)]
    pd.DataFrame({"id": [f"n{i}" for i in range(200)], "side": classes}).to_csv("l.csv", index=False)
    pd.read_csv("l.csv")[:90].to_csv("few.csv", index=False)
    for command in (
        ("prepare", *tables, "--out", "labelled"),
        ("fit", "labelled", "--out", "outside", *EXACT),
        ("fit", *tables, "--out", "inside", *EXACT),
    ):
        app([*command], standalone_mode=False)
    scores, said = [], []
    for run_folder in ("outside", "inside"):
        capsys.readouterr()
        app(["evaluate", run_folder, "--no-clusters", "--json"], standalone_mode=False)
        scores.append(json.loads(capsys.readouterr().out)["probe"]["validation"])
        out = f"{run_folder}.csv"
        app(["predict", run_folder, "--labels", "few.csv", "--out", out], standalone_mode=False)
        said.append(pd.read_csv(out))
    np.testing.assert_allclose(scores[0], scores[1], atol=0.04)  # one node of a split, at a border
    assert said[0]["node"].tolist() == said[1]["node"].tolist() == [f"n{i}" for i in range(90, 200)]
    np.testing.assert_allclose(said[0]["p_left"], said[1]["p_left"], atol=1e-3)


BAD = {
    "labels of a folder": (("graph", "--batch-size", "9", "--labels", "l.csv"), "h3gnn prepare --labels"),
    "fit alone reads files": (("graph", "--batch-size", "9", "--edges", "e.csv"), "not both"),
    "no batch size": (("graph",), "--batch-size"),
    "csv of a graph in files": (("graph", "--batch-size", "9", "--embeddings", "x.csv"), ".parquet"),
    "fan-out of words": (("synthetic", "--fan-out", "many"), "10,5"),
    "fan-out of another depth": (("synthetic", "--fan-out", "5,5,5", "--batch-size", "9"), "hops is 2"),
    "batches of what": (("synthetic", "--batches", "stars"), "clusters"),
    "memory of what": (("synthetic", "--memory", "lots"), "8GB"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    files: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h3gnn.cli.app import app

    arguments, words = BAD[case]
    monkeypatch.chdir(files)
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        app(["fit", *arguments, "--out", "nothing"], standalone_mode=False)
    assert len(str(refused.value).splitlines()) == 1
    assert not (files / "nothing").exists()


@pytest.mark.parametrize("case", ["no batch size"])
def test_what_cannot_be_done_is_said_in_one_sentence(files: Path, case: str) -> None:
    arguments, words = BAD[case]
    done = run("fit", *arguments, "--out", "nothing", cwd=files)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len([line for line in done.stderr.splitlines() if "note:" not in line]) == 1
    assert not (files / "nothing").exists()


@pytest.mark.parametrize("source", ["graph", pytest.param("memory", marks=pytest.mark.slow)])
def test_two_processes_give_the_result_of_one(files: Path, source: str) -> None:
    graph = ("graph",) if source == "graph" else ("--edges", "e.csv", "--features", "f.csv")
    options = (*EXACT, "--set", "token_dropout=0.2", "--set", "attention_dropout=0.2", "--device", "cpu")
    for processes in (1, 2):
        target = f"{source}-{processes}.parquet"
        done = run("fit", *graph, *options, "--embeddings", target, cwd=files, processes=processes)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("wrote") == 1  # the first process alone writes and speaks
    one, two = embedding(files / f"{source}-1.parquet"), embedding(files / f"{source}-2.parquet")
    assert np.abs(one).max() > 0.1
    np.testing.assert_allclose(two, one, atol=1e-4)


def test_other_commands_say_that_they_do_not_read_files(files: Path) -> None:
    done = run("inspect", "graph", cwd=files)
    assert done.returncode == 2
    assert "needs a graph in memory" in done.stderr


@pytest.mark.slow
def test_several_processes_need_batches(files: Path) -> None:
    done = run("fit", "synthetic", "--epochs", "1", "--out", "none", cwd=files, processes=2)
    assert done.returncode != 0
    assert "--batch-size" in done.stderr


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_process_that_dies_ends_the_job_with_one_sentence(files: Path, number: signal.Signals) -> None:
    lost = f"lost-{number.name}"
    command = [sys.executable, *launcher(2), "-m", "h3gnn", "fit", "graph", *QUICK]
    command += ["--epochs", "100000", "--device", "cpu", "--out", lost, "--checkpoint-every", "5"]
    job = subprocess.Popen(command, cwd=files, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any((files / lost / "checkpoints").glob("epoch-*")), job)
        workers = children(job.pid)
        assert len(workers) == 2
        os.kill(workers[1], number)
        _, words = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode != 0
    beside = ("note:", "epochs: about")  # what a fit says before it ends
    said = [line for line in words.splitlines() if line.startswith("h3gnn: ")]
    said = [line for line in said if not any(one in line for one in beside)]
    assert len(said) == 1, words
    rank = 0 if number == signal.SIGKILL else 1
    assert re.search(rf"rank {rank} of 2 stops: .*h3gnn fit --resume {lost}", said[0])
    assert not (files / lost / "model.json").exists()


@pytest.mark.slow
def test_a_job_that_lost_a_process_goes_on_where_it_was(files: Path) -> None:
    options = (*EXACT, "--epochs", "200", "--device", "cpu", "--checkpoint-every", "5")
    whole = run("fit", "graph", *options, "--out", "whole", "--embeddings", "whole.parquet", cwd=files)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, *launcher(2), "-m", "h3gnn", "fit", "graph", *options, "--out", "half"]
    command += ["--embeddings", "half.parquet"]
    job = subprocess.Popen(command, cwd=files, env=ENVIRONMENT, stderr=subprocess.DEVNULL, text=True)
    try:
        wait_for(lambda: any((files / "half" / "checkpoints").glob("epoch-*")), job)
        os.kill(children(job.pid)[1], signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    finally:
        job.kill()
    assert not (files / "half.parquet").exists()
    resumed = run("fit", "--resume", "half", cwd=files, processes=2)
    assert resumed.returncode == 0, resumed.stderr
    np.testing.assert_allclose(
        embedding(files / "half.parquet"), embedding(files / "whole.parquet"), atol=2e-3
    )


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_job_too(files: Path) -> None:
    command = [sys.executable, *launcher(2), "-m", "h3gnn", "fit", "graph", *QUICK]
    command += ["--epochs", "100000", "--device", "cpu", "--out", "hung", "--checkpoint-every", "5"]
    patience = ENVIRONMENT | {"H3GNN_RANK_TIMEOUT": "5"}
    job = subprocess.Popen(command, cwd=files, env=patience, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any((files / "hung" / "checkpoints").glob("epoch-*")), job)
        os.kill(children(job.pid)[1], signal.SIGSTOP)
        _, words = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode != 0
    assert re.search(r"h3gnn: rank 0 of 2 stops: .*h3gnn fit --resume hung", words)


def wait_for(condition: object, job: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if condition():  # type: ignore[operator]
            return
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        time.sleep(0.1)
    raise AssertionError("it did not begin")


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(int(child) for child in listed if "h3gnn" in Path(f"/proc/{child}/cmdline").read_text())
