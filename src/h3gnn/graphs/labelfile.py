"""Labels and splits of the nodes, in a table with one row per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.headers import ID_NAMES, LABEL_NAMES, SPLIT_PREFIX, pick_column
from h3gnn.graphs.labels import SPLIT_NAMES, as_classes
from h3gnn.graphs.tables import Column, Table, open_table, read_ids


@dataclass(frozen=True)
class LabelFile:
    """Classes and split codes (0 train, 1 validation, 2 test, -1 none) of the rows of a table."""

    ids: npt.NDArray[Any]
    classes: npt.NDArray[np.int64] | None
    class_names: tuple[str, ...]
    splits: npt.NDArray[np.int64]  # [rows, splits]
    table: Table

    def for_nodes(self, rows: npt.NDArray[np.int64], nodes: int) -> dict[str, Any]:
        """Return labels and masks of all nodes, where `rows` says which node each row speaks of."""
        codes = np.full((nodes, self.splits.shape[1]), -1, dtype=np.int64)
        codes[rows] = self.splits
        known: dict[str, Any] = {}
        if self.splits.shape[1]:
            known["masks"] = (codes == 0, codes == 1, codes == 2)
        if self.classes is not None:
            labels = np.full(nodes, -1, dtype=np.int64)
            labels[rows] = self.classes
            known |= {"labels": labels, "class_names": self.class_names}
        return known


def read_labels(
    path: str | Path,
    id_column: Column | None,
    label_column: Column | None,
    split_columns: Sequence[Column] | None,
    style: dict[str, Any],
) -> LabelFile:
    """Read a table of node, class and splits; an empty cell is an unknown class or no part of a split."""
    table = open_table(
        path, role="labels", expected=(id_column, label_column, *(split_columns or ())), **style
    )
    names = table.names
    key = pick_column(names, id_column, known=ID_NAMES, default=0, path=table.path, what="node ids") or 0
    if split_columns is None:
        splits = [c for c, name in enumerate(names) if c != key and name.lower().startswith(SPLIT_PREFIX)]
    else:
        picked = [
            pick_column(names, one, known=(), default=None, path=table.path, what="split")
            for one in split_columns
        ]
        splits = [column for column in picked if column is not None]
    free = next((c for c in range(len(names)) if c != key and c not in splits), None)
    label = pick_column(names, label_column, known=LABEL_NAMES, default=free, path=table.path, what="labels")
    if label is None and not splits:
        raise GraphError(f"{table.path} has no column of labels beside the node ids")
    ids = read_ids(table, (key,))[0]
    classes, class_names = (None, ()) if label is None else _classes(table, label)
    codes = [_split_codes(table, column) for column in splits]
    stacked = np.stack(codes, axis=1) if codes else np.empty((ids.size, 0), dtype=np.int64)
    return LabelFile(ids, classes, class_names, stacked, table)


def _classes(table: Table, column: int) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the classes; whole numbers keep their order, and negative ones are unknown."""
    words = table.texts((column,))[0]
    values = [None if word == "" else word for word in words.tolist()]
    if words.dtype.kind == "O":
        values = _numbers_beside_gaps(values)
    if all(isinstance(one, int) or one is None for one in values):
        values = [None if one is None or one < 0 else one for one in values]
    return as_classes(values)


def _numbers_beside_gaps(values: list[Any]) -> list[Any]:
    """Return 1 for "1" where a gap alone made text of a column of whole numbers."""
    from h3gnn.graphs.ids import whole_numbers

    there = np.array([one for one in values if one is not None], dtype=object)
    numbers = whole_numbers(there) if there.size else None
    if numbers is None:
        return values
    found = iter(numbers.tolist())
    return [None if one is None else next(found) for one in values]


def _split_codes(table: Table, column: int) -> npt.NDArray[np.int64]:
    words = table.texts((column,))[0]
    codes = np.full(words.size, -1, dtype=np.int64)
    for word in set(words.tolist()):
        if word == "":
            continue
        here = words == word
        code = SPLIT_NAMES.get(str(word).lower())
        if code is None and str(word).lower() != "none":
            row = int(np.flatnonzero(here)[0])
            raise GraphError(f"{table.place(row, column)}: {str(word)!r} is not one of train, val, test")
        codes[here] = -1 if code is None else code
    return codes
