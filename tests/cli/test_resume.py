from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from h3gnn import H3GNN, InputError, UnfinishedWarning
from h3gnn.training.step import Step
from tests.program import Program, call, invoke, run, start

GRAPH = ("--edges", "e.csv", "--features", "f.csv", "--preset", "single", "--channels", "8")
TRAINING = (*GRAPH, "--epochs", "12", "--models", "2")
FIT = ("fit", *TRAINING, "--out", "run", "--embeddings", "out.npy", "--checkpoint-every", "1")


def newest_epoch(folder: str = "run") -> int:
    return max((int(path.name.split("-")[1]) for path in Path(folder).glob("checkpoints/epoch-*")), default=0)


def wait_for(ready: Callable[[], bool], process: Program) -> None:
    for _ in range(6000):
        if ready() or process.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")


@pytest.fixture(autouse=True)
def _default_signals() -> Iterator[None]:
    """Restore the handlers of signals, which are ignored if the tests run as a background job."""
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def write_tables(folder: Path) -> None:
    """Write forty nodes in a ring."""
    (folder / "e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 1) % 40}\n" for i in range(40)))
    (folder / "f.csv").write_text("id,a,b\n" + "".join(f"n{i},{i},{i * i % 7}\n" for i in range(40)))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables of a small graph in the current folder."""
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke_until(epoch: int, end: Callable[[], object], *arguments: object) -> Result:
    """Run a command in this process, and call a function in the middle of an epoch."""
    count, usual = itertools.count(1), Step.__call__

    def step(self: Step, *given: Any) -> Any:
        if next(count) == epoch:
            end()
        return usual(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "__call__", step)
        return invoke(*arguments)


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables and a run that ended in the sixth epoch without cleaning up."""
    folder = tmp_path_factory.mktemp("stopped")
    write_tables(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert invoke_until(6, lambda: sys.exit(9), *FIT).exit_code == 9
        assert newest_epoch() == 5
    return folder


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stopped run in the current folder."""
    shutil.copytree(stopped_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


KILLED = """
import os, signal, sys
from h3gnn.cli import main
from h3gnn.training.step import Step

count, usual = int(sys.argv.pop(1)), Step.__call__

def step(*arguments):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(*arguments)

Step.__call__ = step
main()
"""


def test_a_run_killed_twice_and_resumed_equals_the_uninterrupted_run(files: Path) -> None:
    call("fit", *TRAINING, "--out", "whole", "--embeddings", "whole.npy")
    for count, epoch, arguments in ((5, 4, (*FIT[:-1], "2")), (5, 8, ("fit", "--resume", "run"))):
        done = run(count, *arguments, cwd=files, code=KILLED)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert newest_epoch() == epoch
        assert not Path("run/model.json").exists()
        assert not Path("out.npy").exists()
    assert "continuing run after epoch 8" in invoke("fit", "--resume", "run").stderr
    assert not Path("run/checkpoints").exists()
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    resumed, whole = (json.loads(Path(name, "model.json").read_text()) for name in ("run", "whole"))
    assert resumed["history"] == whole["history"]


SIGNALS = pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
ENDLESS = ("fit", *GRAPH, "--out", "run", "--epochs", "1000000", "--checkpoint-every", "100")


@SIGNALS
def test_a_signal_writes_a_checkpoint(files: Path, number: signal.Signals, code: int) -> None:
    process = start(*ENDLESS, cwd=files)
    wait_for(lambda: newest_epoch() > 0, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, ""), err
    epoch = newest_epoch()
    *estimate, last = err.strip().splitlines()
    assert all("1000000 epochs: about" in line for line in estimate)
    assert f"stopped after epoch {epoch} of 1000000" in last
    assert last.endswith("continue with `h3gnn fit --resume run`")
    with pytest.warns(UnfinishedWarning):
        assert len(H3GNN.load(files / "run").history_) == epoch


@SIGNALS
def test_a_signal_before_the_first_epoch(files: Path, number: signal.Signals, code: int) -> None:
    process = start(*ENDLESS, cwd=files)
    wait_for(lambda: any(files.glob("run/checkpoints/start-*")), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("h3gnn: stopped")
    assert err.strip().endswith("continue with `h3gnn fit --resume run`")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_without_checkpoints_saves_the_model(files: Path, number: signal.Signals, code: int) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    fit = ("fit", *TRAINING, "--out", "run", "--embeddings", "out.npy")
    done = invoke_until(5, lambda: signal.raise_signal(number), *fit)
    signal.signal(signal.SIGTERM, before)
    assert (done.exit_code, done.stdout) == (code, "")
    assert "stopped after epoch 5 of 12" in done.stderr
    assert done.stderr.strip().endswith("continue with `h3gnn fit --resume run`")
    with pytest.warns(UnfinishedWarning):
        kept = H3GNN.load("run")
    assert len(kept.history_) == newest_epoch() == 5
    np.testing.assert_array_equal(np.load("out.npy"), kept.embedding_)
    with pytest.raises(InputError, match="random_state"):
        call("fit", *TRAINING, "--seed", "3", "--out", "run")
    call("fit", "--resume", "run")
    assert not Path("run/checkpoints").exists()
    call("fit", *TRAINING, "--out", "whole")
    np.testing.assert_array_equal(H3GNN.load("whole").embedding_, np.load("out.npy"))
    assert not Path("whole/checkpoints").exists()


def test_a_signal_without_a_folder_writes_the_embeddings(files: Path) -> None:
    fit = ("fit", *TRAINING, "--embeddings", "out.npy")
    done = invoke_until(3, lambda: signal.raise_signal(signal.SIGINT), *fit)
    assert done.exit_code == 130
    assert "stopped after epoch 3 of 12; the model is in out.npy" in done.stderr
    assert len(np.load("out.npy")) == 40


REJECTED: list[tuple[tuple[str, ...], str]] = [
    (("--resume", "run", "--epochs", "9"), "resume-with-options"),
    (("synthetic", "--resume", "run"), "resume-with-options"),
    (("--resume", "nowhere"), "nowhere"),
    (("--resume", "."), "."),
    ((*FIT[1:], "--seed", "3"), "random_state"),
    (("synthetic", *FIT[5:]), "graph"),
    ((*FIT[1:], "--device", "abacus"), "abacus"),
    ((*TRAINING, "--out", "new", "--keep", "2"), "keep-without-checkpoints"),
    ((*TRAINING, "--embeddings", "new.npy", "--checkpoint-every", "2"), "checkpoints-need-out"),
    ((*TRAINING, "--out", "new", "--checkpoint-every", "0"), "value-invalid"),
    ((*TRAINING, "--out", "new", "--checkpoint-every", "2", "--device", "abacus"), "abacus"),
]


def test_other_options_are_rejected_and_the_run_is_unchanged(stopped: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(stopped.rglob("*")) if path.is_file()}

    before = contents()
    for arguments, code_or_word in REJECTED:
        with pytest.raises(InputError) as rejected:
            call("fit", *arguments)
        assert rejected.value.code == code_or_word or code_or_word in str(rejected.value)
        assert contents() == before, arguments


def test_after_damage_the_first_command_continues(stopped: Path) -> None:
    begun = next(Path("run/checkpoints").glob("start-*"))
    content = bytearray(begun.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    begun.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged.*first command"):
        call("fit", "--resume", "run")
    newest = max(Path("run/checkpoints").glob("epoch-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="previous checkpoint"):
        call(*FIT)
    found = sorted(path.suffix for path in Path("run").iterdir())
    assert found == [".json", ".json", ".npy", ".safetensors", ".safetensors"]


FULL_DISK = """
import errno, os, sys
from h3gnn.cli import main
sync, files_left = os.fsync, int(sys.argv.pop(1))

def full(handle):
    global files_left
    files_left -= 1
    if files_left < 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(handle)

os.fsync = full
main()
"""


@pytest.mark.parametrize("files_left", [0, 5, pytest.param(1, marks=pytest.mark.slow)])
def test_after_a_full_disk_the_run_is_resumed(files: Path, files_left: int) -> None:
    arguments = ("fit", *GRAPH, "--out", "run", "--epochs", "6", "--checkpoint-every", "3", "--json")
    full = run(files_left, *arguments, cwd=files, code=FULL_DISK)
    assert full.returncode == 2, full.stderr
    error = json.loads(full.stderr.splitlines()[-1])["error"]
    assert not files_left or error["code"] == "file"
    assert "No space left on device" in error["message"]
    if files_left == 0:
        assert len(full.stderr.splitlines()) == 1
        assert not Path("run").exists()
        return
    assert error["message"].endswith("continue with `h3gnn fit --resume run`")
    assert not Path("run/model.json").exists()
    call("fit", "--resume", "run")
    assert not Path("run/checkpoints").exists()


def test_a_full_disk_without_checkpoints(files: Path) -> None:
    full = run(0, "fit", *GRAPH, "--out", "run", "--epochs", "2", "--json", cwd=files, code=FULL_DISK)
    assert full.returncode == 2
    assert json.loads(full.stderr)["error"]["code"] == "file"
