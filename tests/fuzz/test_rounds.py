"""Signals at random moments, full disks and little memory, in commands that run to their end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.hunting import store

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "rounds"), [("signal_rounds.py", 20), ("scarce_rounds.py", 5)])
def test_every_round_ends_well(runner: str, rounds: int) -> None:
    command = [sys.executable, str(HERE / runner), "--rounds", str(rounds)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    name = runner.removesuffix(".py").replace("_", " ")
    about = {"rounds": rounds * len(counts["commands"])}
    store(name, {key: counts[key] for key in ("attempts", "failures")} | about)
    assert counts["attempts"] > 0
    assert counts["failures"] == 0
