"""Read node features: tables with an id column, whose columns are encoded, or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.checks import SPLIT_NAMES, is_table, numbers_of_table
from h3gnn.graphs.formats import ARRAY_SUFFIXES, array_place, read_array
from h3gnn.graphs.ids import NodeIndex, one_kind
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.edges import ids_of_table
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import Cells, parse_types
from h3gnn.tables.leaks import Target
from h3gnn.tables.plan import TablePlan, encode_table, infer_columns, plain_plan
from h3gnn.tables.reader import FIX_NUMBER, LoadedTable, Table, add_duplicates, joined_place, open_table
from h3gnn.tables.roles import SPLIT_PREFIX, Column, is_no_feature, pick_column, pick_id_column, words_in
from h3gnn.tables.texts import holds_value

Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class FeatureTable:
    """A table of features and the roles of its columns."""

    table: Table
    key: int  # the column of the ids
    chosen: list[int]  # the columns of the features
    named: bool  # whether the user chose them, so that none is left out for its name

    @property
    def names(self) -> list[str]:
        """The distinct names of the features."""
        return self.table.unique_names(self.chosen)

    def names_nodes(self, ids: Ids) -> bool:
        """Whether the ids name the nodes; the index of a data frame may only count them."""
        counts = self.key == len(self.table.names) and np.array_equal(ids, np.arange(ids.size))
        return not counts


@dataclass(frozen=True)
class FeatureFile:
    """Features and the ids of their rows."""

    values: Any  # [nodes, features], array or scipy sparse matrix; None for nodes without features
    ids: Ids
    named: bool  # whether the file contains the ids; otherwise they are the row numbers
    place: Callable[[int], str] = "node {}".format  # names a row
    path: Path | None = None  # the file, or the first of several
    plan: TablePlan | None = None  # None for an array, which has no columns
    repairs: tuple[Repair, ...] = ()
    classes: Ids | None = None  # the words of the class column, "" for unknown
    class_name: str | None = None  # name of that column
    splits: Sequence[list[Any]] = ()  # the words of columns that hold train, val and test
    names: tuple[str, ...] = ()  # of the features, if the file names them
    types: Ids | None = None  # int16, the table of each row, -1 for added nodes; None for one table
    type_names: tuple[str, ...] = ()  # of the tables


@dataclass(frozen=True)
class FeatureOptions:
    """How tables of features are read and their columns encoded; see `read_graph`."""

    id_column: Column | None = None
    chosen: Sequence[Column] | None = None  # the columns to use
    style: Mapping[str, Any] = field(default_factory=dict)  # header and delimiter
    columns: Mapping[str, str] = field(default_factory=dict)  # the kinds of some of them
    label: Column | None = None  # the column that holds the class
    target: Callable[[Ids], Target] | None = None  # the class of each node, if a label file contains it
    text_model: str | None = None
    plan: TablePlan | None = None
    types: Sequence[str] = ()  # of the nodes, if the ids of a table become `user:1`
    elsewhere: frozenset[str] = frozenset()  # names in `columns` that other tables may have instead


Loaded = tuple[FeatureTable, LoadedTable]


def open_features(path: str | Path, options: FeatureOptions) -> FeatureTable:
    """Open a table of features, and find the columns of the ids and features without loading the rows."""
    table = _open(path, options)
    return _assign_roles(table, options, lambda at: table.load([at]).is_unique(at))


def _open(path: Any, options: FeatureOptions) -> Table:
    expected = (options.id_column, *(options.chosen or ()))
    return open_table(path, role="features", expected=expected, **options.style)


def _assign_roles(table: Table, options: FeatureOptions, is_unique: Callable[[int], bool]) -> FeatureTable:
    """Find the column of the ids, and those of the features: the given ones, else all others."""
    key = pick_id_column(table, options.id_column, is_unique)
    chosen = [column for column in range(len(table.names)) if column != key]
    if options.chosen is not None:
        chosen = [pick_column(table, one, "features", default=0) for one in options.chosen]
    if not chosen:
        message = f"{table.path} has no column of features besides the node ids"
        raise GraphError(message, code="column-missing")
    return FeatureTable(table, key, chosen, options.chosen is not None)


def _load(path: Any, options: FeatureOptions) -> Loaded:
    """Read a table once, and assign roles to its columns."""
    if options.chosen is None:
        table = _open(path, options)
        loaded = table.load(range(len(table.names)))
        return _assign_roles(table, options, loaded.is_unique), loaded
    roles = open_features(path, options)
    return roles, roles.table.load((roles.key, *roles.chosen))


def id_columns(paths: Sequence[Any], options: FeatureOptions, wanted: Ids) -> list[tuple[Path, str]]:
    """Return the columns of tables of features, and their files, that hold each of the wanted ids once."""
    index, found = NodeIndex(wanted), []
    for roles, loaded in (_load(path, replace(options, chosen=None)) for path in paths):
        for at, name in enumerate(roles.table.names):
            nodes = loaded.find(at, index)
            nodes = nodes[nodes >= 0]
            if nodes.size == wanted.size == np.unique(nodes).size:
                found.append((roles.table.path, name))
    return found


def read_vectors(path: str | Path) -> FeatureFile:
    """Read finite numbers and the ids of their rows; nothing is encoded."""
    if _is_array(path):
        return _read_array(path)
    roles, loaded = _load(path, FeatureOptions())
    ids, values = loaded.unique_ids(roles.key), loaded.numbers(roles.chosen)
    if values is None:
        for at in roles.chosen:
            numbers, unreadable = loaded.column_numbers(at)
            loaded.add_unreadable(at, unreadable, FIX_NUMBER)
            for row in np.setdiff1d(np.flatnonzero(~np.isfinite(numbers)), unreadable).tolist():
                remedy = "fill the gap or leave the column out"
                loaded.add(row, at, f"the value is {numbers[row]}", remedy, "feature-not-finite")
        loaded.problems.check()
        raise GraphError(f"{path} does not hold numbers only", code="column-not-numeric")
    return FeatureFile(values, ids, True, loaded.place, roles.table.path)


def _is_array(source: Any) -> bool:
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in ARRAY_SUFFIXES
    return not is_table(source)


def _read_array(source: Any) -> FeatureFile:
    """Read an array from a file, or take one in memory; the row numbers are the ids."""
    if isinstance(source, str | Path):
        values, place, path = read_array(source), array_place(source), Path(source)
    else:
        values, place, path = numbers_of_table(source), "the features, row {}".format, Path("features")
    return FeatureFile(values, np.arange(values.shape[0], dtype=np.int64), False, place, path)


def read_features(
    paths: Sequence[Any], options: FeatureOptions, added: Callable[[Ids], Ids] | None = None
) -> FeatureFile:
    """Read the features and the ids of their rows; columns that are no numbers are encoded.

    A table is a file or a data frame. The rows of several are concatenated: a column that one of them does
    not have is missing there, and the table that a node comes from is a category. Given the ids, `added`
    returns those of further nodes, whose features are all missing.
    """
    if any(_is_array(path) for path in paths):
        found = _read_array(paths[0]) if len(paths) == 1 else None
        if found is None or (added is not None and added(found.ids).size):
            message = (
                f"{paths[0]}: other tables, and nodes without features, cannot be combined with an array"
            )
            raise GraphError(message, code="array-not-combinable")
        return found
    tables = [_load(path, options) for path in paths]
    other = options.elsewhere - {name for roles, _ in tables for name in roles.names}
    kinds = {name: kind for name, kind in options.columns.items() if name not in other}
    options, parts = replace(options, columns=kinds), []
    for roles, loaded in tables:
        parts.append(ids_of_table(loaded, roles.key, options.types))
        _check_problems(roles, loaded, options)
    ids = one_kind(parts)
    places = [loaded.place for _, loaded in tables]
    place = joined_place([*places, lambda row: "a node that was added"], [len(part) for part in parts])
    problems = Problems(tables[0][0].table.path)
    add_duplicates(problems, ids, place)
    problems.check()
    more = ids[:0] if added is None else added(ids)
    if len(tables) == 1 and not more.size:
        found = _read_numbers(*tables[0], ids, options)
        if found is not None:
            return found
    return _read_mixed(tables, ids, options, more, place)


def _check_problems(roles: FeatureTable, loaded: LoadedTable, options: FeatureOptions) -> None:
    """Raise with the problems of a table, if it has any, and with its ambiguous cells."""
    if loaded.problems.count and options.plan is None:
        names, place = roles.names, _cell_place(loaded.place, [roles])
        types = parse_types({name: kind for name, kind in options.columns.items() if name in names})
        infer_columns(loaded.frame(roles.chosen), types, place, loaded.problems)
    loaded.problems.check()


def _read_numbers(
    roles: FeatureTable, loaded: LoadedTable, ids: Ids, options: FeatureOptions
) -> FeatureFile | None:
    """Return a table of finite numbers unchanged; None if it is something else."""
    table, names = roles.table, roles.names
    planned = options.plan is not None and not options.plan.takes_all
    if options.columns or options.label or planned:
        return None
    if not roles.named and any(is_no_feature(one, ()) or words_in(one)[:1] == ["is"] for one in names):
        return None  # ids, classes and yes-or-no questions: their values decide which
    values = loaded.numbers(roles.chosen)
    if values is None or (len(names) > 1 and values.shape[1] != len(names)):
        return None
    plan = plain_plan(names, values.shape[1])
    if options.target is not None and plan.leaks(values, options.target(ids)):
        return None
    shown = plan.names if table.header and len({*plan.names}) == values.shape[1] else ()
    return FeatureFile(values, ids, roles.names_nodes(ids), table.place, table.path, plan, names=shown)


def _read_mixed(
    tables: Sequence[Loaded], ids: Ids, options: FeatureOptions, more: Ids, place: Callable[[int], str]
) -> FeatureFile:
    """Read columns of any kind and encode them by a plan."""
    opened = [roles for roles, _ in tables]
    target = None if options.target is None else options.target(one_kind([ids, more]) if more.size else ids)
    label = _label_name(opened, options, target)
    declared = {**options.columns, **({} if label is None else {label: "label"})}
    frames = [loaded.frame(roles.chosen) for roles, loaded in tables]
    stems = [one.table.path.stem for one in opened]
    several = [stems.count(stem) > 1 for stem in stems]  # data frames, or files of the same name
    types = [f"{stem} {at + 1}" if several[at] else stem for at, stem in enumerate(stems)]
    for at, roles in enumerate(opened):
        _check_no_header(roles.table, frames[at])
        if len(tables) > 1:
            frames[at] = frames[at].assign(table=types[at])
    counts = [*map(len, frames), more.size]
    if more.size:
        frames.append(pd.DataFrame(index=range(more.size)))
    frame = pd.concat(frames, ignore_index=True)
    having = {
        str(name): np.repeat([name in one.columns for one in frames], counts[: len(frames)]) for name in frame
    }
    splits = [name for name in frame if name not in options.columns and _is_split(name, frame[name])]
    values, plan, repairs = encode_table(
        frame.drop(columns=splits),
        options.plan,
        columns=declared if options.plan is None else options.columns,
        text_model=options.text_model,
        place=_cell_place(place, opened),
        target=target,
        own={name: rows for name, rows in having.items() if not rows.all()},
    )
    label = label or plan.label
    headers = all(roles.table.header for roles in opened)
    return FeatureFile(
        values,
        one_kind([ids, more]) if more.size else ids,
        named=any(roles.names_nodes(ids) for roles in opened),
        place=place,
        path=opened[0].table.path,
        plan=plan,
        repairs=repairs,
        classes=Cells(frame[label]).words() if label in frame.columns else None,
        class_name=label,
        splits=[frame[name].tolist() for name in splits],
        names=plan.names if headers or not plan.as_is else (),
        types=np.repeat([*range(len(tables)), -1], counts).astype(np.int16) if len(tables) > 1 else None,
        type_names=tuple(types) if len(tables) > 1 else (),
    )


def _is_split(name: Any, column: Any) -> bool:
    """Whether a column assigns nodes to train, val and test."""
    if not name.lower().startswith(SPLIT_PREFIX):
        return False
    words = {one.lower() for one in Cells(column).distinct} - {"none"}
    return bool(words) and words <= SPLIT_NAMES.keys()


def _label_name(tables: Sequence[FeatureTable], options: FeatureOptions, target: Target | None) -> str | None:
    """Return the column that holds the class: the named one, or the one that the label file contains."""
    names = [name for one in tables for name in one.names]
    if options.label is None:
        name = None if target is None else target.name
        return name if name in names and name not in options.columns else None
    if options.label in names:
        return str(options.label)
    first = tables[0].table
    return first.names[pick_column(first, options.label, "labels", default=0)]


def _check_no_header(table: Table, frame: Any) -> None:
    """Ask whether the first row is a header if it could name the columns: no cell repeats or is a number."""
    if not table.guessed or table.header:
        return
    first, below = frame.iloc[0], frame.iloc[1:]
    if not any(holds_value(str(first[name])) or bool((below[name] == first[name]).any()) for name in frame):
        cells = shortened(map(repr, map(str, first)), 3)
        message = f"{cells} may name the columns or describe a node; choose --header or --no-header"
        raise GraphError(f"{table.place(0)}: {message}", code="header-ambiguous")


def _cell_place(place: Callable[[int], str], tables: Sequence[FeatureTable]) -> Callable[[int, str], str]:
    """Return a function that names a cell; a column of several tables is named as in the first."""
    titles = {
        name: one.table.title(at)
        for one in reversed(tables)
        for name, at in zip(one.names, one.chosen, strict=True)
    }
    return lambda row, name: place(row) + titles.get(name, f", column {name}")
