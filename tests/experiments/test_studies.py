"""Studies in storages that are damaged, locked, foreign, shared or interrupted."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from h3gnn.errors import InputError
from h3gnn.experiments import tune as studies
from h3gnn.experiments.spaces import Space
from h3gnn.experiments.tune import (
    Budget,
    Stack,
    Tuned,
    check_trials,
    connect,
    open_study,
    propose,
    storage_faults,
    tune,
)
from h3gnn.graphs.graph import Graph
from tests.program import Program

SPACE = Space({"channels": (8,), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8)})


def search(graph: Graph, storage: str, space: Space = SPACE) -> Tuned:
    study = open_study(graph, "study", storage, "validation", seed=0)
    budget = Budget(trials=4, at_once=4, joined=2, rungs=(1, 2))
    return tune(graph, study, space, budget, models=1, finalists=1, device=torch.device("cpu"))


DAMAGED: dict[str, Callable[[Path], str]] = {
    "no database": lambda home: _junk(home / "x.db", "sqlite:///{}"),
    "an empty journal line": lambda home: _junk(home / "x.log", "{}"),
    "a journal of something else": lambda home: _junk(home / "x.log", "{}", b'{"op_code": 99}\n[]\n'),
    "a torn journal": lambda home: _junk(home / "x.log", "{}", b'{"op_code": 0, "wor\n{"op'),
    "a binary journal": lambda home: _junk(home / "x.log", "{}", bytes(range(256))),
    "a folder": lambda home: f"sqlite:///{home}",
    "a folder as journal": lambda home: str(_folder(home / "x.log")),
    "no such folder": lambda home: f"sqlite:///{home}/nowhere/x.db",
    "no such folder for a journal": lambda home: f"{home}/nowhere/x.log",
    "read-only": lambda home: _read_only(home / "x.db"),
    "no address": lambda home: "nonsense",
    "an unknown kind": lambda home: "oracle9://me:secret@host/db",
    "no driver": lambda home: "mysql://me:secret@nowhere/db",
    "no longer there": lambda home: "redis://127.0.0.1:1/0",
    "another program's database": lambda home: _other_database(home / "x.db"),
}


def _junk(path: Path, form: str, content: bytes = b"garbage, and more of it" * 50) -> str:
    path.write_bytes(content)
    return form.format(path)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _read_only(path: Path) -> str:
    sqlite3.connect(path).close()
    return f"sqlite:///file:{path}?mode=ro&uri=true"


def _other_database(path: Path) -> str:
    with sqlite3.connect(path) as database:
        database.execute("create table studies (colour text)")
    return f"sqlite:///{path}"


@pytest.mark.parametrize("case", DAMAGED)
def test_a_storage_that_cannot_be_used_is_one_sentence(tmp_path: Path, case: str) -> None:
    with pytest.raises(InputError) as refused:
        connect("study", DAMAGED[case](tmp_path), seed=0)
    assert len(str(refused.value).splitlines()) == 1
    assert "storage" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_database_that_another_process_holds_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path}/x.db"
    connect("study", storage, seed=0)
    monkeypatch.setattr(studies, "PATIENCE_SECONDS", 0.01)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("begin exclusive")
    with pytest.raises(InputError, match="locked"):
        connect("another", storage, seed=0)
    other.execute("rollback")
    other.close()
    connect("another", storage, seed=0)


def test_a_disk_that_fills_up_in_the_middle_is_one_sentence(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path}/x.db"
    search(small_mixed, storage)  # the tables are there

    def full(self: Stack, results: object) -> None:
        cause = sqlite3.OperationalError("database or disk is full")
        raise optuna.exceptions.StorageInternalError("An exception is raised during the commit.") from cause

    monkeypatch.setattr(Stack, "keep", full)
    with pytest.raises(InputError, match="database or disk is full"):
        search(small_mixed, f"sqlite:///{tmp_path}/y.db")


OPENING = """
import sys, time
from pathlib import Path
from h3gnn.experiments.tune import connect
Path(sys.argv[3]).touch()
while not Path("go").exists():
    time.sleep(0.001)
