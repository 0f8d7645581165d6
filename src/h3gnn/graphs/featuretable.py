"""A table of features: which columns are meant, and their cells, or all that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.columns import Column, is_number, pick_column
from h3gnn.graphs.encoding import find_doubts
from h3gnn.graphs.headers import pick_ids
from h3gnn.graphs.kinds import parse_kinds
from h3gnn.graphs.problems import Problems
from h3gnn.graphs.tables import FIX_CELLS, FIX_ID, Progress, Reached, Table, TableBlock, open_table


@dataclass(frozen=True)
class FeatureTable:
    """A table of features and its columns that are meant: the ids, and the others.

    Attributes:
        table: the file.
        key: the column of the ids.
        chosen: the columns of the features.
        named: whether the person chose them, so that none is left out for its name.
    """

    table: Table
    key: int
    chosen: list[int]
    named: bool

    def blocks(
        self, progress: Progress = lambda share: None, begin: Reached | None = None
    ) -> Iterator[TableBlock]:
        """Yield the ids and the numbers, which have no gaps, a block of rows at a time."""
        for block in self.table.blocks([self.key], self.chosen, progress=progress, begin=begin):
            self._check(block)
            yield block

    def _check(self, block: TableBlock) -> None:
        """Name the cell of a gap here, where its column in the file is still known."""
        bad = np.argwhere(~np.isfinite(block.numbers))
        if bad.size:
            row, position = (int(one) for one in bad[0])
            column = self.chosen[position] if block.numbers.shape[1] == len(self.chosen) else None
            word = "empty or NaN" if np.isnan(block.numbers[row, position]) else "infinity"
            place = self.table.place(block.first + row, column)
            raise GraphError(f"{place}: the value is {word}; fill the gap or leave the column out")


def read_frame(
    features: FeatureTable, said: Mapping[str, str], planned: bool
) -> tuple[Any, npt.NDArray[Any]]:
    """Return the columns of a table and the ids, or raise with all that is wrong with the table.

    Args:
        features: the table.
        said: the kinds of some columns.
        planned: whether a plan says the kinds, so that none is in doubt.
    """
    table = features.table
    try:
        ids = table.read([features.key]).ids[0]
        frame = table.frame(features.chosen)
    except GraphError:
        _list_problems(features, said, planned)
        raise
    if table.guessed and not table.header and _may_be_names(frame):
        cells = ", ".join(repr(str(one)) for one in frame.iloc[0][:3])
        raise GraphError(
            f"{table.place(0)}: {cells} may name the columns or "
            "describe a node; say whether this row is a header (--header, --no-header)"
        )
    return frame, ids


def _may_be_names(frame: Any) -> bool:
    """Tell whether no cell of the first row stands again below, nor is a number."""
    first, below = frame.iloc[0], frame.iloc[1:]
    return all(
        not is_number(str(first[name])) and not bool((below[name] == first[name]).any()) for name in frame
    )


def _list_problems(features: FeatureTable, said: Mapping[str, str], planned: bool) -> None:
    """Go through the table row by row, and raise with its broken rows, missing ids and doubtful cells."""
    import pandas as pd

    table, problems = features.table, Problems(features.table.path)
    places, good = list[str](), list[list[str]]()
    for place, count, cells in table.walk((features.key, *features.chosen)):
        if cells is None:
            problems.add(place, f"{count} cell(s), the first row has {len(table.names)}", FIX_CELLS)
        elif not cells[0]:
            problems.add(place + table.title(features.key), "the node id is missing", FIX_ID)
        else:
            places.append(place)
            good.append(cells[1:])
    names = table.unique_names(features.chosen)
    if good and not planned and table.delimiter is not None:
        told = {name: kind for name, kind in parse_kinds(dict(said)).items() if name in names}
        frame = pd.DataFrame(good, columns=names)
        find_doubts(frame, told, lambda row, name: places[row] + column_title([features], name), problems)
    problems.check()


def column_title(tables: Sequence[FeatureTable], name: str) -> str:
    """Name a column behind its row; one that several tables have is told by the first."""
    for one in tables:
        names = one.table.unique_names(one.chosen)
        if name in names:
            return one.table.title(one.chosen[names.index(name)])
    return f", column {name}"


def open_features(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureTable:
    """Find the columns that are meant: the ids by `pick_ids`; the given features, else all others."""
    table = open_table(path, role="features", expected=(id_column, *(columns or ())), **style)
    key = pick_ids(table, id_column)
    if columns is None:
        chosen = [column for column in range(len(table.names)) if column != key]
    else:
        chosen = [pick_column(table, one, "features", default=0) for one in columns]
    if not chosen:
        raise GraphError(f"{table.path} has no column of features beside the node ids")
    return FeatureTable(table, key, chosen, columns is not None)
