"""Database: models and answers for the node types of several linked tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
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
from h3gnn.graphs.relational import UNKNOWN_TIME, RelationalGraph
from h3gnn.graphs.type_view import type_view
from h3gnn.settings import as_plain
from h3gnn.storage.databases import (
    FittedType,
    StoredDatabase,
    check_new_folder,
    folder_of,
    is_database,
    read_rows,
    read_stored,
    write_database,
    write_rows,
)
from h3gnn.storage.models import DESCRIPTION as MODEL_FILE
from h3gnn.storage.runs import has_begun
from h3gnn.tables.database import Column, read_database
from h3gnn.tables.names import find_name, row_names
from h3gnn.tables.opened import OpenedTables
from h3gnn.tables.predicted import Predicted
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Schema, accept_questions, check_schema, read_schema
from h3gnn.tables.times import parse_time

Train = Callable[[H3GNN, Graph, Path | None], H3GNN]
Flags = npt.NDArray[np.bool_]
NOT_COMPARED = ("device", "verbose")
"""Settings that may differ between the calls that use a folder."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What `Database.predict` predicts: a model, and the labels of its nodes.

    Attributes:
        fitted: which model it is; its type is the table whose rows are predicted.
        model: fitted without the column to predict.
        labels, names: as of `predict_nodes`.
        title: of the column or condition.
        test: which labelled nodes are of a date or later, to score heads that learn from the others; or None.
    """

    fitted: FittedType
    model: H3GNN
    labels: npt.NDArray[Any]
    names: tuple[str, ...]
    title: str
    test: Flags | None

    @property
    def predicts_all(self) -> bool:
        """Whether labelled rows are predicted, too, since all are labelled and none are set aside."""
        known = self.labels >= 0 if self.names else ~np.isnan(self.labels)
        return self.test is None and bool(known.all())


class Database:
    """Several linked tables: embeddings and answers for each type of node.

    Each table is a node type, and its rows are nodes. For each type that is asked about, and for each column
    that is predicted, one `H3GNN` is fitted on the graph of that type (`h3gnn.graphs.type_view`), once, and
    kept in a folder, if one is given. A column that is predicted is no feature of the model that predicts it.

        database = Database({"client": clients, "loan": loans}, folder="bank/")
        database.predict("loan.status").table  # classes of the loans without status
        database.similar("client", [17, 23])
        Database.load("bank/").embed("client")  # as it was fitted, without the tables

    Args:
        source: a folder, workbook, database or URL, a schema file, or data frames by name; None for what the
            folder holds.
        folder: where the models are kept; None keeps them in memory.
        schema: keys, links and times, or a schema file; by default declared or inferred ones.
        as_of: a date; later rows are not used.
        columns: kinds of columns, `{"loan.duration": "number", "loan.closed": "identifier"}`.
        accept: questions of an inferred schema whose proposals are accepted, "1,3" or "all".
        model: the `H3GNN` whose settings all models have.

    Attributes:
        stored: what `database.json` holds.
        train: fits a model to a graph and saves it in a folder.
    """

    def __init__(
        self,
        source: Any = None,
        *,
        folder: str | Path | None = None,
        schema: Schema | str | Path | None = None,
        as_of: Any = None,
        columns: Mapping[str, str] | None = None,
        accept: str | Sequence[int] | None = None,
        model: H3GNN | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.train: Train = fit_and_save
        self._models: dict[FittedType, H3GNN] = {}
        self._graph: tuple[str | None, RelationalGraph] | None = None
        self._rows: dict[str, pd.DataFrame] = {}
        found = None
        if self.folder is not None and is_database(self.folder):
            found = read_stored(self.folder)
        elif self.folder is not None:
            check_new_folder(self.folder)
        known = self._schema_of(source, schema, accept) if found is None or accept or schema else None
        asked: dict[str, Any] = {
            "as_of": None if as_of is None else str(as_of),
            "columns": dict(columns or {}),
            "params": None if model is None else _plain_settings(model),
        }
        if found is not None:
            self.stored = self._same(found, source, known, asked)
            return
        assert known is not None
        asked["params"] = asked["params"] or _plain_settings(H3GNN())
        if as_of is not None:
            parse_time(as_of)
        for text in asked["columns"]:
            Column.parse(text, known.tables)
        read = {name: self.source.digest(name) for name in known.tables}
        self.stored = StoredDatabase(source=self.source.place, schema=known, read=read, **asked)

    @classmethod
    def load(cls, folder: str | Path, source: Any = None) -> Self:
        """Return the database in a folder; its tables are read again only if a further type is fitted."""
        read_stored(Path(folder))  # an error if there is none
        return cls(source, folder=folder)

    def _schema_of(
        self, source: Any, schema: Schema | str | Path | None, accept: str | Sequence[int] | None
    ) -> Schema:
        """Return the schema of new tables: the given one, that of a schema file, or the inferred one."""
        if source is None:
            where = f"{self.folder} holds no models yet: " if self.folder else ""
            raise InputError(f"{where}name the tables (--tables SOURCE)", code="tables-missing")
        self.source = OpenedTables.open(source)
        given = self.source.given if schema is None else schema
        if isinstance(given, str | Path):
            given = read_schema(Path(given))[0]
        known = infer_schema(self.source) if given is None else check_schema(given, self.source)
        return known if accept is None else accept_questions(known, accept)

    @cached_property
    def source(self) -> OpenedTables:
        """The tables; those of a folder must be the ones that were read first."""
        if self.stored.source is None:
            message = "the tables of this database were data frames: give them again"
            raise InputError(message, code="tables-missing")
        try:
            opened = OpenedTables.open(self.stored.source)
        except InputError as error:
            message = f"{error}; the tables are needed: name them (--tables SOURCE)"
            raise InputError(message, code=error.code) from None
        opened.check_same(self.stored.read, str(self.folder))
        return opened

    def _same(
        self, found: StoredDatabase, source: Any, known: Schema | None, asked: Mapping[str, Any]
    ) -> StoredDatabase:
        """Return what a folder holds after a comparison with the tables and options that are given."""
        remedy = "omit it, or choose another folder"
        for name, given in asked.items():
            different = name if given and name != "params" and getattr(found, name) != given else ""
            if name == "params" and given is not None:
                different = _difference(found.params, given)
            if different:
                message = f"{self.folder} was fitted with another {different.replace('_', ' ')}"
                raise InputError(f"{message}: {remedy}", code="already-fitted")
        if source is None:
            return found
        if known is None:
            self.source = OpenedTables.open(source)
            known = None if self.source.given is None else check_schema(self.source.given, self.source)
        self.source.check_same(found.read, str(self.folder))
        if known is not None and known.as_dict()["tables"] != found.schema.as_dict()["tables"]:
            message = f"{self.folder} was fitted with other keys, links, times or nodes"
            raise InputError(f"{message}: {remedy}", code="already-fitted")
        return replace(found, source=self.source.place or found.source)

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
        return tuple(one for one in self.stored.fitted if self._is_fitted(one))

    def _is_fitted(self, one: FittedType) -> bool:
        if self.folder is None:
            return one in self._models
        run = self.folder / one.folder
        return (run / MODEL_FILE).is_file() and not has_begun(run)

    def type_of(self, name: str) -> str:
        """Return the node type of a name, which may differ in case."""
        found = [one for one in self.types if one == name] or [
            one for one in self.types if one.lower() == name.lower()
        ]
        if len(found) != 1:
            near = get_close_matches(name.lower(), [one.lower() for one in self.types], 1, cutoff=0.7)
            meant = next((f"; did you mean {one}?" for one in self.types if one.lower() in near), "")
            message = f"there is no table or node type {name!r}; there are {shortened(self.types, 16)}{meant}"
            raise GraphError(message, code="type-unknown")
        return found[0]

    def named(self, name: str | None) -> tuple[str, str | None]:
        """Return the type, and the column to predict, of a name such as `loan` or `loan.status`.

        None is the only fitted model, or the only type.
        """
        if name is None:
            if len(self.fitted) == 1:
                return self.fitted[0].type, self.fitted[0].label
            if len(self.types) == 1:
                return self.types[0], None
            done = shortened((one.title for one in self.fitted), 12) or "none yet"
            message = f"choose a type with --type: {shortened(self.types, 16)} (fitted: {done})"
            raise InputError(message, code="type-missing")
        tables = [one for one in self.schema.tables if name.lower().startswith(f"{one.lower()}.")]
        if tables and name.lower() not in {one.lower() for one in self.types}:
            column = Column.parse(name, self.schema.tables)
            return column.table, column.name
        return self.type_of(name), None

    def graph(self, label: str | None = None) -> RelationalGraph:
        """Return the nodes of all types and their relations; the column `label` is no feature."""
        if self._graph is None or self._graph[0] != label:
            as_of, columns = self.stored.as_of, self.stored.columns
            read = read_database(self.source, self.schema, label=label, as_of=as_of, columns=columns)
            self._graph = label, read
        return self._graph[1]

    def view(
        self, node_type: str, label: str | None = None, *, task: str = "auto", label_time: str | None = None
    ) -> Graph:
        """Return the graph of one type; `label` is the column of its table that is predicted."""
        graph = self.graph(None if label is None else f"{node_type}.{label}")
        return type_view(graph, node_type, label=label, task=task, label_time=label_time)

    def fit(
        self,
        name: str,
        *,
        task: str = "auto",
        label_time: str | None = None,
        check: Callable[[Graph], object] = lambda graph: None,
    ) -> FittedType:
        """Fit the model of a type, or of a column to predict such as `loan.status`, unless it is fitted.

        Args:
            name: the type, or `TABLE.COLUMN`.
            task: "classification", "regression", or "auto" by the values.
            label_time: "row" if the values to predict are of the times of their rows, so that no later row
                counts, or "now"; needed if some rows are linked to later ones.
            check: called with the graph before the work.
        """
        node_type, label = self.named(name)
        known = self.stored.find(node_type, label)
        if known is not None and self._is_fitted(known):
            for option, value, default in (("task", task, "auto"), ("label_time", label_time, None)):
                if value not in (default, getattr(known, option)):
                    message = f"{known.title} was fitted with another {option.replace('_', ' ')}"
                    raise InputError(f"{message}: omit it, or choose another folder", code="already-fitted")
            return known
        if known is not None:  # its training was stopped
            task = known.task if task == "auto" else task
            label_time = label_time or known.label_time
        view = self.view(node_type, label, task=task, label_time=label_time)
        check(view)
        fitted = FittedType(node_type, label, folder_of(node_type, label), label_time, task)
        self._begin(fitted)
        run = None if self.folder is None else self.folder / fitted.folder
        self._models[fitted] = self.train(self.new_model(), view, run)
        return fitted

    def model(self, name: str, *, label_time: str | None = None) -> H3GNN:
        """Return the model of a type, or of a column to predict; it is fitted once."""
        return self.loaded(self.fit(name, label_time=label_time))

    def loaded(self, fitted: FittedType) -> H3GNN:
        """Return a fitted model."""
        if fitted not in self._models:
            assert self.folder is not None
            self._models[fitted] = H3GNN.load(self.folder / fitted.folder)
        return self._models[fitted]

    def new_model(self) -> H3GNN:
        """Return a model with the settings of this database."""
        return H3GNN.from_settings(dict(self.stored.params))

    def _begin(self, fitted: FittedType) -> None:
        """Record a model, and the names and times of its rows, before it is fitted."""
        others = [one for one in self.stored.fitted if (one.type, one.label) != (fitted.type, fitted.label)]
        self.stored = replace(self.stored, fitted=(*others, fitted))
        rows = self._rows[fitted.type] = self._read_rows(fitted)
        if self.folder is not None:
            write_database(self.folder, self.stored)
            write_rows(self.folder, fitted.type, rows)

    def _read_rows(self, fitted: FittedType) -> pd.DataFrame:
        """Return id, name and time of each row of a type."""
        label = None if fitted.label is None else f"{fitted.type}.{fitted.label}"
        table = self.graph(label).type(fitted.type)
        ids = [str(one) for one in table.ids.tolist()]
        names = row_names(self.source, self.schema, fitted.type) if table.has_ids else {}
        named = pd.Series([names.get(one) for one in ids], dtype=object)
        time = np.full(len(ids), UNKNOWN_TIME) if table.time is None else table.time
        return pd.DataFrame({"node": pd.Series(ids, dtype=object), "name": named, "time": time})

    def rows(self, node_type: str) -> pd.DataFrame:
        """Return `node`, `name` and `time` of each row of a fitted type, in the order of its nodes."""
        if node_type not in self._rows:
            found = None if self.folder is None else read_rows(self.folder, node_type)
            if found is None:
                raise InputError(f"{self.folder} has no rows of {node_type}", code="rows-missing")
            self._rows[node_type] = found
        return self._rows[node_type]

    def ask(
        self, target: str, *, label_time: str | None = None, task: str = "auto", test_from: Any = None
    ) -> Asked:
        """Fit the model of a column to predict, unless it is fitted, and return what `predict` needs."""
        wanted = Predicted.parse(target, self.schema.tables)
        fitted = self.fit(
            f"{wanted.table}.{wanted.column}",
            task=task,
            label_time=label_time,
            check=lambda view: check_labels(*wanted.labels(view)),
        )
        model = self.loaded(fitted)
        labels, names = wanted.labels(model.graph_)
        known = labels >= 0 if names else ~np.isnan(labels)
        test = None if test_from is None else self._later(wanted.table, test_from, known)
        return Asked(fitted, model, labels, names, wanted.title, test)

    def _later(self, node_type: str, date: Any, known: Flags) -> Flags:
        """Return which labelled rows are of a date or later."""
        time = self.rows(node_type)["time"].to_numpy()
        if (time == UNKNOWN_TIME).all():
            message = f"the rows of {node_type} have no times: name the column in a schema file (time = …)"
            raise InputError(message, code="time-missing")
        test = (time >= parse_time(date, end=False)) & known
        if not test.any() or test.sum() == known.sum():
            first, last = (pd.Timestamp(one).date() for one in (time[known].min(), time[known].max()))
            message = f"no labelled row of {node_type} is {'later' if not test.any() else 'earlier'}"
            raise InputError(f"{message}: their times are {first} to {last}", code="date-splits-nothing")
        return np.asarray(test)

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
            test_from: a date; heads learn from labelled rows before it, and are scored on the later ones.
            rule, head, allow_leaks, seed: as of `predict_nodes`.
            labelled_too: also predict the rows with a value.
        """
        asked = self.ask(target, label_time=label_time, task=task, test_from=test_from)
        found = predict_nodes(
            asked.model.graph_,
            asked.model.embedding_,
            asked.labels,
            asked.names,
            rule,
            head,
            test=asked.test,
            labelled_too=labelled_too or asked.predicts_all,
            label_name=asked.title,
            allow_leaks=allow_leaks,
            seed=seed,
        )
        return replace(found, table=self.with_names(asked.fitted.type, found.table))

    def embed(self, name: str) -> pd.DataFrame:
        """Return the embedding of each node of a type, indexed by its key."""
        model = self.model(name)
        columns = [f"e{at}" for at in range(model.embedding_.shape[1])]
        return pd.DataFrame(model.embedding_, pd.Index(model.graph_.node_ids, name="node"), columns)

    def similar(self, name: str, nodes: Any, k: int = 10) -> pd.DataFrame:
        """Return the most similar rows of the same type for each of some keys or names."""
        fitted = self.fit(name)
        model = self.loaded(fitted)
        given = [nodes] if isinstance(nodes, str) or np.ndim(nodes) == 0 else list(nodes)
        keys = self.find(fitted.type, model.graph_.node_ids, given)
        return self.with_names(fitted.type, model.similar(keys, k))

    def anomalies(self, name: str) -> pd.DataFrame:
        """Return all rows of a type by anomaly score, the highest first."""
        fitted = self.fit(name)
        return self.with_names(fitted.type, self.loaded(fitted).anomalies())

    def cluster(self, name: str, clusters: int | None = None, *, seed: int = 0) -> pd.Series[Any]:
        """Return the cluster of each row; without a number of clusters, the silhouette chooses it."""
        model = self.model(name)
        found, _ = pick_clusters(model.embedding_, None if clusters is None else [clusters], seed=seed)
        return pd.Series(found, pd.Index(model.graph_.node_ids, name="node"), name="cluster")

    def find(self, node_type: str, ids: npt.NDArray[Any], wanted: Sequence[Any]) -> list[Any]:
        """Return the keys of rows that are given by their keys or names."""
        known = find_ids(np.array([str(one) for one in wanted], dtype=object), ids)
        named = list(zip(wanted, known.tolist(), strict=True))
        return [ids[at if at >= 0 else self._named(node_type, str(one))] for one, at in named]

    def _named(self, node_type: str, wanted: str) -> int:
        """Return the position of the row with a name."""
        rows = self.rows(node_type)
        names = rows["name"].fillna("").tolist()
        found = find_name(wanted, names)
        if len(found) == 1:
            return int(found[0])
        if len(found):
            message = f"{len(found)} rows of {node_type} are called {wanted!r}: choose one of the keys "
            raise InputError(message + shortened(rows["node"].iloc[found], 8), code="name-ambiguous")
        some = [one for one in names if one] or rows["node"].tolist()
        near = get_close_matches(wanted, some, 1, cutoff=0.6)
        message = f"{node_type} has no row with the key or name {wanted!r}; there are {shortened(some, 3)}"
        raise InputError(message + (f"; did you mean {near[0]!r}?" if near else ""), code="unknown-node")

    def with_names(self, node_type: str, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of answers with the names of its nodes beside their keys."""
        rows = self.rows(node_type)
        names = dict(zip(rows["node"], rows["name"].fillna(""), strict=True))
        if not any(names.values()):
            return table
        found = table.copy()
        for column, title in (("similar", "similar_name"), ("node", "name")):
            if column in found:
                texts = [names.get(str(one), "") for one in found[column]]
                found.insert(list(found).index(column) + 1, title, texts)
        return found


def fit_and_save(model: H3GNN, graph: Graph, folder: Path | None) -> H3GNN:
    """Fit a model to a graph, and save it if there is a folder."""
    model.fit(graph)
    if folder is not None:
        model.save(folder)
    return model


def _plain_settings(model: H3GNN) -> dict[str, Any]:
    return {name: as_plain(value) for name, value in model.get_settings().items()}


def _difference(known: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return the first setting that differs, with both values; "" for none."""
    for name, value in asked.items():
        if name not in NOT_COMPARED and known.get(name) != value:
            return f"{name} ({known.get(name)!r}, not {value!r})"
    return ""
