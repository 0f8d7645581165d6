"""Commands end with an exit code and a one-line message, and show tracebacks only on request."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from h3gnn import H3GNN
from h3gnn.cli import exit as ending
from h3gnn.errors import InputError, TrainingStopped
from reproduction.__main__ import _resumable
from tests.program import Program, invoke, run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}

BROKEN = """
import sys, tempfile
from h3gnn.cli import exit as ending
def load():
    raise {error}
tempfile.tempdir = None
ending.run(load)
"""


def end_with(error: str, **environment: str) -> tuple[int | None, str, str]:
    """Run a command that raises an error; return the exit code and the two output streams."""
    command = ("tune", "--storage", "postgresql://me:secret@host/db")
    program = Program(BROKEN.format(error=error), *command, cwd=Path.cwd(), **environment)
    out, err = program.communicate()
    return program.returncode, out, err


def test_the_traceback_of_an_internal_error_is_written_to_a_file(tmp_path: Path) -> None:
    code, out, err = end_with("ZeroDivisionError('of\\n two lines')", TMPDIR=str(tmp_path))
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "ZeroDivisionError: of two lines" in err
    (kept,) = tmp_path.iterdir()
    assert str(kept) in err
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "secret" not in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_an_internal_error_without_a_writable_folder() -> None:
    code, _, err = end_with("ZeroDivisionError", TMPDIR="/nowhere", TEMP="", TMP="", H3GNN_DEBUG="0")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "H3GNN_DEBUG=1" in err or "details are in" in err


@pytest.mark.parametrize("error", ["ZeroDivisionError", "__import__('h3gnn').InputError('no')"])
def test_debugging_prints_tracebacks(error: str) -> None:
    _, _, err = end_with(error, H3GNN_DEBUG="1")
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("h3gnn: ")


def _torch_error() -> Exception:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    return raised.value


def _numpy_error() -> Exception:
    with pytest.raises(MemoryError) as raised:
        np.empty(2**60, dtype=np.uint8)
    return raised.value


NO_MEMORY = [
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 99 failed"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ImportError("libx.so: failed to map segment from shared object"),
]


@pytest.mark.parametrize("error", [*NO_MEMORY, _torch_error(), _numpy_error()])
def test_a_lack_of_memory_is_recognized(error: Exception) -> None:
    message, exit_code, code = ending.ending_of(error)
    assert (exit_code, code) == (2, "out-of-memory")
    assert "--batch-size" in message
    assert "\n" not in message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stopped_training_exits_with_the_code_of_its_signal(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = TrainingStopped("stopped after epoch 1 of 2", number)
    assert ending.ending_of(stop)[1:] == (128 + number, "interrupted")
    with pytest.raises(ending.Stopped) as ended, _resumable(tmp_path):
        raise stop
    assert ended.value.code == 128 + number
    monkeypatch.setattr(H3GNN, "fit", lambda *_, **__: (_ for _ in ()).throw(stop))
    assert invoke("demo", "--no-picture").exit_code == 128 + number
    assert ending.ending_of(KeyboardInterrupt())[1] == 130


def test_other_errors_are_not_a_lack_of_memory() -> None:
    error = InputError("out of memory lane", code="lane")
    assert ending.ending_of(error) == ("out of memory lane", 2, "lane")
    message, exit_code, code = ending.ending_of(FileNotFoundError(errno.ENOENT, "No such file", "x"))
    assert (exit_code, code) == (2, "file")
    assert "x" in message
    assert not ending.is_out_of_memory(ValueError("a memory allocation"))


def test_with_json_an_error_is_an_object_with_its_code(tmp_path: Path) -> None:
    done = run("fit", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"]["code"] == "no-output"


FULL = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from h3gnn.cli import main; main()"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("datasets", "--json"), ("--help",)])
def test_output_to_a_full_disk_is_an_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path, code=FULL)
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "--json" not in arguments or json.loads(done.stderr)["error"]["code"] == "file"


EARLY = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from h3gnn.cli import main
load, number = builtins.__import__, int(sys.argv.pop(1))

def interrupted(name, *more):
    if name == "typer":
        os.kill(os.getpid(), number)
    return load(name, *more)

builtins.__import__ = interrupted
sys.argv = ["h3gnn", "datasets"]
main()
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_signal_while_the_program_loads(number: signal.Signals) -> None:
    command = [sys.executable, "-c", EARLY, str(int(number))]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == f"h3gnn: {ending.STOPPED}\n"


SWALLOWED = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored, and then it stays so
from h3gnn.cli import exit as ending

def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except SystemExit:
        if sys.argv[1] == "dropped":
            os.kill(os.getpid(), signal.SIGHUP)  # too soon
            ending.CLEANUP_SECONDS = 0.0
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(1)
        if sys.argv[1] == "code":
            raise SystemExit(1)
        raise ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'")

ending.run(lambda: work)
"""


@pytest.mark.parametrize(
    ("kind", "code"), [("error", 143), ("dropped", 129), pytest.param("code", 143, marks=pytest.mark.slow)]
)
def test_a_signal_counts_even_if_a_library_replaces_its_exception(kind: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SWALLOWED, kind], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (code, f"h3gnn: {ending.STOPPED}\n")


def test_characters_that_the_terminal_cannot_show() -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "h3gnn", "datasets"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "homophily" in done.stdout
