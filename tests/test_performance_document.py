"""The figures of docs/performance.md are the stored results."""

from __future__ import annotations

from benchmarks.tables import DOCUMENT, document


def test_the_document_is_what_the_stored_results_give() -> None:
    assert DOCUMENT.read_text() == document()
