"""A result says which commit made it, and its reader sees which parts of the code have changed since."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from h3gnn.storage import origin as module
from h3gnn.storage.origin import PACKAGE, PARTS, commit, fingerprint_of, made_with, modules_of, origin

ROOT = PACKAGE.parent.parent
CODE = '''"""What it is."""
def one(values, end=None):
    """Say what and why."""
    first = values[:end]  # a comment
    return first
NUMBER = 3
"""What the number is."""
'''


def fingerprint(folder: Path, text: str, name: str = "one.py") -> str:
    (folder / name).write_text(text)
    return fingerprint_of([folder / name], folder)


def test_words_about_the_code_change_no_fingerprint(tmp_path: Path) -> None:
    plain = (
        "def one(values,\n        end = None):\n    first = (values[:end])\n\n    return first\nNUMBER = 3\n"
    )
    assert fingerprint(tmp_path, plain) == fingerprint(tmp_path, CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3", "4"),
        ("3", "3.0"),
        ("3", "None"),
        ("[:end]", "[end:]"),
        ("[:end]", "[end]"),
        ("return first", "return"),
        ("return first", "return values"),
        ("end=None", "end=()"),
        ("values, end=None", "values, *, end=None"),
        ("    return first", "return_first"),
    ],
)
def test_code_that_does_something_else_has_another_fingerprint(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, CODE.replace(old, new)) != fingerprint(tmp_path, CODE)


def test_a_module_under_another_name_has_another_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path, CODE, "two.py") != fingerprint(tmp_path, CODE)


def test_every_module_that_trains_or_scores_belongs_to_one_part() -> None:
    placed = [path for part in PARTS for path in modules_of(part)]
    assert len(set(placed)) == len(placed)
    for pattern in (pattern for patterns in PARTS.values() for pattern in patterns):
        assert list(PACKAGE.glob(pattern)), pattern
    for package in ("encoder", "training", "evaluation", "baselines"):
        assert set((PACKAGE / package).rglob("*.py")) <= set(placed)
    assert list(module.code()) == [*PARTS, "presets"]
    assert len(set(module.code().values())) == 4


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in a checkout of its own, with one commit."""
    package = tmp_path / "src" / "h3gnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(module, "PACKAGE", package)
    monkeypatch.delenv("H3GNN_COMMIT", raising=False)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    commit.cache_clear()
    yield tmp_path
    commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def again() -> str:
    commit.cache_clear()
    return commit()


def test_the_commit_is_that_of_the_checkout(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(elsewhere, "init", "-q")
    (elsewhere / "notes.md").write_text("")
    git(elsewhere, "add", ".")
    git(elsewhere, "commit", "-qm", "first")
    head = git(elsewhere, "rev-parse", "HEAD")[:12]
    monkeypatch.delenv("H3GNN_COMMIT", raising=False)
    assert again() == head
    (elsewhere / "notes.md").write_text("changed, but no code")
    (elsewhere / "src" / "h3gnn" / "new.py").write_text("")
    assert again() == head
    (elsewhere / "src" / "h3gnn" / "__init__.py").write_text("changed = True")
    assert again() == f"{head}+changes"
    monkeypatch.setenv("H3GNN_COMMIT", "0" * 12)  # whoever copied it, history and all, knows better
    assert again() == "0" * 12


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("", "unknown"),
        ("0123456789abcdef", "0123456789ab"),
        ("0123456789ab+changes", "0123456789ab+changes"),
        ("main", "unknown"),
    ],
)
def test_without_a_checkout_of_its_own_the_environment_names_the_commit(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    git(elsewhere, "init", "-q")  # somebody else's, which does not know the package
    git(elsewhere, "commit", "-qm", "other", "--allow-empty")
    monkeypatch.setenv("H3GNN_COMMIT", named)
    assert again() == expected
    monkeypatch.setenv("PATH", "")
    assert again() == expected


def test_git_is_asked_once(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def never_ends(*arguments: object, **options: object) -> None:
        asked.append(arguments)
        raise subprocess.TimeoutExpired("git", 1)

    monkeypatch.setattr(subprocess, "run", never_ends)
    assert [origin()["commit"] for _ in range(3)] == ["unknown"] * 3
    assert len(asked) == 1


def test_nobody_stores_versions_without_the_origin() -> None:
    """Whoever asks for the versions alone compares them; what is stored or printed takes both from here."""
    compared = {"storage/origin.py", "storage/checkpoint_file.py", "training/checkpoints.py"}
    compared |= {"experiments/compare.py", "experiments/collect.py"}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_bytes()))
            if isinstance(node, ast.ImportFrom) and node.module == "h3gnn.storage.atomic"
            for alias in node.names
        }
        allowed = path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).as_posix() in compared
        assert allowed or "versions" not in imported, path
    assert made_with().keys() == {"versions", "origin"}
