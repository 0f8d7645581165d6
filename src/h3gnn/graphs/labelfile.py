"""Labels and splits: in a table of their own, or in a column of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.columns import Column, pick_column
from h3gnn.graphs.edgefile import FIX_UNKNOWN
from h3gnn.graphs.featurefile import FeatureFile
from h3gnn.graphs.headers import LABEL_NAMES, SPLIT_PREFIX, pick_ids
from h3gnn.graphs.names import (
    SPLIT_NAMES,
    NodeIndex,
    as_classes,
    as_text,
    is_plain,
    quoted,
    split_masks,
    whole_beside_gaps,
    words_in,
)
from h3gnn.graphs.problems import Problems
from h3gnn.graphs.tables import FIX_CELLS, FIX_ID, Table, check_once, open_table
from h3gnn.graphs.values import cells_of, texts_of


@dataclass(frozen=True)
class LabelFile:
    """What a table says of its rows.

    Attributes:
        ids: the nodes that the rows speak of.
        classes: int64 `[rows]`, or None.
        class_names: the class that each number stands for.
        masks: train, validation and test `[rows, splits]`, or nothing.
        table: where they come from; None for a column of the features.
    """

    ids: npt.NDArray[Any]
    classes: npt.NDArray[np.int64] | None
    class_names: tuple[str, ...]
    masks: list[npt.NDArray[np.bool_]]
    table: LabelTable | None

    def for_nodes(self, rows: npt.NDArray[np.int64], nodes: int) -> dict[str, Any]:
        """Return labels and masks of all nodes; `rows` says of which node each row speaks, -1 for none."""

        def spread(values: npt.NDArray[Any], empty: int) -> npt.NDArray[Any]:
            every = np.full((nodes, *values.shape[1:]), empty, dtype=values.dtype)
            every[rows[rows >= 0]] = values[rows >= 0]
            return every

        masks = tuple(spread(mask, 0) for mask in self.masks) or None
        labels = None if self.classes is None else spread(self.classes, -1)
        return {"masks": masks, "labels": labels, "class_names": self.class_names}


@dataclass(frozen=True)
class LabelTable:
    """A table of labels and its columns that are meant.

    Attributes:
        table: the file.
        key: the column of the ids.
        label: the column of the classes, if any.
        splits: the columns of train, val, test.
    """

    table: Table
    key: int
    label: int | None
    splits: list[int]

    def read(self) -> LabelFile:
        """Read node, class and splits; an empty cell is an unknown class or no part of a split."""
        table, beside = self.table, [*self.splits, *(() if self.label is None else (self.label,))]
        try:
            ids = table.read([self.key]).ids[0]
            frame = table.frame(beside)
            check_once(ids, table.place, table.path)
            texts = [texts_of(cells_of(frame.iloc[:, at])) for at in range(len(beside))]
            words = [["" if one is None else one for one in column] for column in texts]
            parts = [
                split_masks(column, partial(table.place, column=at))
                for at, column in zip(self.splits, words, strict=False)
            ]
        except GraphError:
            self.list_problems(None, None)
            raise
        classes, names = None, tuple[str, ...]()
        if self.label is not None:
            classes, names = as_classes(whole_beside_gaps(np.array(words[-1], dtype=object)))
        masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
        return LabelFile(ids, classes, names, masks, self)

    def list_problems(self, known: npt.NDArray[Any] | None, known_by: Path | None) -> None:
        """Go through the file row by row, and raise with all that is wrong; return where nothing is."""
        table, problems, met = self.table, Problems(self.table.path), dict[str, str]()
        names = None if known is None else {*as_text(known).tolist()}
        for place, count, cells in table.walk((self.key, *self.splits)):
            if cells is None:
                problems.add(place, f"{count} cell(s), the first row has {len(table.names)}", FIX_CELLS)
                continue
            node = cells[0] if is_plain(cells[0]) else quoted(cells[0])
            if not cells[0]:
                problems.add(place + table.title(self.key), "the node id is missing", FIX_ID)
            elif cells[0] in met:
                problems.add(
                    place, f"node {node} stands already in {met[cells[0]]}", "keep one row for each node"
                )
            elif names is not None and cells[0] not in names:
                problems.add(place, f"node {node} is unknown; it is not in {known_by}", FIX_UNKNOWN)
            met.setdefault(cells[0], place)
            for column, word in zip(self.splits, cells[1:], strict=True):
                if word.lower() not in {*SPLIT_NAMES, "", "none"}:
                    problems.add(place + table.title(column), f"{word!r} is not one of train, val, test")
        problems.check()


def open_labels(
    path: str | Path,
    id_column: Column | None,
    label_column: Column | None,
    split_columns: Sequence[Column] | None,
    style: dict[str, Any],
) -> LabelTable:
    """Find the columns that are meant."""
    expected = (id_column, label_column, *(split_columns or ()))
    table = open_table(path, role="labels", expected=expected, **style)
    key = pick_ids(table, id_column)
    others = [column for column in range(len(table.names)) if column != key]
    if split_columns is None:
        splits = [column for column in others if table.names[column].lower().startswith(SPLIT_PREFIX)]
    else:
        splits = [pick_column(table, one, "split", default=0) for one in split_columns]
    label = pick_column(table, label_column, "labels", known=LABEL_NAMES, default=None)
    if label is None:
        rest = [column for column in others if column not in splits]
        told = [column for column in rest if _says_class(table.names[column])]
        label = next(iter([*told, *rest]), None)
    if label is None and not splits:
        raise GraphError(f"{table.path} has no column of labels beside the node ids")
    return LabelTable(table, key, label, splits)


def labels_of_nodes(
    path: str | Path,
    node_ids: npt.NDArray[Any],
    known_by: Path,
    id_column: Column | None,
    label_column: Column | None,
    style: dict[str, Any],
    *,
    drop: bool = False,
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], int]:
    """Read the classes of nodes that are known already, `[nodes]`, -1 where unknown, and their names.

    Labels of other nodes are a fault, or are left out (`drop`); the last value says how many.
    """
    table = open_labels(path, id_column, label_column, None, style)
    found = table.read()
    if found.classes is None:
        raise GraphError(f"{table.table.path} has splits and no classes")
    rows = NodeIndex(node_ids).find(found.ids)
    strange = int((rows < 0).sum())
    if strange and not drop:
        table.list_problems(node_ids, known_by)
    labels: npt.NDArray[np.int64] = found.for_nodes(rows, len(node_ids))["labels"]
    return labels, found.class_names, strange


def _says_class(name: str) -> bool:
    words = words_in(name)
    return words[:1] in (["is"], ["has"]) or bool({*words} & {*LABEL_NAMES[:4]})


def labels_of(features: FeatureFile) -> LabelFile | None:
    """Return the labels that stand among the features."""
    if features.classes is None:
        return None
    classes, names = as_classes(whole_beside_gaps(features.classes))
    parts = [split_masks(words, features.place) for words in features.splits]
    masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
    return LabelFile(features.ids, classes, names, masks, None)
