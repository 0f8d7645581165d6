"""Several linked tables: opened once, and read as a relational graph.

Rows become nodes, keys and links become relations. A question names a node type, a column, or a condition on
the values of a column.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError, counted, shortened
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.relational import UNKNOWN_TIME, NodeTable, Relation, RelationalGraph
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import MOST_CLASSES, Cells
from h3gnn.tables.leaks import Target
from h3gnn.tables.plan import TablePlan, encode_table, infer_columns
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.rows import decode_times, inherited_times, naming_columns, parse_time, row_keys
from h3gnn.tables.schema import (
    Link,
    Profile,
    Schema,
    TableSchema,
    accept_questions,
    check_schema,
    read_schema,
)
from h3gnn.tables.sources import Source, open_source

NAMING, WORDS_OF_NAME = 0.9, 4
"""Texts name rows if at least this share of them is distinct, and their median has at most
this number of words."""
Accept = str | Sequence[int] | Callable[[Schema], Sequence[int]]
"""Questions of a schema to accept: "1,3", "all", numbers, or a function that returns numbers."""


class OpenedTables(Source):
    """A source whose tables are read once.

    Attributes:
        place: where it is, an absolute path or a URL without password; None for data frames.
        given: the schema, if the source is a schema file.
    """

    def __init__(self, source: Source, place: str | None, given: Schema | None) -> None:
        super().__init__(source.name, source.tables)
        self._source, self.declared, self.notes = source, source.declared, source.notes
        self.views = source.views
        self.place, self.given = place, given
        self._frames: dict[str, pd.DataFrame] = {}
        self._digests: dict[str, dict[str, Any]] = {}

    @classmethod
    def open(cls, source: Any) -> OpenedTables:
        """Open a source or a schema file."""
        if isinstance(source, OpenedTables):
            return source
        given = None
        if isinstance(source, str | Path) and Path(source).suffix.lower() == ".toml":
            given, source = read_schema(Path(source))
        opened = open_source(source)
        if not isinstance(source, str | Path):
            return cls(opened, None, given)
        return cls(opened, opened.name if "://" in str(source) else str(Path(source).absolute()), given)

    @classmethod
    def again(cls, place: str | None, known: Mapping[str, Mapping[str, Any]], where: str) -> OpenedTables:
        """Open the tables that `where` was fitted on, which must not have changed since."""
        if place is None:
            message = "the tables of this database were data frames: give them again"
            raise InputError(message, code="tables-missing")
        try:
            opened = cls.open(place)
        except InputError as error:
            message = f"{error}; the tables are needed: name them (--tables SOURCE)"
            raise InputError(message, code=error.code) from None
        opened.check_same(known, where)
        return opened

    def with_rows(self, more: Source, schema: Schema, label: str | None) -> OpenedTables:
        """Return the tables with the rows of others of the same names after their own.

        Args:
            more: the new rows of some tables.
            schema: of the tables.
            label: `TABLE.COLUMN` that is predicted, which new rows need not have.
        """
        frames = {name: self.frame(name) for name in schema.tables}
        for name in more.tables:
            if name not in frames:
                message = f"{more.name} has a table {name!r}, which the fitted tables have not; they are "
                raise InputError(message + shortened(frames, 12), code="table-missing")
            known, new = frames[name], more.frame(name)
            missing = [one for one in known if one not in new and f"{name}.{one}" != label]
            if missing:
                message = f"{more.name}: the table {name!r} has no column {missing[0]!r}; it has "
                raise InputError(message + shortened(new.columns, 12), code="column-missing")
            new = new.reindex(columns=known.columns)
            frames[name] = pd.DataFrame({one: _below(known[one], new[one]) for one in known})
            key = schema.tables[name].key
            if key and not Profile(name, frames[name]).is_key(key):
                message = f"{more.name}: rows of {name!r} have keys ({' + '.join(key)}) that are missing, "
                message += "repeated or already known: give new rows only"
                raise InputError(message, code="node-already-fitted")
        return OpenedTables.open(frames)

    def schema(self, given: Schema | str | Path | None = None, accept: Accept | None = None) -> Schema:
        """Return a given schema, that of a schema file, or the inferred one with accepted questions."""
        given = self.given if given is None else given
        if isinstance(given, str | Path):
            given = read_schema(Path(given))[0]
        known = infer_schema(self) if given is None else check_schema(given, self)
        if unread := [one for one in self.views if one not in known.tables]:
            note = f"{self.name}: views are read if a schema file names them: {shortened(unread, 6)}"
            self.notes += [note] if note not in self.notes else []
        if accept is None:
            return known
        return accept_questions(known, accept(known) if callable(accept) else accept)

    def frame(self, table: str) -> pd.DataFrame:
        """Return the rows of a table."""
        if table not in self._frames:
            self._frames[table] = self._source.frame(table)
        return self._frames[table]

    def digest(self, table: str) -> dict[str, Any]:
        """Return the number of rows of a table, and a hash of its cells."""
        if table not in self._digests:
            frame, found = self.frame(table), hashlib.sha256()
            for name in frame.columns:
                texts = frame[name].astype(str).to_numpy(dtype=object)
                found.update(f"{name}\0".encode())
                found.update(pd.util.hash_array(texts).tobytes())
            self._digests[table] = {"rows": len(frame), "sha256": found.hexdigest()}
        return self._digests[table]

    def check_same(self, known: Mapping[str, Mapping[str, Any]], where: str) -> None:
        """Raise an error if the tables differ from those that `where` was fitted on, by their digests."""
        for name, before in known.items():
            if name not in (*self.tables, *self.views):
                message = f"{self.name} has no table {name!r}, which {where} was fitted on"
                raise InputError(f"{message}: choose another folder", code="tables-differ")
            if self.digest(name) != before:
                message = (
                    f"{self.name}: the table {name!r} ({self.digest(name)['rows']:,} rows) differs from "
                )
                message += (
                    f"the one ({before['rows']:,} rows) that {where} was fitted on: choose another folder; "
                    "rows that were only added go into tables of their own (--new-tables)"
                )
                raise InputError(message, code="tables-differ")


def _below(known: pd.Series[Any], new: pd.Series[Any]) -> pd.Series[Any]:
    """Return the cells of two columns, the new ones last; of different types as objects."""
    parts = [known, new] if known.dtype == new.dtype else [known.astype(object), new.astype(object)]
    return pd.concat(parts, ignore_index=True)


Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """A column of a table, written `loans.status`."""

    table: str
    name: str

    @classmethod
    def parse(cls, text: str, tables: Mapping[str, Any]) -> Column:
        """Split `table.column`; the longest name of a table that fits counts."""
        fitting = [one for one in tables if text.lower().startswith(f"{one.lower()}.")]
        if not fitting:
            near = get_close_matches(text.partition(".")[0], tables, 1, cutoff=0.7)
            meant = f"; did you mean {near[0]}.{text.partition('.')[2] or 'COLUMN'}?" if near else ""
            message = f"{text!r} is not TABLE.COLUMN; the tables are {shortened(tables, 12)}{meant}"
            raise InputError(message, code="column-unknown")
        table = max(fitting, key=len)
        return cls(table, text[len(table) + 1 :])

    def check(self, names: Iterable[Any]) -> None:
        """Raise an error if the table, whose columns are named, has no such column."""
        words = [str(one) for one in names]
        if self.name in words:
            return
        near = get_close_matches(self.name.lower(), [one.lower() for one in words], 1, cutoff=0.7)
        meant = next((f"; did you mean {one}?" for one in words if one.lower() in near), "")
        message = f"the table {self.table!r} has no column {self.name!r}; it has "
        raise GraphError(message + shortened(words, 12) + meant, code="column-missing")


def read_database(
    source: Any,
    schema: Schema | None = None,
    *,
    label: str | None = None,
    as_of: Any = None,
    columns: Mapping[str, str] | None = None,
    fitted: RelationalGraph | None = None,
    names: bool = True,
) -> RelationalGraph:
    """Return the relational graph of several linked tables.

    Every table is a node type, and every link a relation; the values of `nodes` columns are types as well. A
    row without a time of its own has the latest time of the rows that it references. The order of the tables
    changes nothing.

    Args:
        source: a folder, workbook, database, URL, schema file, or data frames by name.
        schema: keys, links and times; by default those of the schema file, or inferred ones.
        label: `TABLE.COLUMN` to predict; it is no feature of any node.
        as_of: a date; later rows are left out.
        columns: kinds of columns, `{"loans.duration": "number"}`.
        fitted: the graph of the first rows of each table, whose encoders are used; only further rows are
            reported.
        names: whether short texts that name the rows are features, as they may be of what is predicted. Rows
            are not alike because they have a word of their names in common.
    """
    until = None if as_of is None else parse_time(as_of)
    opened = OpenedTables.open(source)
    schema = schema or opened.given or infer_schema(opened)
    known = {} if fitted is None else fitted.types
    plans = {name: one.plan for name, one in known.items() if one.plan is not None}
    reader = _Reader(opened, schema, dict(columns or {}), plans)
    reader.first = {name: one.nodes for name, one in known.items()}
    reader.uses_names = names
    if label is not None:
        reader.label = Column.parse(label, schema.tables)
    return reader.read(until)


class _Reader:
    """Reads the tables of a source by a schema."""

    def __init__(
        self, source: Source, schema: Schema, kinds: dict[str, str], plans: Mapping[str, TablePlan]
    ) -> None:
        self.source, self.plans = source, plans
        self.schema = replace(schema, tables=dict(sorted(schema.tables.items())))
        self.label: Column | None = None
        self.uses_names = True
        self.first: Mapping[str, int] = {}
        self.kinds: dict[str, dict[str, str]] = {
            name: dict(one.columns) for name, one in schema.tables.items()
        }
        for text, kind in kinds.items():
            column = Column.parse(text, schema.tables)
            column.check(source.frame(column.table).columns)
            self.kinds[column.table][column.name] = kind
        self.profiles: dict[str, Profile] = {}
        self.repairs: list[Repair] = []

    def read(self, as_of: int | None) -> RelationalGraph:
        """Return the graph of the rows up to a time."""
        self.schema = check_schema(self.schema, self.source, self.profiles)
        if self.label is not None:
            self.schema = self._without(self.label)
        links = [*self._links()]
        times = self._times(links)
        kept = {name: self._kept(name, times[name], as_of) for name in self.profiles}
        moments = {name: None if time is None else time[kept[name]] for name, time in times.items()}
        values = self._values(kept)
        relations = [_of_kept(one, kept) for one in links] + [one for _, found in values for one in found]
        relations = [replace(one, time=_of_rows(moments[one.source], one.ends[0])) for one in relations]
        types = {name: self._table(name, rows, moments[name]) for name, rows in kept.items()}
        types |= {table.name: table for table, _ in values}
        for question in self.schema.questions:
            self.repairs.append(Repair("question-open", f"not used: {question.table}: {question.text}"))
        self.repairs += [Repair("source-note", note) for note in self.source.notes]
        link_types = frozenset(name for name in self.schema.tables if self.schema.is_link_table(name))
        return RelationalGraph(types, tuple(relations), link_types, self.source.name, tuple(self.repairs))

    def _without(self, label: Column) -> Schema:
        """Return the schema without links and nodes that are in the column to predict."""
        table = self.schema.tables[label.table]
        label.check(self.profiles[label.table].frame.columns)
        if label.name in (*table.key, table.time):
            role = "key" if label.name in table.key else "time"
            message = f"{label.name!r} cannot be predicted: it is the {role} of {label.table!r}"
            raise GraphError(message, code="label-has-role")
        links = tuple(one for one in table.links if label.name not in one.columns)
        nodes = {
            kind: tuple(one for one in columns if one != label.name) for kind, columns in table.nodes.items()
        }
        changed = replace(table, links=links, nodes={kind: of for kind, of in nodes.items() if of})
        if changed != table:
            message = f"{label.table}.{label.name} is predicted, and therefore links no nodes"
            self.repairs.append(Repair("label-links-nothing", message, fields=(label.name,)))
        return replace(self.schema, tables={**self.schema.tables, label.table: changed})

    def _links(self) -> Iterator[Relation]:
        """Yield the relation of each link; links without a matching key are left out and reported."""
        for name, table in self.schema.tables.items():
            for link in table.links:
                key = self.schema.tables[link.to].key
                rows = _match(self.profiles[name], link.columns, self.profiles[link.to], key)
                known, missing = np.flatnonzero(rows >= 0), np.flatnonzero(rows == -1)
                title = f"{name}.{'+'.join(link.columns)}"
                missing = missing[missing >= self.first.get(name, 0)]
                if missing.size:
                    self.repairs.append(self._dangling(title, name, link, missing))
                yield Relation(title, name, link.to, np.stack([known, rows[known]]))

    def _dangling(self, title: str, name: str, link: Link, missing: Integers) -> Repair:
        """Return the report of rows whose link has no matching key, with the first of them."""
        profile, key = self.profiles[name], self.schema.tables[name].key
        rows = row_keys(profile, key) if key else [str(at + 1) for at in range(len(profile.frame))]
        keys = row_keys(profile, link.columns)
        shown = shortened((f"{rows[at]} to {keys[at]}" for at in missing), 4)
        verb = "links" if len(missing) == 1 else "link"
        message = f"{counted(len(missing), 'row')} of {name} {verb} to no row of {link.to} ({title}): {shown}"
        return Repair("dangling-links", message, len(missing), link.columns)

    def _values(self, kept: Mapping[str, Mask]) -> list[tuple[NodeTable, list[Relation]]]:
        """Return the node types of the values of columns, each with the relations of the kept rows to it."""
        places: dict[str, list[tuple[str, str]]] = {}
        for name, table in self.schema.tables.items():
            for kind, columns in table.nodes.items():
                places.setdefault(kind, []).extend((name, column) for column in columns)
        found = []
        for kind, of_kind in places.items():
            cells = [self.profiles[name].texts(column)[kept[name]] for name, column in of_kind]
            codes, distinct = pd.factorize(pd.concat(cells, ignore_index=True), sort=True)
            relations = []
            parts = np.split(codes.astype(np.int64), np.cumsum([*map(len, cells)])[:-1])
            for (name, column), part in zip(of_kind, parts, strict=True):
                known = np.flatnonzero(part >= 0)
                relations.append(Relation(f"{name}.{column}", name, kind, np.stack([known, part[known]])))
            empty = np.zeros((len(distinct), 0), dtype=np.float32)
            found.append((NodeTable(kind, _ids(distinct), empty), relations))
        return found

    def _times(self, links: list[Relation]) -> dict[str, Integers | None]:
        """Return the time of each row; None for tables without a time that reference none with one."""
        timed, size = {name for name, one in self.schema.tables.items() if one.time}, -1
        while size < len(timed):
            size = len(timed)
            timed |= {one.source for one in links if one.target in timed}
        own = {name: np.full(len(one.frame), UNKNOWN_TIME) for name, one in self.profiles.items()}
        for name, table in self.schema.tables.items():
            if table.time:
                own[name] = decode_times(self.profiles[name].frame, table.time, name)
        found = inherited_times(own, links)
        return {name: found[name] if name in timed else None for name in own}

    def _kept(self, name: str, time: Integers | None, as_of: int | None) -> Mask:
        """Return the rows that exist at a time; those without a time do."""
        rows = len(self.profiles[name].frame)
        if as_of is None or time is None:
            return np.ones(rows, dtype=bool)
        kept = np.asarray(time <= as_of)
        if not kept.all():
            later = counted(rows - int(kept.sum()), "later row")
            message = f"{later} of {name} {'is' if later.startswith('1 ') else 'are'} left out"
            self.repairs.append(Repair("later-rows", message, rows - int(kept.sum())))
        return kept

    def _table(self, name: str, kept: Mask, time: Integers | None) -> NodeTable:
        """Encode the columns of a table that are neither keys, links nor the label."""
        table, profile = self.schema.tables[name], self.profiles[name]
        frame = profile.frame[kept].reset_index(drop=True)
        labels = {}
        if self.label is not None and self.label.table == name:
            labels = {self.label.name: frame[self.label.name]}
        without = self._roles(table) | labels.keys() | (set() if self.uses_names else self._names(table))
        used = [one for one in frame.columns if str(one) not in without]
        values, names, plan = self._encode(name, frame[used], next(iter(labels.values()), None))
        ids, has_ids = np.arange(len(frame), dtype=np.int64), False
        if len(table.key) == 1:
            ids, has_ids = _ids(profile.texts(table.key[0])[kept]), True
        elif table.key:
            parts = [profile.texts(one)[kept].str.replace("/", "%2F") for one in table.key]
            ids, has_ids = np.array(["/".join(one) for one in zip(*parts, strict=True)], dtype=object), True
        dated_by = self.schema.dated_by(name)
        return NodeTable(name, ids, values, has_ids, names, plan, time, labels, dated_by=dated_by)

    def _encode(
        self, name: str, frame: pd.DataFrame, labels: Any
    ) -> tuple[Any, tuple[str, ...], TablePlan | None]:
        plan = self.plans.get(name)
        if not len(frame.columns) or (not len(frame) and plan is None):
            return np.zeros((len(frame), 0), dtype=np.float32), (), None
        kinds = {one: kind for one, kind in self.kinds[name].items() if one in frame.columns}

        def place(row: int, column: str) -> str:
            return f"{name}, row {row + 1}, column {column!r}"

        frame = frame.set_axis([str(one) for one in frame.columns], axis="columns")
        target = None if labels is None else _target(labels)
        if plan is None:
            kinds |= self._as_text(name, frame, kinds)
        try:
            values, plan, repairs = encode_table(frame, plan, columns=kinds, place=place, target=target)
        except GraphError as error:
            if error.code != "no-usable-column":
                raise
            left = shortened(map(str, frame.columns), 4)
            message = f"{name} has no usable column of its own ({left}), but counts through its links"
            self.repairs.append(Repair(error.code, message))
            return np.zeros((len(frame), 0), dtype=np.float32), (), None
        named = (replace(one, message=f"{name}: {one.message}") for one in repairs)
        self.repairs += [one for one in named if one.code != "columns-encoded"]
        return values.astype(np.float32), plan.names, plan

    def _as_text(self, name: str, frame: pd.DataFrame, kinds: Mapping[str, str]) -> dict[str, str]:
        """Return the columns of numbers or dates in which some cells are neither: they are categories."""
        found = {}
        for column in frame.columns.difference([*kinds], sort=False):
            problems = Problems(name)
            infer_columns(frame[[column]], {}, lambda row, column: f"row {row + 1}", problems)
            if problems.count:
                found[column] = "category"
                more = f", and so are {counted(problems.count - 1, 'other')}" if problems.count > 1 else ""
                message = f"{name}.{column} is read as text, since in {problems.example}{more}"
                self.repairs.append(Repair("mixed-column", message, problems.count, (column,)))
        return found

    def _names(self, table: TableSchema) -> set[str]:
        """Return the columns with short, nearly all different names of rows, unless they are declared."""
        profile = self.profiles[table.name]
        columns = [one for one in naming_columns(table, profile.names) if one not in self.kinds[table.name]]
        known = [profile.texts(one).dropna() for one in columns]
        texts = (
            pd.concat(known, axis=1).fillna("").agg(" ".join, axis=1) if known else pd.Series(dtype=object)
        )
        if not len(texts) or texts.nunique() < NAMING * len(texts):
            return set()
        is_number = float(pd.to_numeric(texts, errors="coerce").notna().mean()) > 0.5
        if is_number or texts.map(lambda one: len(one.split())).median() > WORDS_OF_NAME:
            return set()
        message = f"{table.name}: {' and '.join(columns)} names the rows, and is no feature where rows are "
        message += f"compared (--columns {table.name}.{columns[0]}=text makes it one)"
        self.repairs.append(Repair("names-left-out", message, fields=tuple(columns)))
        return {*columns}

    def _roles(self, table: TableSchema) -> set[str]:
        """Return the columns of a table that are keys, links or nodes."""
        linked = {column for link in table.links for column in link.columns}
        return {*table.key, *linked, *(column for columns in table.nodes.values() for column in columns)}


def _target(labels: Any) -> Target:
    """Return the label of a table's rows, for the search for columns that contain it."""
    cells = Cells(labels)
    codes, classes = pd.factorize(pd.Series(cells.texts))
    numbers, unreadable = cells.decode("number", "plain")
    if len(classes) <= MOST_CLASSES or unreadable.size:
        return Target(str(labels.name), np.asarray(codes))
    return Target.of_numbers(str(labels.name), np.asarray(numbers))


