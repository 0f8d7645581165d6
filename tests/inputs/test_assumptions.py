"""Every rule of the page on assumptions names a test, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "assumptions.md").read_text(encoding="utf-8")
RULES = re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:]
NAMED = re.compile(r"<!--(tests/\S+\.py)::(\w+)-->")


def test_every_rule_names_tests_that_exist() -> None:
    for rule in RULES:
        named = NAMED.findall(rule)
        assert named, rule
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


def test_every_line_of_the_page_is_a_rule_below_a_heading() -> None:
    """After the introduction there is nothing but headings and rules, and no heading without a rule."""
    _, *sections = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        lines = [line for line in body.splitlines() if line]
        assert all(line.startswith(("- ", "  ")) for line in lines), title
        assert lines, f"{title} has no rule"


def test_named_tests_are_collected() -> None:
    """No test of the page is skipped, slow, or overwritten by another of the same name."""
    for path, name in {pair for rule in RULES for pair in NAMED.findall(rule)}:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert text.count(f"def {name}(") == 1, (path, name)
        before = text[: text.index(f"def {name}(")].rsplit("\n\n\n", 1)[-1]
        assert "mark.skip" not in before, (path, name)
        assert "mark.slow" not in before, (path, name)
