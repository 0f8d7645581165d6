"""Graphs on disk, and training in several processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.program import ENVIRONMENT, Program, call, start_ranks
from tests.rejects import rejects

ALONE = ENVIRONMENT | {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
TABLES = ("--edges", "e.csv", "--features", "f.csv")
SMALL = ("--preset", "single", "--epochs", "3", "--channels", "8", "--device", "cpu")
QUICK = (*SMALL, "--batch-size", "40", "--fan-out", "3,2", "--set", "edge_weights=fixed")
EXACT = (*QUICK, "--models", "2", "--set", "precision=float32")
ENDLESS = ("fit", "graph", *QUICK, "--epochs", "100000", "--checkpoint-every", "5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred nodes with names, in a random graph, as tables and prepared."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    names = np.array([f"n{i}" for i in range(200)])
    ends = random.integers(0, 200, (2, 900))
    pd.DataFrame({"source": names[ends[0]], "target": names[ends[1]]}).to_csv(folder / "e.csv", index=False)
    columns = {f"f{i}": random.normal(size=200).round(3) for i in range(6)}
    pd.DataFrame({"id": names, **columns}).to_csv(folder / "f.csv", index=False)
    tables = ("--edges", folder / "e.csv", "--features", folder / "f.csv")
    assert call("prepare", *tables, "--out", folder / "graph", "--json")["nodes"] == 200
    return folder


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the current one."""
    monkeypatch.chdir(folder)
    return folder


def embedding(path: str) -> np.ndarray:
    table = pd.read_parquet(path)
    assert table["node"].tolist() == [f"n{i}" for i in range(200)]
    values: np.ndarray = table.drop(columns="node").to_numpy()
    return values


def test_a_prepared_graph_trains_like_the_graph_in_memory(files: Path) -> None:
    call("fit", "graph", "--embeddings", "mapped.parquet", "--out", "run", *QUICK)
    call("fit", *TABLES, "--embeddings", "memory.parquet", *QUICK)
    np.testing.assert_allclose(embedding("mapped.parquet"), embedding("memory.parquet"), atol=2e-4)
    call("embed", "run", "--out", "again.parquet")
    np.testing.assert_array_equal(embedding("again.parquet"), embedding("mapped.parquet"))


@pytest.mark.slow  # the budget is that of a process which runs nothing else
def test_a_memory_budget_does_not_change_the_result(files: Path) -> None:
    for name, budget in (("plain", ()), ("budget", ("--memory", "0.45GB"))):
        command = ("-m", "h3gnn", "fit", *TABLES, *SMALL, *budget, "--embeddings", f"{name}.parquet")
        subprocess.run([sys.executable, *command], env=ENVIRONMENT, check=True)
    np.testing.assert_allclose(embedding("budget.parquet"), embedding("plain.parquet"), atol=1e-5)


