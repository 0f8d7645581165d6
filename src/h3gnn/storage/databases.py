"""The description of a database folder: its tables, its schema, and the types that were fitted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from h3gnn.errors import InputError, ModelFolderError
from h3gnn.settings import STORED, canonical
from h3gnn.storage import schema
from h3gnn.storage.atomic import atomic_file, check_header, header, write_atomically
from h3gnn.storage.models import DESCRIPTION as MODEL_FILE
from h3gnn.storage.schema import DictOf, Integer, ListOf, Maybe, Number, OneOf, Record, Text
from h3gnn.tables.files import reading
from h3gnn.tables.schema import Link, Question, Schema, TableSchema

FORMAT, FORMAT_VERSION = "h3gnn-database", 1
DESCRIPTION = "database.json"
UNSAFE = re.compile(r'[\x00-\x1f%/\\:*?"<>|.]')
"""Characters that names of files cannot have, and the dot that is between the parts of a name."""
_NAMES = ListOf(Text())
_LINK = Record({"columns": ListOf(Text(), least=1), "to": Text(), "share": Number(0, 1)})
_TABLE = Record(
    {
        **{"key": _NAMES, "links": ListOf(_LINK), "time": Maybe(Text()), "rows": Integer(0)},
        **{"columns": DictOf(Text()), "nodes": DictOf(_NAMES), "link_table": bool},
    }
)
_QUESTION = Record({"table": Text(), "question": Text()}, others=Any)
DATABASE = Record(
    {
        **schema.header_of(FORMAT),
        "source": Maybe(Text("[^\0]+")),
        "schema": Record({"tables": DictOf(_TABLE), "questions": ListOf(_QUESTION)}),
        "as_of": Maybe(Text()),
        "columns": DictOf(Text()),
        "params": STORED,
        "read": DictOf(Record({"rows": Integer(0), "sha256": schema.SHA256})),
        "fitted": ListOf(
            Record(
                {
                    **{"type": Text(), "label": Maybe(Text()), "folder": Text(r"[^/\\]+")},
                    **{"label_time": Maybe(OneOf(("row", "now"))), "task": Text()},
                }
            )
        ),
        "links": ListOf(
            Record(
                {
                    **{"table": Text(), "users": Maybe(Text()), "items": Maybe(Text())},
                    **{"weight": Maybe(Text()), "at_least": Maybe(Number(-1e300, 1e300))},
                }
            )
        ),
    }
)
"""Schema of `database.json`."""


NOT_COMPARED = ("device", "verbose")
"""Settings that may differ between the calls that use a folder."""


def check_same(known: Mapping[str, Any], given: Mapping[str, Any] | None, what: str) -> None:
    """Reject values that differ from the known ones."""
    for name, value in (given or {}).items():
        if name not in NOT_COMPARED and known.get(name) != value:
            before = f"without {name}" if known.get(name) is None else f"with {name} = {known[name]}"
            message = f"{what} was fitted {before}, not with {value}: omit it, or choose another folder"
            raise InputError(message, code="already-fitted")


@dataclass(frozen=True)
class FittedType:
    """A model of a database: its type, the column that it predicts, which is no feature, and its folder."""

    type: str
    label: str | None
    folder: str
    label_time: str | None = None
    task: str = "auto"

    @property
    def title(self) -> str:
        """The type, with the column."""
        return self.type if self.label is None else f"{self.type}.{self.label}"

    def check_same(self, given: Mapping[str, Any]) -> None:
        """Reject a task or time of labels that differs; None is not given."""
        check_same(vars(self), {key: one for key, one in given.items() if one is not None}, self.title)


@dataclass(frozen=True)
class FittedLinks:
    """A recommender of a database: the table, and the options of `answers.recommend.recommender_for`."""

    table: str
    users: str | None = None
    items: str | None = None
    weight: str | None = None
    at_least: float | None = None

    def check_same(self, given: Mapping[str, Any]) -> None:
        """Reject options that differ; None is not given."""
        known = {key: one for key, one in given.items() if one is not None}
        check_same(vars(self), known, f"the recommender of {self.table}")


@dataclass(frozen=True)
class StoredDatabase:
    """What a database folder records.

    Attributes:
        source: where the tables are, an absolute path or a URL without password; None for data frames.
        schema: keys, links and times.
        as_of: the date up to which rows are used.
        columns: kinds of columns, by `table.column`.
        params: settings of the models.
        read: rows and hash of each table as it was read.
        fitted: the models, also those whose training has not ended.
        links: the recommenders.
    """

    source: str | None
    schema: Schema
    as_of: str | None
    columns: Mapping[str, str]
    params: Mapping[str, Any]
    read: Mapping[str, Mapping[str, Any]]
    fitted: tuple[FittedType, ...] = field(default=())
    links: tuple[FittedLinks, ...] = field(default=())

    def check_same(self, given: Mapping[str, Any] | None, where: str) -> None:
        """Reject a date, kinds of columns, or settings that differ."""
        check_same({**vars(self), **self.params}, given, where)

    def find(self, kind: str, label: str | None) -> FittedType | None:
        """Return the model of a type and a predicted column, if there is one."""
        return next((one for one in self.fitted if (one.type, one.label) == (kind, label)), None)


def is_database(folder: Path) -> bool:
    """Whether a folder holds a database."""
    return (folder / DESCRIPTION).is_file()


def check_new_folder(folder: Path) -> None:
    """Reject a folder for a new database that is a file, or that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ModelFolderError(f"{folder} is a file; a database is kept in a folder", code="not-a-folder")
    if folder.is_dir() and any(folder.iterdir()):
        what = "the model of a single graph" if (folder / MODEL_FILE).exists() else "other files"
        message = f"{folder} holds {what}; choose another folder for the models of these tables"
        raise ModelFolderError(message, code="folder-not-empty")


