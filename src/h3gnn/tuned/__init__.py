"""Presets: named settings, those of the paper and those found by searches; one JSON file each."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.settings import BEFORE, STORED, canonical
from h3gnn.storage.schema import ORIGIN, Record, Text, check_values, parse_json

PRESET = Record({"params": STORED}, {"about": Text(), "tuned": Record({}, {"origin": ORIGIN}, Any)}, Any)
"""A preset, or the record of `h3gnn tune`: a preset, the options of the search, and its trials."""


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    stored = sorted((files("h3gnn") / "tuned").iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in stored
        if entry.name.endswith(".json")
    }


NAMED_PRESETS = ("paper", "released", "later", "single", "quick")
"""Presets for any graph: the paper and its variants, one small model, and a quick ensemble."""


def tuned_presets() -> dict[str, dict[str, Any]]:
    """Return the presets found by a search, each with its `params` and, under `tuned`, how it was found."""
    return {name: kept for name, kept in _shipped().items() if "tuned" in kept}


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return [*NAMED_PRESETS, *tuned_presets()]


def tuned_on(name: str) -> str | None:
    """Return the hash of the graph on whose labels, of all splits, a preset was chosen; None for others."""
    made = _content(name).get("tuned", {})
    together = made.get("objective") != "label-free" and made.get("protocol") != "no labels"
    return made.get("sha256") if together else None


def preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset, as a flat dict.

    Args:
        name: one of `NAMED_PRESETS`, the name of a benchmark graph, or a file that `h3gnn tune` wrote.

    Raises:
        InputError: if there is no such preset, or the file is not one.
    """
    return {**BEFORE, **canonical(_content(name)["params"])}


def _content(name: str) -> dict[str, Any]:
    """Return the content of a shipped preset, or of a preset file."""
    if name in _shipped():
        return _shipped()[name]
    if not name.endswith(".json"):
        names = ", ".join(preset_names())
        message = f"there is no preset {name!r}; use one of {names}, or a file written by `h3gnn tune`"
        raise InputError(message, code="unknown-preset")
    try:
        content = Path(name).read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no preset or file {name}", code="unknown-preset") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read as a preset: {error}", code="unknown-preset") from None
    kept = parse_json(content, name, InputError, "is not a preset")
    check_values(PRESET, kept, name, InputError, "is not a preset")
    return dict(kept)
