"""Fingerprints of the code behind a stored result.

A commit says that something changed but not what. Each part of the code therefore has its own fingerprint,
and the tables say which parts are unchanged since their rows were computed.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import h3gnn
from h3gnn.storage.atomic import versions
from h3gnn.storage.runs import commit

PACKAGE = Path(h3gnn.__file__).parent
PARTS: dict[str, tuple[str, ...]] = {
    "training": ("encoder/**/*.py", "training/*.py", "graphs/scaling.py", "estimator.py", "settings.py"),
    "evaluation": ("evaluation/*.py", "experiments/*.py"),
    "baselines": ("baselines/*.py",),
}
"""The modules of each part. Readers of graphs belong to none: a result names its graph by a content hash."""
PRESETS = "presets"
"""The part that is not code: the settings of the shipped presets."""
NOT_RECORDED = "not recorded"
REDUNDANT = {"ctx", "kind", "type_comment"}
"""Fields of a syntax tree that repeat what others say."""


def made_with() -> dict[str, Any]:
    """Return the `versions` and the `origin` of a result, with a fingerprint of each part of the code."""
    return {"versions": versions(), "origin": origin()}


def origin() -> dict[str, Any]:
    """Return `{"commit": ..., "code": {part: fingerprint}}` of the running code."""
    return {"commit": commit(), "code": dict(code())}


@cache
def code() -> dict[str, str]:
    """Return the fingerprint of each part of the running code, and of the presets."""
    collecting = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and the collector doubles the time
    try:
        found = {part: fingerprint_of(modules_of(part)) for part in PARTS}
    finally:
        if collecting:
            gc.enable()
    return {**found, PRESETS: _presets()}


def modules_of(part: str) -> list[Path]:
    """Return the files of a part of the code."""
    return sorted(path for pattern in PARTS[part] for path in PACKAGE.glob(pattern))


def fingerprint_of(modules: Iterable[Path], root: Path = PACKAGE) -> str:
    """Return eight digits that depend on the syntax trees and the names of some modules.

    Comments, docstrings and layout do not count; messages do. The digits are the same under every version
    of Python.
    """
    digest = hashlib.sha256()
    for path in modules:
        words = [path.relative_to(root).as_posix()]
        _describe(ast.parse(path.read_bytes()), words)
        digest.update("\n".join(words).encode(errors="backslashreplace"))
    return digest.hexdigest()[:8]


def _presets() -> str:
    stored = sorted((PACKAGE / "tuned").glob("*.json"))
    settings = {path.stem: json.loads(path.read_bytes())["params"] for path in stored}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _describe(node: ast.AST, words: list[str]) -> None:
    """Write down a syntax tree: of each node its kind, and the fields that are not empty."""
    words.append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None) if name not in REDUNDANT else None
        if isinstance(value, ast.AST):
            words.append(name)
            _describe(value, words)
        elif isinstance(value, list):
            if value:
                words.append(name)
                for one in value:
                    if not isinstance(one, ast.AST):
                        words.append(repr(one))
                    elif not _is_text(one):
                        _describe(one, words)
                words.append("]")
        elif value is not None:
            words += (name, repr(value))


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is only a text: a docstring, or one below a value."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
