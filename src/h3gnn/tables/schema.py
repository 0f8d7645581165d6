"""The schema of several tables: keys, links, times and nodes; its TOML file, and its check with tables."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError, counted, shortened
from h3gnn.tables.infer import Cells, infer_column
from h3gnn.tables.sources import Source

MATCHING = 0.95
"""Share of a link's values that must be keys of the other table."""
UNLIKELY_CHANCE = 1e-3
"""With a smaller one, values do not match by coincidence."""
SAMPLE = 100
"""Values from which dates are recognized before all are read."""
INTEGER = re.compile(r"-?\d{1,18}")
WHOLE, FRACTION = re.compile(r"-?\d+\.0"), re.compile(r"\d\.\d")
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Names that TOML takes without quotation marks."""
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Link:
    """Columns of a table that hold keys of another.

    Attributes:
        columns: the columns; several for a composite key.
        to: the other table.
        share: the share of the distinct values that are keys there.
        reason: why it is a link.
    """

    columns: tuple[str, ...]
    to: str
    share: float = 1.0
    reason: str = ""


@dataclass(frozen=True)
class Question:
    """Something that only the user knows: a possible link, nodes or time, or why a link is left out.

    Attributes:
        table: the table that it is about.
        text: the question.
        link, time: the proposed link or time of the table, or None.
        kind: the name of the proposed node type, or "".
        nodes: the columns whose values are its nodes, by table.
        number: of a question that remains when others are answered; 0 for its place in the schema.
    """

    table: str
    text: str
    link: Link | None = None
    time: str | None = None
    kind: str = ""
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    number: int = 0

    @property
    def proposes(self) -> bool:
        """Whether the answer yes changes the schema."""
        return self.link is not None or self.time is not None or bool(self.nodes)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the answer changes."""
        return tuple(self.nodes) or (self.table,)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        found: dict[str, Any] = {"table": self.table, "question": self.text}
        if self.link is not None:
            found |= {"columns": [*self.link.columns], "to": self.link.to, "share": self.link.share}
        if self.nodes:
            found |= {"kind": self.kind, "nodes": {name: [*columns] for name, columns in self.nodes.items()}}
        return found | ({} if self.time is None else {"time": self.time})


@dataclass(frozen=True)
class TableSchema:
    """One table of a schema.

    Attributes:
        name: of the table.
        key: the columns that identify a row; () if there are none.
        links: to other tables.
        time: the column with the time of a row, or None.
        rows: number of rows, 0 if unknown.
        columns: declared kinds of columns, as in `--columns`.
        nodes: node types whose nodes are the distinct values of columns, by name: `{"bank": ("from", "to")}`.
    """

    name: str
    key: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    time: str | None = None
    rows: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """Several tables and how they are linked."""

    tables: Mapping[str, TableSchema]
    questions: tuple[Question, ...] = ()

    @property
    def numbered(self) -> dict[int, Question]:
        """The open questions by their numbers, from 1."""
        return {one.number or at: one for at, one in enumerate(self.questions, 1)}

    @property
    def acceptable(self) -> str:
        """Numbers of open questions whose proposals can be accepted, as in "1,3"; "" if there is none."""
        return ",".join(str(at) for at, one in self.numbered.items() if one.proposes)

    def referenced(self) -> set[str]:
        """Return the tables that others, or themselves, link to."""
        return {link.to for table in self.tables.values() for link in table.links}

    def is_link_table(self, name: str) -> bool:
        """Whether the rows of a table link two tables and nothing references them."""
        return len(self.tables[name].links) == 2 and name not in self.referenced()

    def links_itself(self, kind: str) -> bool:
        """Whether rows or values of a type refer to each other, directly or as both ends of one row."""
        for name, table in self.tables.items():
            ends = [link.to for link in table.links] + [one for one, of in table.nodes.items() for _ in of]
            if ends.count(kind) > (0 if name == kind else 1):
                return True
        return False

    def dated_by(self, name: str) -> tuple[str, ...]:
        """Return the columns whose latest time the rows of a table have, if it has no time of its own."""
        found, names = list[str](), [name]
        for one in names:  # grows
            table = self.tables[one]
            found += [f"{one}.{table.time}"] * bool(table.time)
            names += (
                []
                if table.time
                else [of for of in dict.fromkeys(link.to for link in table.links) if of not in names]
            )
        return () if self.tables[name].time else tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        tables = {}
        for name, one in self.tables.items():
            links = [{"columns": [*link.columns], "to": link.to, "share": link.share} for link in one.links]
            tables[name] = {"key": [*one.key], "links": links, "time": one.time, "rows": one.rows}
            tables[name] |= {
                "columns": dict(one.columns),
                "nodes": {key: [*of] for key, of in one.nodes.items()},
            }
            tables[name]["link_table"] = self.is_link_table(name)
        asked = [{"number": at} | one.as_dict() for at, one in self.numbered.items()]
        return {"tables": tables, "questions": asked}

    def to_toml(self, source: str) -> str:
        """Return the text of a schema file; questions are comments."""
        about = "Keys, links and times of several tables. Edit what is wrong; remove # to accept a proposal."
        lines = [f"# {about}", f"source = {_toml(source)}"]
        for name, table in self.tables.items():
            place = f"tables.{_name(name)}"
            lines += ["", f"[{place}]  # {table.rows:,} rows", f"key = {_toml(table.key)}"]
            lines += [f"time = {_toml(table.time)}"] if table.time else []
            lines += _node_lines(table.nodes)
            lines += [f"columns = {_toml(table.columns)}"] if table.columns else []
            questions = [one for one in self.questions if name in one.tables]
            for one in (one for one in questions if one.link is None):
                proposed = [f"time = {_toml(one.time)}"] if one.time else []
                proposed += _node_lines({one.kind: one.nodes[name]}) if one.nodes else []
                lines += [f"# ? {one.text}", *(f"# {line}" for line in proposed)]
            for link in table.links:
                shown = f"{100 * link.share:.4g} % of its values are keys; {link.reason}".rstrip("; ")
                lines += [f"[[{place}.links]]  # {shown}", *_link_lines(link)]
            for one in questions:
                if one.link is not None:
                    proposed = [f"[[{place}.links]]", *_link_lines(one.link)]
                    lines += [f"# ? {one.text}", *(f"# {line}" for line in proposed)]
        return "\n".join(lines) + "\n"


