"""Small tables in the formats that users have, and the graphs that are read from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from h3gnn import Graph, read_graph
from h3gnn.cli.app import app
from h3gnn.errors import InputError

FORMATS = ("csv", "parquet")
QUICK = (
    "--preset",
    "single",
    "--epochs",
    "2",
    "--channels",
    "8",
    "--set",
    "encoder.heads=2",
    "--device",
    "cpu",
)


def save(table: pd.DataFrame, path: Path, form: str = "csv") -> Path:
    """Write a table as CSV or Parquet and return its path."""
    path = path.with_suffix(f".{form}")
    if form == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    return path


def ring(ids: Sequence[Any]) -> pd.DataFrame:
    """Return edges that join each node to the next."""
    return pd.DataFrame({"source": list(ids), "target": [*ids[1:], ids[0]]})


def read(folder: Path, features: pd.DataFrame, form: str = "csv", **options: Any) -> Graph:
    """Return the graph of a features table whose nodes form a ring."""
    edges = save(ring(features["id"].tolist()), folder / "edges", form)
    return read_graph(edges, features=save(features, folder / "features", form), **options)


def read_column(
    folder: Path, cells: Sequence[Any], form: str = "csv", name: str = "amount", **options: Any
) -> Graph:
    """Return the graph of a features table with one column beside the id and a plain number."""
    count = len(cells)
    table = pd.DataFrame(
        {"id": [f"n{i}" for i in range(count)], "plain": np.arange(count) + 0.5, name: cells}
    )
    return read(folder, table, form, **options)


def outcome(
    folder: Path, cells: Sequence[Any], form: str = "csv", **options: Any
) -> list[float | None] | str:
    """Return the numbers that a column is read as, None where missing; or the code of the error."""
    try:
        graph = read_column(folder, cells, form, **options)
    except InputError as error:
        return error.code
    return column_values(graph, "amount")


def column_values(graph: Graph, name: str) -> list[float | None]:
    """Return the numbers of a column before they are scaled, None where missing."""
    assert graph.plan is not None
    names = list(graph.plan.names)
    plan = next(one for one in graph.plan.columns if one.name == name)
    if plan.kind != "number":
        return []
    values = graph.dense_features().double().numpy()
    column = values[:, names.index(name)]
    encoder: Any = plan.fitted
    if encoder is not None:
        column = column * encoder.scale + encoder.mean
        column = np.sign(column) * np.expm1(np.abs(column)) if encoder.log else column
    marker = f"{name} is missing"
    gaps = values[:, names.index(marker)] > 0 if marker in names else np.zeros(len(column), bool)
    return [None if gap else float(one) for one, gap in zip(column, gaps, strict=True)]


def repairs(graph: Graph) -> dict[str, Any]:
    """Return the repairs of a graph by code."""
    return {one.code: one for one in graph.provenance.repairs}


def command(*arguments: object) -> tuple[int, dict[str, Any], str]:
    """Run a command with --json in this process; return exit code, what it prints as data, and all text."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    if isinstance(done.exception, InputError):
        error = {"code": done.exception.code, "message": str(done.exception)}
        return 1, {"error": error}, done.output + str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}, done.output
