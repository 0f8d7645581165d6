"""The commands of the worked cases run: on small data always, unchanged in the slow tests."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import cases
from h3gnn.graphs.datasets import data_folders
from tests.graphs.bitcoin import many_ratings, pin, write_raw
from tests.shell import ROOT, run_in_process, run_in_shell, shell_blocks

PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
CASES = {part.split(":")[0]: part for part in PAGE.split("\n## ")[1:]}
SMALLER = {
    "--preset quick": "--preset single --epochs 2 --set channels=8 --set heads=2",
    "--out fraud/": "--out fraud/ --accounts 800",
    "--out products/": "--out products/ --products 300",
    "--out papers/": "--out papers/ --papers 300",
}
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("benchmarks", "examples", "reproduction"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def commands_of(case: str) -> str:
    return "".join(shell_blocks(CASES[case]))


def without_rivals(commands: str) -> str:
    """Leave out the lines that compare; tests/test_cases_benchmark.py runs it."""
    return re.sub(r"^python -m benchmarks.*\n", "", commands, flags=re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_a_case_runs_on_small_data(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(many_ratings(), monkeypatch)
    write_raw(folder / "data", many_ratings())
    monkeypatch.setenv("H3GNN_DATA", str(folder / "data"))
    commands = without_rivals(commands_of(case))
    for large, small in SMALLER.items():
        commands = commands.replace(large, small)
    output = run_in_process(commands, folder)
    assert re.search("Held-out (accuracy|average precision) by what the heads use", output)
    assert "share of unmarked nodes" in output
    assert "share unmarked" in output
    if case == "Fraud":
        assert len(pd.read_csv(folder / "new-predictions.csv")) == 80
        assert "average precision of yes" in output


@pytest.mark.parametrize("case", CASES)
def test_inspect_is_followed_by_one_command(case: str) -> None:
    used = re.findall(r"^h3gnn (\w+) (.*)$", commands_of(case), flags=re.MULTILINE)
    used = [one for one in used if one[0] != "download"]
    assert [name for name, _ in used[:2]] == ["inspect", "predict"]
    assert "--edges" in used[1][1]


@pytest.mark.parametrize("case", CASES)
def test_the_page_shows_predictions_beside_those_of_rivals(case: str) -> None:
    rows = re.findall(r"^\| (\S.*?) \| ([\d.]+) ± ", CASES[case], flags=re.MULTILINE)
    assert [title for title, _ in rows][:3] == ["`h3gnn predict`", "boosting", "boosting + neighbours"]
    values = re.findall(r"^(?:average precision|accuracy) +([\d.]+)", CASES[case], flags=re.MULTILINE)
    assert rows[0][1] in values


@pytest.mark.parametrize("case", CASES)
def test_rivals_are_given_the_tables_of_predict(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[argparse.Namespace] = []

    def compare(one: argparse.Namespace) -> str:
        given.append(one)
        return ""

    monkeypatch.setattr(cases, "compare", compare)
    (command,) = re.findall(r"^python -m benchmarks.cases (.*)$", commands_of(case), flags=re.MULTILINE)
    cases.main(shlex.split(command))
    (predict,) = re.findall(r"^h3gnn predict (.* --preset .*)$", commands_of(case), flags=re.MULTILINE)
    words = shlex.split(predict)
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    assert [str(path) for path in given[0].edges] == [options["--edges"]]
    features = [options["--features"]] if "--features" in options else []
    assert [str(path) for path in given[0].features] == features
    assert str(given[0].predictions) == options["--out"]
    assert given[0].label_column == options.get("--label-column")
    assert (given[0].labels and str(given[0].labels)) == options.get("--labels")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_case_reaches_its_accuracy(case: str, folder: Path) -> None:
    raw = [root / "bitcoin-otc" / "raw" for root in data_folders()]
    if "h3gnn download" in commands_of(case) and not any(path.is_dir() for path in raw):
        pytest.skip("the files of bitcoin-otc are not there")
    accuracy = re.compile(r"^accuracy +([\d.]+)$", flags=re.MULTILINE)
    output = run_in_shell(commands_of(case), folder)
    assert abs(float(accuracy.findall(output)[0]) - float(accuracy.findall(CASES[case])[0])) < 0.05


def test_the_first_example_of_the_readme_is_the_fraud_case() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    commands = re.sub(r" +#.*", "", shell_blocks(readme)[0]).splitlines()
    known = commands_of("Fraud").replace("fraud-run/", "run/").replace("new-predictions.csv", "new.csv")
    assert len(commands) == 5
    assert set(commands) <= set(known.splitlines())
    rows = dict(re.findall(r"^\| (\S.*?) \| ([\d.]+) ± ", CASES["Fraud"], flags=re.MULTILINE))
    figures = [rows[name] for name in ("`h3gnn predict`", "boosting", "boosting + neighbours")]
    assert re.findall(r"\b0\.\d{3}\b", readme) == figures