def accept_questions(schema: Schema, which: str | Sequence[int]) -> Schema:
    """Return a schema in which the proposals of some questions are accepted; the other questions remain.

    Args:
        schema: a proposed schema.
        which: numbers of questions, from 1, as in "1,3"; "all" for every question with a proposal.
    """
    proposals = {at: one for at, one in schema.numbered.items() if one.proposes}
    if isinstance(which, str) and which.strip().lower() == "all":
        chosen = [*proposals]
    else:
        given = re.split(r"[\s,]+", which.strip()) if isinstance(which, str) else map(str, which)
        chosen = [_number(schema, one) for one in dict.fromkeys(given)]
    tables, linked = dict(schema.tables), dict[tuple[str, tuple[str, ...]], int]()
    for at in chosen:
        if at not in proposals:
            message = f"question {at} has no proposal to accept: {schema.numbered[at].text}"
            raise InputError(f"{message}; edit the schema file instead", code="question-without-proposal")
        one = proposals[at]
        if one.link is not None and (other := linked.setdefault((one.table, one.link.columns), at)) != at:
            message = (
                f"questions {other} and {at} are alternatives, since both are about {one.link.columns[0]}"
            )
            raise InputError(f"{message} of {one.table}: accept one of them", code="questions-conflict")
        for name in one.tables:
            tables[name] = _accepted(tables[name], one)
    remaining = tuple(replace(one, number=at) for at, one in schema.numbered.items() if at not in chosen)
    return Schema(tables, remaining)


def _number(schema: Schema, text: str) -> int:
    if not text.isdecimal() or int(text) not in schema.numbered:
        there = ", ".join(map(str, schema.numbered)) or "none"
        message = f'question {text!r} does not exist; the questions are {there} (or "all")'
        raise InputError(message, code="question-unknown")
    return int(text)


def _accepted(table: TableSchema, question: Question) -> TableSchema:
    if question.link is not None:
        return replace(table, links=(*table.links, question.link))
    if question.time is not None:
        return replace(table, time=question.time)
    return replace(table, nodes={**table.nodes, question.kind: question.nodes[table.name]})


def _link_lines(link: Link) -> list[str]:
    return [f"columns = {_toml(link.columns)}", f"to = {_toml(link.to)}"]


def _node_lines(nodes: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"nodes.{_name(kind)} = {_toml(columns)}" for kind, columns in nodes.items()]


