"""Documents, messages and docstrings use the field's words instead of a private vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRIVATE = {
    r"\btold\b": "reported, printed, or the thing itself",
    r"\bhears?\b": "receives messages from",
    r"\bstrangers?\b": "untrusted input",
    r"\bmend(s|ed)?\b": "repaired",
    r"\bcommittees?\b": "ensemble",
    r"\bcontradict": "override, disagree",
    r"\bturned (up|down)\b": "increased, decreased",
    r"\bcarried by\b": "best member",
    r"\bgoes on\b": "continues",
    r"\bas (it|they) stands?\b": "unchanged",
    r"\bstands? (already|beside|under)\b": "is",
    r"\blook-alikes\b|\boddities\b": "similar nodes, anomalies",
    r"\bcolumn column\b": "column",
}
"""Patterns, and what to write instead."""
KEPT = {
    ("provenance.py", "mended"),  # a key of stored files
    ("checkpoints.py", "committee"),  # a key of stored files
    ("spaces.py", "committee"),  # the name of a search space, as are those below
    ("compare.py", "committee"),
    ("tuning.md", "committee"),
    ("evidence.md", "committee"),
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in (".py", ".toml", ".js")]


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: path.name)
def test_no_word_of_a_private_vocabulary(path: Path) -> None:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, instead in PRIVATE.items():
            match = re.search(pattern, line, flags=re.IGNORECASE)
            if match and (path.name, match.group().lower()) not in KEPT:
                found.append(f"{path.name}:{number}: {match.group()!r}; write {instead!r}")
    assert not found
