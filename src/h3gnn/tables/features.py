"""Read node features: tables with an id column, whose columns are encoded, or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.formats import ARRAY_SUFFIXES, array_place, read_array
from h3gnn.graphs.ids import one_kind, words_in
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import Cells, is_missing_word, is_number, parse_types
from h3gnn.tables.plan import TablePlan, encode_table, infer_columns, plain_plan
from h3gnn.tables.reader import FIX_NUMBER, LoadedTable, Table, check_once, joined_place, open_table
from h3gnn.tables.roles import Column, infer_id_column, is_no_feature, is_split_column, pick_column


@dataclass(frozen=True)
class FeatureTable:
    """A table of features and the roles of its columns."""

    table: Table
    key: int  # the column of the ids
    chosen: list[int]  # the columns of the features
    named: bool  # whether the user chose them, so that none is left out for its name


def open_features(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureTable:
    """Open a table of features without loading it; see `_assign_roles`."""
    table = open_table(path, role="features", expected=(id_column, *(columns or ())), **style)
    return _assign_roles(table, id_column, columns, lambda at: table.load([at]).is_unique(at))


def _assign_roles(
    table: Table,
    id_column: Column | None,
    columns: Sequence[Column] | None,
    is_unique: Callable[[int], bool],
) -> FeatureTable:
    """Find the column of the ids, and those of the features: the given ones, else all others."""
    key = pick_id_column(table, id_column, is_unique)
    if columns is None:
        chosen = [column for column in range(len(table.names)) if column != key]
    else:
        chosen = [pick_column(table, one, "features", default=0) for one in columns]
    if not chosen:
        raise GraphError(
            f"{table.path} has no column of features besides the node ids", code="column-missing"
        )
    return FeatureTable(table, key, chosen, columns is not None)


def pick_id_column(table: Table, wanted: Column | None, is_unique: Callable[[int], bool]) -> int:
    """Return the column of the node ids: the given one, else by `infer_id_column`."""
    if wanted is not None:
        return pick_column(table, wanted, "node ids", default=0)
    return infer_id_column(table.names, is_unique)


@dataclass(frozen=True)
class FeatureFile:
    """Features and the ids of their rows."""

    values: Any  # [nodes, features], array or scipy sparse matrix
    ids: npt.NDArray[Any]
    named: bool  # whether the file contains the ids; otherwise they are the row numbers
    place: Callable[[int], str]  # names a row
    path: Path  # the file, or the first of several
    plan: TablePlan | None = None  # None for an array, which has no columns
    repairs: tuple[Repair, ...] = ()
    classes: npt.NDArray[Any] | None = None  # the words of the class column, "" for unknown
    splits: Sequence[list[Any]] = ()  # the words of columns that hold train, val and test
    names: tuple[str, ...] = ()  # of the features, if the file names them


@dataclass(frozen=True)
class Encoding:
    """How the columns of features are encoded; see `encode_table`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    label: Column | None = None  # the column that holds the class
    hidden: str | None = None  # a column that must not be a feature, since a label file contains it
    text_model: str | None = None
    plan: TablePlan | None = None