def _name(name: str) -> str:
    return name if BARE.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def read_schema(path: Path) -> tuple[Schema, Any]:
    """Read a schema file; return the schema and its source, a path relative to the file, or a URL."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", code="file-unreadable") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}", code="schema-invalid") from None
    tables = {name: _read_table(path, name, one) for name, one in content.get("tables", {}).items()}
    source = content.get("source", ".")
    is_url = "://" in str(source)
    return Schema(tables), source if is_url else path.parent / source


def _read_table(path: Path, name: str, content: Mapping[str, Any]) -> TableSchema:
    allowed = {"key", "links", "time", "columns", "nodes"}
    if unknown := sorted(set(content) - allowed):
        message = f"{path}, table {name!r}: {unknown[0]!r} is not one of {', '.join(sorted(allowed))}"
        raise InputError(message, code="schema-invalid")
    wrong = 'a link needs columns = ["…"] and to = "…"'
    try:
        links = tuple(Link(_names(one["columns"]), str(one["to"])) for one in content.get("links", ()))
        wrong = 'nodes are columns, nodes = ["…"], or columns by type, nodes = { type = ["…"] }'
        given = content.get("nodes", ())
        given = given if isinstance(given, Mapping) else {one: one for one in _names(given)}
        nodes = {kind: _names(columns) for kind, columns in given.items()}
        wrong = 'key = ["…"] has names of columns, columns = { name = "kind" } their kinds'
        key, kinds = _names(content.get("key", ())), {**content.get("columns", {})}
    except (KeyError, TypeError):
        raise InputError(f"{path}, table {name!r}: {wrong}", code="schema-invalid") from None
    time = content.get("time") or None  # "" and false: no time
    if not isinstance(time, str | None):
        raise InputError(f'{path}, table {name!r}: time = "…" is a column', code="schema-invalid")
    return TableSchema(name, key, links, time, 0, kinds, nodes)


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def check_schema(schema: Schema, source: Source, profiles: dict[str, Profile] | None = None) -> Schema:
    """Compare a schema with the tables of a source; return it with row counts and shares of matching values.

    Args:
        schema: keys, links, times and nodes.
        source: the tables.
        profiles: filled with the tables that are read.

    Raises:
        GraphError: if a table or column is missing, a key is not unique, or a link has no matching value.
    """
    profiles = {} if profiles is None else profiles
    for table in schema.tables.values():
        if table.name not in (*source.tables, *source.views):
            message = f"{source.name} has no table {table.name!r}; there are {shortened(source.tables, 12)}"
            raise GraphError(message, code="table-missing")
        profiles[table.name] = profile = Profile(table.name, source.frame(table.name))
        named = [column for columns in table.nodes.values() for column in columns]
        wanted = [*table.key, *named, *table.columns, *(table.time,) * bool(table.time)]
        for name in [*wanted, *(name for link in table.links for name in link.columns)]:
            if name not in profile.frame.columns:
                message = f"the table {table.name!r} has no column {name!r}; it has "
                raise GraphError(message + shortened(profile.frame.columns, 12), code="column-missing")
        if table.key and not profile.is_key(table.key):
            message = f"the key {' + '.join(table.key)} of {table.name!r} is missing or repeated in some rows"
            raise GraphError(message, code="key-not-unique")
    found = {}
    for table in schema.tables.values():
        for kind in (one for one in table.nodes if one in schema.tables):
            columns = " and ".join(table.nodes[kind])
            message = f"nodes of {table.name!r}: {kind!r} is a table; write a link from {columns} to {kind!r}"
            if not schema.tables[kind].key:
                message += ", and give that table a key"
            raise GraphError(message + ", or choose another name", code="node-type-is-table")
        links = tuple(_checked(table, link, schema, profiles) for link in table.links)
        found[table.name] = replace(table, links=links, rows=len(profiles[table.name].frame))
    return replace(schema, tables=found)


def _checked(table: TableSchema, link: Link, schema: Schema, profiles: Mapping[str, Profile]) -> Link:
    place = f"the link {' + '.join(link.columns)} of {table.name!r}"
    if link.to not in schema.tables:
        raise GraphError(f"{place} is to {link.to!r}, which is no table of the schema", code="table-missing")
    key = schema.tables[link.to].key
    if len(key) != len(link.columns):
        message = f"{place}: the key of {link.to!r} has {len(key)} column(s), not {len(link.columns)}"
        raise GraphError(f"{message}; give it a key in the schema", code="key-missing")
    share = profiles[table.name].match(link.columns, profiles[link.to], key).share
    if share == 0 and profiles[table.name].distinct(link.columns):
        raise GraphError(f"{place}: none of its values is a key of {link.to!r}", code="link-without-match")
    return replace(link, share=share)


class Profile:
    """What the values of a table's columns look like."""

    def __init__(self, name: str, frame: pd.DataFrame) -> None:
        self.name, self.frame = name, frame
        self.names = [str(one) for one in frame.columns]
        self._texts: dict[str, pd.Series[Any]] = {}
        self._distinct: dict[tuple[str, ...], set[Any]] = {}
        self._integers: dict[str, Integers] = {}
        self._ids: dict[str, bool] = {}

    def texts(self, column: str) -> pd.Series[Any]:
        """Return a column as text, missing values as None; 12.0 is 12 in a column without fractions."""
        if column not in self._texts:
            codes, distinct = _factorized(self.frame[column])
            short = {one: one.removesuffix(".0") for one in distinct if one and WHOLE.fullmatch(one)}
            if any(FRACTION.search(one) for one in distinct if one and one not in short):
                short = {}
            shown = [None if one is None else short.get(one, one) for one in distinct]
            values = np.array([*shown, None], dtype=object)
            self._texts[column] = pd.Series(values[codes], dtype=object)
        return self._texts[column]

    def distinct(self, columns: Sequence[str]) -> set[Any]:
        """Return the distinct values of a column, or tuples of several, without missing ones."""
        columns = tuple(columns)
        if columns not in self._distinct:
            if len(columns) == 1:
                self._distinct[columns] = {*self.texts(columns[0]).dropna()}
            else:
                rows = pd.concat([self.texts(one) for one in columns], axis=1).dropna()
                self._distinct[columns] = {*rows.itertuples(index=False, name=None)}
        return self._distinct[columns]

    def is_key(self, columns: Sequence[str]) -> bool:
        """Whether columns are present and distinct in every row."""
        return len(self.frame) == len(self.distinct(columns))

    def match(self, columns: Sequence[str], other: Profile, key: Sequence[str]) -> Match:
        """Compare the values of columns with the keys of another table."""
        values, keys = self.distinct(columns), other.distinct(key)
        found, density = len(values & keys), 0.1
        if (
            len(key) == 1
            and len(numbers := self.integers(columns[0]))
            and len(there := other.integers(key[0]))
        ):
            inside = np.searchsorted(there, numbers[-1], "right") - np.searchsorted(there, numbers[0])
            density = float(inside / (numbers[-1] - numbers[0] + 1))
        return Match(found / max(len(values), 1), found / max(len(keys), 1), density**found, found)

    def integers(self, column: str) -> Integers:
        """Return the distinct integers of a column, sorted; none if most values are something else."""
        if column not in self._integers:
            values = self.distinct((column,))
            known = [int(one) for one in values if INTEGER.fullmatch(one)]
            known = known if len(known) > len(values) / 2 else []
            self._integers[column] = np.sort(np.array(known, dtype=np.int64))
        return self._integers[column]

    @cached_property
    def candidates(self) -> list[str]:
        """Columns that could be a key: distinct in every row, and no measurements or long texts."""
        return [name for name in self.names if self.may_be_id(name) and self.is_key([name])]

    def may_be_id(self, name: str) -> bool:
        """Whether the values of a column could be ids: no fractions, long texts or lists."""
        if name not in self._ids:
            self._ids[name] = self._looks_like_id(name)
        return self._ids[name]

    def _looks_like_id(self, name: str) -> bool:
        known = self.texts(name).dropna()
        sample = known.iloc[:200]
        if known.empty or isinstance(self.frame[name].iloc[sample.index[0]], list | dict | np.ndarray):
            return False
        fraction = sample.str.fullmatch(r"[+-]?\d*[.,]\d+([eE][+-]?\d+)?").mean()
        return not fraction > 0.5 and float(sample.str.len().mean()) <= 64

    def repeats(self, column: str) -> bool:
        """Whether more than a few values of a column are missing or repeated."""
        return len(self.distinct((column,))) < 0.9 * len(self.frame)

    def gaps(self, column: str) -> str:
        """Return in how many rows a value is missing or repeated, for a message; "" if there are none."""
        known = self.texts(column).dropna()
        missing, repeated = len(self.frame) - len(known), int(known.duplicated().sum())
        found = {"missing": missing, "repeated": repeated}
        return " and ".join(f"{what} in {counted(rows, 'row')}" for what, rows in found.items() if rows)

    def is_date(self, column: str) -> bool:
        """Whether a column holds dates; a few of its values are tried before all."""
        few = self.texts(column).drop_duplicates().dropna().index[:SAMPLE]
        return self._kind(column, few) in ("date", "constant") and self._kind(column) == "date"

    def _kind(self, column: str, rows: Any = slice(None)) -> str:
        return infer_column(column, Cells(self.frame[column].iloc[rows]), None, self.names).kind


def _factorized(column: pd.Series[Any]) -> tuple[Integers, Sequence[str | None]]:
    """Return the number of each cell's text, -1 if missing, and the texts; some may be equal, or None."""
    is_plain = pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.infer_dtype(column) == "string"
    if not is_plain:  # 1 and True, or lists
        column = pd.Series(Cells(column).texts, dtype=object)
    codes, distinct = pd.factorize(column)
    return codes, Cells(pd.Series(distinct)).texts.tolist()


class Match(NamedTuple):
    """How the values of a column agree with the keys of a table.

    Attributes:
        share: the share of the distinct values that are keys.
        coverage: the share of the keys that occur.
        chance: the probability that values match that have nothing to do with the keys.
        found: the number of distinct values that are keys.
    """

    share: float
    coverage: float
    chance: float
    found: int

    @property
    def tells(self) -> bool:
        """Whether the match cannot be a coincidence, as that of small integers with 1, 2, 3, ... could."""
        return self.share >= MATCHING and self.chance < UNLIKELY_CHANCE
