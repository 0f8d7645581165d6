"""Database: models and answers for the node types of several linked tables."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.prediction import Predictions, check_labels, predict_nodes
from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import pick_clusters
from h3gnn.evaluation.decisions import Rule
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import find_ids
from h3gnn.graphs.relational import RelationalGraph
from h3gnn.graphs.type_view import type_view
from h3gnn.settings import as_plain
from h3gnn.storage.databases import (
    FittedType,
    StoredDatabase,
    check_new_folder,
    folder_of,
    is_database,
    read_stored,
    write_database,
)
from h3gnn.storage.models import DESCRIPTION as MODEL_FILE
from h3gnn.tables.database import Column, parse_time, read_database
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Profile, Schema, accept_questions, check_schema, read_schema
from h3gnn.tables.sources import Source, open_source

Train = Callable[[H3GNN, Graph, Path | None], H3GNN]
NAMES = ("name", "title", "label", "username")
"""Columns whose texts name the rows of a table, where they are unique."""
TARGET = re.compile(r"(?P<column>.*?)\s*(?P<sign><=|>=|=|<|>)\s*(?P<value>.+)")


class Database:
    """Several linked tables: embeddings and answers for each type of node.

    Each table is a node type, and its rows are nodes. For each type that is asked about, and for each column
    that is predicted, one `H3GNN` is fitted on the graph of that type (`h3gnn.graphs.type_view`), once, and
    kept in a folder, if one is given. A column that is predicted is no feature of the model that predicts it.

        database = Database({"client": clients, "loan": loans}, folder="bank/")
        database.predict("loan.status").table  # classes of the loans without status
        database.similar("client", [17, 23])
        Database.open("bank/").embed("client")  # as it was fitted, without the tables

    Args:
        source: a folder, workbook, database or URL, a schema file, or data frames by name.
        schema: keys, links and times, or a schema file; by default declared or inferred ones.
        folder: where the models are kept; None keeps them in memory.
        as_of: a date; later rows are not used.
        columns: kinds of columns, `{"loan.duration": "number", "loan.closed": "identifier"}`.
        accept: questions of an inferred schema whose proposals are accepted, "1,3" or "all".
        model: the `H3GNN` whose settings all models have.

    Attributes:
        stored: what `database.json` holds.
    """

    def __init__(
        self,
        source: Any,
        *,
        schema: Schema | str | Path | None = None,
        folder: str | Path | None = None,
        as_of: Any = None,
        columns: Mapping[str, str] | None = None,
        accept: str | Sequence[int] | None = None,
        model: H3GNN | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.train: Train = fit_and_save
        self._models: dict[tuple[str, str | None], H3GNN] = {}
        self._graph: tuple[str | None, RelationalGraph] | None = None
        self._names: dict[str, dict[Any, str] | None] = {}
        found = None
        if self.folder is not None and is_database(self.folder):
            found = read_stored(self.folder)
        elif self.folder is not None:
            check_new_folder(self.folder)
        if source is None:
            if found is None:
                raise InputError("a new database needs tables (--tables SOURCE)", code="tables-missing")
            self.stored = found
            return
        place, given, opened = _open(source)
        self._opened = _Read(opened)
        if schema is not None:
            given = read_schema(Path(schema))[0] if isinstance(schema, str | Path) else schema
        asked = {
            "as_of": None if as_of is None else str(as_of),
            "columns": dict(columns or {}),
            "params": None if model is None else _plain_settings(model),
        }
        if found is not None:
            self.stored = self._same(found, place, given, asked)
            return
        known = infer_schema(self._opened) if given is None else check_schema(given, self._opened)
        known = known if accept is None else accept_questions(known, accept)
        params = asked["params"] or _plain_settings(H3GNN())
        read = {name: self._opened.digest(name) for name in known.tables}
        if as_of is not None:
            parse_time(as_of)
        for text in asked["columns"]:
            Column.parse(text, known.tables)
        self.stored = StoredDatabase(place, known, asked["as_of"], asked["columns"], params, read)

    @classmethod
    def open(cls, folder: str | Path, source: Any = None) -> Self:
        """Return the database in a folder; its tables are read again only if a further type is fitted."""
        return cls(source, folder=folder) if is_database(Path(folder)) else cls._missing(Path(folder))

    @classmethod
    def _missing(cls, folder: Path) -> Self:
        read_stored(folder)  # raises the error
        raise AssertionError(folder)

    @property
    def schema(self) -> Schema:
        """Keys, links and times."""
        return self.stored.schema

    @property
    def types(self) -> tuple[str, ...]:
        """The node types: tables, and columns whose values are nodes."""
        values = (kind for table in self.schema.tables.values() for kind in table.nodes)
        return tuple(dict.fromkeys((*self.schema.tables, *values)))

    @property
    def fitted(self) -> tuple[FittedType, ...]:
        """The types and predicted columns with a model."""
        if self.folder is None:
            return self.stored.fitted
        return tuple(one for one in self.stored.fitted if (self.folder / one.folder / MODEL_FILE).is_file())

    def type_of(self, name: str) -> str:
        """Return the node type of a name, which may differ in case."""
        if name in self.types:
            return name
        found = [one for one in self.types if one.lower() == name.lower()]
        if len(found) != 1:
            message = f"there is no table or node type {name!r}; there are {shortened(self.types, 12)}"
            raise GraphError(message, code="type-unknown")
        return found[0]

    def only_type(self) -> FittedType:
        """Return the model of a folder with a single one."""
        if len(self.fitted) != 1:
            done = shortened((_title(one) for one in self.fitted), 12) or "none yet"
            message = f"choose one of the types of {self.folder or 'the database'} with --type: "
            message += f"{shortened(self.types, 12)} (fitted: {done})"
            raise InputError(message, code="type-missing")
        return self.fitted[0]

    @cached_property
    def source(self) -> Source:
        """The tables; those of an opened folder must be the ones that were read first."""
        if hasattr(self, "_opened"):
            return self._opened
        if self.stored.source is None:
            message = "the tables of this database were data frames: give them again"
            raise InputError(message, code="tables-missing")
        try:
            self._opened = _Read(open_source(self.stored.source))
        except InputError as error:
            message = f"{error}; the tables are needed: name them (--tables SOURCE)"
            raise InputError(message, code=error.code) from None
        self._check_tables(self.stored)
        return self._opened

    def _same(
        self, found: StoredDatabase, place: str | None, given: Schema | None, asked: Mapping[str, Any]
    ) -> StoredDatabase:
        """Return what a folder holds after a comparison with the tables and options that are given."""
        self._check_tables(found)
        for name, value in asked.items():
            known = getattr(found, name)
            if name == "params" and value is not None:
                known, value = ({**one, "device": None, "verbose": None} for one in (known, value))
            if value and value != known:
                different = name if name != "params" else _difference(known, value)
                message = f"{self.folder} was fitted with another {different.replace('_', ' ')}"
                raise InputError(f"{message}: omit it, or choose another folder", code="already-fitted")
        if given is not None:
            checked = check_schema(given, self._opened)
            if checked.as_dict()["tables"] != found.schema.as_dict()["tables"]:
                message = f"{self.folder} was fitted with another schema: choose another folder"
                raise InputError(message, code="already-fitted")
        return replace(found, source=place or found.source)

    def _check_tables(self, found: StoredDatabase) -> None:
        """Raise an error if the tables differ from those that a folder was fitted on."""
        where = self.folder or "the database"
        for name, known in found.read.items():
            if name not in self._opened.tables:
                message = f"{self._opened.name} has no table {name!r}, which {where} was fitted on"
                raise InputError(f"{message}: choose another folder", code="tables-differ")
            if self._opened.digest(name) != known:
                rows = self._opened.digest(name)["rows"]
                message = f"{self._opened.name}: the table {name!r} ({rows:,} rows) differs from the one "
                message += f"({known['rows']:,} rows) that {where} was fitted on: choose another folder"
                raise InputError(message, code="tables-differ")

    def graph(self, label: str | None = None) -> RelationalGraph:
        """Return the nodes of all types and their relations; the column `label` is no feature."""
        if self._graph is None or self._graph[0] != label:
            read = read_database(
                self.source,
                self.schema,
                label=label,
                as_of=self.stored.as_of,
                columns=self.stored.columns,
            )
            self._graph = label, read
        return self._graph[1]

    def view(
        self, type: str, label: str | None = None, *, task: str = "auto", label_time: str | None = None
    ) -> Graph:
        """Return the graph of one type; `label` is the column of its table that is predicted."""
        kind = self.type_of(type)
        graph = self.graph(None if label is None else f"{kind}.{label}")
        return type_view(graph, kind, label=label, task=task, label_time=label_time)

    def model(
        self, type: str, label: str | None = None, *, task: str = "auto", label_time: str | None = None
    ) -> H3GNN:
        """Return the model of a type, or of a column that is predicted; it is fitted once."""
        kind = self.type_of(type)
        known = self.stored.find(kind, label)
        if known is not None:
            for name, value, default in (("task", task, "auto"), ("label_time", label_time, None)):
                if value not in (default, getattr(known, name)):
                    message = f"{_title(known)} was fitted with another {name.replace('_', ' ')}"
                    raise InputError(f"{message}: omit it, or choose another folder", code="already-fitted")
            task, label_time = known.task, known.label_time
        if (kind, label) not in self._models:
            folder = None if self.folder is None else self.folder / folder_of(kind, label)
            if folder is not None and (folder / MODEL_FILE).is_file() and known is not None:
                self._models[kind, label] = H3GNN.load(folder)
            else:
                view = self.view(kind, label, task=task, label_time=label_time)
                if label is not None:
                    check_labels(*labels_of(view))  # before the work, not after it
                self.begin(FittedType(kind, label, folder_of(kind, label), label_time, task))
                self._models[kind, label] = self.train(self.new_model(), view, folder)
        return self._models[kind, label]

    def new_model(self) -> H3GNN:
        """Return a model with the settings of this database."""
        return H3GNN.from_settings(dict(self.stored.params))

    def begin(self, fitted: FittedType) -> None:
        """Record a model before it is fitted."""
        if self.stored.find(fitted.type, fitted.label) is None:
            self.stored = replace(self.stored, fitted=(*self.stored.fitted, fitted))
        if self.folder is not None:
            write_database(self.folder, self.stored)

    def target(self, text: str) -> Target:
        """Read `loan.status`, or a condition: `loan.status=B,D` or `result.points>0`."""
        return Target.parse(text, self.schema)

    def predict(
        self,
        target: str,
        *,
        label_time: str | None = None,
        task: str = "auto",
        test_from: Any = None,
        rule: Rule | None = None,
        head: str = "auto",
        labelled_too: bool = False,
        allow_leaks: bool = False,
        seed: int = 0,
    ) -> Predictions:
        """Predict a column of a table for the rows without a value, with held-out scores.

        If every row has a value, each is predicted by heads that did not see its own.

        Args:
            target: `TABLE.COLUMN`, or a condition such as `TABLE.COLUMN=A,B` or `TABLE.COLUMN>0`.
            label_time: "row" if the value is of the time of its row, so that no later row counts, or "now".
            task: "classification", "regression", or "auto" by the values.
            test_from: a date; heads learn from labelled rows before it, and are scored on the others.
            rule, head, allow_leaks, seed: as of `predict_nodes`.
            labelled_too: also predict the rows with a value.
        """
        wanted = self.target(target)
        model = self.model(wanted.type, wanted.column, task=task, label_time=label_time)
        labels, names = wanted.labels(model.graph_)
        known = labels >= 0 if names else ~np.isnan(labels)
        return predict_nodes(
            model.graph_,
            model.embedding_,
            labels,
            names,
            rule,
            head,
            labelled_too=labelled_too or bool(known.all()),
            label_name=wanted.title,
            allow_leaks=allow_leaks,
            seed=seed,
        )

    def embed(self, type: str) -> pd.DataFrame:
        """Return the embedding of each node of a type, indexed by its key."""
        model = self.model(type)
        names = [f"e{at}" for at in range(model.embedding_.shape[1])]
        return pd.DataFrame(model.embedding_, pd.Index(model.graph_.node_ids, name="node"), names)

    def similar(self, type: str, nodes: Any, k: int = 10) -> pd.DataFrame:
        """Return the most similar rows of the same type for each of some keys or names."""
        kind = self.type_of(type)
        model = self.model(kind)
        given = [nodes] if isinstance(nodes, str) or np.ndim(nodes) == 0 else list(nodes)
        return self.with_names(kind, model.similar(self.find(kind, given), k))

    def anomalies(self, type: str) -> pd.DataFrame:
        """Return all rows of a type by anomaly score, the highest first."""
        kind = self.type_of(type)
        return self.with_names(kind, self.model(kind).anomalies())

    def cluster(self, type: str, clusters: int | None = None, *, seed: int = 0) -> pd.Series[Any]:
        """Return the cluster of each row of a type; their number is chosen by the silhouette, if not given."""
        model = self.model(type)
        counts = None if clusters is None else [clusters]
        found, _ = pick_clusters(model.embedding_, counts, seed=seed)
        return pd.Series(found, pd.Index(model.graph_.node_ids, name="node"), name="cluster")

    def find(self, type: str, wanted: Sequence[Any]) -> list[Any]:
        """Return the keys of rows that are given by their keys or names."""
        kind = self.type_of(type)
        ids = self.model(kind).graph_.node_ids
        return [one if _has_id(one, ids) else self._named(kind, one, ids) for one in wanted]

    def _named(self, kind: str, wanted: Any, ids: npt.NDArray[Any]) -> Any:
        """Return the key of the row with a name."""
        names = self.names(kind)
        texts = pd.Series([] if names is None else list(names.values()), dtype=object).astype(str)
        for one, other in ((texts, str(wanted)), (texts.str.casefold(), str(wanted).casefold())):
            if (at := np.flatnonzero(one == other)).size == 1:
                assert names is not None
                return list(names)[int(at[0])]
        examples = shortened((names or dict.fromkeys(ids[:3].tolist())).values() if names else ids[:3], 3)
        what = "key or name" if names else "key"
        message = f"{kind} has no row with the {what} {str(wanted)!r}; there are {examples}"
        raise InputError(message, code="unknown-node")

    def names(self, type: str) -> dict[Any, str] | None:
        """Return the name of each row by its key, of a table with a key and a column of unique names."""
        kind = self.type_of(type)
        if kind not in self._names:
            self._names[kind] = self._read_names(kind)
        return self._names[kind]

    def _read_names(self, kind: str) -> dict[Any, str] | None:
        table = self.schema.tables.get(kind)
        if table is None or not table.key:
            return None
        try:
            profile = Profile(kind, self.source.frame(kind).reset_index(drop=True))
        except InputError:  # the tables have moved; keys still work
            return None
        others = [one for one in profile.names if one not in table.key]
        column = next((one for one in others if _is_name(one, kind) and _mostly_unique(profile, one)), None)
        if column is None:
            return None
        keys = [profile.texts(one).astype(str) for one in table.key]
        ids = np.array(["/".join(one) for one in zip(*keys, strict=True)], dtype=object)
        known = self.model(kind).graph_.node_ids
        rows = find_ids(ids, known)
        texts = profile.texts(column)
        return {
            known[row]: str(texts.iloc[at])
            for at, row in enumerate(rows.tolist())
            if row >= 0 and texts.iloc[at] is not None
        }

    def with_names(self, type: str, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of answers with the names of its nodes beside their keys."""
        names = self.names(type)
        if names is None:
            return table
        found = table.copy()
        for column, title in (("similar", "similar_name"), ("node", "name")):
            if column in found:
                place = int(found.columns.get_loc(column)) + 1  # type: ignore[arg-type]
                found.insert(place, title, [names.get(one, "") for one in found[column]])
        return found


