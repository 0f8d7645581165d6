"""Stored provenance, and the notes of earlier versions."""

from __future__ import annotations

import json
import warnings

import pytest

from h3gnn.graphs.provenance import STORED_PROVENANCE, Provenance, Repair, warn_about_repairs
from h3gnn.storage.schema import check

SHA = "0" * 64
STRUCTURAL = "no features in the data: structural features were built from the edges"
REPAIRS = (Repair("self-loops", "2 self-loop(s)", 2), Repair("column-unused", "x", fields=("x",), warn=True))


def test_provenance_is_stored_and_read_back() -> None:
    provenance = Provenance("edges.csv", SHA, "files", structural=True, repairs=REPAIRS)
    stored = json.loads(json.dumps(provenance.as_dict()))
    check(STORED_PROVENANCE, stored, "provenance")
    assert stored["repairs"][0] == {"code": "self-loops", "message": "2 self-loop(s)", "count": 2}
    assert Provenance.from_dict(stored) == provenance


@pytest.mark.parametrize(
    ("source", "mended", "kind", "structural"),
    [
        ("table", ["no edges were given: each row is joined to its 10 nearest rows"], "table", False),
        ("edges.csv, features.csv", [], "files", False),
        ("edges.csv", ["1 duplicate edge(s) merged", STRUCTURAL], "files", True),
        ("networkx graph", [STRUCTURAL], "arrays", True),
    ],
)
def test_notes_of_earlier_versions(source: str, mended: list[str], kind: str, structural: bool) -> None:
    stored = {"source": source, "sha256": SHA, "mended": mended}
    check(STORED_PROVENANCE, stored, "provenance")
    provenance = Provenance.from_dict(stored)
    assert (provenance.kind, provenance.structural) == (kind, structural)
    assert [repair.message for repair in provenance.repairs] == mended


def test_only_marked_repairs_warn() -> None:
    with pytest.warns(UserWarning, match="x") as caught:
        warn_about_repairs(REPAIRS)
    assert [str(one.message) for one in caught] == ["x"]
    with warnings.catch_warnings(action="error"):
        warn_about_repairs(REPAIRS[:1])
