"""The commands of the README's section "Your own graph" run as they stand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.shell import ROOT, run_commands

README = ROOT / "README.md"
HEADING = "## Your own graph"


def commands_of(text: str) -> list[str]:
    """Return the shell blocks of the section, in order."""
    section = text.split(f"{HEADING}\n", 1)[1]
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are written for a shell")
@pytest.mark.skipif(not README.exists(), reason="the README is not there yet")
def test_the_commands_for_your_own_graph_run_as_they_stand(tmp_path: Path) -> None:
    blocks = commands_of(README.read_text(encoding="utf-8"))
    assert any("h3gnn fit --edges" in block for block in blocks)
    run_commands("\n".join(blocks), tmp_path)
    rows = (tmp_path / "embeddings.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["ann", "bob", "cid", "dan", "eve"]