def fit_and_save(model: H3GNN, graph: Graph, folder: Path | None) -> H3GNN:
    """Fit a model to a graph, and save it if there is a folder."""
    model.fit(graph)
    if folder is not None:
        model.save(folder)
    return model


def labels_of(graph: Any) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return the classes of a graph, -1 where unknown, and their names; or numbers, NaN, and no names."""
    if graph.targets is not None:
        return graph.targets.numpy(), ()
    if graph.labels is None:
        raise InputError("this model was not fitted to predict a column", code="no-labels")
    return graph.labels.numpy(), graph.class_names


class Target:
    """What is predicted: a column of a table, or a condition on its values.

    Attributes:
        type, column: the table and its column.
        sign, value: of a condition, such as ">" and "0", or "=" and "B,D"; "" without one.
    """

    def __init__(self, type: str, column: str, sign: str = "", value: str = "") -> None:
        self.type, self.column, self.sign, self.value = type, column, sign, value

    @classmethod
    def parse(cls, text: str, schema: Schema) -> Target:
        """Read `loan.status`, `loan.status=B,D` or `result.points>0`."""
        condition = TARGET.fullmatch(text)
        name, sign, value = (text, "", "") if condition is None else condition.groups()
        column = Column.parse(name, schema.tables)
        return cls(column.table, column.name, sign, value)

    @property
    def title(self) -> str:
        """The column, with the condition."""
        return f"{self.column}{self.sign}{self.value}"

    def labels(self, graph: Any) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
        """Return the labels of a graph's nodes, or the classes yes and no of a condition."""
        labels, names = labels_of(graph)
        if not self.sign:
            return labels, names
        known = labels >= 0 if names else ~np.isnan(labels)
        if self.sign == "=" and names:
            wanted = [one.strip() for one in self.value.split(",")]
            if unknown := [one for one in wanted if one not in names]:
                message = f"{self.column} has no value {unknown[0]!r}; it has {shortened(names, 12)}"
                raise InputError(message, code="class-unknown")
            met = np.isin(labels, [names.index(one) for one in wanted])
        else:
            met = _compared(self._numbers(labels, names), self.sign, self._number())
        return np.where(known, met.astype(np.int64), -1), (f"not {self.title}", self.title)

    def _number(self) -> float:
        try:
            return float(self.value)
        except ValueError:
            message = f"{self.title}: {self.value!r} is not a number"
            raise InputError(message, code="value-invalid") from None

    def _numbers(self, labels: npt.NDArray[Any], names: tuple[str, ...]) -> npt.NDArray[np.float64]:
        try:
            return labels if not names else np.array([*map(float, names), np.nan])[labels]
        except ValueError:
            message = f"{self.title}: the values of {self.column} are words ({shortened(names, 4)}); write ="
            raise InputError(message, code="value-invalid") from None


