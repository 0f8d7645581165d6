"""Commands in processes forked from one that has imported everything they need.

Exit codes, signals and output are those of a real process, without seconds of imports for each. Starting
`python -m h3gnn` itself is tested in tests/cli.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import torch

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
PROGRAM = "from h3gnn.cli import main; main()"
_forks = get_context("forkserver")
_forks.set_forkserver_preload(
    ["tests.program", "h3gnn.cli.app", "h3gnn.cli.fit", "h3gnn.estimator", "optuna", "torch._dynamo"]
)


class Program:
    """Python code in a fork, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, code: str, *arguments: object, cwd: Path) -> None:
        self.args = ["h3gnn", *map(str, arguments)]
        self._folder = Path(tempfile.mkdtemp(prefix="h3gnn-test-"))
        self._streams = [self._folder / name for name in ("stdout", "stderr")]
        arguments = (code, self.args, str(cwd), *map(str, self._streams))
        self._process = _forks.Process(target=_main, args=arguments)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
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
        """Kill the process."""
        self._process.kill()

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Wait for the end, and return standard output and standard error."""
        self._process.join(timeout)
        if self._process.is_alive():
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        output, errors = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._streams)
        shutil.rmtree(self._folder)
        return output, errors


def start(*arguments: object, cwd: Path) -> Program:
    """Start a command of h3gnn."""
    return Program(PROGRAM, *arguments, cwd=cwd)


def run(*arguments: object, cwd: Path, code: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run a command of h3gnn, or other code, to its end."""
    program = Program(code, *arguments, cwd=cwd)
    output, errors = program.communicate()
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.args, program.returncode, output, errors)


def _main(code: str, arguments: list[str], folder: str, output: str, errors: str) -> None:
    """Run code with the signal handlers of a foreground process; background jobs ignore some signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = arguments
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
