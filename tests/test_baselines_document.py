"""The table of docs/baselines.md is what the stored checks give, and every system has one."""

from __future__ import annotations

import json

from benchmarks.checks.__main__ import DOCUMENT, KEPT, document
from benchmarks.checks.measuring import checks_of
from h3gnn.baselines.registry import systems


def test_the_document_is_what_the_stored_checks_give() -> None:
    assert DOCUMENT.read_text() == document(json.loads(KEPT.read_text())), (
        "docs/baselines.md is not what the stored checks and today's code give: "
        "`python -m benchmarks.checks --document` writes it"
    )


def test_every_system_is_held_against_a_reported_figure() -> None:
    assert {check["system"] for check in checks_of([])} == set(systems())