def _compared(numbers: npt.NDArray[np.float64], sign: str, value: float) -> npt.NDArray[np.bool_]:
    found = {
        "=": np.equal,
        "<": np.less,
        ">": np.greater,
        "<=": np.less_equal,
        ">=": np.greater_equal,
    }[sign](numbers, value)
    return np.asarray(found)


class _Read(Source):
    """A source whose tables are read once."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, source.tables)
        self._source, self.declared, self.notes = source, source.declared, source.notes
        self._frames: dict[str, pd.DataFrame] = {}
        self._digests: dict[str, dict[str, Any]] = {}

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


def _open(source: Any) -> tuple[str | None, Schema | None, Source]:
    """Return where a source is, the schema if it is a schema file, and the opened source."""
    schema = None
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".toml":
        schema, source = read_schema(Path(source))
    opened = open_source(source)
    if not isinstance(source, str | Path):
        return None, schema, opened
    is_url = "://" in str(source)
    return opened.name if is_url else os.path.abspath(source), schema, opened


def _plain_settings(model: H3GNN) -> dict[str, Any]:
    return {name: as_plain(value) for name, value in model.get_settings().items()}


def _difference(known: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    name = next(one for one, value in asked.items() if known.get(one) != value)
    return f"{name} ({known.get(name)!r}, not {asked[name]!r})"


def _title(fitted: FittedType) -> str:
    return fitted.type if fitted.label is None else f"{fitted.type}.{fitted.label}"


def _has_id(wanted: Any, ids: npt.NDArray[Any]) -> bool:
    return bool(find_ids(np.array([wanted], dtype=object if isinstance(wanted, str) else None), ids)[0] >= 0)


def _is_name(column: str, table: str) -> bool:
    """Whether a column is called like the name of a row: `name`, `Title`, `artist_name`."""
    words = re.sub(r"[^a-z]", "", column.lower())
    return words in NAMES or words in {f"{table.lower()}{one}" for one in NAMES}


def _mostly_unique(profile: Profile, column: str) -> bool:
    texts = profile.texts(column).dropna()
    return bool(len(texts) and texts.nunique() == len(texts))
