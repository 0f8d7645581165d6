"""Tables of node features: which columns are meant, and their cells, or all that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.formats import ARRAY_SUFFIXES, array_place, read_array
from h3gnn.graphs.ids import (
    INDEX_NAMES,
    is_id_name,
    one_kind,
    words_in,
)
from h3gnn.graphs.labels import SPLIT_NAMES
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.infer import LABEL_WORDS, cells_of, parse_kinds, texts_of
from h3gnn.tables.plan import TablePlan, encode_table, find_doubts, plain_plan
from h3gnn.tables.reader import (
    FIX_CELLS,
    FIX_ID,
    Problems,
    Progress,
    Reached,
    Table,
    TableBlock,
    check_once,
    joined,
    open_table,
)
from h3gnn.tables.roles import SPLIT_PREFIX, Column, is_number, pick_column, pick_ids


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


@dataclass(frozen=True)
class FeatureFile:
    """Features and the ids of their rows.

    Attributes:
        values: `[nodes, features]`, array or scipy sparse matrix.
        ids: `[nodes]`.
        named: whether the file gives the ids, rather than their order.
        place: words for a row.
        path: the file, or the first of several.
        plan: how the columns became numbers; None for an array, which has no columns.
        repairs: changes made to them.
        classes: the words of the column that holds the class, "" for unknown; None without such a column.
        splits: the words of columns that hold train, val and test.
        names: one name per feature, or none where the file does not give them.
    """

    values: Any
    ids: npt.NDArray[Any]
    named: bool
    place: Callable[[int], str]
    path: Path
    plan: TablePlan | None = None
    repairs: tuple[Repair, ...] = ()
    classes: npt.NDArray[Any] | None = None
    splits: Sequence[list[Any]] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Encoding:
    """What is said about how the columns of features become numbers; see `encode_table`.

    Attributes:
        columns: the kind of some of them.
        label: the column that holds the class.
        text_model: a folder with a sentence model for text.
        plan: of the table that a model was fitted on.
        hidden: a column that must not be a feature, since the labels are it.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    label: Column | None = None
    hidden: str | None = None
    text_model: str | None = None
    plan: TablePlan | None = None


