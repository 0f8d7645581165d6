"""A result names the commit that made it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from h3gnn.storage import runs as module
from h3gnn.storage.runs import PACKAGE, commit, made_with

ROOT = PACKAGE.parent.parent


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in another checkout."""
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
    monkeypatch.setenv("H3GNN_COMMIT", "0" * 12)  # takes precedence over the checkout
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
def test_without_a_checkout_the_environment_names_the_commit(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    git(elsewhere, "init", "-q")  # of another project
    git(elsewhere, "commit", "-qm", "other", "--allow-empty")
    monkeypatch.setenv("H3GNN_COMMIT", named)
    assert again() == expected
    monkeypatch.setenv("PATH", "")
    assert again() == expected


def test_git_runs_once(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def never_ends(*arguments: object, **options: object) -> None:
        asked.append(arguments)
        raise subprocess.TimeoutExpired("git", 1)

    monkeypatch.setattr(subprocess, "run", never_ends)
    assert [commit() for _ in range(3)] == ["unknown"] * 3
    assert len(asked) == 1


def test_versions_are_stored_with_the_origin() -> None:
    compared = {"storage/runs.py", "storage/checkpoint_file.py", "training/checkpoints.py"}
    compared |= {"experiments/compare.py", "experiments/report_data.py"}
    found = re.compile(r"from h3gnn\.storage\.atomic import (\([^)]*|[^\n]*)\bversions\b")
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        allowed = path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).as_posix() in compared
        assert allowed or not found.search(path.read_text()), path
    assert made_with().keys() == {"versions", "origin"}
