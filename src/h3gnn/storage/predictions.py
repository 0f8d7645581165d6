"""The held-out scores of the last predictions from a run, beside its model; the report page shows them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.storage.atomic import write_atomically
from h3gnn.storage.models import DESCRIPTION
from h3gnn.storage.schema import (
    SHA256,
    DictOf,
    Integer,
    ListOf,
    Maybe,
    Number,
    Record,
    Text,
    check_values,
    parse_json,
)

FILE = "predictions.json"
_Any = Number(any_float=True)
_SCORES = Record(
    {
        "mean": DictOf(_Any),
        "standard_error": DictOf(_Any),
        "folds": Integer(1),
        "majority_share": Maybe(_Any),
        "positive_class": Maybe(Text()),
    }
)
_PART = Record({"part": Text(), "score": _Any, "error": _Any, "gain": Maybe(_Any), "gain_error": Maybe(_Any)})
_COLUMN = Record({"column": Text(), "mean": _Any, "standard_error": _Any})
SUMMARY = Record(
    {
        "labelled": Integer(0),
        "held_out": _SCORES,
        "main_measure": Text(),
        "contributions": ListOf(_PART, most=16),
        "embedding": Maybe(Text()),
        "heads": DictOf(_Any),
        "importance": ListOf(_COLUMN, most=1000),
        "how": Text(),
        "notes": ListOf(Text(), most=1000),
        "model": SHA256,
    }
)
"""Schema of the file."""


def store_predictions(run: Path, summary: Mapping[str, Any]) -> None:
    """Store a summary of predictions in the folder of a run."""
    found = {name: summary[name] for name in SUMMARY.fields if name != "model"} | {"model": _model(run)}
    check_values(SUMMARY, found, run / FILE, words="cannot be written")
    write_atomically(run / FILE, json.dumps(found, indent=1, ensure_ascii=False).encode())


def read_predictions(run: Path) -> dict[str, Any] | None:
    """Return the summary of predictions from the model as it is; None if there are none."""
    path = run / FILE
    if not path.is_file():
        return None
    found: dict[str, Any] = parse_json(path.read_bytes(), path, InputError)
    check_values(SUMMARY, found, path)
    return found if found["model"] == _model(run) else None


def _model(run: Path) -> str:
    return hashlib.sha256((run / DESCRIPTION).read_bytes()).hexdigest()
