"""The schema of several tables: keys, links and times, declared or inferred, and its TOML file.

A link is accepted if its name says so and its values are keys of the other table. What rests on one of the
two alone is a question, which the file lists as a comment.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.tables.infer import Cells, infer_column
from h3gnn.tables.roles import INDEX_NAMES, is_id_name, words_in
from h3gnn.tables.sources import Declared, Source, open_source

MATCHING = 0.95
"""Share of a link's values that must be keys of the other table."""
UNLIKELY = 0.05
"""With a smaller share, a column is no link, whatever its name."""
ID_WORDS = frozenset({"id", "ids", "key", "no", "nr", "num", "code", "uuid", "guid", "fk", "pk", "ref"})
GENERIC = frozenset({"id", "key", "code", "name", "index", "date", "type", "number", "position", "value"})
"""Names of keys that say nothing about the table."""
SELF_WORDS = {
    *("parent", "manager", "boss", "supervisor", "reports", "reply", "previous", "next", "root", "superior"),
    "mentor",
}
"""Words of links from a table to itself."""
NOT_THE_ROW = {
    *("birth", "born", "birthday", "dob", "due", "required", "expires", "expiry", "until", "end", "to"),
    "update",
}
"""Words in dates that are not those of the row."""
TIME_WORDS = ("time", "timestamp", "date", "datetime", "created", "at", "on", "day", "when", "start", "begin")
SHARED_LETTERS = 4
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Names that TOML takes without quotation marks."""


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
    """Something that only the user knows: a possible link, or a table without key that is referenced."""

    table: str
    text: str
    link: Link | None = None


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

    def referenced(self) -> set[str]:
        """Return the tables that others, or themselves, link to."""
        return {link.to for table in self.tables.values() for link in table.links}

    def is_link_table(self, name: str) -> bool:
        """Whether the rows of a table link two tables and nothing references them."""
        return len(self.tables[name].links) == 2 and name not in self.referenced()

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
        asked = [
            {"table": one.table, "question": one.text}
            | ({} if one.link is None else {"columns": [*one.link.columns], "to": one.link.to})
            for one in self.questions
        ]
        return {"tables": tables, "questions": asked}

    def to_toml(self, source: str) -> str:
        """Return the text of a schema file; questions are comments."""
        about = "Keys, links and times of several tables. Edit what is wrong; remove # to accept a proposal."
        lines = [f"# {about}", f"source = {_toml(source)}"]
        for name, table in self.tables.items():
            place = f"tables.{name if BARE.fullmatch(name) else _toml(name)}"
            lines += ["", f"[{place}]  # {table.rows:,} rows", f"key = {_toml(table.key)}"]
            lines += [f"time = {_toml(table.time)}"] if table.time else []
            lines += [f"nodes = {_toml(table.nodes)}"] if table.nodes else []
            lines += [f"columns = {_toml(table.columns)}"] if table.columns else []
            for link in table.links:
                shown = f"{100 * link.share:.4g} % of its values are keys; {link.reason}".rstrip("; ")
                lines += [f"[[{place}.links]]  # {shown}", *_link_lines(link)]
            for question in (one for one in self.questions if one.table == name):
                lines += [f"# ? {question.text}"]
                if question.link is not None:
                    lines += [f"# [[{place}.links]]", *(f"# {line}" for line in _link_lines(question.link))]
        return "\n".join(lines) + "\n"


def _link_lines(link: Link) -> list[str]:
    return [f"columns = {_toml(link.columns)}", f"to = {_toml(link.to)}"]


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


def check_schema(schema: Schema, source: Source) -> Schema:
    """Compare a schema with the tables of a source; return it with row counts and shares of matching values.

    Raises:
        GraphError: if a table or column is missing, a key is not unique, or a link has no matching value.
    """
    profiles: dict[str, Profile] = {}
    for table in schema.tables.values():
        if table.name not in source.tables:
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
    share = profiles[table.name].share_of(link.columns, profiles[link.to], key)
    if share == 0 and len(profiles[table.name].frame):
        raise GraphError(f"{place}: none of its values is a key of {link.to!r}", code="link-without-match")
    return replace(link, share=share)


class Profile:
    """What the values of a table's columns look like."""

    def __init__(self, name: str, frame: pd.DataFrame) -> None:
        self.name, self.frame = name, frame
        self.words = stems(name)
        self._texts: dict[str, pd.Series[Any]] = {}

    def texts(self, column: str) -> pd.Series[Any]:
        """Return a column as text, missing values as None."""
        if column not in self._texts:
            self._texts[column] = pd.Series(Cells(self.frame[column]).texts, dtype=object)
        return self._texts[column]

    def is_key(self, columns: Sequence[str]) -> bool:
        """Whether columns are present and distinct in every row."""
        values = pd.concat([self.texts(one) for one in columns], axis=1)
        return not values.isna().any(axis=None) and not values.duplicated().any()

    def share_of(self, columns: Sequence[str], other: Profile, key: Sequence[str]) -> float:
        """Return the share of the distinct values of columns that are keys of another table."""
        values = pd.concat([self.texts(one) for one in columns], axis=1).dropna().drop_duplicates()
        if values.empty:
            return 0.0
        keys = {*zip(*(other.texts(one) for one in key), strict=True)}
        return sum(one in keys for one in values.itertuples(index=False, name=None)) / len(values)

    @cached_property
    def candidates(self) -> list[str]:
        """Columns that could be a key: distinct in every row, and no measurements, dates or long texts."""
        return [name for name in self.frame.columns if self._may_be_id(name) and self.is_key([name])]

    def _may_be_id(self, name: str) -> bool:
        known = self.texts(name).dropna()
        sample = known.iloc[:200]
        fraction = sample.str.fullmatch(r"[+-]?\d*[.,]\d+([eE][+-]?\d+)?").mean()
        return not known.empty and not (fraction > 0.5) and float(sample.str.len().mean()) <= 64

    def kind(self, column: str) -> str:
        """Return the inferred kind of a column."""
        return infer_column(column, Cells(self.frame[column]), None, list(self.frame.columns)).kind


