"""The commands of the worked cases run: on small data always, unchanged in the slow tests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.shell import ROOT, run_in_process, run_in_shell, shell_blocks

PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
CASES = {part.split(":")[0]: part for part in PAGE.split("\n## ")[1:]}
SMALLER = {
    "--preset quick": "--preset single --epochs 2 --set channels=8 --set heads=2",
    "--out fraud/": "--out fraud/ --accounts 500",
    "--out products/": "--out products/ --products 300",
    "--out papers/": "--out papers/ --papers 300",
}
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def commands_of(case: str) -> str:
    return "".join(shell_blocks(CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_a_case_runs_on_small_data(case: str, folder: Path) -> None:
    commands = commands_of(case)
    for large, small in SMALLER.items():
        commands = commands.replace(large, small)
    output = run_in_process(commands, folder)
    assert "largest class's share" in output
    assert "share of unmarked nodes" in output
    if case == "Fraud":
        assert len(pd.read_csv(folder / "new-predictions.csv")) == 50
        assert "average precision" in output


@pytest.mark.parametrize("case", CASES)
def test_inspect_is_followed_by_one_command(case: str) -> None:
    used = re.findall(r"^h3gnn (\w+) (.*)$", commands_of(case), flags=re.MULTILINE)
    assert [name for name, _ in used[:2]] == ["inspect", "predict"]
    assert "--edges" in used[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_case_reaches_its_accuracy(case: str, folder: Path) -> None:
    accuracy = re.compile(r"^accuracy +([\d.]+)$", flags=re.MULTILINE)
    output = run_in_shell(commands_of(case), folder)
    assert abs(float(accuracy.findall(output)[0]) - float(accuracy.findall(CASES[case])[0])) < 0.05
