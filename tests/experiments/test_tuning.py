"""Studies: proposals, finalists, resuming, pruning, and storages that are damaged, locked or shared."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.evaluator import cluster_accuracy
from h3gnn.experiments import studies
from h3gnn.experiments.run import labels_and_masks
from h3gnn.experiments.spaces import SPACES, Space, with_objectives
from h3gnn.experiments.studies import check_study, fail_orphans, finished, open_study, storage_errors
from h3gnn.experiments.tune import Budget, ScoredTrial, Searcher, Tuned, start_of, tune
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.storage.runs import made_with
from tests.rejects import rejects

CPU = torch.device("cpu")
SPACE = Space(
    {"channels": (8,), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8), "learning_rate": (0.001, 0.01)}
)


def run(
    graph: Graph, storage: str | None = None, trials: int = 4, space: Space = SPACE, **changes: Any
) -> Tuned:
    study = open_study(graph, "study", storage, changes.get("objective", "validation"))
    budget = Budget(trials=trials, joined=2, eval_epochs=(1, 2))
    return tune(graph, study, space, budget, **{"models": 3, "finalists": 2, "device": CPU, **changes})


@pytest.fixture(scope="module")
def complete(small_mixed: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, str]:
    """An uninterrupted search, and its storage."""
    storage = f"{tmp_path_factory.mktemp('complete')}/study.log"  # a journal; a database is slower
    return run(small_mixed, storage), storage


def test_a_search_returns_a_preset_for_the_estimator(small_mixed: Graph, complete: tuple[Tuned, str]) -> None:
    found = complete[0]
    assert found.params["epochs"] in (1, 2)
    assert found.params["n_models"] == 3
    assert found.made["trials"] == 4
    assert found.made["sha256"] == small_mixed.provenance.sha256
    assert [trial["seed"] for trial in found.record["trials"]] == [1000 * number for number in range(4)]
    assert found.made["trainings"] == 4 + 2
    assert found.made["origin"] == made_with()["origin"]
    asked = found.record["search"]
    assert asked["space"] == {name: list(values) for name, values in SPACE.choices.items()}
    assert {name: asked[name] for name in ("trials", "joined", "eval_epochs", "seconds", "start")} == {
        "trials": 4, "joined": 2, "eval_epochs": [1, 2], "seconds": None, "start": "single"
    }  # fmt: skip
    assert (asked["models"], asked["finalists"], asked["splits"], asked["seed"]) == (3, 2, None, 0)
    finalists = [max(score for _, _, score in one["looks"]) for one in found.record["finalists"]]
    assert found.made["score"] == pytest.approx(max(finalists), abs=1e-5)
    embedding = H3GNN.from_preset("single", **found.params).fit_transform(small_mixed)
    assert embedding.shape == (100, 3 * 8 * (2 + found.params["hops"]))


def test_the_first_trial_of_a_committee_is_the_default(small_mixed: Graph) -> None:
    space = SPACES["committee"].restricted({"channels": [8], "hops": [2, 1], "smoothing": [0.0, 0.5]})
    found = run(small_mixed, trials=2, space=space, finalists=1)
    tried = [trial["params"] for trial in found.record["trials"]]
    default = {name: value for name, value in H3GNN(channels=8).get_settings().items() if name in tried[0]}
    assert with_objectives(tried[0]) == {**default, "objective": list(default["objective"])}
    assert found.params["edge_weights"] == "fixed"  # the default of an argument outside the space
    assert "+" not in found.params["objective"]
    H3GNN.from_settings(found.params)
    (finalist,) = found.record["finalists"]  # every smoothing is tried on every trained model
    assert {(epoch, value) for epoch, value, _ in finalist["looks"]} == {
        (epoch, value) for epoch in (1, 2) for value in (0.0, 0.5)
    }
    best = max(finalist["looks"], key=lambda look: look[2])
    assert [found.params["epochs"], found.params["smoothing"]] == best[:2]
    assert "smoothing" not in tried[0]


def test_the_default_is_the_first_choice_of_the_committee() -> None:
    default = H3GNN().get_settings()
    for name, values in SPACES["committee"].choices.items():
        if name not in ("objective", "smoothing"):
            assert values[0] == default[name], name
    assert SPACES["committee"].choices["objective"][0] == "+".join(default["objective"])


def test_a_trial_trains_what_the_estimator_trains(small_mixed: Graph) -> None:
    """Scoring on the way changes nothing, and a shorter trial is the beginning of a longer one."""
    seen: dict[int, list[Tensor]] = {}

    def keep(rows: Tensor) -> float:
        seen.setdefault(len(seen), []).append(rows.clone())
        return 0.5

    params = {"channels": 8, "mask_ratio": 0.5}
    searcher = Searcher(small_mixed, start_of(SPACE), keep, CPU)
    searcher.run(params, 7, 2, [1, 3])
    (first,), (last,) = seen.values()
    for epochs, rows in ((1, first), (3, last)):
        changes = {"schedule": "constant", "smoothing": 0.0, "n_models": 2, "random_state": 7}
        model = H3GNN.from_preset("single", **params, **changes, epochs=epochs, device="cpu")
        torch.testing.assert_close(rows, torch.from_numpy(model.fit_transform(small_mixed)))


def test_repeats_are_averaged_score_by_score() -> None:
    one = ScoredTrial({"hops": 2}, 7, {(10, 0.0): 0.9, (10, 0.5): 0.6, (20, 0.0): 0.5})
    two = ScoredTrial({"hops": 2}, 8, {(10, 0.0): 0.3, (10, 0.5): 0.8, (20, 0.0): 0.5})
    both = ScoredTrial.mean([one, two])
    assert both.scores == pytest.approx({(10, 0.0): 0.6, (10, 0.5): 0.7, (20, 0.0): 0.5})
    assert both.score == pytest.approx(0.7)
    assert both.best == (10, 0.5)
    assert both.curve == pytest.approx({10: 0.7, 20: 0.5})


def test_finalists_may_be_repeated_and_probed(small_mixed: Graph) -> None:
    found = run(small_mixed, trials=2, repeats=2, probed=True)
    assert found.made["trainings"] == 2 + 2 * 2  # the trials, and two finalists twice
    assert found.record["search"]["final_seeds"] == [77_000_000, 77_001_000]
    assert (found.made["repeats"], found.made["scored_by"]) == (2, "validation, linear probe")
    assert 0 < found.made["score"] <= 1


def test_clusters_are_scored_on_validation_nodes_alone() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    val = torch.tensor([[True, False, True, True, False, True]]).t()
    apart = torch.tensor([0.0, 9, 0, 9, 0, 9])[:, None]  # nodes 1 and 4 are wrong, and not validated
    score = cluster_accuracy(labels, val, 2, n_init=3)
    assert [score(apart), score(torch.full_like(apart, torch.nan))] == [1.0, 0.0]
    assert cluster_accuracy(labels, torch.ones(6, 1, dtype=torch.bool), 2)(apart) == 4 / 6


@pytest.mark.parametrize("options", [{}, {"probed": True}, {"objective": "clustering"}])
def test_labels_of_test_nodes_do_not_matter(small_mixed: Graph, options: dict[str, Any]) -> None:
    one = first_splits(small_mixed, 1)
    labels, _, _, test = labels_and_masks(one)
    garbled = replace(one, labels=torch.where(test[:, 0], labels.max() - labels, labels))
    first, second = (run(graph, trials=2, finalists=1, models=1, **options) for graph in (one, garbled))
    assert first.record == second.record
    assert 0 < first.made["score"] <= 1
    assert first.made["protocol"] == "pooled"


def test_without_labels_clusters_are_compared(small_mixed: Graph) -> None:
    bare = replace(small_mixed, labels=None, train_mask=None, val_mask=None, test_mask=None, class_names=())
    with rejects("no-labels"):
        run(bare)
    found = run(bare, objective="label-free", trials=2, clusters=4, finalists=1, models=1)
    assert found.made["protocol"] == "no labels"
    assert 0 < found.made["score"] <= 1


@pytest.mark.parametrize("name", SPACES)
def test_every_value_of_a_space_is_an_argument_that_is_accepted(name: str) -> None:
    from h3gnn.settings import check_arguments

    for argument, values in SPACES[name].choices.items():
        for value in values:
            check_arguments(with_objectives({**start_of(SPACES[name]), argument: value}))


def scored(monkeypatch: pytest.MonkeyPatch, score: Callable[[dict[str, Any], int], float]) -> list[int]:
    """Replace training by a formula; return the list of the epochs that were scored."""
    epochs_run: list[int] = []

    def made_up(self: Searcher, params: Any, seed: int, models: int, epochs: Any, after: Any = None) -> Any:
        trial = ScoredTrial(dict(params), seed)
        for epoch in epochs:
            epochs_run.append(epoch)
            trial.scores[epoch, 0.0] = score(trial.params, epoch)
            if after is not None:
                after(epoch, trial)
        return trial

    monkeypatch.setattr(Searcher, "run", made_up)
    return epochs_run


def test_a_trial_below_the_median_is_pruned(small_mixed: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space({"hops": (1, 2), "mask_ratio": tuple(one / 50 for one in range(1, 41))})
    epochs_run = scored(monkeypatch, lambda params, epoch: params["mask_ratio"])
    study = open_study(small_mixed, "study", None, "validation")
    budget = Budget(trials=30, eval_epochs=(1, 2, 4))
    found = tune(small_mixed, study, space, budget, finalists=1, device=CPU)
    states = [trial["state"] for trial in found.record["trials"]]
    assert len(states) == 30
    assert states[:12] == ["complete"] * 12
    assert "pruned" in states
    assert len(epochs_run) < 3 * 31
    best = max(trial["params"]["mask_ratio"] for trial in found.record["trials"])
    assert found.params["mask_ratio"] == best


def test_a_trial_that_does_not_fit_into_memory_is_recorded(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(params: dict[str, Any], epoch: int) -> float:
        raise torch.OutOfMemoryError

    scored(monkeypatch, full)
    study = open_study(small_mixed, "study", None, "validation")
    with rejects("no-trial"):
        tune(small_mixed, study, SPACE, Budget(trials=2), device=CPU)
    assert finished(study) == 2
    assert all(trial.user_attrs["failed"] == "out of memory" for trial in study.trials)


def content(found: Tuned) -> dict[str, Any]:
    return {**found.record, "params": found.params}


def test_a_study_continues(small_mixed: Graph, tmp_path: Path, complete: tuple[Tuned, str]) -> None:
    storage = f"{tmp_path}/study.log"
    first = run(small_mixed, storage, trials=2)
    second = run(small_mixed, storage, trials=4)
    assert second.record["trials"][:2] == first.record["trials"]
    assert content(second) == content(complete[0])


@pytest.mark.parametrize(
    ("after", "form"), [*((n, "{}/x.log") for n in (0, 1, 6, 9)), (4, "sqlite:///{}/x.db")]
)
def test_an_interrupted_search_ends_where_an_uninterrupted_one_does(
    small_mixed: Graph, complete: tuple[Tuned, str], tmp_path: Path, after: int, form: str
) -> None:
    """An interruption before any write of a trial to the storage."""
    storage, left = form.format(tmp_path), [after]

    def dying(usual: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return usual(*arguments, **options)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for name in ("report", "set_user_attr", "suggest_categorical"):
            patch.setattr(optuna.trial.Trial, name, dying(getattr(optuna.trial.Trial, name)))
        with pytest.raises(KeyboardInterrupt):
            run(small_mixed, storage)
    assert content(run(small_mixed, storage)) == content(complete[0])


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_trials_of_dead_processes_are_repeated(
    small_mixed: Graph, tmp_path: Path, complete: tuple[Tuned, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = open_study(small_mixed, "study", storage, "validation")
    gone = subprocess.Popen(["true"])
    gone.wait()
    study.ask().set_user_attr("owner", [socket.gethostname(), gone.pid])
    study.ask()  # killed before it wrote its owner
    monkeypatch.setattr(studies, "CLAIM_SECONDS", 0.0)
    assert content(run(small_mixed, storage)) == content(complete[0])
    running = [study.ask() for _ in range(4)]
    owners: list[Any] = [["elsewhere", 1], [socket.gethostname(), os.getppid()], "y", ["x"]]
    for trial, owner in zip(running, owners, strict=True):
        trial.set_user_attr("owner", owner)
    fail_orphans(study)
    assert all(study.trials[one.number].state.name == "RUNNING" for one in running)


def test_a_study_of_another_graph_or_objective_is_rejected(
    small_mixed: Graph, path_graph: Graph, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    open_study(small_mixed, "study", storage, "validation")
    for graph, objective in ((path_graph, "validation"), (small_mixed, "clustering")):
        with rejects("study-mismatch"):
            open_study(graph, "study", storage, objective)


def test_a_study_of_another_space_is_rejected(small_mixed: Graph, complete: tuple[Tuned, str]) -> None:
    study = open_study(small_mixed, "study", complete[1], "validation")
    check_study(study, SPACE)
    for other in ({"hops": (1, 2, 3)}, {"heads": (2, 4)}):
        with rejects("study-space"):
            check_study(study, SPACE.restricted(other))
    with rejects("study-space"):
        check_study(optuna.create_study(directions=["maximize", "minimize"]), SPACE)


DAMAGED: dict[str, Callable[[Path], str]] = {
    "no database": lambda home: _junk(home / "x.db", "sqlite:///{}"),
    "an empty journal line": lambda home: _junk(home / "x.log", "{}"),
    "a journal of something else": lambda home: _junk(home / "x.log", "{}", b'{"op_code": 99}\n[]\n'),
    "a torn journal": lambda home: _junk(home / "x.log", "{}", b'{"op_code": 0, "wor\n{"op'),
    "a binary journal": lambda home: _junk(home / "x.log", "{}", bytes(range(256))),
    "a folder": lambda home: f"sqlite:///{home}",
    "a folder as journal": lambda home: _folder(home / "x.log"),
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


def _folder(path: Path) -> str:
    path.mkdir()
    return str(path)


def _read_only(path: Path) -> str:
    sqlite3.connect(path).close()
    return f"sqlite:///file:{path}?mode=ro&uri=true"


def _other_database(path: Path) -> str:
    with sqlite3.connect(path) as database:
        database.execute("create table studies (colour text)")
    return f"sqlite:///{path}"


@pytest.mark.parametrize("case", DAMAGED)
def test_an_unusable_storage_is_rejected(tmp_path: Path, small_mixed: Graph, case: str) -> None:
    with rejects("storage") as caught:
        open_study(small_mixed, "study", DAMAGED[case](tmp_path), "validation")
    assert len(caught.message.splitlines()) == 1
    assert "secret" not in caught.message


def test_a_locked_database_is_rejected(
    tmp_path: Path, small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path}/x.db"
    open_study(small_mixed, "study", storage, "validation")
    monkeypatch.setattr(studies, "TIMEOUT", 0.01)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("begin exclusive")
    with rejects("storage"):
        open_study(small_mixed, "another", storage, "validation")
    other.execute("rollback")
    other.close()
    open_study(small_mixed, "another", storage, "validation")


def test_a_full_disk_during_a_search_is_reported(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: optuna.Trial, value: float, step: int) -> None:
        cause = sqlite3.OperationalError("database or disk is full")
        raise optuna.exceptions.StorageInternalError("An exception is raised during the commit.") from cause

    monkeypatch.setattr(optuna.Trial, "report", full)
    with rejects("storage") as caught:
        run(small_mixed, f"sqlite:///{tmp_path}/y.db")
    assert "database or disk is full" in caught.message
    with rejects("storage"), storage_errors("x.log"):
        optuna.create_trial(state=optuna.trial.TrialState.COMPLETE)


@pytest.mark.filterwarnings("ignore")  # which warnings are shown is a property of the process
def test_a_new_file_can_be_opened_several_times_at_once(small_mixed: Graph, tmp_path: Path) -> None:
    storage, names = f"sqlite:///{tmp_path}/new.db", ("one", "one", "two")
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda name: open_study(small_mixed, name, storage, "validation"), names))
    assert [study.study_name for study in opened] == list(names)
    assert sorted(optuna.get_all_study_names(storage)) == ["one", "two"]
