"""The commands of the worked cases run, small ones always and as they stand when there is time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.shell import ROOT, run_commands

PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
CASES = {part.split(":")[0]: part for part in PAGE.split("\n## ")[1:]}
SMALLER = {
    "--preset quick": "--preset single --epochs 2 --set channels=8 --set heads=2",
    "--out fraud/": "--out fraud/ --accounts 500",
    "--out products/": "--out products/ --products 300",
    "--out papers/": "--out papers/ --papers 300",
}
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are written for a shell")


def commands_of(case: str) -> str:
    return "".join(re.findall(r"^```sh\n(.*?)^```", CASES[case], flags=re.MULTILINE | re.DOTALL))


def run(commands: str, folder: Path) -> str:
    (folder / "examples").symlink_to(ROOT / "examples")
    return run_commands(commands, folder)


@pytest.mark.parametrize(
    "case", [case if case == "Fraud" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_small_case_runs(case: str, tmp_path: Path) -> None:
    commands = commands_of(case)
    for large, small in SMALLER.items():
        commands = commands.replace(large, small)
    told = run(commands, tmp_path)
    assert "largest class's share" in told
    assert "accuracy where told" in told
    if case == "Fraud":
        new = pd.read_csv(tmp_path / "new-predictions.csv")
        assert len(new) == 50
        assert "average precision" in told


@pytest.mark.parametrize("case", CASES)
def test_after_inspect_it_is_one_command(case: str) -> None:
    used = re.findall(r"^h3gnn (\w+) (.*)$", commands_of(case), flags=re.MULTILINE)
    assert [name for name, _ in used[:2]] == ["inspect", "predict"]
    assert "--edges" in used[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_case_runs_as_it_stands(case: str, tmp_path: Path) -> None:
    told = run(commands_of(case), tmp_path)
    said = float(re.findall(r"^accuracy +([\d.]+)$", CASES[case], flags=re.MULTILINE)[0])
    found = float(re.findall(r"^accuracy +([\d.]+)$", told, flags=re.MULTILINE)[0])
    assert abs(found - said) < 0.05
