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
from h3gnn.cli.output import say
from h3gnn.cli.training import Training, checkpoint_policy, fit_or_continue
from h3gnn.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from h3gnn.database import Asked, Database, Train
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class FoundRun:
    """The run that a command is about: the folder that was named, or that of a type in it.

    Attributes:
        run: the folder of the run.
        database, node_type: for a model of several tables.
    """

    run: Path
    database: Database | None = None
    node_type: str = ""

    def with_names(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of answers with the names of its rows, where the tables have them."""
        return table if self.database is None else self.database.with_names(self.node_type, table)

    def keys(self, model: H3GNN, nodes: Sequence[str]) -> Sequence[Any]:
        """Return the keys of nodes that are given by their keys or names."""
        if self.database is None:
            return nodes
        return self.database.find(self.node_type, model.graph_.node_ids, nodes)


def is_about_tables(run: Path, tables: Tables) -> bool:
    """Whether a command is about several tables: they are given, or the folder holds models of such."""
    from h3gnn.storage.databases import is_database

    return tables.tables is not None or is_database(run)


def find_run(run: Path, tables: Tables, device: str) -> FoundRun:
    """Return the run that is asked for: of several tables, that of a type, fitted if it is missing."""
    if not is_about_tables(run, tables):
        tables.check_unused()
        return FoundRun(run)
    database = open_database(run, tables, device)
    return found_type(database, run, tables)


def found_type(database: Database, run: Path, tables: Tables) -> FoundRun:
    """Return the run of a type, which is fitted if it is missing."""
    name = ".".join(filter(None, database.named(tables.type)))
    fitted = database.fit(name, label_time=tables.label_time)
    return FoundRun(run / fitted.folder, database, fitted.type)


def open_database_run(folder: Path, type: str | None, device: str = "auto") -> H3GNN:  # noqa: A002
    """Return the model of a type, or of a predicted column, in a folder of models."""
    return options.open_run(find_run(folder, Tables(type=type), device).run, device)


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
    from h3gnn.storage.databases import is_database
    from h3gnn.training.resources import pick_device

    pick_device(device)
    named = {"epochs": tables.epochs, **(named or {})}
    model = None
    if tables.has_settings or any(one is not None for one in named.values()) or not is_database(run):
        model = options.build_estimator(tables.preset, named, tables.set_, seed=tables.seed, device=device)
    columns = options.parse_columns([] if source is None else source.columns or [])
    database = Database(
        tables.tables, folder=run, as_of=tables.as_of, columns=columns, accept=tables.accept, model=model
    )

    def train(model: H3GNN, graph: Graph, out: Path | None) -> H3GNN:
        assert out is not None
        model.set_params(device=device)
        fit_or_continue(Training(model, graph, out, checkpoints=checkpoint_policy(out)))
        say(f"wrote {out}")
        return model

    database.train = train
    return database


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
    run: Path, target: str | None, tables: Tables, source: Source, device: str, test_from: str | None
) -> tuple[FoundRun, Asked]:
    """Fit the model of a column to predict, unless it is fitted; return its run and what is predicted."""
    source.check_tables(label=True)
    database = open_database(run, tables, device, source)
    if target is None:
        known = [one.title for one in database.fitted if one.label is not None]
        message = "name what to predict: TABLE.COLUMN, TABLE.COLUMN=VALUE or TABLE.COLUMN>NUMBER"
        message += f" (fitted: {', '.join(known)})" if known else ""
        raise InputError(message, code="target-missing")
    task = source.task or "auto"
    asked = database.ask(target, label_time=tables.label_time, task=task, test_from=test_from)
    asked.model.set_params(device=device)
    return FoundRun(run / asked.fitted.folder, database, asked.fitted.type), asked


def split_type(run: Path, words: Sequence[str], tables: Tables) -> tuple[Tables, list[str]]:
    """Take the node type from the first of some words, unless there is --type or a single fitted type."""
    from h3gnn.errors import GraphError
    from h3gnn.storage.databases import is_database

    if tables.type is not None or not is_about_tables(run, tables) or len(words) < 2:
        return tables, list(words)
    if is_database(run):
        from h3gnn.database import Database

        known = Database.load(run)
        try:
            known.named(words[0])
        except GraphError:
            if len(known.fitted) == 1:
                return tables, list(words)
            raise
    return replace(tables, type=words[0]), list(words[1:])
