"""Several linked tables on the command line: find or fit the model that a command asks for.

Each model is a run in a folder of its own, as in `bank/loan.status`, so that commands use it like any run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3gnn.cli import options
from h3gnn.cli.options import Source, Tables
from h3gnn.cli.output import ask_questions, is_terminal, say
from h3gnn.cli.training import Training, checkpoint_policy, fit_or_continue
from h3gnn.errors import InputError, counted, shortened

if TYPE_CHECKING:
    import pandas as pd

    from h3gnn.answers.extend import Extension
    from h3gnn.database import Asked, Database, Train
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class FoundRun:
    """The run that a command is about: the folder that was named, or that of a type in it.

    Attributes:
        run: the folder of the run.
        database, node_type: for a model of several tables.
        is_new: whether it was fitted by this command, which reported what is remarkable about its tables.
    """

    run: Path
    database: Database | None = None
    node_type: str = ""
    is_new: bool = False

    @property
    def has_links(self) -> bool:
        """Whether nodes refer to each other; of tables, rows may only share linked rows."""
        return self.database is None or self.database.schema.links_itself(self.node_type)

    def with_names(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of answers with the names of its rows, where the tables have them."""
        return table if self.database is None else self.database.with_names(self.node_type, table)

    def extend(self, new: str, *, refresh: bool) -> Extension:
        """Embed rows that were added to the tables, and report how they differ."""
        assert self.database is not None
        fitted = next(one for one in self.database.fitted if one.folder == self.run.name)
        extension, _ = self.database.extend(fitted, new, refresh=refresh)
        options.say_notes(extension)
        return extension

    def asked_last(self, graph: Graph) -> Graph:
        """Return the graph with the classes of the condition that was asked last; say which they are."""
        from h3gnn.graphs.targets import with_classes
        from h3gnn.storage.runs import read_predictions
        from h3gnn.tables.database import Predicted

        stored = None if self.database is None else read_predictions(self.run)
        condition = None if stored is None else stored["held_out"].get("positive_class")
        if self.database is None or (graph.labels is None and graph.targets is None):
            return graph
        tables = self.database.schema.tables
        title = next(one.title for one in self.database.fitted if one.folder == self.run.name)
        wanted = Predicted.parse(title, tables)
        if condition is not None:
            asked = Predicted.parse(f"{wanted.table}.{condition}", tables)
            wanted = asked if asked.sign and asked.column == wanted.column else wanted
        labels, names = wanted.labels(graph)
        if wanted.sign:
            say(f"note: scored by the condition that was asked last, {wanted.title}")
        elif names:
            say(f"note: scored by all classes of {title}: {shortened(names, 12)}")
        return with_classes(graph, labels, names) if wanted.sign else graph

    def keys(self, model: H3GNN, nodes: Sequence[str]) -> Sequence[Any]:
        """Return the keys of nodes that are given by their keys or names."""
        if self.database is None:
            return nodes
        return self.database.rows(self.node_type).find(model.graph_.node_ids, nodes)


def is_about_tables(run: Path, tables: Tables) -> bool:
    """Whether a command is about several tables: they are given, or the folder holds models of such."""
    from h3gnn.storage.models import is_database

    return tables.tables is not None or is_database(run)


def find_run(run: Path, tables: Tables, device: str, nodes: Sequence[str] = ()) -> FoundRun:
    """Return the run that is asked for: of several tables, that of a type, fitted if it is missing.

    Unknown `nodes` are an error before the work.
    """
    if not is_about_tables(run, tables):
        tables.check_unused(run)
        return FoundRun(run)
    return found_type(open_database(run, tables, device), run, tables, nodes)


def found_type(database: Database, run: Path, tables: Tables, nodes: Sequence[str] = ()) -> FoundRun:
    """Return the run of a type, which is fitted if it is missing."""
    kind, label = database.named(tables.type)
    fitted = database.fit(
        ".".join(filter(None, (kind, label))),
        label_time=tables.label_time,
        check=lambda view: database.rows(kind).find(view.node_ids, nodes),
    )
    return FoundRun(run / fitted.folder, database, fitted.type)


def open_database(
    run: Path,
    tables: Tables,
    device: str,
    source: Source | None = None,
    named: dict[str, Any] | None = None,
) -> Database:
    """Open the models in a folder, or begin one for tables; training can be continued.

    Args:
        run: the folder.
        tables: the options.
        device: where to train.
        source: has the kinds of columns.
        named: settings, besides those of `tables`.
    """
    from h3gnn.database import Database
    from h3gnn.storage.models import is_database
    from h3gnn.training.resources import pick_device

    pick_device(device)
    named, new = {"epochs": tables.epochs, **(named or {})}, not is_database(run)
    database = Database(
        tables.tables,
        folder=run,
        as_of=tables.as_of,
        columns=options.parse_columns([] if source is None else source.columns or []),
        accept=tables.accept or (ask_questions if new and is_terminal() else None),
        model=_model(run, tables, named, device, new=new),
    )
    if new:
        _say_read(database)

    def train(model: H3GNN, graph: Graph, out: Path | None) -> H3GNN:
        assert out is not None
        model.set_params(device=device)
        fit_or_continue(Training(model, graph, out, checkpoints=checkpoint_policy(out)))
        say(f"wrote {out}")
        return model

    database.train = train
    return database


