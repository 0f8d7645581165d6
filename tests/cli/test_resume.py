from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor
from typer.testing import CliRunner, Result

from h3gnn import H3GNN, InputError
from h3gnn.cli.app import app
from h3gnn.training.step import MaskStrategy, Step
from tests.program import Program, run, start

GRAPH = ("--edges", "e.csv", "--features", "f.csv", "--preset", "single")
TRAINING = (*GRAPH, "--epochs", "300", "--channels", "8", "--models", "2")
SHORT = (*GRAPH, "--epochs", "30", "--channels", "8", "--models", "2")
FIT = ("fit", *TRAINING, "--out", "run", "--embeddings", "out.npy", "--checkpoint-every", "5")


def newest_epoch(run: Path) -> int:
    return max((int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("epoch-*")), default=0)


def wait_for(ready: Callable[[], bool], process: Program) -> None:
    for _ in range(6000):
        if ready() or process.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")


@pytest.fixture(autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Let commands hear signals even where the tests run as a background job, which has some ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Forty nodes in a ring."""
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 1) % 40}\n" for i in range(40)))
    (tmp_path / "f.csv").write_text("id,a,b\n" + "".join(f"n{i},{i},{i * i % 7}\n" for i in range(40)))
    return tmp_path


def results(folder: Path) -> tuple[bytes, object]:
    return (folder / "out.npy").read_bytes(), json.loads((folder / "run" / "model.json").read_text())[
        "history"
    ]


def test_killed_several_times_and_resumed_equals_the_uninterrupted_run(files: Path) -> None:
    (files / "whole").mkdir()
    for name in ("e.csv", "f.csv"):
        (files / "whole" / name).write_bytes((files / name).read_bytes())
    plain = ("fit", *TRAINING, "--out", "run", "--embeddings", "out.npy")
    assert run(*plain, cwd=files / "whole").returncode == 0

    chance, kills = random.Random(), 0
    arguments: tuple[str, ...] = FIT
    for _ in range(2):
        process = start(*arguments, cwd=files)
        reached = newest_epoch(files / "run")
        wait_for(lambda: newest_epoch(files / "run") > reached, process)  # noqa: B023
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if (files / "run" / "model.json").exists():
            break
        arguments = ("fit", "--resume", "run")
    assert kills >= 1
    if not (files / "run" / "model.json").exists():
        assert not (files / "out.npy").exists()
        done = run("fit", "--resume", "run", cwd=files)
        assert done.returncode == 0, done.stderr
        assert "continuing run after epoch" in done.stderr
        assert not (files / "run" / "checkpoints").exists()
    assert results(files) == results(files / "whole")


SIGNALS = pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
ENDLESS = (*GRAPH, "--out", "run", "--epochs", "1000000", "--checkpoint-every", "100")


@SIGNALS
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(
    files: Path, number: signal.Signals, code: int
) -> None:
    process = start("fit", *ENDLESS, cwd=files)
    wait_for(lambda: newest_epoch(files / "run") > 0, process)
    time.sleep(0.1)
    process.send_signal(number)
    said, words = process.communicate(timeout=60)
    assert process.returncode == code, words
    assert said == ""
    epoch = newest_epoch(files / "run")
    *outlook, last = words.strip().splitlines()
    assert all("1000000 epochs: about" in line for line in outlook)  # said where the signal came late enough
    assert last == (
        f"h3gnn: stopped after epoch {epoch} of 1000000, with a checkpoint in run/checkpoints; the model "
        "is in run; continue with `h3gnn fit --resume run`"
    )
    assert len(H3GNN.load(files / "run").history_) == epoch


@SIGNALS
def test_a_signal_while_the_training_is_set_up_is_told_as_well(
    files: Path, number: signal.Signals, code: int
) -> None:
    process = start("fit", *ENDLESS, cwd=files)
    wait_for(lambda: bool(list((files / "run").glob("checkpoints/start-*"))), process)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert process.returncode == code, words
    assert len(words.strip().splitlines()) == 1
    assert words.startswith("h3gnn: stopped")
    assert words.strip().endswith("continue with `h3gnn fit --resume run`")


def fit_until(epoch: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Fit, and send this process a signal in the middle of an epoch."""
    count, made = itertools.count(1), Step.__call__

    def step(self: Step, mask: MaskStrategy) -> Tensor:
        if next(count) == epoch:
            signal.raise_signal(number)
        return made(self, mask)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", step)
        return CliRunner().invoke(app, ["fit", *SHORT, *arguments])


@SIGNALS
def test_a_signal_without_checkpoints_keeps_the_model_as_it_is_and_the_run_goes_on(
    files: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    done = fit_until(5, number, monkeypatch, "--out", "run", "--embeddings", "out.npy")
    signal.signal(signal.SIGTERM, before)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.strip() == (
        "h3gnn: stopped after epoch 5 of 30, with a checkpoint in run/checkpoints; the model is "
        "in run and out.npy; continue with `h3gnn fit --resume run`"
    )
    kept = H3GNN.load("run")
    assert len(kept.history_) == newest_epoch(Path("run")) == 5
    np.testing.assert_array_equal(np.load("out.npy"), kept.embedding_)
    other = CliRunner().invoke(app, ["fit", *SHORT, "--seed", "3", "--out", "run"])
    assert "run holds an unfinished run (random_state is 0 there and 3 here)" in str(other.exception)
    assert CliRunner().invoke(app, ["fit", "--resume", "run"]).exit_code == 0
    assert not Path("run/checkpoints").exists()
    resumed = np.load("out.npy")
    assert CliRunner().invoke(app, ["fit", *SHORT, "--out", "whole"]).exit_code == 0
    np.testing.assert_array_equal(H3GNN.load("whole").embedding_, resumed)
    assert not Path("whole/checkpoints").exists()


def test_a_signal_without_a_folder_writes_the_embeddings_as_they_are(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    done = fit_until(3, signal.SIGINT, monkeypatch, "--embeddings", "out.npy")
    assert done.exit_code == 130
    assert done.stderr.startswith("h3gnn: stopped after epoch 3 of 30; the model is in out.npy;")
    assert len(np.load("out.npy")) == 40


@pytest.fixture
def stopped(files: Path) -> Path:
    """A run that was stopped after a few epochs."""
    process = start(*FIT[:-1], "1", cwd=files)
    wait_for(lambda: newest_epoch(files / "run") > 3, process)
    process.kill()
    process.communicate()
    assert newest_epoch(files / "run") > 3
    return files


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("--resume", "run", "--epochs", "9"), "resume-with-options"),
    (("synthetic", "--resume", "run"), "resume-with-options"),
    (("--resume", "nowhere"), "there is no folder nowhere"),
    (("--resume", "."), "holds no run that can be resumed"),
    ((*FIT[1:], "--seed", "3"), "run holds an unfinished run (random_state is 0 there and 3 here)"),
    (("synthetic", *FIT[5:]), "run holds an unfinished run (of another graph)"),
    ((*FIT[1:], "--device", "abacus"), "abacus"),
    ((*TRAINING, "--out", "new", "--keep", "2"), "keep-without-checkpoints"),
    ((*TRAINING, "--embeddings", "new.npy", "--checkpoint-every", "2"), "checkpoints-need-out"),
    ((*TRAINING, "--out", "new", "--checkpoint-every", "0"), "value-invalid"),
    ((*TRAINING, "--out", "new", "--checkpoint-every", "2", "--device", "abacus"), "abacus"),
]


def test_what_does_not_fit_an_unfinished_run_is_refused_and_nothing_changes(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(stopped.rglob("*")) if path.is_file()}

    monkeypatch.chdir(stopped)
    before = contents()
    for arguments, words in REFUSED:
        with pytest.raises(InputError) as refused:
            app(["fit", *arguments], standalone_mode=False)
        assert words == refused.value.code or words in str(refused.value)
        assert contents() == before, arguments


def test_a_damaged_start_is_said_and_the_first_command_goes_on(stopped: Path) -> None:
    begun = next((stopped / "run" / "checkpoints").glob("start-*"))
    content = bytearray(begun.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    begun.write_bytes(content)
    refused = run("fit", "--resume", "run", cwd=stopped)
    assert refused.returncode == 2
    assert "damaged" in refused.stderr
    assert "repeat the first command" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    newest = max((stopped / "run" / "checkpoints").glob("epoch-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    done = run(*FIT, cwd=stopped)
    assert done.returncode == 0, done.stderr
    assert "note:" in done.stderr
    assert "resuming from the previous checkpoint" in done.stderr
    assert sorted(path.suffix for path in (stopped / "run").iterdir()) == [".json", *[".safetensors"] * 2]


FULL_DISK = """
import errno, os, sys
from h3gnn.cli import main
sync, room = os.fsync, int(sys.argv.pop(1))

def full(handle):
    global room
    room -= 1
    if room < 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(handle)

os.fsync = full
main()
"""


@pytest.mark.parametrize("room", [0, 5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(files: Path, room: int) -> None:
    arguments = ("fit", *GRAPH, "--out", "run", "--epochs", "6", "--checkpoint-every", "3")
    full = run(room, *arguments, cwd=files, code=FULL_DISK)
    assert full.returncode == 2, full.stderr
    assert "No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    lines = full.stderr.strip().splitlines()
    assert all(line.startswith("h3gnn: ") for line in lines)
    if room == 0:
        assert len(lines) == 1
        assert not (files / "run").exists()
        return
    assert lines[-1].endswith("continue with `h3gnn fit --resume run`")
    assert not (files / "run" / "model.json").exists()
    done = run("fit", "--resume", "run", cwd=files)
    assert done.returncode == 0, done.stderr
    assert not (files / "run" / "checkpoints").exists()


def test_a_full_disk_without_checkpoints_is_one_sentence_too(files: Path) -> None:
    arguments = ("fit", *GRAPH, "--out", "run", "--epochs", "2")
    full = run(0, *arguments, cwd=files, code=FULL_DISK)
    assert full.returncode == 2
    assert full.stderr.startswith("h3gnn: cannot read or write a file: ")
    assert len(full.stderr.strip().splitlines()) == 1