def folder_of(kind: str, label: str | None) -> str:
    """Return the name of the folder of a model; characters that files cannot have are percent-encoded."""
    name = ".".join(UNSAFE.sub(lambda one: f"%{ord(one[0]):02X}", one) for one in (kind, label) if one)
    return name if name != DESCRIPTION else name.replace(".", "%2E")


def links_folder_of(table: str) -> str:
    """Return the name of the folder of a recommender."""
    return f"{folder_of(table, None)}.links.model"


def write_rows(folder: Path, kind: str, rows: pd.DataFrame) -> None:
    """Write names and times of the rows of a type: columns `node`, `name` and `time`."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder, _rows_file(kind), lambda: _rows_file(kind)) as file:
        rows.to_parquet(file, index=False)


def read_rows(folder: Path, kind: str) -> pd.DataFrame | None:
    """Return names and times of the rows of a type; None if they are not there."""
    path = folder / _rows_file(kind)
    if not path.is_file():
        return None
    with reading(path, "a table"):
        return pd.read_parquet(path)


def _rows_file(kind: str) -> str:
    return f"{folder_of(kind, None)}.rows.parquet"


def write_database(folder: Path, stored: StoredDatabase) -> None:
    """Write the description of a database."""
    content = {
        **header(FORMAT, FORMAT_VERSION),
        **{name: value for name, value in vars(stored).items() if name not in ("schema", "fitted", "links")},
        "schema": stored.schema.as_dict(),
        "fitted": [asdict(one) for one in stored.fitted],
        "links": [asdict(one) for one in stored.links],
    }
    content["schema"]["questions"] = [
        {"table": one.table, "question": one.text} for one in stored.schema.questions
    ]
    schema.check_values(DATABASE, content, folder / DESCRIPTION, words="cannot be written")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DESCRIPTION, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_stored(folder: Path) -> StoredDatabase:
    """Read the description of a database."""
    path = folder / DESCRIPTION
    if not path.is_file():
        message = f"{folder} holds no database: {DESCRIPTION} is missing"
        raise ModelFolderError(message, code="database-missing")
    parsed = schema.parse_json(path.read_bytes(), path, InputError)
    content = check_header(path, parsed, FORMAT, FORMAT_VERSION, ModelFolderError)
    schema.check_values(DATABASE, content, path, ModelFolderError)
    tables = {name: _table(name, one) for name, one in content["schema"]["tables"].items()}
    questions = tuple(Question(one["table"], one["question"]) for one in content["schema"]["questions"])
    kept = {name: content[name] for name in ("source", "as_of", "columns", "read")}
    return StoredDatabase(
        schema=Schema(tables, questions),
        params=canonical(content["params"]),
        fitted=tuple(FittedType(**one) for one in content["fitted"]),
        links=tuple(FittedLinks(**one) for one in content["links"]),
        **kept,
    )


def _table(name: str, stored: Mapping[str, Any]) -> TableSchema:
    links = tuple(Link(tuple(one["columns"]), one["to"], one["share"]) for one in stored["links"])
    nodes = {kind: tuple(columns) for kind, columns in stored["nodes"].items()}
    return TableSchema(
        name, tuple(stored["key"]), links, stored["time"], stored["rows"], stored["columns"], nodes
    )
