"""Commands of a page, run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRELUDE = """
h3gnn() { "$PYTHON" -c 'from h3gnn.cli import main; main()' "$@"; }
python() { "$PYTHON" "$@"; }
"""
"""The program under test is the one of this Python, whether or not it is installed as a command."""


def run_commands(commands: str, folder: Path) -> str:
    """Run commands in a folder; return what they print. The first that fails ends it."""
    path = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if part)
    told = {"PYTHON": sys.executable, "PYTHONPATH": path, "COLUMNS": "90", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", PRELUDE + commands],
        cwd=folder,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
