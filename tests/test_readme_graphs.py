"""The commands of the README's section "Your own graph" run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.shell import ROOT, run_in_process, run_in_shell, shell_blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = re.split(r"^## ", README.split("## Your own graph\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


@pytest.mark.parametrize("unchanged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_commands_for_your_own_graph_run(tmp_path: Path, unchanged: bool) -> None:
    commands = "\n".join(shell_blocks(SECTION))
    assert "h3gnn fit --edges" in commands
    if unchanged:
        run_in_shell(commands, tmp_path)
    else:
        run_in_process(commands.replace("--epochs 20", "--epochs 1 --set n_models=4"), tmp_path)
    rows = (tmp_path / "embeddings.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["ann", "bob", "cid", "dan", "eve"]
