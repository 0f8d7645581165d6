"""Running tables: what is missing is run, and each table is written from what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.evaluation.protocols import EVERY, NESTED, VALIDATION
from h3gnn.experiments.workers import Finished
from h3gnn.storage.atomic import write_atomically
from reproduction.cells import Cell, Line, Scope, lines_of
from reproduction.files import Record, read_json, write_json
from reproduction.markdown import Row, figure_of, markdown_of, read_results
from reproduction.origin import made_with
from reproduction.running import graph_of, run_cells
from reproduction.specifications import Table, tables

Told = Callable[[int, int, Finished], None]
"""Called after each cell: how many are done, of how many, and the last one."""


@dataclass
class Outcome:
    """What a call did.

    Attributes:
        kept: cells that were there already.
        run: cells that were run now.
        failed: cells that could not be run, with the reason of each.
        written: files.
    """

    kept: int = 0
    run: int = 0
    failed: list[Finished] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


def find_tables(name: str) -> list[Table]:
    """Return one table by name, or all of them."""
    if name == "all":
        return list(tables().values())
    if name not in tables():
        raise InputError(
            f"unknown table {name!r}; choose one of {', '.join(tables())}, all", code="unknown-table"
        )
    return [tables()[name]]


class ResultStore:
    """Records by key, in files `GROUP.json` of a folder, each replaced atomically after every addition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        self.groups: dict[str, dict[str, Record]] = {path.stem: read_json(path) for path in paths}

    def get(self, key: str) -> Record | None:
        """Return the record of a key, or None."""
        return next((records[key] for records in self.groups.values() if key in records), None)

    def add(self, group: str, key: str, record: Record) -> None:
        """Store a record."""
        self.groups.setdefault(group, {})[key] = record
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / f"{group}.json", self.groups[group])


def reproduce(
    chosen: Sequence[Table],
    scope: Scope,
    out: Path,
    *,
    jobs: int = 1,
    told: Told | None = None,
    run: bool = True,
) -> Outcome:
    """Run what is missing of some tables, and write their results.

    Args:
        chosen: from `find_tables`.
        scope: how much of them.
        out: folder; finished cells are kept in `cells/`, results in `NAME.json` and `NAME.md`.
        jobs: processes at once.
        told: called after each cell.
        run: whether to run what is missing, or to write what is kept alone.
    """
    store, outcome = ResultStore(out / "cells"), Outcome()
    planned = plan([line for table in chosen for line in lines_of(table, scope)], scope)
    missing = {key: cell for key, cell in planned.items() if store.get(key) is None}
    outcome.kept = len(planned) - len(missing)
    begin = sorted(
        missing.values() if run else (), key=lambda cell: -cell.size(graph_of(cell.graph).num_nodes)
    )
    for finished in run_cells(begin, scope.device, jobs):
        if finished.record is None:
            outcome.failed.append(finished)
        else:
            outcome.run += 1
            store.add(finished.task.graph, key_of(finished.task), finished.record)
        if told is not None:
            told(outcome.run + len(outcome.failed), len(missing), finished)
    for table in chosen:
        outcome.written += write_results(table, store, scope, out)
    return outcome


def plan(lines: Sequence[Line], scope: Scope) -> dict[str, Cell]:
    """Return the cells to run by key, each once; what is measured on another device is left out."""
    return {key_of(cell): cell for line in lines for cell in line.cells if _is_here(cell, scope)}


def key_of(cell: Cell) -> str:
    """Return a cell's key, with the content of its graph."""
    return cell.key(graph_of(cell.graph).provenance.sha256)


def write_results(table: Table, store: ResultStore, scope: Scope, out: Path) -> list[Path]:
    """Write a table's rows and its Markdown from the cells that are there."""
    rows: list[Row] = []
    missing = []
    for line in lines_of(table, scope):
        found = [store.get(key_of(cell)) for cell in line.cells]
        records = [record for record in found if record is not None]
        if len(records) == len(found):
            rows += ROWS[table.rows](line, records)
        elif _is_here(line.cells[0], scope):
            missing.append(f"{line.method} on {line.graph}")
    content: dict[str, Any] = {
        "experiment": table.name,
        "title": table.title,
        "quick": scope.quick,
        "seeds_at_most": scope.seeds,
        "protocols": {name: protocol.description for name, protocol in EVERY.items()},
        **made_with(),
        "missing": missing,
        "rows": rows,
    }
    stored, text = (out / f"{table.name}.{ending}" for ending in ("json", "md"))
    write_json(stored, content)
    write_atomically(text, markdown_of(content).encode())
    return [stored, text]


def write_texts(folder: Path) -> None:
    """Write each `NAME.md` of a folder again, with the changes of the code since then."""
    for name, content in read_results(folder).items():
        write_atomically(folder / f"{name}.md", markdown_of(content).encode())


def _is_here(cell: Cell, scope: Scope) -> bool:
    return bool(cell.params.get("device", scope.device) == scope.device)


def scored_rows(line: Line, records: Sequence[Record]) -> list[Row]:
    """Return one row for each rule of choosing under which the line was scored, and for each part."""
    return [
        {**row, "method": line.method, "device": record["device"]}
        for record in records
        for row in record["out"]["rows"]
    ]


def percent_rows(line: Line, records: Sequence[Record]) -> list[Row]:
    """Return the test accuracy alone, in percent, with nothing chosen by other splits or by test nodes."""
    return [
        {
            "method": line.method,
            "graph": line.graph,
            "protocol": row["protocol"],
            "percent": round(figure_of(row)[0], 2),
            "sha256": row["sha256"],
            "origin": row.get("origin"),
        }
        for row in scored_rows(line, records)
        if row["protocol"] in (NESTED.name, VALIDATION.name) and not row.get("part")
    ]


def measured_rows(line: Line, records: Sequence[Record]) -> list[Row]:
    """Return what was measured, with its origin."""
    return [
        {
            "method": line.method,
            "graph": line.graph,
            **record["out"],
            **{name: record[name] for name in ("sha256", "device", "versions", "seconds")},
            "origin": record.get("origin"),
            "params": record["cell"]["params"],
            "seeds": record["cell"]["seeds"],
        }
        for record in records
    ]


ROWS: dict[str, Callable[[Line, Sequence[Record]], list[Row]]] = {
    "scored": scored_rows,
    "percent": percent_rows,
    "measured": measured_rows,
}
"""How the records of a line become stored rows."""
