"""A short run of the signal, full-disk and little-memory runners; the long ones store their counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def play(runner: str, *arguments: object) -> None:
    command = [sys.executable, str(HERE / runner), *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["attempts"] > 0
    assert told["failures"] == 0


def test_signals_at_random_moments() -> None:
    play("signal_rounds.py", "--rounds", 1, "--seed", 3, "--commands", "fit with checkpoints,prepare")


def test_a_full_disk() -> None:
    play("scarce_rounds.py", "--rounds", 1, "--seed", 3, "--kinds", "disk", "--commands", "embed")


@pytest.mark.slow
def test_many_signals() -> None:
    play("signal_rounds.py", "--rounds", 100, "--out", HERE / "counts" / "signals.json")


@pytest.mark.slow
def test_much_that_is_scarce() -> None:
    play("scarce_rounds.py", "--rounds", 12, "--out", HERE / "counts" / "scarce.json")


@pytest.mark.parametrize("name", ["signals", "scarce"])
def test_the_stored_counts_tell_of_no_failure(name: str) -> None:
    told = json.loads((HERE / "counts" / f"{name}.json").read_text())
    assert told["attempts"] > 0
    assert told["failures"] == 0
