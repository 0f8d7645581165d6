"""The command line in tests: in this process, or in a process of its own without seconds of imports.

One server process has imported what commands need; a command is a fork of it. So exit codes, signals, kills
and the two output streams are those of a real process. `python -m h3gnn` itself, from its first import on, is
tested in tests/cli/test_ending.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner, Result

from h3gnn.cli.app import app

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
PROGRAM = "from h3gnn.cli import main; main()"
_forks = get_context("forkserver")
_forks.set_forkserver_preload(
    ["tests.program", "h3gnn.cli.app", "h3gnn.cli.fit", "h3gnn.estimator", "optuna", "torch._dynamo"]
)


def invoke(*arguments: object) -> Result:
    """Run a command in this process; its errors are raised."""
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


def call(*arguments: object) -> Any:
    """Run a command in this process, which has to succeed; return its output, or with --json its result."""
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


class Program:
    """Python code in a fork, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, code: str, *arguments: object, cwd: Path, **environment: str) -> None:
        self.args = ["h3gnn", *map(str, arguments)]
        self._folder = Path(tempfile.mkdtemp(prefix="h3gnn-test-"))
        self._streams = [self._folder / name for name in ("stdout", "stderr")]
        given = (code, self.args, str(cwd), environment, *map(str, self._streams))
        self._process = _forks.Process(target=_execute, args=given)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that killed it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process.pid is not None
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Wait for the end; return the contents of its two streams."""
        self._process.join(timeout)
        if self._process.is_alive():
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        out, err = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._streams)
        shutil.rmtree(self._folder)
        return out, err


def start(*arguments: object, cwd: Path) -> Program:
    """Start a command of the program."""
    return Program(PROGRAM, *arguments, cwd=cwd)


def start_ranks(processes: int, *arguments: object, cwd: Path, **environment: str) -> list[Program]:
    """Start a command in several processes, as torchrun does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    job = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    job |= {"GLOO_SOCKET_IFNAME": "lo", **environment}
    return [Program(PROGRAM, *arguments, cwd=cwd, RANK=str(rank), **job) for rank in range(processes)]


def run(*arguments: object, cwd: Path, code: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run a command of the program, or other code with such arguments, to its end."""
    program = Program(code, *arguments, cwd=cwd)
    out, err = program.communicate()
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


def _execute(
    code: str, arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str
) -> None:
    """Run code like a command at a terminal, where no signals are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(ENVIRONMENT | environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = arguments
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
