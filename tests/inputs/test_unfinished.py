"""An unfinished run is reported by every command, and continued by the command that began it."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, UnfinishedWarning
from h3gnn.training.history import History
from tests.cli.test_resume import invoke_until
from tests.inputs.tables import command, ring, save
from tests.program import call, invoke
from tests.rejects import rejects

NODES = 40
EPOCHS, DONE = 6, 3
TABLES = ("--edges", "edges.csv", "--features", "features.csv", "--labels", "labels.csv")
SETTINGS = ("--preset", "single", "--epochs", EPOCHS, "--set", "channels=8", "--set", "encoder.heads=2")
FIT = ("fit", *TABLES, *SETTINGS, "--device", "cpu", "--out", "run")
PREDICT = ("predict", "run", *TABLES, *SETTINGS, "--device", "cpu", "--head", "logistic", "--out", "p.csv")
OTHERS: dict[str, tuple[object, ...]] = {
    "embed": ("embed", "run", "--out", "new.csv"),
    "embed new nodes": (
        *("embed", "run", "--out", "new.csv"),
        *("--new-features", "new_features.csv", "--new-edges", "new_edges.csv"),
    ),
    "predict": ("predict", "run", "--head", "logistic", "--out", "new.csv"),
    "similar": ("similar", "run", "n1", "--out", "new.csv"),
    "anomalies": ("anomalies", "run", "--out", "new.csv"),
    "links": ("links", "run", "--check", "none", "--out", "new.csv"),
    "cluster": ("cluster", "run", "--out", "new.csv"),
    "evaluate": ("evaluate", "run"),
    "report": ("report", "run", "--map", "pca", "--out", "new.html"),
    "report with": ("report", "finished", "--with", "run", "--map", "pca", "--out", "new.html"),
    "plot": ("plot", "run", "--kind", "history", "--out", "new.png"),
    "export": ("export", "run", "--to", "csv", "--out", "new.csv"),
}
"""Every command that opens a run."""


def write_tables(folder: Path) -> None:
    ids = [f"n{i}" for i in range(NODES)]
    values = {"x": [i % 7 / 7 for i in range(NODES)], "z": [i % 5 + 0.5 for i in range(NODES)]}
    save(ring(ids), folder / "edges")
    save(pd.DataFrame({"id": ids, **values}), folder / "features")
    save(pd.DataFrame({"id": ids, "label": ["red", "blue"] * (NODES // 2)})[:30], folder / "labels")
    save(pd.DataFrame({"id": ["new"], "x": [0.5], "z": [0.5]}), folder / "new_features")
    save(pd.DataFrame({"source": ["new"], "target": ["n1"]}), folder / "new_edges")


def interrupt(*arguments: object) -> None:
    """Run a command that Ctrl-C ends after `DONE` epochs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = invoke_until(DONE, lambda: signal.raise_signal(signal.SIGINT), *arguments)
    signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130, done.output


def kill(*arguments: object) -> None:
    """Run a command that ends within an epoch, and saves nothing."""
    assert invoke_until(DONE + 1, lambda: sys.exit(9), *arguments).exit_code == 9


def _lose_checkpoints() -> None:
    interrupt(*FIT)
    shutil.rmtree("run/checkpoints")


def _fit_again() -> None:
    shutil.copytree("finished", "run")
    kill(*FIT, "--set", "learning_rate=0.01", "--checkpoint-every", 1)


BEGUN: dict[str, Callable[[], object]] = {
    "interrupted": lambda: interrupt(*FIT),
    "killed": lambda: kill(*FIT, "--checkpoint-every", 1),
    "without checkpoints": _lose_checkpoints,
    "in place of a finished one": _fit_again,
}
"""Ways to an unfinished run."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the tables, a finished run and an unfinished one, for each way there."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("finished")
        write_tables(base)
        patch.chdir(base)
        call(*FIT[:-1], "finished")
        for name, begin in BEGUN.items():
            found[name] = shutil.copytree(base, tmp_path_factory.mktemp("begun") / "work")
            patch.chdir(found[name])
            begin()
    return found


@pytest.fixture
def enter(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Change into a copy of one of the folders."""

    def into(name: str) -> None:
        monkeypatch.chdir(shutil.copytree(folders[name], tmp_path / "work"))

    return into


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", OTHERS)
def test_every_command_reports_an_unfinished_run(enter: Callable[[str], None], name: str) -> None:
    enter("interrupted")
    before = contents()
    with rejects("unfinished-run") as error:
        invoke(*OTHERS[name])
    assert f"{DONE} of {EPOCHS} epochs" in error.message
    assert "h3gnn fit --resume run" in error.message
    assert contents() == before
    done = invoke(*OTHERS[name], "--unfinished")
    assert done.exit_code == 0, done.output
    assert f"{DONE} of {EPOCHS} epochs" in done.stderr