def infer_schema(source: Any) -> Schema:
    """Propose a schema: what the source declares, else keys and links by name and values."""
    opened = open_source(source)
    profiles = {name: Profile(name, opened.frame(name)) for name in opened.tables}
    keys = _infer_keys(profiles, opened.declared)
    questions: list[Question] = []
    tables = {}
    for name, profile in profiles.items():
        declared = opened.declared.get(name, Declared())
        if declared.links or declared.key:
            links = [_declared_link(profile, columns, to, profiles, keys) for columns, to in declared.links]
        else:
            links = list(_infer_links(profile, profiles, keys, questions))
        time = declared.time or _infer_time(profile, {column for link in links for column in link.columns})
        tables[name] = TableSchema(name, keys[name], tuple(links), time, len(profile.frame))
    return Schema(tables, tuple(questions))


def stems(name: str) -> tuple[str, ...]:
    """Return the words of a name in the singular, without words for ids: order-details -> order, detail."""
    return tuple(_singular(word) for word in words_in(name) if word not in ID_WORDS)


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "uses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _infer_keys(
    profiles: Mapping[str, Profile], declared: Mapping[str, Declared]
) -> dict[str, tuple[str, ...]]:
    """Return the key of each table: first those that are named after their table, then the others."""
    keys = {name: declared[name].key for name in profiles if name in declared and declared[name].key}
    for name, profile in profiles.items():
        if name not in keys:
            named = [one for one in profile.candidates if is_named_after(one, profile.words)]
            keys[name] = tuple(named[:1])
    taken = {one.lower() for key in keys.values() for one in key} - GENERIC
    for name, profile in profiles.items():
        if keys[name]:
            continue
        first = str(profile.frame.columns[0])
        likely = [one for one in profile.candidates if is_id_name(one) or one == first]
        own = [one for one in likely if one.lower() not in taken and not _other_table(one, name, profiles)]
        extends = [one for one in likely if one == first and {*stems(one)} & {*profile.words}]
        keys[name] = tuple((own or extends)[:1])
    return keys


def is_named_after(column: str, table: Sequence[str]) -> bool:
    """Whether a column is called id, or after its table: account_id or account in accounts."""
    lowered = column.lower()
    return lowered in ("id", "_id", *INDEX_NAMES) or (bool(table) and stems(column) == tuple(table))


def _other_table(column: str, name: str, profiles: Mapping[str, Profile]) -> bool:
    """Whether a column is named after another table."""
    return any(stems(column) == one.words for other, one in profiles.items() if other != name)


