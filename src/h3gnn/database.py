"""Database: models and answers for the node types of several linked tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.extend import Extension
from h3gnn.answers.prediction import Predictions, check_labels, predict_nodes
from h3gnn.errors import InputError, shortened
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import pick_clusters
from h3gnn.evaluation.decisions import Rule
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.relational import PathFeatures, RelationalGraph
from h3gnn.graphs.type_view import type_view, uses_row_times
from h3gnn.preprocessing import align_columns
from h3gnn.recommendations import Recommenders
from h3gnn.settings import as_plain
from h3gnn.storage import models as storage
from h3gnn.storage.models import FittedType, StoredDatabase
from h3gnn.storage.runs import has_begun
from h3gnn.tables.database import (
    Accept,
    Column,
    OpenedTables,
    Predicted,
    find_type,
    read_database,
    types_of,
)
from h3gnn.tables.leaks import Target, check_leaks, doubts
from h3gnn.tables.rows import Rows, listed, parse_time, rows_of
from h3gnn.tables.schema import Schema

CATEGORY = re.compile(r"([^>.]*[^>. ])\.\1=(.*?)\.share\b")
"""The part of a joined column that is a row of another table: `track > Genre.Genre=3.share`."""
Train = Callable[[H3GNN, Graph, Path | None], H3GNN]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Asked:
    """What `Database.predict` predicts: a model, and the labels of its nodes.

    Attributes:
        fitted: which model it is; its type is the table whose rows are predicted.
        model: fitted without the column to predict.
        labels, names: as of `predict_nodes`.
        title: of the column or condition.
        test: which labelled nodes are of a date or later, to score heads that learn from the others; or None.
        times: of the nodes, if their labels are of these times.
    """

    fitted: FittedType
    model: H3GNN
    labels: npt.NDArray[Any]
    names: tuple[str, ...]
    title: str
    test: Flags | None
    times: npt.NDArray[np.int64] | None = None

    @property
    def predicts_all(self) -> bool:
        """Whether labelled rows are predicted, too, since all are labelled and none are set aside."""
        known = self.labels >= 0 if self.names else ~np.isnan(self.labels)
        return self.test is None and bool(known.all())


class Database(Recommenders):
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
        accept: questions of an inferred schema whose proposals are accepted, "1,3" or "all"; or a function of
            the schema that returns their numbers.
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
        accept: Accept | None = None,
        model: H3GNN | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.train: Train = fit_and_save
        self._models: dict[FittedType, H3GNN] = {}
        self._recommenders = {}
        self._graph: tuple[tuple[str | None, bool], RelationalGraph] | None = None
        self._rows: dict[str, Rows] = {}
        found = None
        if self.folder is not None and storage.is_database(self.folder):
            found = storage.read_stored(self.folder)
        elif self.folder is not None:
            storage.check_new_folder(self.folder)
        known = None
        if found is None or accept or schema:
            source = found.source if source is None and found is not None else source
            if source is None:
                where = f"{self.folder} holds no models yet: " if self.folder else ""
                raise InputError(f"{where}name the tables (--tables SOURCE)", code="tables-missing")
            self.source = OpenedTables.open(source)
            known = self.source.schema(schema, accept)
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
            column = Column.parse(text, known.tables)
            column.check(self.source.frame(column.table).columns)
        read = {name: self.source.digest(name) for name in known.tables}
        self.stored = StoredDatabase(source=self.source.place, schema=known, read=read, **asked)

    @classmethod
    def load(cls, folder: str | Path, source: Any = None) -> Self:
        """Return the database in a folder; its tables are read again only if a further type is fitted."""
        storage.read_stored(Path(folder))  # an error if there is none
        return cls(source, folder=folder)

    @cached_property
    def source(self) -> OpenedTables:
        """The tables; those of a folder must be the ones that were read first."""
        return OpenedTables.again(self.stored.source, self.stored.read, str(self.folder))

    def _same(
        self, found: StoredDatabase, source: Any, schema: Schema | None, asked: Mapping[str, Any]
    ) -> StoredDatabase:
        """Return what a folder holds after a comparison with the tables and options that are given."""
        if asked["params"] and not found.fitted:  # the settings are those of models
            found = replace(found, params=asked["params"])
        for name, given in asked.items():
            found.check_same(given if name == "params" or not given else {name: given}, str(self.folder))
        if source is None:
            return found
        if schema is None:
            self.source = OpenedTables.open(source)
            schema = None if self.source.given is None else self.source.schema()
        self.source.check_same(found.read, str(self.folder))
        if schema is not None and schema.as_dict()["tables"] != found.schema.as_dict()["tables"]:
            message = (
                f"{self.folder} was fitted with other keys, links, times or nodes: omit them, or choose "
            )
            raise InputError(f"{message}another folder", code="already-fitted")
        return replace(found, source=self.source.place or found.source)

    @property
    def schema(self) -> Schema:
        """Keys, links and times."""
        return self.stored.schema

    @property
    def types(self) -> tuple[str, ...]:
        """The node types: tables, and columns whose values are nodes."""
        return types_of(self.schema)

    @property
    def fitted(self) -> tuple[FittedType, ...]:
        """The types and predicted columns with a model."""
        return tuple(one for one in self.stored.fitted if self._is_fitted(one))

    def _is_fitted(self, one: FittedType) -> bool:
        if self.folder is None:
            return one in self._models
        run = self.folder / one.folder
        return (run / storage.DESCRIPTION).is_file() and not has_begun(run)

    def type_of(self, name: str) -> str:
        """Return the node type of a name, which may differ in case."""
        return find_type(self.schema, name)

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

    def graph(self, label: str | None = None, *, names: bool | None = None) -> RelationalGraph:
        """Return the nodes of all types and their relations; the column `label` is no feature.

        Names of rows are features, if `names`; by default where a column is predicted.
        """
        asked = label, label is not None if names is None else names
        if self._graph is None or self._graph[0] != asked:
            as_of, columns = self.stored.as_of, self.stored.columns
            read = read_database(
                self.source, self.schema, label=label, as_of=as_of, columns=columns, names=asked[1]
            )
            self._graph = asked, read
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
        notes_on: Callable[[Graph], tuple[Repair, ...]] = lambda graph: (),
    ) -> FittedType:
        """Fit the model of a type, or of a column to predict such as `loan.status`, unless it is fitted.

        Args:
            name: the type, or `TABLE.COLUMN`.
            task: "classification", "regression", or "auto" by the values.
            label_time: "row" if the values to predict are of the times of their rows, so that no later row
                counts, or "now"; needed if some rows are linked to later ones.
            check: called with the graph before the work.
            notes_on: returns what is reported about the graph before the work.
        """
        node_type, label = self.named(name)
        known = self.stored.find(node_type, label)
        if known is not None and self._is_fitted(known):
            known.check_same({"task": None if task == "auto" else task, "label_time": label_time})
            return known
        if known is not None:  # its training was stopped
            task = known.task if task == "auto" else task
            label_time = label_time or known.label_time
        graph = self.graph(None if label is None else f"{node_type}.{label}")
        label_time, notes = _label_time(graph, node_type, label, label_time)
        view = type_view(graph, node_type, label=label, task=task, label_time=label_time)
        view = view.with_repairs(*notes)
        self._rows[node_type] = rows_of(self.source, self.schema, graph.type(node_type))
        check(view)
        view = view.with_repairs(*notes_on(view))
        fitted = FittedType(node_type, label, storage.folder_of(node_type, label), label_time, task)
        others = [one for one in self.stored.fitted if (one.type, one.label) != (node_type, label)]
        names = () if view.link_columns is None else view.link_columns.names
        shown = {one[1] for name in names for one in [CATEGORY.search(name)] if one and one[1] in graph.types}
        self._rows |= {one: rows_of(self.source, self.schema, graph.type(one)) for one in shown}
        kept = dict.fromkeys([node_type, *sorted(shown)])
        self._record(*kept, fitted=(*others, fitted))  # before the work, so that it can be continued
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

    def _record(self, *types: str, **changes: Any) -> None:
        """Store changes of the description, and the names and times of the rows of some types."""
        self.stored = replace(self.stored, **changes)
        if self.folder is not None:
            for name in types:
                storage.write_rows(self.folder, name, self._rows[name].table)
            storage.write_database(self.folder, self.stored)

    def rows(self, node_type: str) -> Rows:
        """Return keys, names and times of the rows of a fitted type, in the order of its nodes."""
        if not self._has_rows(node_type):
            raise InputError(f"{self.folder} has no rows of {node_type}", code="rows-missing")
        return self._rows[node_type]

    def ask(
        self,
        target: str,
        *,
        label_time: str | None = None,
        task: str = "auto",
        test_from: Any = None,
        allow_leaks: bool = False,
    ) -> Asked:
        """Fit the model of a column to predict, unless it is fitted, and return what `predict` needs."""
        wanted = Predicted.parse(target, self.schema.tables)

        def tested(labels: npt.NDArray[Any], names: tuple[str, ...]) -> Flags | None:
            known = labels >= 0 if names else ~np.isnan(labels)
            return None if test_from is None else self.rows(wanted.table).from_date(test_from, known)

        def check(view: Graph) -> None:
            labels, names = wanted.labels(view)
            check_labels(labels, names, wanted.table)
            tested(labels, names)
            if not allow_leaks:
                classes = labels if names else Target.of_numbers(wanted.title, labels).classes
                check_leaks(view, classes, wanted.title, wanted.table)

        def doubtful(view: Graph) -> tuple[Repair, ...]:
            labels, names = wanted.labels(view)
            return doubts(view, labels, wanted.table, wanted.title) if names and not allow_leaks else ()

        fitted = self.fit(
            f"{wanted.table}.{wanted.column}",
            task=task,
            label_time=label_time,
            check=check,
            notes_on=doubtful,
        )
        model = self.loaded(fitted)
        labels, names = wanted.labels(model.graph_)
        times = self.rows(wanted.table).table["time"].to_numpy() if fitted.label_time == "row" else None
        return Asked(fitted, model, labels, names, wanted.title, tested(labels, names), times)

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
        new: Any = None,
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
            new: as of `extend`; the rows that it adds to the table are predicted.
        """
        asked = self.ask(
            target, label_time=label_time, task=task, test_from=test_from, allow_leaks=allow_leaks
        )
        extension, rows = None, self.rows(asked.fitted.type)
        if new is not None:
            extension, rows = self.extend(asked.fitted, new)
        found = predict_nodes(
            asked.model.graph_,
            asked.model.embedding_,
            asked.labels,
            asked.names,
            rule,
            head,
            test=asked.test,
            extension=extension,
            labelled_too=labelled_too or (new is None and asked.predicts_all),
            label_name=asked.title,
            table=asked.fitted.type,
            times=asked.times,
            allow_leaks=allow_leaks,
            seed=seed,
        )
        return replace(found, table=rows.with_names(found.table))

    def extend(self, fitted: FittedType | str, new: Any, *, refresh: bool = False) -> tuple[Extension, Rows]:
        """Embed rows that were added to the tables; no model is fitted again.

        Args:
            fitted: the model, or its name, as of `fit`.
            new: the new rows of some tables: a source, or data frames by name.
            refresh: embed all rows, whose linked rows may be new, too.

        Returns:
            The new rows of the type of the model, or all, and keys and names of all its rows.
        """
        fitted = self.fit(fitted) if isinstance(fitted, str) else fitted
        if self.stored.as_of is not None:
            message = f"{self.folder} has rows up to {self.stored.as_of} only: new rows need another folder"
            raise InputError(message, code="extend-as-of")
        label = None if fitted.label is None else f"{fitted.type}.{fitted.label}"
        before, model = self.graph(label), self.loaded(fitted)
        source = self.source.with_rows(OpenedTables.open(new), self.schema, label)
        names, columns = label is not None, self.stored.columns
        after = read_database(source, self.schema, label=label, columns=columns, fitted=before, names=names)
        view = type_view(
            after,
            fitted.type,
            label=fitted.label,
            task="regression" if model.graph_.targets is not None else "classification",
            label_time=fitted.label_time,
            fitted=(before, model.graph_),
        )
        first = model.graph_.num_nodes
        if view.num_nodes == first and not refresh:
            message = f"there are no new rows of {fitted.type}, which this model embeds: give some, or "
            message += "embed the known ones again (--refresh)"
            raise InputError(message, code="new-nodes-missing")
        if not np.array_equal(view.node_ids[:first], model.graph_.node_ids):  # of values, in their order
            message = f"the new rows have other values of {fitted.type}, which are no table: fit them with "
            raise InputError(f"{message}the others, in another folder", code="new-values")
        if not view.provenance.structural:
            view = align_columns(model.graph_, view)
        repairs = tuple(one for one in after.repairs if one not in before.repairs)
        start, new_rows = 0 if refresh else first, view.num_nodes - first
        embedding, ids = model.transform(view)[start:], view.node_ids[start:]
        extension = Extension(embedding, ids, view, refreshed=refresh, new=new_rows, repairs=repairs)
        return extension, rows_of(source, self.schema, after.type(fitted.type))

    def embed(self, name: str) -> pd.DataFrame:
        """Return the embedding of each node of a type, indexed by its key."""
        model = self.model(name)
        columns = [f"e{at}" for at in range(model.embedding_.shape[1])]
        return pd.DataFrame(model.embedding_, pd.Index(model.graph_.node_ids, name="node"), columns)

    def similar(self, name: str, nodes: Any, k: int = 10) -> pd.DataFrame:
        """Return the most similar rows of the same type for each of some keys or names."""
        wanted = listed(nodes)
        fitted = self.fit(name, check=lambda view: self.rows(self.named(name)[0]).find(view.node_ids, wanted))
        model, rows = self.loaded(fitted), self.rows(fitted.type)
        return self.with_names(fitted.type, model.similar(rows.find(model.graph_.node_ids, wanted), k))

    def with_names(self, node_type: str, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of answers with the names of rows, and of the rows that joined columns count."""

        def named(text: Any) -> Any:
            if isinstance(text, list):
                return [named(one) for one in text]
            return CATEGORY.sub(self._category, text) if isinstance(text, str) else text

        found = self.rows(node_type).with_names(table)
        texts = [one for one in ("reason", "reasons", "features") if one in found]
        return found.assign(**{one: found[one].map(named) for one in texts})

    def _category(self, column: re.Match[str]) -> str:
        kind, key = column.groups()
        known = self.rows(kind).names if kind in self.types and self._has_rows(kind) else {}
        return f"{kind}={known.get(key) or key}"

    def _has_rows(self, kind: str) -> bool:
        if kind not in self._rows and self.folder is not None:
            found = storage.read_rows(self.folder, kind)
            self._rows |= {} if found is None else {kind: Rows(kind, found)}
        return kind in self._rows

    def anomalies(self, name: str) -> pd.DataFrame:
        """Return all rows of a type by anomaly score, the highest first, as of `H3GNN.anomalies`.

        Links between unlike rows count only if these refer to each other (`Schema.links_itself`).
        """
        fitted = self.fit(name)
        found = self.loaded(fitted).anomalies(edges=self.schema.links_itself(fitted.type))
        return self.with_names(fitted.type, found)

    def cluster(self, name: str, clusters: int | None = None, *, seed: int = 0) -> pd.Series[Any]:
        """Return the cluster of each row; without a number of clusters, the silhouette chooses it."""
        model = self.model(name)
        found, _ = pick_clusters(model.embedding_, None if clusters is None else [clusters], seed=seed)
        return pd.Series(found, pd.Index(model.graph_.node_ids, name="node"), name="cluster")


def _label_time(
    graph: RelationalGraph, node_type: str, label: str | None, given: str | None
) -> tuple[str | None, tuple[Repair, ...]]:
    """Return whether labels are of the times of their rows; report it if that is not given."""
    if given is not None or label is None or not uses_row_times(PathFeatures(graph, node_type), None):
        return given, ()
    message = f"{node_type}.{label} counts as of the time of its row, so that no later row is used "
    message += "(--label-time row); if it is of today, choose --label-time now"
    return "row", (Repair("label-time", message, fields=(label,)),)


def fit_and_save(model: H3GNN, graph: Graph, folder: Path | None) -> H3GNN:
    """Fit a model to a graph, and save it if there is a folder."""
    model.fit(graph)
    if folder is not None:
        model.save(folder)
    return model


def _plain_settings(model: H3GNN) -> dict[str, Any]:
    return {name: as_plain(value) for name, value in model.get_settings().items()}
