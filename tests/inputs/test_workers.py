"""A worker that is lost costs one task; no worker outlives its parent or prints a traceback."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from h3gnn import mixed_graph
from h3gnn.cli.app import app
from h3gnn.errors import InputError
from h3gnn.experiments import compare as comparing
from h3gnn.experiments.workers import Finished, attempt, in_processes
from tests.inputs.tasks import work
from tests.program import Program, start

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)


ENDINGS = [*((("kill", number), -number) for number in SIGNALS), (("exit", 3), 3), (("exit", 0), 0)]


def test_a_lost_process_costs_its_task() -> None:
    tasks = [("before", 1), *(task for task, _ in ENDINGS), ("after", 2)]
    found = {one.task: one for one in in_processes(tasks, work, 2, 1)}
    assert found["before", 1].record == 1
    assert found["after", 2].record == 2
    for task, code in ENDINGS:
        assert (found[task].fault, found[task].exit_code) == ("Lost", code)
        assert str(code) in found[task].failure


@pytest.mark.parametrize(("code", "alone"), [(-9, True), (-11, False), (1, False), (None, False)])
def test_a_task_whose_process_the_kernel_killed_may_run_alone(code: int | None, alone: bool) -> None:
    assert Finished("a", None, "", "Lost", exit_code=code).out_of_memory == alone


def after(failures: dict[str, Finished], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Any:
    """Run a comparison in two processes, of which some methods end in this way."""

    def instead(tasks: Any, work: Any, jobs: int, threads: int, watch: Any) -> Any:
        for task in tasks:
            yield failures.get(task) or attempt(task, work, partial(watch, task))

    monkeypatch.setattr(comparing, "in_processes", instead)
    monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", partial(mixed_graph, 80, words=20))
    line = ("compare", "synthetic", "--methods", "raw,smoothed,s2gc", "--quick", "--jobs", 2, *arguments)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(one) for one in line])


def lost(name: str, code: int) -> dict[str, Finished]:
    return {name: Finished(name, None, f"its process ended with exit code {code}", "Lost", exit_code=code)}


@pytest.mark.parametrize("code", [-9, -11, -6, -15, 1, 3])
def test_a_comparison_reports_a_lost_method_and_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    done = after(lost("smoothed", code), monkeypatch, "--out", tmp_path / "r.json")
    assert done.exit_code == 1
    row = next(line for line in done.stdout.splitlines() if f"failed ({code})" in line)
    assert "features + neighbours" in row
    assert "--methods smoothed --jobs 1" in done.stdout
    stored = json.loads((tmp_path / "r.json").read_text())
    assert set(stored["methods"]) == {"raw", "s2gc"}
    assert stored["comparison"]["left_out"]["smoothed"]["exit_code"] == code


@pytest.mark.parametrize(
    ("failure", "word", "status"),
    [
        (Finished("raw", None, "killed", "Lost", exit_code=-9), "failed", 1),
        (Finished("raw", None, "division by zero", "ZeroDivisionError"), "failed", 1),
        (Finished("raw", None, "it needs labels", "InputError", foreseen=True), "not here", 0),
        (Finished("raw", None, "3 GB", "TooLargeError", foreseen=True), "too large", 0),
        (Finished("raw", None, "CUDA out of memory", "OutOfMemoryError"), "too large", 0),
    ],
)
def test_the_exit_code_distinguishes_failures_from_limits(
    monkeypatch: pytest.MonkeyPatch, failure: Finished, word: str, status: int
) -> None:
    done = after({"raw": failure}, monkeypatch, "--json")
    assert done.exit_code == status
    left = json.loads(done.stdout)["left_out"]["raw"]
    assert (left["word"], left["exit_code"]) == (word, failure.exit_code)
    assert failure.failure in left["why"]


def test_a_comparison_of_which_nothing_is_left_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {name: found for name in ("raw", "smoothed", "s2gc") for found in [*lost(name, -9).values()]}
    done = after(every, monkeypatch)
    assert isinstance(done.exception, InputError)
    assert done.exception.code == "methods-failed"


PARENT = """
import sys
from tests.inputs.tasks import work
from h3gnn.experiments.workers import in_processes
tasks = [(kind, f"{sys.argv[1]}/{kind}-{at}") for at, kind in enumerate(sys.argv[2:])]
try:
    list(in_processes(tasks, work, len(tasks), 1))
except KeyboardInterrupt:
    sys.exit(130)
"""


def started(folder: Path, files: list[str], deadline: float = 60) -> list[int]:
    """Wait for the files that workers write; return the processes."""
    until = time.monotonic() + deadline
    while not all((folder / name).exists() and (folder / name).read_text() for name in files):
        assert time.monotonic() < until
        time.sleep(0.05)
    return [int((folder / name).read_text()) for name in files]


def alive(pids: list[int]) -> list[int]:
    """Return the processes that exist and are no zombies."""
    states = {}
    for pid in pids:
        try:
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return [pid for pid, state in states.items() if state != "Z"]


def wait_for_end(pids: list[int], seconds: float) -> None:
    until = time.monotonic() + seconds
    while alive(pids):
        assert time.monotonic() < until, alive(pids)
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_parent_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    program = Program(PARENT, tmp_path, "wait", "chatter", cwd=Path.cwd())
    pids = started(tmp_path, ["wait-0", "chatter-1"])
    program.send_signal(number)
    wait_for_end(pids, 1.0)
    _, err = program.communicate()
    assert program.returncode in (-number, 130)
    assert err == ""
    assert not alive(pids)


def children(pid: int) -> list[int]:
    """Return the workers among the children of a process."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in listed}
    except OSError:
        return []
    return [child for child, line in lines.items() if b"spawn_main" in line]


def comparison(folder: Path, workers: int) -> tuple[Program, list[int]]:
    """Start a comparison in two processes, and wait for its workers."""
    line = ("compare", "synthetic", "--methods", "raw,smoothed", "--quick", "--jobs", 2)
    program, found = start(*line, "--out", folder / "r.json", cwd=folder), list[int]()
    until = time.monotonic() + 60
    while len(found) < workers:
        assert program.poll() is None
        assert time.monotonic() < until
        assert program._process.pid is not None
        found = children(program._process.pid)
        time.sleep(0.02)
    return program, found


@needs_proc
def test_a_killed_worker_of_a_comparison(tmp_path: Path) -> None:
    program, workers = comparison(tmp_path, 1)
    os.kill(workers[0], signal.SIGKILL)
    out, err = program.communicate()
    assert program.returncode == 1
    assert "failed (-9)" in out
    assert "SIGKILL" in out
    assert "Traceback" not in err
    stored = json.loads((tmp_path / "r.json").read_text())
    assert set(stored["methods"]) == {"smoothed"}
    assert set(stored["comparison"]["left_out"]) == {"raw"}


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_that_are_still_loading_end_with_a_comparison(tmp_path: Path, number: signal.Signals) -> None:
    program, workers = comparison(tmp_path, 2)
    for worker in workers if number == signal.SIGINT else []:
        os.kill(worker, number)  # at a terminal, Ctrl-C reaches every process
    program.send_signal(number)
    wait_for_end(workers, 1.0)
    _, err = program.communicate()
    assert program.returncode == (-number if number == signal.SIGKILL else 130)
    assert "Traceback" not in err