def read_vectors(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureFile:
    """Read finite numbers and the ids of their rows; nothing is encoded."""
    if Path(path).suffix.lower() in ARRAY_SUFFIXES:
        return _read_array_file(path)
    roles, loaded = _load(path, id_column, columns, style, Encoding())
    table, ids, values = roles.table, loaded.ids(roles.key), loaded.numbers(roles.chosen)
    if values is None:
        _report_numbers(roles)
        raise GraphError(f"{table.path} does not hold numbers only", code="column-not-numeric")
    check_once(ids, table.place, table.path)
    return FeatureFile(values, ids, True, table.place, table.path)


def _report_numbers(features: FeatureTable) -> None:
    """Walk the table row by row, and raise with the cells that are not finite numbers."""
    table, problems = features.table, Problems(features.table.path)
    for place, _, cells in table.walk(features.chosen):
        for column, cell in zip(features.chosen, cells or (), strict=False):
            if is_missing_word(cell) or "inf" in cell.lower():
                what, code = f"the value is {cell or 'empty'}", "feature-not-finite"
                problems.add(place + table.title(column), what, "fill the gap or leave the column out", code)
            elif not is_number(cell):
                what = f"{cell!r} is not a number"
                problems.add(place + table.title(column), what, FIX_NUMBER, "cell-unreadable")
    problems.check()


def _read_array_file(path: str | Path) -> FeatureFile:
    values = read_array(path)
    ids = np.arange(values.shape[0], dtype=np.int64)
    return FeatureFile(values, ids, False, array_place(path), Path(path))


def read_features(
    paths: Sequence[str | Path],
    id_column: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    encoding: Encoding,
    added: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda known: known[:0],
) -> FeatureFile:
    """Read the features and the ids of their rows; columns that are no numbers are encoded.

    The rows of several tables are concatenated: a column that one of them does not have is missing there, and
    the table that a node comes from is a category. Given the ids, `added` returns those of further nodes,
    whose features are all missing.
    """
    if any(Path(path).suffix.lower() in ARRAY_SUFFIXES for path in paths):
        if len(paths) > 1:
            message = f"{paths[0]}: an array cannot be combined with another table of features"
            raise GraphError(message, code="array-not-combinable")
        found = _read_array_file(paths[0])
        if added(found.ids).size:
            message = f"{paths[0]}: nodes without features cannot be added to an array; give a table"
            raise GraphError(message, code="array-not-combinable")
        return found
    tables = [_load(path, id_column, columns, style, encoding) for path in paths]
    parts = [loaded.ids(roles.key) for roles, loaded in tables]
    ids = one_kind(parts)
    places = [roles.table.place for roles, _ in tables]
    place = joined_place([*places, lambda row: "a node that was added"], [len(part) for part in parts])
    check_once(ids, place, tables[0][0].table.path)
    more = added(ids)
    return _read_numbers(tables, ids, encoding, more) or _read_mixed(tables, ids, encoding, more, place)


Loaded = tuple[FeatureTable, LoadedTable]


def _load(
    path: str | Path,
    id_column: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    encoding: Encoding,
) -> Loaded:
    """Read a table once, and assign roles to its columns; an invalid table raises all of its problems."""
    table = open_table(path, role="features", expected=(id_column, *(columns or ())), **style)
    roles: FeatureTable | None = None
    try:
        if columns is None:
            loaded = table.load(range(len(table.names)))
            roles = _assign_roles(table, id_column, None, loaded.is_unique)
        else:
            roles = _assign_roles(table, id_column, columns, lambda at: table.load([at]).is_unique(at))
            loaded = table.load((roles.key, *roles.chosen))
        loaded.ids(roles.key)
    except GraphError:
        _report_problems(roles or _assign_roles(table, id_column, columns, lambda at: False), encoding)
        raise
    return roles, loaded


def _read_numbers(
    tables: Sequence[Loaded], ids: npt.NDArray[Any], encoding: Encoding, more: npt.NDArray[Any]
) -> FeatureFile | None:
    """Return a table of finite numbers unchanged; None if it is something else."""
    (roles, loaded), table = tables[0], tables[0][1].table
    planned = encoding.plan is not None and not encoding.plan.as_is
    names = table.unique_names(roles.chosen)
    if encoding.columns or encoding.label or planned or len(tables) > 1 or more.size:
        return None
    if encoding.hidden in table.names or (not roles.named and any(map(_needs_inference, names))):
        return None
    values = loaded.numbers(roles.chosen)
    if values is None or (len(names) > 1 and values.shape[1] != len(names)):
        return None
    plan = plain_plan(names, [values.shape[1]] if len(names) == 1 else [1] * len(names))
    shown = plan.names if table.header and len({*plan.names}) == values.shape[1] else ()
    return FeatureFile(values, ids, True, table.place, table.path, plan, names=shown)


def _needs_inference(name: str) -> bool:
    """Whether a name is one of ids, classes or yes-or-no questions, whose values decide what they are."""
    return is_no_feature(name, ()) or words_in(name)[:1] == ["is"]


def _read_mixed(
    tables: Sequence[Loaded],
    ids: npt.NDArray[Any],
    encoding: Encoding,
    more: npt.NDArray[Any],
    place: Callable[[int], str],
) -> FeatureFile:
    """Read columns of any kind and encode them by a plan."""
    import pandas as pd

    label = _label_name(tables, encoding)
    declared = {**encoding.columns, **({} if label is None else {label: "label"})}
    frames = [loaded.frame(roles.chosen) for roles, loaded in tables]
    for (roles, _), part in zip(tables, frames, strict=True):
        _check_no_header(roles.table, part)
    if len(tables) > 1:
        frames = [
            part.assign(table=roles.table.path.stem) for (roles, _), part in zip(tables, frames, strict=True)
        ]
    if more.size:
        frames.append(pd.DataFrame(index=range(more.size)))
    frame = pd.concat(frames, ignore_index=True)
    splits = [name for name in frame if name not in encoding.columns and _is_split(name, frame[name])]
    values, plan, repairs = encode_table(
        frame.drop(columns=splits),
        encoding.plan,
        columns={} if encoding.plan is not None and not encoding.columns else declared,
        text_model=encoding.text_model,
        place=lambda row, name: place(row) + _column_title([roles for roles, _ in tables], name),
    )
    label = label or plan.label
    headers = all(roles.table.header for roles, _ in tables)
    return FeatureFile(
        values,
        one_kind([ids, more]) if more.size else ids,
        named=True,
        place=place,
        path=tables[0][0].table.path,
        plan=plan,
        repairs=repairs,
        classes=Cells(frame[label]).words() if label is not None and label in frame.columns else None,
        splits=[frame[name].tolist() for name in splits],
        names=plan.names if headers or not plan.as_is else (),
    )


def _is_split(name: Any, column: Any) -> bool:
    return is_split_column(str(name), Cells(column))


def _label_name(tables: Sequence[Loaded], encoding: Encoding) -> str | None:
    """Return the column that holds the class: the named one, or the one that the label file contains."""
    names = [name for roles, _ in tables for name in roles.table.unique_names(roles.chosen)]
    if encoding.label is None:
        return encoding.hidden if encoding.hidden in names else None
    if encoding.label in names:
        return str(encoding.label)
    first = tables[0][0].table
    return first.names[pick_column(first, encoding.label, "labels", default=0)]


def _check_no_header(table: Table, frame: Any) -> None:
    """Ask whether the first row is a header if it could name the columns: no cell repeats or is a number."""
    if not table.guessed or table.header:
        return
    first, below = frame.iloc[0], frame.iloc[1:]
    if all(
        not is_number(str(first[name])) and not bool((below[name] == first[name]).any()) for name in frame
    ):
        cells = ", ".join(repr(str(one)) for one in first[:3])
        raise GraphError(
            f"{table.place(0)}: {cells} may name the columns or "
            "describe a node; say whether this row is a header (--header, --no-header)",
            code="header-ambiguous",
        )


def _report_problems(features: FeatureTable, encoding: Encoding) -> None:
    """Walk the table row by row, and raise with its malformed rows, missing ids and ambiguous cells."""
    import pandas as pd

    table = features.table
    names, places, good = table.unique_names(features.chosen), list[str](), list[list[str]]()

    def collect(problems: Problems, row: int, place: str, cells: list[str]) -> None:
        if cells[0]:
            places.append(place)
            good.append(cells[1:])

    problems = table.find_problems([features.key], features.chosen, collect)
    if good and encoding.plan is None and table.delimiter is not None:
        types = parse_types({name: kind for name, kind in encoding.columns.items() if name in names})
        frame = pd.DataFrame(good, columns=names)
        infer_columns(frame, types, lambda row, name: places[row] + _column_title([features], name), problems)
    problems.check()


def _column_title(tables: Sequence[FeatureTable], name: str) -> str:
    """Name a column after its row; one that several tables have is named as in the first."""
    for one in tables:
        names = one.table.unique_names(one.chosen)
        if name in names:
            return one.table.title(one.chosen[names.index(name)])
    return f", column {name}"