def _declared_link(
    profile: Profile,
    columns: tuple[str, ...],
    to: str,
    profiles: Mapping[str, Profile],
    keys: Mapping[str, tuple[str, ...]],
) -> Link:
    match = next((one for one in profiles if one.lower() == to.lower()), None)
    if match is None:
        message = f"{profile.name} declares a link to {to}, which is not among the tables"
        raise GraphError(message, code="table-missing")
    return Link(columns, match, profile.share_of(columns, profiles[match], keys[match]), "declared")


def _infer_links(
    profile: Profile,
    profiles: Mapping[str, Profile],
    keys: Mapping[str, tuple[str, ...]],
    questions: list[Question],
) -> Iterator[Link]:
    """Yield the links of a table whose name and values agree; others become questions."""
    own = keys[profile.name]
    for column in map(str, profile.frame.columns):
        is_own = own == (column,)
        if not profile._may_be_id(column) or (is_own and stems(column) == profile.words):
            continue
        found = []
        for name, other in profiles.items():
            if len(keys[name]) != 1 or (name == profile.name and is_own):
                continue
            evidence = _evidence(column, profile, other, keys[name][0])
            if evidence:
                share = profile.share_of((column,), other, keys[name])
                found.append((evidence, Link((column,), name, share, _REASONS[evidence])))
        found = [(evidence, link) for evidence, link in found if link.share > UNLIKELY]
        sure = [(evidence, link) for evidence, link in found if evidence > 1 and link.share >= MATCHING]
        best = max((evidence for evidence, _ in sure), default=0)
        chosen = [link for evidence, link in sure if evidence == best]
        if len(chosen) == 1 and not is_own:
            yield chosen[0]
            continue
        for _, link in found:
            questions.append(Question(profile.name, _doubt(link, several=len(chosen) > 1), link))


_REASONS = {
    1: "its values are keys there, but its name differs",
    2: "its name ends with that of the table",
    3: "its name is that of the key",
    4: "its name is that of the table",
}


def _evidence(column: str, profile: Profile, other: Profile, key: str) -> int:
    """Return how clearly the name of a column refers to another table: 0 not at all, 1 perhaps, or more."""
    words, table = stems(column), other.words
    is_self = other is profile
    if words and words == table and not is_self:
        return 4
    if column.lower() == key.lower() and column.lower() not in GENERIC and not is_self:
        return 3
    if is_id_name(column) and table and words[-len(table) :] == table:
        return 2
    if is_self:
        return int(bool({*words_in(column)} & SELF_WORDS))
    near = [one for one in words for two in table if _share_letters(one, two)]
    return int(bool(near))


def _share_letters(one: str, two: str) -> bool:
    """Whether two words begin alike: ship, shipper."""
    length = min(len(one), len(two))
    return length >= SHARED_LETTERS and one[:length] == two[:length]


def _doubt(link: Link, *, several: bool) -> str:
    column, share = " + ".join(link.columns), f"{100 * link.share:.3g} %"
    if several:
        return f"{column} may refer to {link.to}, and to another table; {share} of its values are keys there"
    if link.share < MATCHING:
        return f"{column} is named like {link.to}, but only {share} of its values are keys there"
    return f"{column} may refer to {link.to}: {share} of its values are keys there, but its name differs"


def _infer_time(profile: Profile, linked: set[str]) -> str | None:
    """Return the only column of dates, or the only one that is named as the time of a row."""
    dates = [
        str(name)
        for name in profile.frame.columns
        if name not in linked
        and not NOT_THE_ROW & {*words_in(str(name))}
        and _may_be_date(str(name), profile)
        and profile.kind(str(name)) == "date"
    ]
    if len(dates) == 1:
        return dates[0]
    named = [
        one for one in dates if {*words_in(one)} <= {*TIME_WORDS, *words_in(profile.name), *profile.words}
    ]
    return named[0] if len(named) == 1 else None


def _may_be_date(name: str, profile: Profile) -> bool:
    first = profile.texts(name).dropna().iloc[:1]
    return pd.api.types.is_datetime64_any_dtype(profile.frame[name].dtype) or (
        len(first) > 0 and any(one.isdigit() for one in first.iloc[0]) and len(first.iloc[0]) >= 6
    )