def _match(profile: Profile, columns: tuple[str, ...], other: Profile, key: tuple[str, ...]) -> Integers:
    """Return the row of another table that each row links to: -1 if there is none, -2 without a value."""
    values, keys = ([one.texts(name) for name in names] for one, names in ((profile, columns), (other, key)))
    missing = np.logical_or.reduce([one.isna() for one in values])
    if len(columns) == 1:
        found = pd.Index(keys[0]).get_indexer(values[0])
    else:
        found = pd.MultiIndex.from_arrays(keys).get_indexer(pd.MultiIndex.from_arrays(values))
    return np.where(missing, -2, found).astype(np.int64)


def _ids(texts: Any) -> npt.NDArray[Any]:
    """Return ids as integers if every one is written like an integer, else as text."""
    listed = list(texts)
    if all(one.lstrip("-").isdecimal() and str(int(one)) == one for one in listed):
        return np.array([int(one) for one in listed], dtype=np.int64)
    return np.array(listed, dtype=object)


def _of_rows(time: Integers | None, rows: Integers) -> Integers | None:
    return None if time is None else time[rows]


def _of_kept(relation: Relation, kept: Mapping[str, Mask]) -> Relation:
    """Return a relation between the rows that are kept."""
    ends = []
    for name, rows in zip((relation.source, relation.target), relation.ends, strict=True):
        ends.append(np.where(kept[name], np.cumsum(kept[name]) - 1, -1)[rows])
    chosen = (ends[0] >= 0) & (ends[1] >= 0)
    return replace(relation, ends=np.stack(ends)[:, chosen])


