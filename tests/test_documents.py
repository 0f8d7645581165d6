"""Results and names in the documents match the stored results and the code."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import scale_accuracy, tables
from h3gnn import H3GNN
from h3gnn.training.objectives import assign_objectives

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PARTS = {path.stem for path in (ROOT / "src" / "h3gnn").iterdir()} | {"h3gnn", "benchmarks"}
NAME = re.compile(r"`(\w+(?:\.\w+)+)")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_match_the_stored_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tables.filled(text) == text
    assert len(tables.MARKED.findall(text)) == text.count("\n<!-- stored:") == text.count("\n<!-- end -->")


def test_every_table_is_in_one_document() -> None:
    marks = [mark for path in PAGES for mark in tables.MARKED.findall(path.read_text(encoding="utf-8"))]
    assert Counter(name for _, name, _, _ in marks) == Counter(list(tables.PIECES))


def test_tables_are_written_between_their_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.PIECES, "cpu", lambda: "| new |")
    around = "before\n\n<!-- stored: cpu -->\n\n{}\n\n<!-- end -->\n\nafter | old |\n"
    assert tables.filled(around.format("| old |")) == around.format("| new |")


def test_figures_have_readable_units() -> None:
    times = [tables._time(one) for one in (2.86, 131.06, 6172.6, 61726.4)]
    assert times == ["2.9 s", "131 s", "103 min", "17 h"]
    assert [tables._gigabytes(one) for one in (1e9 / 2**20, 204e9 / 2**20)] == ["1.0 GB", "204 GB"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_names_in_the_documents_exist(path: Path) -> None:
    dotted = [name.split(".") for name in set(NAME.findall(path.read_text(encoding="utf-8")))]
    ours = [name for name in dotted if name[0] in PARTS and name[-1] not in ("md", "py", "toml")]
    assert not [name for name in map(".".join, ours) if not exists(name)]


def exists(name: str) -> bool:
    """Return whether a dotted name is a module of ours, or an object in one."""
    parts = name.split(".") if name.startswith(("h3gnn.", "benchmarks.")) else ["h3gnn", *name.split(".")]
    found, at = importlib.import_module(parts[0]), 1
    while at < len(parts) and importlib.util.find_spec(".".join(parts[: at + 1])) is not None:
        at += 1
        found = importlib.import_module(".".join(parts[:at]))
        if not hasattr(found, "__path__"):
            break
    for part in parts[at:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_the_method_page_lists_where_the_defaults_differ_from_the_paper() -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    section = page.split("## Where the defaults differ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|", section, flags=re.MULTILINE)
    listed = {name for names, _, _ in rows for name in re.findall(r"\w+", names)}
    default, paper = H3GNN().get_settings(), H3GNN.from_preset("paper").get_settings()
    assert listed == {name for name in default if default[name] != paper[name]}
    for names, *values in rows:
        for params, value in zip((paper, default), values, strict=True):
            shown, actual = value.split(", "), [params[one] for one in re.findall(r"\w+", names)]
            if all(re.fullmatch(r"[\d.]+", one) for one in shown):
                assert list(map(float, shown)) == list(map(float, actual))


def test_the_accuracy_of_batches_is_measured_with_equal_numbers_of_steps() -> None:
    ways = scale_accuracy.settings_of(nodes=2708, batch_size=512, epochs=25)  # six batches
    assert ways["full graph"]["epochs"] == 150
    assert ways["mini-batches"]["epochs"] == 25
    assert ways["full graph"]["warmup_epochs"] == 10
    assert ways["mini-batches"]["warmup_epochs"] == 2


def test_models_of_one_objective_are_adjacent() -> None:
    objectives = H3GNN().objective
    members = assign_objectives(objectives, 3 * len(objectives))
    assert [set(members[at : at + 3]) for at in range(0, len(members), 3)] == [{one} for one in objectives]
