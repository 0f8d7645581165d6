"""An interrupted `prepare` resumes: the folder is the one of an uninterrupted call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from h3gnn.cli.app import app
from h3gnn.ondisk import prepare
from h3gnn.ondisk.engine import DATABASE, Work, hidden_beside
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.tables import files
from tests.program import run
from tests.rejects import rejects

NODES = 60


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of several blocks and ranges."""
    monkeypatch.setattr(prepare, "BLOCK_ROWS", 13)
    monkeypatch.setattr(prepare, "RANGE_ROWS", 20)
    monkeypatch.setattr(files, "BLOCK_ROWS", 20)
    random = np.random.default_rng(0)
    ends, ids = random.integers(0, NODES, (2, 90)), np.array([f"n{i}" for i in range(NODES)])
    numbers, weight = random.normal(size=(NODES, 3)).round(4), random.random(90).round(3)
    edges = pd.DataFrame({"source": ids[ends[0]], "target": ids[ends[1]], "weight": weight})
    features = pd.DataFrame({"id": ids, **{f"f{i}": numbers[:, i] for i in range(3)}})
    edges.to_csv(tmp_path / "e.csv", index=False)
    features.to_csv(tmp_path / "f.csv", index=False)
    edges.to_parquet(tmp_path / "e.parquet", row_group_size=31)
    features.to_parquet(tmp_path / "f.parquet", row_group_size=31)
    pd.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(tmp_path / "p.csv", index=False)
    np.save(tmp_path / "f.npy", numbers)
    sp.save_npz(tmp_path / "f.npz", sp.csr_matrix((random.random((NODES, 30)) < 0.05).astype(float)))
    pd.DataFrame({"id": range(NODES), "label": np.arange(NODES) % 2}).to_csv(tmp_path / "l.csv", index=False)
    return tmp_path


def interrupt_each_stage(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Interrupt a call before and after each stage is stored; return the stages that are stored."""
    usual, stored, calls = Work.run, list[str](), [0]

    def run_or_stop(work: Work, query: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        stores = query.startswith("INSERT OR REPLACE") and values is not None and values[0] != "made_of"
        if stores:
            calls[0] += 1
            if calls[0] % 2:
                raise KeyboardInterrupt  # the whole stage is lost
            stored.append(values[0])  # type: ignore[index]
        if query.startswith("SELECT count(*), count(*) FILTER") and stored and stored[-1] == "features":
            stored.append("stop")
            raise KeyboardInterrupt
        return usual(work, query, values)

    monkeypatch.setattr(Work, "run", run_or_stop)
    return stored


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("edges", "features", "labels", "ranges"),
    [
        ("e.csv", "f.csv", None, 1),
        ("e.parquet", "f.parquet", None, 5),
        ("p.csv", "f.npy", None, 1),
        ("p.csv", "f.npz", "l.csv", 1),
    ],
)
def test_each_stage_is_kept(
    parts: Path, monkeypatch: pytest.MonkeyPatch, edges: str, features: str, labels: str | None, ranges: int
) -> None:
    inputs, known = (parts / edges, parts / features), None if labels is None else parts / labels
    prepare_graph(*inputs, parts / "whole", labels=known)
    stored = interrupt_each_stage(monkeypatch)
    for _ in range(40):
        try:
            prepare_graph(*inputs, parts / "often", labels=known)
            break
        except KeyboardInterrupt:
            assert not (parts / "often").exists()
    assert stored == ["features", "stop", *["edges"] * ranges]  # none of them is made again
    assert contents(parts / "often") == contents(parts / "whole")
    assert not hidden_beside(parts / "often").exists()


KILLED = """
import os, signal
from h3gnn.ondisk import prepare
def dying(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
prepare.STAGE, prepare.BLOCK_ROWS, prepare.RANGE_ROWS = dying, 13, 20
prepare.prepare_graph("e.parquet", "f.parquet", "out")
"""


@pytest.mark.parametrize(
    "stage",
    [
        "_sort_stage",
        pytest.param("_edge_stage", marks=pytest.mark.slow),
        pytest.param("_hashes", marks=pytest.mark.slow),
    ],
)
def test_a_killed_call_resumes(parts: Path, stage: str) -> None:
    assert run(cwd=parts, code=KILLED.replace("STAGE", stage)).returncode == -signal.SIGKILL
    assert hidden_beside(parts / "out").is_dir()
    prepare_graph(parts / "e.parquet", parts / "f.parquet", parts / "whole")
    prepare_graph(parts / "e.parquet", parts / "f.parquet", parts / "out")
    assert contents(parts / "out") == contents(parts / "whole")


def test_other_columns_and_damaged_databases_start_again(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = parts / "e.csv", parts / "f.csv"
    prepare_graph(*inputs, parts / "whole", feature_columns=["f0"])
    for damage in (False, True):
        with monkeypatch.context() as patched:
            interrupt_each_stage(patched)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    prepare_graph(*inputs, parts / "out", feature_columns=["f0"] if damage else None)
        assert hidden_beside(parts / "out").is_dir()
        if damage:
            (hidden_beside(parts / "out") / DATABASE).write_bytes(b"no database" * 999)
        prepare_graph(*inputs, parts / "out", feature_columns=["f0"])
        assert contents(parts / "out") == contents(parts / "whole")


def test_invalid_input_leaves_nothing_to_resume(parts: Path) -> None:
    with (parts / "e.csv").open("a") as file:
        file.write("n0,unknown,1\n")
    with rejects("node-unknown"):
        prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")
    assert not hidden_beside(parts / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_two_processes_cannot_prepare_the_same_folder(parts: Path) -> None:
    import fcntl

    hidden_beside(parts / "out").mkdir()
    handle = os.open(hidden_beside(parts / "out"), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with rejects("folder-in-use"):
        prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")
    os.close(handle)
    prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")


def test_the_command_reports_that_it_can_resume_and_resumes(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(parts)
    command = ["prepare", "--edges", "e.csv", "--features", "f.csv", "--out", "out", "--memory", "1GB"]
    with monkeypatch.context() as patched:
        interrupt_each_stage(patched)
        app(command, standalone_mode=False)  # nothing is finished
        assert not hidden_beside(parts / "out").exists()
        with pytest.raises(SystemExit) as stopped:
            app(command, standalone_mode=False)
    assert stopped.value.code == 130
    assert "h3gnn: stopped; the same command resumes" in capsys.readouterr().err
    app(command, standalone_mode=False)
    printed = capsys.readouterr()
    assert "resuming out" in printed.err
    assert f"wrote out: {NODES} nodes" in printed.out


def test_a_signal_interrupts_a_query_and_rolls_it_back(tmp_path: Path) -> None:
    """DuckDB itself does not notice signals."""
    long = "CREATE TABLE long AS SELECT a.range * b.range FROM range(1000000) a, range(1000000) b"
    with Work(tmp_path, 10**9) as work:
        usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt), work.transaction():
            work.run(long)
        signal.signal(signal.SIGALRM, usual)
        assert work.state("features") is None
