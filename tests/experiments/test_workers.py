"""Tasks in several processes: results, progress, exceptions, and a process that dies."""

from __future__ import annotations

import os
from typing import Any

import pytest

from h3gnn.baselines import Progress
from h3gnn.errors import InputError
from h3gnn.experiments.workers import THREADS, in_processes


def work(task: Any, watch: Progress) -> Any:
    name, value = task
    if name == "death":
        os._exit(3)
    if name == "input":
        raise InputError("negative\nmore")
    watch(0.5)
    return value**2, os.environ[THREADS[0]]


def test_one_failure_does_not_end_the_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS[0], "7")
    watched = []
    tasks = [("death", None), ("square", 3), ("input", -1), ("fault", "x"), ("square", 4)]
    found = {
        one.task: one
        for one in in_processes(tasks, work, 2, 1, watch=lambda task, share: watched.append((task, share)))
    }
    assert found["square", 3].record == (9, "1")
    assert found["square", 4].record == (16, "1")
    assert (("square", 3), 0.5) in watched
    failed = [found[task] for task in tasks if found[task].record is None]
    assert [(one.fault, one.foreseen) for one in failed] == [
        ("Lost", False),
        ("InputError", True),
        ("TypeError", False),
    ]
    assert failed[0].failure == "its process ended with exit code 3"
    assert failed[0].exit_code == 3
    assert failed[1].failure == "negative"
    assert os.environ[THREADS[0]] == "7"