connect(sys.argv[2], sys.argv[1], 0)
"""


def test_several_processes_may_begin_on_one_new_file(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/new.db"
    started = [
        Program(OPENING, storage, name, f"ready-{at}", cwd=tmp_path)
        for at, name in enumerate(("one", "one", "two"))
    ]
    while len(list(tmp_path.glob("ready-*"))) < len(started):
        assert all(process.poll() is None for process in started)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for process in started:
        _, words = process.communicate(timeout=120)
        assert process.returncode == 0, words


def _change(study: optuna.Study, **attributes: Any) -> None:
    about = {"best": 0.5, "seed": 1, **attributes}
    curve = about.pop("curve", {1: 0.5})
    kinds = {n: optuna.distributions.CategoricalDistribution(list(v)) for n, v in SPACE.proposed.items()}
    params = about.pop("params", {"channels": 8, "hops": 1, "mask_ratio": 0.3})
    study.add_trial(
        optuna.create_trial(
            value=1.0,
            params=params,
            distributions={name: kinds[name] for name in params},
            user_attrs=about,
            intermediate_values=curve,
        )
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"best": "high"},
        {"best": None},
        {"best": float("inf")},
        {"seed": "one"},
        {"curve": {}},
        {"curve": {1: float("nan")}},
        {"params": {"hops": 1}},
    ],
)
def test_trials_that_are_not_ours_are_refused(attributes: dict[str, Any]) -> None:
    study = connect("study", None, seed=0)
    _change(study)
    check_trials(study, SPACE)
    _change(study, **attributes)
    with pytest.raises(InputError, match="trial 1 of the study"):
        check_trials(study, SPACE)


TOLD = {"epochs": 1, "smoothing": 0.5, "best": 0.5, "seed": 7, "curve": [[1, 0.5]], "behind": False}


@pytest.mark.parametrize(
    "changed",
    [
        {"place": "first"},
        {"place": 1},
        {"of": 10**12},
        {"of": None},
        {"results": "no JSON"},
        {"results": "[" * 10**5},
        {"results": json.dumps([TOLD])},
        {"results": json.dumps([TOLD, {**TOLD, "curve": None}])},
        {"results": json.dumps([TOLD, {**TOLD, "best": None}])},
        {"stack": 7},
    ],
)
def test_trials_that_were_reserved_and_changed_are_refused(changed: dict[str, Any]) -> None:
    study = connect("study", None, seed=0)
    Stack.reserve(study, SPACE, 2, 0).keep([TOLD, TOLD])
    check_trials(study, SPACE)
    for name, value in changed.items():
        study._storage.set_trial_user_attr(0, name, value)
    with pytest.raises(InputError, match="trial 0 of the study study was not made by"):
        check_trials(study, SPACE)


def test_a_finished_trial_without_a_value_is_refused() -> None:
    study = connect("study", None, seed=0)
    _change(study)
    trial = study._storage.get_trial(0)
    trial.values = None
    study.get_trials = lambda **_: [trial]  # type: ignore[method-assign]
    with pytest.raises(InputError, match="trial 0 of the study study was not made by"):
        check_trials(study, SPACE)


def test_a_study_of_several_aims_is_refused() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    with pytest.raises(InputError, match="was not made by `h3gnn tune`"):
        check_trials(study, SPACE)


def test_an_error_within_the_storage_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"cannot be read or written"), storage_faults("x.log"):
        optuna.create_trial(state=optuna.trial.TrialState.COMPLETE)


def test_a_study_of_other_choices_is_refused() -> None:
    study = connect("study", None, seed=0)
    _change(study)
    with pytest.raises(InputError, match="chose hops from other values"):
        check_trials(study, SPACE.restricted({"hops": (1, 2, 3)}))


def test_proposals_depend_on_the_trials_before_and_the_seed_alone() -> None:
    one, other = (connect(name, None, seed=0) for name in ("one", "other"))
    for study in (one, other):
        _change(study)
    _change(other, best=0.9)  # number 1: after the stack that is asked about
    asked = {"first": 1, "count": 3, "seed": 5}
    assert propose(one, SPACE, **asked) == propose(other, SPACE, **asked)
    many = {str(propose(one, SPACE, first=1, count=3, seed=seed)) for seed in range(6)}
    assert len(many) > 1


class Pulled(KeyboardInterrupt):
    """The plug."""


def pull_the_plug(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the process die, as far as its study can tell, before one of the writes to the storage."""
    left = [after]

    def dying(usual: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Pulled
            return usual(*arguments, **options)

        return write

    for home, name in (
        (optuna.Study, "add_trial"),
        (optuna.Study, "tell"),
        (optuna.trial.Trial, "report"),
        (optuna.trial.Trial, "set_user_attr"),
    ):
        monkeypatch.setattr(home, name, dying(getattr(home, name)))


@pytest.fixture(scope="module")
def whole(small_mixed: Graph, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A search that nothing interrupts."""
    return search(small_mixed, f"sqlite:///{tmp_path_factory.mktemp('whole')}/study.db")


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 10, 14, 17, 18, 20, 30])
def test_an_interrupted_search_ends_where_an_uninterrupted_one_does(
    small_mixed: Graph, whole: Tuned, tmp_path: Path, after: int
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    with pytest.MonkeyPatch.context() as patch:
        pull_the_plug(patch, after)
        with pytest.raises(Pulled):
            search(small_mixed, storage)
    again = search(small_mixed, storage)
    assert again.record == whole.record
    assert again.params == whole.params
    assert [one["state"] for one in again.record["trials"]] != []
    states = {trial.state.name for trial in connect("study", storage, seed=0).get_trials()}
    assert "RUNNING" not in states


def test_what_a_living_process_or_another_machine_tries_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = connect("study", None, seed=0)
    for owner in (["elsewhere", 1], [socket.gethostname(), os.getppid()], None, ["x"], "y"):
        monkeypatch.setattr(studies, "_owner", lambda owner=owner: owner)
        Stack.reserve(study, SPACE, 1, seed=0)
    assert Stack.left_behind(study, SPACE, seed=0) is None
    monkeypatch.undo()
    mine = Stack.reserve(study, SPACE, 2, seed=0)
    taken = Stack.left_behind(study, SPACE, seed=0)
    assert taken is not None
    assert taken.token == mine.token
