"""Lists in the cells of a table: items with a mark between, in brackets, or vectors of numbers."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np

from h3gnn.errors import GraphError
from h3gnn.graphs.names import is_missing
from h3gnn.graphs.values import Rows, Values, cell_text, cells_of
from h3gnn.resources import check_memory


def is_list(one: Any) -> bool:
    """Tell whether a cell holds several values."""
    return isinstance(one, list | tuple | set | frozenset | np.ndarray)


def list_form(texts: Values) -> str | None:
    """Say how lists are written in text: "brackets", or the mark between their items; None for no lists."""
    known = [one for one in texts.tolist() if one is not None]
    if not known:
        return None
    if all(one[0] in "[({" and one[-1] in "])}" and _bracketed(one) is not None for one in {*known}):
        return "brackets"
    for mark in "|;":
        several = [one for one in known if mark in one]
        items = [item.strip() for one in known for item in one.split(mark)]
        if (
            len(several) > 0.2 * len(known)
            and len({*items}) <= 0.5 * len(items)
            and max(map(len, items)) <= 40
        ):
            return mark
    return None


def read_lists(column: Any, form: str = "") -> tuple[Values, Rows]:
    """Return one list of texts per row, None where missing; an empty list is not missing."""
    cells = cells_of(column)
    lists = np.empty(len(cells), dtype=object)
    lost = []
    for row, one in enumerate(cells):
        if one is None or (isinstance(one, str) and not one):
            continue
        found = one if is_list(one) else _bracketed(one) if form == "brackets" else _parted(str(one), form)
        if found is None:
            lost.append(row)
        else:
            lists[row] = [cell_text(item) for item in found if not is_missing(item)]
    return lists, np.array(lost, dtype=np.int64)


def _parted(text: str, mark: str) -> list[str]:
    return [item.strip() for item in (text.split(mark) if mark else [text]) if item.strip()]


def _bracketed(text: Any) -> list[Any] | None:
    """Return the items of `["a", "b"]`, `('a',)` or `{1, 2}`; nothing is executed."""
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
            "".join(map(str, found)).encode()  # half a character could not be stored
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(found, list | tuple | set):
            return sorted(found, key=str) if isinstance(found, set) else list(found)
    bare = str(text)[1:-1]
    return (
        None
        if '"' in bare or "'" in bare or "[" in bare
        else [one.strip() for one in bare.split(",") if one.strip()]
    )


def read_vectors(column: Any) -> tuple[Values, Rows]:
    """Return `[rows, values]` of lists that are as long as the first; a missing one is all NaN."""
    cells = cells_of(column)
    width = next((len(one) for one in cells if one is not None), 0)
    check_memory(2 * 8 * width * len(cells), f"lists of {width:,} numbers in {len(cells):,} rows", GraphError)
    odd = [row for row, one in enumerate(cells) if one is not None and len(one) != width]
    fits = [
        np.full(width, np.nan) if one is None or len(one) != width else np.asarray(one, float)
        for one in cells
    ]
    return np.array(fits, dtype=np.float64).reshape(len(cells), width), np.array(odd, dtype=np.int64)