@pytest.mark.parametrize("state", ["killed", "without checkpoints", "in place of a finished one"])
@pytest.mark.parametrize("name", ["embed", "predict", "evaluate"])
def test_no_kind_of_unfinished_run_answers(enter: Callable[[str], None], state: str, name: str) -> None:
    enter(state)
    with rejects("unfinished-run") as error:
        invoke(*OTHERS[name])
    assert ("--resume" in error.message) == (state != "without checkpoints")


def test_a_resumed_run_answers(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    call("fit", "--resume", "run")
    for name in ("run", "finished"):
        call("embed", name, "--out", f"{name}.csv")
    assert Path("run.csv").read_bytes() == Path("finished.csv").read_bytes()


@pytest.mark.parametrize("end", [interrupt, kill])
@pytest.mark.parametrize("begin", [PREDICT, FIT, (*FIT, "--embeddings", "e.csv", "--checkpoint-every", 1)])
def test_predict_issued_again_resumes(
    enter: Callable[[str], None], end: Callable[..., None], begin: tuple[object, ...]
) -> None:
    enter("interrupted")
    shutil.rmtree("run")
    end(*begin)
    assert not Path("p.csv").exists()
    begun = [len(list(Path("run").glob("checkpoints/epoch-*")))]
    done = invoke(*PREDICT)
    assert done.exit_code == 0, done.output
    assert ("continuing" in done.stderr) == bool(begun[0])
    assert not Path("run/checkpoints").exists()
    assert Path("e.csv").exists() == ("e.csv" in begin)
    call("predict", "finished", "--head", "logistic", "--out", "whole.csv")
    assert Path("p.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (("--seed", 3), "other-run"),
        (("--epochs", 9), "other-run"),
        (("--labels", "features.csv", "--label-column", "z"), "other-run"),
        (("--unfinished",), "unfinished-and-edges"),
    ],
)
def test_predict_does_not_continue_another_run(
    enter: Callable[[str], None], changes: tuple[object, ...], code: str
) -> None:
    enter("interrupted")
    before = contents()
    with rejects(code):
        invoke(*PREDICT, *changes)
    assert contents() == before


def test_after_damage_predict_continues(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    start = next(Path("run/checkpoints").glob("start-*"))
    start.write_bytes(start.read_bytes()[:-1])
    call(*PREDICT)
    assert not Path("run/checkpoints").exists()


def test_predict_issued_again_uses_its_finished_run(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    shutil.rmtree("run")
    call(*PREDICT)
    before = contents()
    Path("p.csv").unlink()
    call(*PREDICT)
    assert contents() == before
    for changes in (("--epochs", EPOCHS + 1), ("--seed", 1), ("--undirected",)):
        with rejects("already-fitted"):
            invoke(*PREDICT, *changes)


def test_json_carries_the_code_of_an_unfinished_run(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    code, printed, _ = command(*OTHERS["evaluate"])
    assert (code, printed["error"]["code"]) == (1, "unfinished-run")


def test_scores_name_the_epochs_that_were_trained(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    for run, epochs in (("run", DONE), ("finished", EPOCHS)):
        code, printed, text = command("evaluate", run, "--unfinished")
        assert code == 0, text
        assert {one["epoch"] for one in printed["chosen"][0]} == {epochs}


def test_loading_an_unfinished_model_warns(enter: Callable[[str], None]) -> None:
    enter("interrupted")
    with pytest.warns(UnfinishedWarning, match=f"{DONE} of {EPOCHS}"):
        model = H3GNN.load("run")
    assert len(model.embedding_) == NODES
    H3GNN.load("finished")


def test_an_untrained_model_is_finished(tmp_path: Path) -> None:
    x: Any = np.eye(6, dtype=np.float32)
    ends = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    H3GNN.from_preset("single", epochs=0, channels=8, heads=2).fit(x, edge_index=ends).save(tmp_path / "run")
    H3GNN.load(tmp_path / "run")
    code, _, text = command("embed", tmp_path / "run", "--out", tmp_path / "e.csv")
    assert code == 0, text


@pytest.mark.parametrize(
    ("loss", "completed"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], 2),
        ([[1.0, 2.0], [1.0, np.nan]], 1),  # the second group of models was stopped
        ([[1.0, np.nan]], 0),  # and had not begun
    ],
)
def test_an_epoch_counts_once_all_models_completed_it(loss: list[list[float]], completed: int) -> None:
    assert History({"loss": np.array(loss)}).completed == completed
    assert History().completed == 0
