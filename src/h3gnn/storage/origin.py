"""Record what produced a result: the versions, and the commit of the running code."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from h3gnn.storage.atomic import versions

PACKAGE = Path(__file__).parent.parent
COMMIT = "H3GNN_COMMIT"
"""The environment variable that names the commit where the code is a copy."""
UNKNOWN, CHANGES = "unknown", "+changes"
GIT_TIMEOUT = 10


def made_with() -> dict[str, Any]:
    """Return the `versions` and the `origin` that every stored or printed result carries."""
    return {"versions": versions(), "origin": {"commit": commit()}}


@cache
def commit() -> str:
    """Return twelve digits of the commit, with "+changes" for a modified checkout, or "unknown".

    `H3GNN_COMMIT` takes precedence over the checkout that contains the package. The result is cached: ask
    before a long computation, since files may change while it runs.
    """
    named = re.fullmatch(r"([0-9a-f]{12})[0-9a-f]{0,28}(\+changes)?", os.environ.get(COMMIT, "").strip())
    if named is not None:
        return named[1] + (named[2] or "")
    head = _git("rev-parse", "HEAD") if _git("ls-files", "__init__.py") else None
    if not head:
        return UNKNOWN
    return head[:12] + (CHANGES if _git("status", "--porcelain", "--untracked-files=no", "..") else "")


def _git(*arguments: str) -> str | None:
    """Return the output of git in the package's folder; None where it fails or prints nothing."""
    command = ["git", "--no-optional-locks", *arguments]
    options: dict[str, Any] = {"cwd": PACKAGE, "stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(command, timeout=GIT_TIMEOUT, check=True, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None
