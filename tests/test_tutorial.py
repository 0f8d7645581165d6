"""The commands of the tutorial run and print the output that it shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shell import ROOT, run_in_process, run_in_shell

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


def printed(run: Callable[[str, Path], str], commands: str, folder: Path) -> str:
    return "".join(f"{line.rstrip()}\n" for line in run(commands, folder).splitlines())


def test_inspect_prints_what_the_tutorial_shows(tmp_path: Path) -> None:
    for commands, output in BLOCKS[:2]:
        assert printed(run_in_process, commands, tmp_path) == output


@pytest.mark.slow
def test_the_whole_tutorial(tmp_path: Path) -> None:
    assert len(BLOCKS) == 8
    for commands, output in BLOCKS:
        assert words(printed(run_in_shell, commands, tmp_path)) == words(output)
    for name in ("run/report.html", "clusters.csv", "embeddings.csv", "map.png"):
        assert (tmp_path / name).stat().st_size > 1000


def words(text: str) -> list[str]:
    """Return the words of an output without progress lines and numbers, which depend on the machine."""
    without = re.sub(r"h3gnn: .*(scoring|placing| epochs: about | % in \d+ s \().*\n", "", text)
    return re.findall(r"[^\W\d_]{3,}", without)
