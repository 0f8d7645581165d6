"""Where a result was made: the commit, and fingerprints of the code that it depends on.

A version number stays the same while the code changes, and a commit says that something changed but not what.
So each part of the code has a fingerprint of its own: whoever reads a stored result sees which parts are
still what they were.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from h3gnn.storage.atomic import versions

Origin = dict[str, Any]
"""`{"commit": …, "code": {part: fingerprint}}`."""

PACKAGE = Path(__file__).parent.parent
EXPERIMENTS = (
    *("methods", "run", "allowances", "preferences", "classifying", "nested", "clustered"),
    *("tables/running", "tables/measures", "tables/theory", "tables/descent"),
)
"""The modules of `experiments` that a score passes through on its way; the others ask for it or show it."""
PARTS: dict[str, tuple[str, ...]] = {
    "training": (
        "encoder/*.py",
        "encoder/triton/*.py",
        "training/*.py",
        "graphs/scaling.py",
        "intake.py",
        "estimator.py",
        "settings.py",
    ),
    "evaluation": (
        "evaluation/*.py",
        *(f"experiments/{name}.py" for name in EXPERIMENTS),
    ),
    "baselines": ("baselines/*.py",),
}
"""The modules of each part. What reads a graph is in none: a result names its graph by the content's hash.
Neither are the lists and the wording of the tables: a row names its own settings."""
PRESETS = "presets"
"""The part that is no code: the settings of the shipped presets."""
COMMIT = "H3GNN_COMMIT"
"""The environment variable that names the commit where the code is a copy."""
UNKNOWN, NOT_RECORDED, CHANGES = "unknown", "not recorded", "+changes"
REDUNDANT = {"ctx", "kind", "type_comment"}
"""Fields of a syntax tree that say nothing of their own."""
PATIENCE_SECONDS = 10


def made_with() -> dict[str, Any]:
    """Return what every stored or printed result carries: `versions` and `origin`."""
    return {"versions": versions(), "origin": origin()}


def origin() -> Origin:
    """Return the commit of the running code, and a fingerprint of each of its parts.

    The commit is what `H3GNN_COMMIT` says; without it, that of the checkout in which the package lies, with
    "+changes" where tracked files under `src` differ from it; otherwise "unknown". It is found out
    once per process: ask before a long piece of work, since files may change while it goes on.
    """
    return {"commit": commit(), "code": dict(code())}


@cache
def commit() -> str:
    """Return twelve digits of the commit, perhaps with "+changes"; "unknown" where nothing tells it."""
    named = re.fullmatch(r"([0-9a-f]{12})[0-9a-f]{0,28}(\+changes)?", os.environ.get(COMMIT, "").strip())
    if named is not None:  # whoever copied the code knows better than a history that came along
        return named[1] + (named[2] or "")
    head = _git("rev-parse", "HEAD") if _git("ls-files", "__init__.py") else None
    if not head:
        return UNKNOWN
    return head[:12] + (CHANGES if _git("status", "--porcelain", "--untracked-files=no", "..") else "")


@cache
def code() -> dict[str, str]:
    """Return the fingerprint of each part of today's code, and of the presets."""
    collecting = gc.isenabled()
    gc.disable()  # trees hold no cycles, and looking for some would take as long as the rest
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
    """Return eight digits that change with the syntax trees of some modules, and with their names.

    Comments, docstrings and layout are not in them; error messages and help texts are. So "unchanged" is
    certain, and "changed" may be a matter of words. The digits are the same under every version of Python.
    """
    digest = hashlib.sha256()
    for path in modules:
        words = [path.relative_to(root).as_posix()]
        _describe(ast.parse(path.read_bytes()), words)
        digest.update("\n".join(words).encode(errors="backslashreplace"))
    return digest.hexdigest()[:8]


def _git(*arguments: str) -> str | None:
    """Return what git says in the package's folder; None where there is no git or it has nothing to say."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=PACKAGE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None


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