def read_vectors(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureFile:
    """Read numbers without gaps, and the ids of their rows; nothing is encoded."""
    if Path(path).suffix.lower() in ARRAY_SUFFIXES:
        return _read_array_file(path)
    features = open_features(path, id_column, columns, style)
    block = joined(features.blocks())
    check_once(block.ids[0], features.table.place, features.table.path)
    return FeatureFile(block.numbers, block.ids[0], True, features.table.place, features.table.path)


def read_features(
    paths: Sequence[str | Path],
    id_column: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    how: Encoding,
    added: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda known: known[:0],
) -> FeatureFile:
    """Read the features and the ids of their rows; columns that are no numbers are encoded.

    Args:
        paths: one file, or several tables whose nodes stand below one another: a column that one of them does
            not have is missing there, and which table a node comes from is a category.
        id_column, columns, style: as in `open_features`.
        how: what is said about the columns.
        added: given the ids, returns those of more nodes, whose features are all missing.
    """
    if any(Path(path).suffix.lower() in ARRAY_SUFFIXES for path in paths):
        if len(paths) > 1:
            raise GraphError(f"{paths[0]}: an array cannot stand beside another table of features")
        found = _read_array_file(paths[0])
        if added(found.ids).size:
            raise GraphError(f"{paths[0]}: nodes without features cannot be added to an array; give a table")
        return found
    tables = [open_features(path, id_column, columns, style) for path in paths]
    planned = how.plan is not None and not how.plan.as_is
    plain = not (how.columns or how.label or planned or len(tables) > 1)
    plain = plain and how.hidden not in tables[0].table.names
    numbers = _read_numbers(tables[0], added) if plain else None
    return _read_mixed(tables, how, added) if numbers is None else numbers


def _read_array_file(path: str | Path) -> FeatureFile:
    values = read_array(path)
    ids = np.arange(values.shape[0], dtype=np.int64)
    return FeatureFile(values, ids, False, array_place(path), Path(path))


def _read_numbers(features: FeatureTable, added: Callable[[Any], npt.NDArray[Any]]) -> FeatureFile | None:
    """Read a table of numbers, the quick way; None where it is something else."""
    table = features.table
    names = table.unique_names(features.chosen)
    if not features.named and any(_means_something_else(name) for name in names):
        return None
    try:
        block = joined(features.blocks())
    except GraphError:
        return None
    width = block.numbers.shape[1]
    widths = [width] if len(names) == 1 else [1] * len(names)
    if sum(widths) != width:
        return None
    check_once(block.ids[0], table.place, table.path)
    if added(block.ids[0]).size:
        return None
    plan = plain_plan(names, widths)
    told = plan.names if table.header and len({*plan.names}) == width else ()
    return FeatureFile(block.numbers, block.ids[0], True, table.place, table.path, plan, names=told)


def _means_something_else(name: str) -> bool:
    """Tell a name of ids, classes or splits, which are no features even where they are numbers."""
    lowered = name.lower()
    return (
        is_id_name(name) or lowered in INDEX_NAMES or lowered in LABEL_WORDS or words_in(name)[:1] == ["is"]
    )


def _read_mixed(
    tables: Sequence[FeatureTable], how: Encoding, added: Callable[[Any], npt.NDArray[Any]]
) -> FeatureFile:
    """Read any columns and encode them by a plan."""
    import pandas as pd

    label = _label_name(tables, how)
    said = {**how.columns, **({} if label is None else {label: "label"})}
    parts = [read_frame(one, how.columns, how.plan is not None) for one in tables]
    frames, kept = [frame for frame, _ in parts], [ids for _, ids in parts]
    place = _places(tables, [len(ids) for ids in kept])
    ids = one_kind(kept)
    check_once(ids, place, tables[0].table.path)
    more = added(ids)
    if len(tables) > 1:
        frames = [frame.assign(table=one.table.path.stem) for one, frame in zip(tables, frames, strict=True)]
    frame = pd.concat(
        [*frames, *([pd.DataFrame(index=range(more.size))] if more.size else [])], ignore_index=True
    )
    splits = [name for name in frame if _is_split(name, frame[name]) and name not in how.columns]
    values, plan, repairs = encode_table(
        frame.drop(columns=splits),
        how.plan,
        columns={} if how.plan is not None and not how.columns else said,
        text_model=how.text_model,
        place=lambda row, name: place(row) + column_title(tables, name),
    )
    label = label or plan.label
    classes = None
    if label is not None and label in frame.columns:
        words = texts_of(cells_of(frame[label]))
        classes = np.array(["" if one is None else one for one in words], dtype=object)
    return FeatureFile(
        values,
        one_kind([ids, more]) if more.size else ids,
        named=True,
        place=place,
        path=tables[0].table.path,
        plan=plan,
        repairs=repairs,
        classes=classes,
        splits=[frame[name].tolist() for name in splits],
        names=plan.names if all(one.table.header for one in tables) or not plan.as_is else (),
    )


def _is_split(name: str, column: Any) -> bool:
    """Tell a column of train, val and test, which says nothing of a node."""
    if not str(name).lower().startswith(SPLIT_PREFIX):
        return False
    words = {str(one).strip().lower() for one in column.dropna()} - {"", "none"}
    return bool(words) and words <= SPLIT_NAMES.keys()


def _label_name(tables: Sequence[FeatureTable], how: Encoding) -> str | None:
    """Return the column that holds the class: the one that was named, or the one that the labels are."""
    names = [name for one in tables for name in one.table.unique_names(one.chosen)]
    if how.label is None:
        return how.hidden if how.hidden in names else None
    if how.label in names:
        return str(how.label)
    first = tables[0]
    return first.table.names[pick_column(first.table, how.label, "labels", default=0)]


def _places(tables: Sequence[FeatureTable], sizes: Sequence[int]) -> Callable[[int], str]:
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        at = int(np.searchsorted(ends, row, side="right"))
        if at == len(tables):
            return "a node that was added"
        return tables[at].table.place(row - (int(ends[at - 1]) if at else 0))

    return place
