"""The commands of the tutorial run as they stand, and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
PRELUDE = """
h3gnn() { "$PYTHON" -c 'from h3gnn.cli import main; main()' "$@"; }
python() { "$PYTHON" "$@"; }
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are written for a shell")


def run(commands: str, folder: Path) -> str:
    """Return what shell commands print, each line without its end of spaces."""
    path = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if part)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", PRELUDE + commands],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": path, "COLUMNS": "90"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return "\n".join(line.rstrip() for line in ended.stdout.splitlines()) + "\n"


def test_the_files_and_what_is_said_about_them(tmp_path: Path) -> None:
    (make, made), (inspect, inspected) = BLOCKS[:2]
    assert run(make, tmp_path) == made
    assert run(inspect, tmp_path) == inspected


@pytest.mark.slow
def test_the_whole_tutorial(tmp_path: Path) -> None:
    assert len(BLOCKS) == 8
    for commands, printed in BLOCKS:
        said = run(commands, tmp_path)
        assert words(said) == words(printed)
    for name in ("run/report.html", "clusters.csv", "embeddings.csv", "map.png"):
        assert (tmp_path / name).stat().st_size > 1000


def words(text: str) -> list[str]:
    """Return a text without its numbers, which differ between processors, and without how long it took.

    Nor with the lines that stand for a bar where there is no terminal.
    """
    without = re.sub(r"h3gnn: .*( epochs: about | % in \d+ s \().*\n", "", text)
    return re.findall(r"[^\W\d_]{3,}", without)
