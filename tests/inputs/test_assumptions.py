"""Every rule of the page on assumptions names a test, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "assumptions.md").read_text(encoding="utf-8")
RULES = re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:]
NAMED = re.compile(r"<!-- test: (tests/\S+\.py)::(\w+) -->")


def test_every_rule_names_tests_that_exist() -> None:
    for rule in RULES:
        named = NAMED.findall(rule)
        assert named, rule
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
