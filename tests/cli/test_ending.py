"""However a command ends, a person sees sentences: never a traceback that they did not ask for."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

from h3gnn import H3GNN
from h3gnn.cli import exit as ending
from h3gnn.cli.app import app
from h3gnn.errors import InputError, TrainingStopped
from reproduction.__main__ import _resumable

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}

BROKEN = """
import sys
from h3gnn.cli import exit as ending
def load():
    raise {error}
sys.argv = ["h3gnn", "tune", "--storage", "postgresql://me:secret@host/db"]
ending.run(load)
"""


def end_with(error: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BROKEN.format(error=error)]
    return subprocess.run(
        command, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, check=False
    )


def test_a_fault_of_our_own_is_one_sentence_and_its_traceback_is_kept(tmp_path: Path) -> None:
    done = end_with("ZeroDivisionError('of\\n two lines')", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "ZeroDivisionError: of two lines" in done.stderr
    (kept,) = tmp_path.iterdir()
    assert str(kept) in done.stderr
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "secret" not in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_where_no_file_can_be_written_the_sentence_says_how_to_see_it() -> None:
    done = end_with("ZeroDivisionError", TMPDIR="/nowhere", TEMP="", TMP="", H3GNN_DEBUG="0")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "H3GNN_DEBUG=1" in done.stderr or "details are in" in done.stderr


@pytest.mark.parametrize("error", ["ZeroDivisionError", "h3gnn.errors.InputError('no')"])
def test_a_person_who_asks_sees_the_traceback(error: str) -> None:
    shown = end_with(f"__import__('h3gnn.errors') and {error}", H3GNN_DEBUG="1")
    assert "Traceback (most recent call last)" in shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("h3gnn: ")


def _torch_error() -> Exception:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    return raised.value


def _numpy_error() -> Exception:
    with pytest.raises(MemoryError) as raised:
        np.empty(2**60, dtype=np.uint8)
    return raised.value


NO_ROOM = [
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 99 failed"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ImportError("libx.so: failed to map segment from shared object"),
]


@pytest.mark.parametrize("error", [*NO_ROOM, _torch_error(), _numpy_error()])
def test_a_lack_of_memory_has_a_sentence_of_its_own(error: Exception) -> None:
    sentence, code = ending.ending_of(error)
    assert code == 2
    assert sentence.startswith("not enough memory")
    assert ending.code_of(error) == "out-of-memory"
    assert "--batch-size" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_training_that_a_signal_ended_has_the_code_of_that_signal(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = TrainingStopped("stopped after epoch 1 of 2", number)
    assert ending.ending_of(stop) == ("stopped; nothing is half-written", 128 + number)
    with pytest.raises(ending.Stopped) as ended, _resumable(tmp_path):
        raise stop
    assert ended.value.code == 128 + number
    monkeypatch.setattr(H3GNN, "fit", lambda *_, **__: (_ for _ in ()).throw(stop))
    done = CliRunner().invoke(app, ["demo", "--no-picture"])
    assert done.exit_code == 128 + number, done.output
    assert ending.ending_of(KeyboardInterrupt())[1] == 130


def test_with_json_an_error_is_an_object_with_its_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "h3gnn", "fit", "--json"], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert json.loads(done.stderr)["error"]["code"] == "no-output"


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert ending.ending_of(InputError("out of memory lane")) == ("out of memory lane", 2)
    sentence, code = ending.ending_of(FileNotFoundError(errno.ENOENT, "No such file", "x"))
    assert code == 2
    assert "x" in sentence
    assert not ending.is_out_of_memory(ValueError("a memory allocation"))


FULL = "cannot read or write a file: [Errno 28] No space left on device"
SAID = {
    "--json": f'{{"error": {{"code": "file", "message": "{FULL}"}}}}\n',
    "--help": f"h3gnn: {FULL}\n",
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [("datasets", "--json"), pytest.param(("--help",), marks=pytest.mark.slow)]
)
def test_what_cannot_be_printed_is_said(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "h3gnn", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr == SAID[arguments[-1]]


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
def test_a_signal_while_the_program_loads_is_a_sentence_too(number: signal.Signals) -> None:
    command = [sys.executable, "-c", EARLY, str(int(number))]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number, done.stderr
    assert re.fullmatch(r"h3gnn: stopped; nothing is half-written\n", done.stderr)


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
def test_a_signal_that_a_library_makes_an_error_of_is_a_signal_still(kind: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SWALLOWED, kind], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (code, "h3gnn: stopped; nothing is half-written\n")


def test_letters_that_a_terminal_does_not_know_are_no_error() -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "h3gnn", "datasets"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "homophily" in done.stdout
