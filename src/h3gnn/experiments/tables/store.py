"""Where finished cells are kept: one file for each graph, rewritten whole after every cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.storage.files import write_atomically

Record = dict[str, Any]


class CellStore:
    """Finished cells by key, in files `GRAPH.json` of a folder.

    A kill leaves each file as it was before or after a cell. A cell whose configuration or graph has changed
    has another key: the old one stays and is not looked at.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.graphs: dict[str, dict[str, Record]] = {}
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            try:
                self.graphs[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path} cannot be read ({error}): remove it, and its cells run again"
                ) from None

    def __contains__(self, key: str) -> bool:
        return any(key in cells for cells in self.graphs.values())

    def __getitem__(self, key: str) -> Record:
        for cells in self.graphs.values():
            if key in cells:
                return cells[key]
        raise KeyError(key)

    def add(self, graph: str, key: str, record: Record) -> None:
        """Keep a finished cell."""
        self.graphs.setdefault(graph, {})[key] = record
        self._write(graph)

    def _write(self, graph: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{graph}.json", lines_of(self.graphs[graph]).encode())


def lines_of(content: dict[str, Any]) -> str:
    """Return JSON with one line for each entry, or for each item of an entry that is a list of objects."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_plain(item) for item in value)
            parts.append(f" {json.dumps(name)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {_plain(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


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
