"""Ids and names that strangers chose, before they go into a table: whole characters, and no formulas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that spreadsheets compute."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def check_ids(ids: Any, path: Path | None = None) -> None:
    """Refuse ids that no table can hold: halves of a character, which Python has and UTF-8 has not.

    Whoever makes a table asks first, before the work: pandas ends in an error of its own.

    Args:
        ids: of nodes.
        path: the file that is to be written, if there is one.
    """
    texts = [one for one in ids if isinstance(one, str)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        node = next(one for one in texts if LONE_SURROGATE.search(one))
        cannot = "no table can hold these nodes" if path is None else f"{path} cannot be written"
        raise InputError(
            f"{cannot}: the node id {node!a} holds half a character (a lone surrogate); rename the node"
        ) from None


def guarded(text: Any) -> Any:
    """Return a text with a quote before it if a spreadsheet would compute it: `=cmd|…`, `+1`, `@sum`."""
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text