Labels = tuple[npt.NDArray[Any], tuple[str, ...]]
"""Classes, -1 where unknown, and their names; or numbers, NaN where unknown, and no names."""
CONDITION = re.compile(r"(?P<column>.*?)\s*(?P<sign><=|>=|=|<|>)\s*(?P<value>.+)")
SIGNS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def types_of(schema: Schema) -> tuple[str, ...]:
    """Return the node types: tables, and columns whose values are nodes."""
    values = (kind for table in schema.tables.values() for kind in table.nodes)
    return tuple(dict.fromkeys((*schema.tables, *values)))


def find_type(schema: Schema, name: str) -> str:
    """Return the node type of a name, which may differ in case."""
    types = types_of(schema)
    found = [one for one in types if one == name] or [one for one in types if one.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    near = get_close_matches(name.lower(), [one.lower() for one in types], 1, cutoff=0.7)
    meant = next((f"; did you mean {one}?" for one in types if one.lower() in near), "")
    for at, question in schema.numbered.items():
        if question.kind and question.kind.lower() == name.lower():
            meant = f"; question {at} of the schema proposes it: accept it with --accept {at}"
    message = f"there is no table or node type {name!r}; there are {shortened(types, 16)}{meant}"
    raise GraphError(message, code="type-unknown")


@dataclass(frozen=True)
class Predicted:
    """A column that is predicted, or a condition on it.

    Attributes:
        table, column: the table and its column.
        sign, value: of a condition, such as ">" and "0", or "=" and "B,D"; "" without one.
    """

    table: str
    column: str
    sign: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str, tables: Mapping[str, Any]) -> Predicted:
        """Read `loan.status`, `loan.status=B,D` or `result.points>0`."""
        condition = CONDITION.fullmatch(text)
        name, sign, value = (text, "", "") if condition is None else condition.groups()
        column = Column.parse(name, tables)
        return cls(column.table, column.name, sign, value)

    @property
    def title(self) -> str:
        """The column, with the condition."""
        return f"{self.column}{self.sign}{self.value}"

    def labels(self, graph: Any) -> Labels:
        """Return the labels of a graph's nodes, or the classes no and yes of a condition."""
        labels, names = labels_of(graph)
        if not self.sign:
            return labels, names
        known = labels >= 0 if names else ~np.isnan(labels)
        if self.sign == "=":
            met = np.isin(labels, self._wanted(names))
        else:
            with np.errstate(invalid="ignore"):
                met = SIGNS[self.sign](self._numbers(labels, names), self._number(self.value))
        return np.where(known, met.astype(np.int64), -1), (f"not {self.title}", self.title)

    def _wanted(self, names: tuple[str, ...]) -> list[Any]:
        """Return the values after the sign =, as they are in the labels."""
        wanted = [one.strip() for one in self.value.split(",")]
        if not names:
            return [self._number(one) for one in wanted]
        if unknown := [one for one in wanted if one not in names]:
            message = f"{self.table}.{self.column} has no value {unknown[0]!r}; it has {shortened(names, 12)}"
            raise InputError(message, code="class-unknown")
        return [names.index(one) for one in wanted]

    def _number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise InputError(f"{self.title}: {text!r} is not a number", code="value-invalid") from None

    def _numbers(self, labels: npt.NDArray[Any], names: tuple[str, ...]) -> npt.NDArray[np.float64]:
        try:
            return labels if not names else np.array([*map(float, names), np.nan])[labels]
        except ValueError:
            message = f"{self.title}: the values of {self.column} are words ({shortened(names, 4)}): use ="
            raise InputError(message, code="value-invalid") from None


def labels_of(graph: Any) -> Labels:
    """Return the classes or numbers of a graph's nodes."""
    if graph.targets is not None:
        return graph.targets.numpy(), ()
    if graph.labels is None:
        raise InputError("this model was not fitted to predict a column", code="no-labels")
    return graph.labels.numpy(), graph.class_names
