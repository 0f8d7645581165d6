"""docs/baselines.md matches the stored checks, and every system has one."""

from __future__ import annotations

import json

from benchmarks.checks.__main__ import DOCUMENT, KEPT, document
from benchmarks.checks.measuring import checks_of
from h3gnn.baselines.registry import systems


def test_the_document_matches_the_stored_checks() -> None:
    assert DOCUMENT.read_text() == document(json.loads(KEPT.read_text())), (
        "docs/baselines.md is out of date; run `python -m benchmarks.checks --document`"
    )


def test_every_system_is_compared_with_a_published_figure() -> None:
    assert {check["system"] for check in checks_of([])} == set(systems())