def test_labels_of_a_graph_on_disk_are_used_as_in_memory(files: Path) -> None:
    labels = pd.DataFrame({"id": [f"n{i}" for i in range(200)]})
    labels["side"] = ["left" if i % 3 else "right" for i in range(200)]
    labels["split"] = [("train", "val", "test")[i // 3 % 3] for i in range(200)]
    labels.to_csv("l.csv", index=False)
    labels[:90].drop(columns="split").to_csv("few.csv", index=False)
    call("prepare", *TABLES, "--labels", "l.csv", "--out", "labelled")
    call("fit", "labelled", "--out", "outside", *EXACT)
    call("fit", *TABLES, "--labels", "l.csv", "--out", "inside", *EXACT)
    scores, predictions = [], []
    for run in ("outside", "inside"):
        scores.append(call("evaluate", run, "--no-clusters", "--json")["probe"]["validation"])
        call("predict", run, "--labels", "few.csv", "--out", f"{run}.csv")
        predictions.append(pd.read_csv(f"{run}.csv"))
    np.testing.assert_allclose(scores[0], scores[1], atol=0.04)  # one node of a split may be at a border
    outside, inside = predictions
    assert outside["node"].tolist() == inside["node"].tolist() == [f"n{i}" for i in range(90, 200)]
    np.testing.assert_allclose(outside["p_left"], inside["p_left"], atol=1e-3)


INVALID = {
    "labels of a folder": (("graph", "--batch-size", "9", "--labels", "l.csv"), "graph-on-disk"),
    "two graphs": (("graph", "--batch-size", "9", "--edges", "e.csv"), "two-graphs"),
    "csv of a graph on disk": (("graph", "--batch-size", "9", "--embeddings", "x.csv"), "file-ending"),
    "fan-out of words": (("synthetic", "--fan-out", "many"), "value-invalid"),
    "fan-out of another depth": (("synthetic", "--fan-out", "5,5,5"), "num-neighbors-per-hop"),
    "unknown batches": (("synthetic", "--batches", "stars"), "value-invalid"),
    "memory without a unit": (("synthetic", "--memory", "lots"), "value-invalid"),
    "too little memory": (("synthetic", "--memory", "1MB"), "not-enough-memory"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_options_are_rejected_before_anything_is_written(files: Path, case: str) -> None:
    arguments, code = INVALID[case]
    with rejects(code) as error:
        call("fit", *arguments, "--out", "nothing")
    assert len(error.message.splitlines()) == 1
    assert not (files / "nothing").exists()


def test_a_graph_on_disk_needs_batches(files: Path) -> None:
    with pytest.raises(ValueError, match="--batch-size"):
        call("fit", "graph", "--out", "nothing")
    assert not (files / "nothing").exists()


def test_settings_of_a_fitted_run_are_rejected(files: Path) -> None:
    call(
        "fit",
        "graph",
        "--batch-size",
        "9",
        "--epochs",
        "0",
        "--models",
        "1",
        "--channels",
        "8",
        "--out",
        "run",
    )
    for settings in (("--set", "dimensions=2"), ("--epochs", "7"), ("--preset", "quick")):
        with rejects("settings-of-fitted-run"):
            call("embed", "run", "--out", "e.parquet", *settings)
    assert not (files / "e.parquet").exists()


def test_other_commands_need_a_graph_in_memory(files: Path) -> None:
    with rejects("graph-on-disk"):
        call("inspect", "graph")


def finish(processes: list[Program]) -> tuple[str, str]:
    """Wait for processes that succeed; return all they print."""
    streams = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), streams
    return "".join(out for out, _ in streams), "".join(err for _, err in streams)


@pytest.mark.parametrize("source", ["graph", pytest.param("memory", marks=pytest.mark.slow)])
def test_two_processes_give_the_result_of_one(files: Path, source: str) -> None:
    graph = ("graph",) if source == "graph" else TABLES
    options = (*EXACT, "--set", "token_dropout=0.2", "--set", "attention_dropout=0.2")
    call("fit", *graph, *options, "--embeddings", "one.parquet")
    out, _ = finish(start_ranks(2, "fit", *graph, *options, "--embeddings", "two.parquet", cwd=files))
    assert out.count("wrote") == 1  # only the first process writes
    one, two = embedding("one.parquet"), embedding("two.parquet")
    assert np.abs(one).max() > 0.1
    np.testing.assert_allclose(two, one, atol=1e-4)


def test_several_processes_need_batches(files: Path) -> None:
    job = start_ranks(2, "fit", "synthetic", "--epochs", "1", "--out", "none", cwd=files)
    errors = "".join(process.communicate()[1] for process in job)
    assert all(process.returncode for process in job)
    assert "--batch-size" in errors


def wait_for_checkpoint(run: str, is_running: Callable[[], bool]) -> None:
    for _ in range(600):
        if any(Path(run, "checkpoints").glob("epoch-*")):
            return
        assert is_running()
        time.sleep(0.1)
    raise AssertionError("no checkpoint after a minute")


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_lost_process_ends_the_job(files: Path, number: signal.Signals) -> None:
    lost = f"lost-{number.name}"
    job = start_ranks(2, *ENDLESS, "--out", lost, cwd=files)
    try:
        wait_for_checkpoint(lost, lambda: job[0].poll() is None)
        job[1].send_signal(number)
        errors = "".join(process.communicate(timeout=60)[1] for process in job)
    finally:
        for process in job:
            process.kill()
    assert job[0].returncode
    estimate = ("note:", "epochs: about")
    lines = [line for line in errors.splitlines() if not any(one in line for one in estimate)]
    assert len(lines) == 1, errors
    rank = 0 if number == signal.SIGKILL else 1
    assert re.search(rf"rank {rank} of 2 stops: .*h3gnn fit --resume {lost}", lines[0])
    assert not Path(lost, "model.json").exists()


def torchrun(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Start two processes as a user does."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "h3gnn")
    command = [sys.executable, *launcher, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=ALONE | environment, stderr=subprocess.PIPE, text=True)


def ranks_of(job: subprocess.Popen[str]) -> list[int]:
    listed = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return sorted(int(child) for child in listed if "h3gnn" in Path(f"/proc/{child}/cmdline").read_text())


@pytest.mark.slow
def test_a_torchrun_job_that_lost_a_process_is_resumed(files: Path) -> None:
    options = (*EXACT, "--epochs", "200", "--checkpoint-every", "5")
    call("fit", "graph", *options, "--out", "whole", "--embeddings", "whole.parquet")
    job = torchrun("fit", "graph", *options, "--out", "half", "--embeddings", "half.parquet", cwd=files)
    try:
        wait_for_checkpoint("half", lambda: job.poll() is None)
        os.kill(ranks_of(job)[1], signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    finally:
        job.kill()
    assert not Path("half.parquet").exists()
    resumed = torchrun("fit", "--resume", "half", cwd=files)
    _, errors = resumed.communicate(timeout=170)
    assert resumed.returncode == 0, errors
    np.testing.assert_allclose(embedding("half.parquet"), embedding("whole.parquet"), atol=2e-3)


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_job(files: Path) -> None:
    job = torchrun(*ENDLESS, "--out", "hung", cwd=files, H3GNN_RANK_TIMEOUT="5")
    try:
        wait_for_checkpoint("hung", lambda: job.poll() is None)
        os.kill(ranks_of(job)[1], signal.SIGSTOP)
        _, errors = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode != 0
    assert re.search(r"h3gnn: rank 0 of 2 stops: .*h3gnn fit --resume hung", errors)
