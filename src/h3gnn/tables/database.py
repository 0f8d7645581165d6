"""Read several linked tables as a relational graph: rows become nodes, keys and links become relations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.relational import UNKNOWN_TIME, NodeTable, Relation, RelationalGraph
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import MOST_CLASSES, Cells, infer_column
from h3gnn.tables.leaks import Target
from h3gnn.tables.plan import TablePlan, encode_table, infer_columns
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Profile, Schema, TableSchema, check_schema, read_schema
from h3gnn.tables.sources import Source, open_source

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
DAY = 86_400 * 10**9
"""Nanoseconds of a day."""


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
            message = f"{text!r} is not TABLE.COLUMN; the tables are {shortened(tables, 12)}"
            raise InputError(message, code="column-unknown")
        table = max(fitting, key=len)
        return cls(table, text[len(table) + 1 :])


def load_schema(source: Any) -> tuple[Schema, Source]:
    """Return the schema of a source and the source: of a schema file, or inferred."""
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".toml":
        schema, place = read_schema(Path(source))
        opened = open_source(place)
        return check_schema(schema, opened), opened
    opened = open_source(source)
    return infer_schema(opened), opened


def read_database(
    source: Any,
    schema: Schema | None = None,
    *,
    label: str | None = None,
    as_of: Any = None,
    columns: Mapping[str, str] | None = None,
    plans: Mapping[str, TablePlan] | None = None,
) -> RelationalGraph:
    """Return the relational graph of several linked tables.

    Every table is a node type, and every link a relation; the values of `nodes` columns are types as well. A
    row without a time of its own has the latest time of the rows that it references.

    Args:
        source: a folder, workbook, database, URL, schema file, or data frames by name.
        schema: keys, links and times; by default those of the schema file, or inferred ones.
        label: `TABLE.COLUMN` to predict; it is no feature of any node.
        as_of: a date; later rows are left out.
        columns: kinds of columns, `{"loans.duration": "number"}`.
        plans: of tables that a model was fitted on, by name.
    """
    if schema is None:
        schema, opened = load_schema(source)
    else:
        opened = open_source(source)
    reader = _Reader(opened, schema, dict(columns or {}), plans or {})
    if label is not None:
        reader.label = Column.parse(label, schema.tables)
    return reader.read(None if as_of is None else parse_time(as_of))


def parse_time(text: Any) -> int:
    """Return a date as nanoseconds since 1970; a day without a time of day includes the whole day."""
    try:
        moment = pd.Timestamp(text)
    except (ValueError, TypeError):
        raise InputError(f"{text!r} is not a date; write it as 2024-12-31", code="date-invalid") from None
    if moment.tz is not None:
        moment = moment.tz_convert(None)
    whole_day = isinstance(text, str) and ":" not in text
    return int(moment.as_unit("ns").value) + (DAY - 1 if whole_day else 0)


class _Reader:
    """Reads the tables of a source by a schema."""

    def __init__(
        self, source: Source, schema: Schema, kinds: dict[str, str], plans: Mapping[str, TablePlan]
    ) -> None:
        self.source, self.schema, self.plans = source, schema, plans
        self.label: Column | None = None
        self.kinds: dict[str, dict[str, str]] = {
            name: dict(one.columns) for name, one in schema.tables.items()
        }
        for text, kind in kinds.items():
            column = Column.parse(text, schema.tables)
            self.kinds[column.table][column.name] = kind
        self.profiles: dict[str, Profile] = {}
        self.repairs: list[Repair] = []

    def read(self, as_of: int | None) -> RelationalGraph:
        """Return the graph of the rows up to a time."""
        for name in self.schema.tables:
            self.profiles[name] = Profile(name, self.source.frame(name).reset_index(drop=True))
        self._check_label()
        relations = [*self._links(), *self._node_columns()]
        values = {one.target: one for one in relations if one.target not in self.schema.tables}
        times = self._times(relations)
        kept = {name: self._kept(name, times.get(name), as_of) for name in self.profiles}
        types = {name: self._table(name, rows, times.get(name)) for name, rows in kept.items()}
        types |= {name: self._value_type(name) for name in values}
        relations = [_of_kept(one, kept, times.get(one.source)) for one in relations]
        for question in self.schema.questions:
            self.repairs.append(Repair("question-open", f"not used: {question.table}: {question.text}"))
        self.repairs += [Repair("source-note", note) for note in self.source.notes]
        links = frozenset(name for name in self.schema.tables if self.schema.is_link_table(name))
        return RelationalGraph(types, tuple(relations), links, self.source.name, tuple(self.repairs))

    def _check_label(self) -> None:
        if self.label is None:
            return
        found = list(map(str, self.profiles[self.label.table].frame.columns))
        if self.label.name not in found:
            message = f"the table {self.label.table!r} has no column {self.label.name!r}; it has "
            raise GraphError(message + shortened(found, 12), code="column-missing")

    def _links(self) -> Iterator[Relation]:
        """Yield the relation of each link; links without a matching key are left out and reported."""
        for name, table in self.schema.tables.items():
            for link in table.links:
                key = self.schema.tables[link.to].key
                rows = _match(self.profiles[name], link.columns, self.profiles[link.to], key)
                given = np.flatnonzero(rows != -2)
                known = given[rows[given] >= 0]
                title = f"{name}.{'+'.join(link.columns)}"
                if missing := len(given) - len(known):
                    message = f"{missing:,} rows of {name} link to no row of {link.to} ({title})"
                    self.repairs.append(Repair("dangling-links", message, missing, link.columns))
                yield Relation(title, name, link.to, np.stack([known, rows[known]]))

    def _node_columns(self) -> Iterator[Relation]:
        """Yield the relations from tables to the values of their columns, which are types of their own."""
        self.values: dict[str, Any] = {}
        for name, table in self.schema.tables.items():
            for kind, columns in table.nodes.items():
                if kind in self.schema.tables:
                    message = f"the node type {kind!r} of {name!r} is also a table: declare a link to it"
                    raise GraphError(message, code="type-duplicate")
                self.values.setdefault(kind, []).extend((name, column) for column in columns)
        for kind, places in self.values.items():
            cells = [self.profiles[name].texts(column) for name, column in places]
            codes, distinct = pd.factorize(pd.concat(cells, ignore_index=True), sort=True)
            self.values[kind] = np.asarray(distinct, dtype=object)
            for (name, column), part in zip(
                places, np.split(codes, np.cumsum([*map(len, cells)])[:-1]), strict=True
            ):
                known = np.flatnonzero(part >= 0)
                yield Relation(
                    f"{name}.{column}", name, kind, np.stack([known, part[known].astype(np.int64)])
                )

    def _times(self, relations: list[Relation]) -> dict[str, Integers]:
        """Return the time of each row: its own, else the latest of the rows that it references."""
        found: dict[str, Integers | None] = {
            name: self._own_time(name, one.time) for name, one in self.schema.tables.items() if one.time
        }
        waiting = [name for name in self.schema.tables if name not in found]
        while waiting:
            ready = [name for name in waiting if not self._references(name) - found.keys()] or waiting[:1]
            for name in ready:
                known = [one for one in relations if one.source == name and found.get(one.target) is not None]
                latest = np.full(len(self.profiles[name].frame), UNKNOWN_TIME)
                for one in known:
                    time = found[one.target]
                    assert time is not None
                    np.maximum.at(latest, one.ends[0], time[one.ends[1]])
                found[name] = latest if known else None
            waiting = [name for name in waiting if name not in found]
        return {name: time for name, time in found.items() if time is not None}

    def _references(self, name: str) -> set[str]:
        """Return the other tables that a table links to."""
        return {link.to for link in self.schema.tables[name].links} - {name}

    def _own_time(self, name: str, column: str | None) -> Integers:
        assert column is not None
        profile = self.profiles[name]
        cells = Cells(profile.frame[column])
        kind = infer_column(column, cells, None, list(map(str, profile.frame.columns)))
        if kind.kind == "date":
            days, unreadable = cells.decode("date", kind.form)
        else:  # seconds since 1970, or a year
            numbers, unreadable = cells.decode("number")
            years = np.nanmax(np.abs(numbers), initial=0) < 10_000
            origin = np.where(np.isnan(numbers), 1970, numbers)
            days = (origin - 1970) * 365.2425 if years else numbers / 86_400
            days = np.where(np.isnan(numbers), np.nan, days)
        if unreadable.size:
            first = profile.texts(column).iloc[int(unreadable[0])]
            message = f"{name}.{column}, row {unreadable[0] + 1}: {first!r} is not a date"
            raise GraphError(
                f"{message}; correct it, or set another time in the schema", code="time-unreadable"
            )
        known = ~np.isnan(days)
        return np.where(known, np.round(np.where(known, days, 0) * DAY), UNKNOWN_TIME).astype(np.int64)

    def _kept(self, name: str, time: Integers | None, as_of: int | None) -> Mask:
        """Return the rows that exist at a time; those without a time do."""
        rows = len(self.profiles[name].frame)
        if as_of is None or time is None:
            return np.ones(rows, dtype=bool)
        kept = np.asarray(time <= as_of)
        if not kept.all():
            message = f"{rows - int(kept.sum()):,} later rows of {name} are left out"
            self.repairs.append(Repair("later-rows", message, rows - int(kept.sum())))
        return kept

    def _table(self, name: str, kept: Mask, time: Integers | None) -> NodeTable:
        """Encode the columns of a table that are neither keys, links nor the label."""
        table, profile = self.schema.tables[name], self.profiles[name]
        frame = profile.frame[kept].reset_index(drop=True)
        labels = {}
        if self.label is not None and self.label.table == name:
            labels = {self.label.name: frame[self.label.name]}
        used = [one for one in frame.columns if str(one) not in self._roles(table) | labels.keys()]
        values, names, plan = self._encode(name, frame[used], next(iter(labels.values()), None))
        ids, has_ids = np.arange(len(frame), dtype=np.int64), False
        if len(table.key) == 1:
            ids, has_ids = _ids(profile.texts(table.key[0])[kept]), True
        elif table.key:
            parts = [profile.texts(one)[kept].astype(str) for one in table.key]
            ids, has_ids = np.array(["/".join(one) for one in zip(*parts, strict=True)], dtype=object), True
        moments = None if time is None else time[kept]
        return NodeTable(name, ids, values, has_ids, names, plan, moments, labels)

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
            self.repairs.append(Repair(error.code, f"{name}: {str(error).split(';')[0]}"))
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
                message = f"{name}.{column} is read as text: {problems.count:,} of its values differ in kind"
                self.repairs.append(Repair("mixed-column", message, problems.count, (column,)))
        return found

    def _roles(self, table: TableSchema) -> set[str]:
        """Return the columns of a table that are keys, links or nodes."""
        linked = {column for link in table.links for column in link.columns}
        return {*table.key, *linked, *(column for columns in table.nodes.values() for column in columns)}

    def _value_type(self, name: str) -> NodeTable:
        ids = _ids(self.values[name])
        return NodeTable(name, ids, np.zeros((len(ids), 0), dtype=np.float32))


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


def _of_kept(relation: Relation, kept: Mapping[str, Mask], time: Integers | None) -> Relation:
    """Return a relation between the rows that are kept, with the times of the rows that hold its links."""
    sources, targets = relation.ends
    chosen = kept[relation.source][sources]
    if relation.target in kept:
        chosen &= kept[relation.target][targets]
    sources, targets = sources[chosen], targets[chosen]
    moments = None if time is None else time[sources]
    numbers = [np.cumsum(kept[relation.source]) - 1]
    numbers.append(
        np.cumsum(kept[relation.target]) - 1
        if relation.target in kept
        else np.arange(targets.max(initial=-1) + 1)
    )
    ends = np.stack([numbers[0][sources], numbers[1][targets]]).astype(np.int64)
    return replace(relation, ends=ends, time=moments)
