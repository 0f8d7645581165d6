"""JSON files of results, short and easy to compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.storage.atomic import write_atomically
from h3gnn.storage.schema import parse_json

Record = dict[str, Any]
"""A result as plain values."""


def fingerprint(values: Record) -> str:
    """Return a short hash of everything that a result depends on."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def read_json(path: Path) -> Record:
    """Read a file written by `write_json`."""
    content: Record = parse_json(path.read_bytes(), path, InputError)
    return content


def write_json(path: Path, content: Record) -> None:
    """Write JSON with one line for each entry, or for each item of an entry that is a list of objects."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_compact(item) for item in value)
            parts.append(f" {json.dumps(name)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {_compact(value)}")
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode(errors="backslashreplace"))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def rounded(value: Any, digits: int = 5) -> Any:
    """Return plain values with all their floats rounded, so that files stay small."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {name: rounded(item, digits) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return value
