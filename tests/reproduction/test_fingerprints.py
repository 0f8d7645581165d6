"""Fingerprints change with the code and not with its comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.origin import PACKAGE, PARTS, code, fingerprint_of, modules_of

CODE = '''"""A module."""
def one(values, end=None):
    """Slice."""
    first = values[:end]  # a comment
    return first
NUMBER = 3
"""A number."""
'''


def fingerprint(folder: Path, text: str, name: str = "one.py") -> str:
    (folder / name).write_text(text)
    return fingerprint_of([folder / name], folder)


def test_comments_and_layout_do_not_change_the_fingerprint(tmp_path: Path) -> None:
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
def test_changed_code_has_another_fingerprint(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, CODE.replace(old, new)) != fingerprint(tmp_path, CODE)


def test_a_renamed_module_has_another_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path, CODE, "two.py") != fingerprint(tmp_path, CODE)


def test_every_module_that_trains_or_scores_belongs_to_one_part() -> None:
    placed = [path for part in PARTS for path in modules_of(part)]
    assert len(set(placed)) == len(placed)
    for pattern in (pattern for patterns in PARTS.values() for pattern in patterns):
        assert list(PACKAGE.glob(pattern)), pattern
    for package in ("encoder", "training", "evaluation", "baselines"):
        assert set((PACKAGE / package).rglob("*.py")) <= set(placed)
    assert list(code()) == [*PARTS, "presets"]
    assert len(set(code().values())) == 4