def _model(run: Path, tables: Tables, named: dict[str, Any], device: str, *, new: bool) -> H3GNN | None:
    """Return a model with the settings that are given; None for those of the folder."""
    from h3gnn.estimator import H3GNN
    from h3gnn.storage.models import read_stored

    given = options.given_settings(named, tables.set_)
    if new or tables.preset is not None:
        return options.build_estimator(tables.preset, named, tables.set_, seed=tables.seed, device=device)
    return H3GNN.from_settings(dict(read_stored(run).params) | given) if given else None


def _say_read(database: Database) -> None:
    """Say which tables were read, and which questions of the schema are open."""
    schema = database.schema
    rows = sum(one["rows"] for one in database.stored.read.values())
    links = sum(len(one.links) for one in schema.tables.values())
    what = ", ".join([counted(len(schema.tables), "table"), counted(rows, "row"), counted(links, "link")])
    values = sum(len(of) for one in schema.tables.values() for of in one.nodes.values())
    shared = f", and {counted(values, 'column')} whose values are nodes" if values else ""
    say(f"read {what} between them{shared}")
    for number, one in schema.numbered.items():
        say(f"question {number}, not used: {one.table}: {one.text}")
    if schema.acceptable:
        message = f"accept proposals with --accept {schema.acceptable} (or some of these)"
        say(f"{message}, or edit a schema file (`h3gnn inspect --write`)")


def fit_tables(
    out: Path | None, tables: Tables, device: str, source: Source, named: dict[str, Any], train: Train
) -> None:
    """Fit the model of a type, unless it is fitted; training has the options of `h3gnn fit`."""
    source.check_tables()
    if out is None:
        message = "give --out FOLDER, where the models of several tables are kept"
        raise InputError(message, code="no-output")
    database = open_database(out, tables, device, source, named)
    before = database.fitted
    database.train = train
    found = found_type(database, out, tables)
    if any(one.folder == found.run.name for one in before):
        say(f"note: {found.run} is already fitted on these tables")


def ask_tables(
    run: Path,
    target: str | None,
    tables: Tables,
    source: Source,
    device: str,
    test_from: str | None,
    *,
    allow_leaks: bool,
) -> tuple[FoundRun, Asked]:
    """Fit the model of a column to predict, unless it is fitted; return its run and what is predicted."""
    source.check_tables(label=True)
    database = open_database(run, tables, device, source)
    if target is None:
        known = [one.title for one in database.fitted if one.label is not None]
        message = "name what to predict: TABLE.COLUMN, TABLE.COLUMN=VALUE or TABLE.COLUMN>NUMBER"
        message += f" (fitted: {', '.join(known)})" if known else ""
        raise InputError(message, code="target-missing")
    before = database.fitted
    asked = database.ask(
        target,
        label_time=tables.label_time,
        task=source.task or "auto",
        test_from=test_from,
        allow_leaks=allow_leaks,
    )
    asked.model.set_params(device=device)
    is_new = asked.fitted not in before
    return FoundRun(run / asked.fitted.folder, database, asked.fitted.type, is_new), asked


def open_links(
    run: Path, words: Sequence[str], tables: Tables, device: str
) -> tuple[Database, tuple[str, ...]]:
    """Return the tables of a recommender, the table with its links, and the remaining words."""
    database = open_database(run, tables, device)
    known = tuple(dict.fromkeys(one.table for one in database.stored.links))
    given = (*filter(None, [tables.type]), *words) or known
    if not given or (not (tables.type or words) and len(known) > 1):
        message = "name the table whose rows link users and items, as in `h3gnn links shop/ ratings --for 17`"
        raise InputError(message, code="type-missing")
    if database.folder is not None and not known:
        say("hiding the latest links, to choose what ranks them best …")
    return database, given


def split_type(run: Path, words: Sequence[str], tables: Tables) -> tuple[Tables, list[str]]:
    """Take the node type from the first of some words, unless there is --type or a single fitted type."""
    from h3gnn.errors import GraphError
    from h3gnn.storage.models import is_database

    if tables.type is not None or not is_about_tables(run, tables):
        return tables, list(words)
    if is_database(run):
        from h3gnn.database import Database

        known = Database.load(run)
        if len(words) == 1:
            if words[0] in known.types:
                message = f"name rows of {words[0]}, too, by their keys or names"
                raise InputError(message, code="rows-not-named")
            return tables, list(words)
        try:
            known.named(words[0])
        except GraphError:
            if len(known.fitted) == 1:
                return tables, list(words)
            raise
    return (replace(tables, type=words[0]), list(words[1:])) if len(words) > 1 else (tables, list(words))
