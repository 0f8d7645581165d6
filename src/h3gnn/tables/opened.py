"""Opened tables: each is read once, and compared with what an earlier command read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from h3gnn.errors import InputError, shortened
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Profile, Schema, accept_questions, check_schema, read_schema
from h3gnn.tables.sources import Source, open_source

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
        return (
            known
            if accept is None
            else accept_questions(known, accept(known) if callable(accept) else accept)
        )

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
