"""A short run of the signal, full-disk and little-memory runners; the long ones store their counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import test_input_formats, test_stored_formats
from tests.fuzz.hunting import COUNTS
from tests.fuzz.signal_rounds import COMMANDS

HERE = Path(__file__).parent
SIGNALS, SCARCE = 100, 12
"""Rounds of a long run, of each command."""
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
    play("signal_rounds.py", "--rounds", SIGNALS, "--out", HERE / "counts" / "signals.json")


@pytest.mark.slow
def test_much_that_is_scarce() -> None:
    play("scarce_rounds.py", "--rounds", SCARCE, "--out", HERE / "counts" / "scarce.json")


@pytest.mark.parametrize(("name", "rounds"), [("signals", SIGNALS), ("scarce", SCARCE)])
def test_the_stored_counts_are_of_every_command_and_tell_of_no_failure(name: str, rounds: int) -> None:
    told = json.loads((HERE / "counts" / f"{name}.json").read_text())
    assert {one for one, counts in told["commands"].items() if counts["rounds"] >= rounds} == set(COMMANDS)
    assert told["attempts"] > 0
    assert told["failures"] == 0


def test_the_stored_counts_are_of_every_format_and_tell_of_no_failure() -> None:
    told = json.loads(COUNTS.read_text())
    wanted = {
        **dict.fromkeys(test_input_formats.KINDS, test_input_formats.LONG),
        **dict.fromkeys(test_stored_formats.NAMES, test_stored_formats.LONG),
        "database of a search": test_stored_formats.OF_DATABASES[1],
    }
    assert told.keys() == wanted.keys()
    assert all(counts["attempts"] >= wanted[name] for name, counts in told.items())
    assert not any(counts["failures"] for counts in told.values())
