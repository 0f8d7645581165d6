"""Finished results by key: what was done once is found again, and never done twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.storage.files import write_atomically

Record = dict[str, Any]
"""What is kept of a piece of work, as plain values."""


def fingerprint(about: dict[str, Any]) -> str:
    """Return a short key that is the same only if everything named is that an outcome depends on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


class ResultStore:
    """Records by key, in files `GROUP.json` of a folder, each rewritten whole after every addition.

    A kill leaves each file as it was before or after an addition. What depends on something that has changed
    has another key: the old record stays and is not looked at.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: dict[str, dict[str, Record]] = {}
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            try:
                self.groups[path.stem] = read_json(path)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path} cannot be read ({error}): remove it, and its cells run again"
                ) from None

    def get(self, key: str) -> Record | None:
        """Return the record under a key, None where there is none."""
        return next((records[key] for records in self.groups.values() if key in records), None)

    def add(self, group: str, key: str, record: Record) -> None:
        """Keep a record."""
        self.groups.setdefault(group, {})[key] = record
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / f"{group}.json", self.groups[group])


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with one line for each entry, or for each item of an entry that is a list of objects."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_plain(item) for item in value)
            parts.append(f" {json.dumps(name)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {_plain(value)}")
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def rounded(value: Any, digits: int = 5) -> Any:
    """Return plain values with all their floats rounded, so that files stay small."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    return value
