"""Running experiments: what is missing is run, and each table is written from what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.evaluation.protocols import PROTOCOLS
from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.lines import Line, Row
from h3gnn.experiments.tables.registry import EXPERIMENTS
from h3gnn.experiments.tables.running import graph_of
from h3gnn.experiments.tables.scope import Scope
from h3gnn.experiments.tables.store import CellStore, lines_of
from h3gnn.experiments.tables.workers import Finished, run_cells
from h3gnn.storage.files import versions, write_atomically

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


def find_experiments(name: str) -> list[Experiment]:
    """Return one experiment by name, or all of them."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)} and all")
    return [EXPERIMENTS[name]]


def reproduce(
    experiments: Sequence[Experiment],
    scope: Scope,
    out: Path,
    *,
    jobs: int = 1,
    told: Told | None = None,
) -> Outcome:
    """Run what is missing of some experiments, and write their results.

    Args:
        experiments: from `find_experiments`.
        scope: how much of them.
        out: folder; finished cells are kept in `cells/`, results in `NAME.json` and `NAME.md`.
        jobs: processes at once.
        told: called after each cell.
    """
    store, outcome = CellStore(out / "cells"), Outcome()
    lines = {experiment.name: experiment.lines(scope) for experiment in experiments}
    planned = plan([line for some in lines.values() for line in some], scope)
    missing = {key: cell for key, cell in planned.items() if key not in store}
    outcome.kept = len(planned) - len(missing)
    begin = sorted(missing.values(), key=lambda cell: -cell.size(graph_of(cell.graph).num_nodes))
    for finished in run_cells(begin, scope.device, jobs):
        if finished.record is None:
            outcome.failed.append(finished)
        else:
            outcome.run += 1
            store.add(finished.cell.graph, key_of(finished.cell), finished.record)
        if told is not None:
            told(outcome.run + len(outcome.failed), len(missing), finished)
    for experiment in experiments:
        outcome.written += write_results(experiment, lines[experiment.name], store, scope, out)
    return outcome


def plan(lines: Sequence[Line], scope: Scope) -> dict[str, Cell]:
    """Return the cells to run by key, each once; what is measured on another device is left out."""
    cells = [cell for line in lines for cell in line.cells]
    here = [cell for cell in cells if cell.params.get("device", scope.device) == scope.device]
    return {key_of(cell): cell for cell in here}


def key_of(cell: Cell) -> str:
    """Return a cell's key, with the content of its graph."""
    return cell.key(graph_of(cell.graph).provenance.sha256)


def write_results(
    experiment: Experiment, lines: Sequence[Line], store: CellStore, scope: Scope, out: Path
) -> list[Path]:
    """Write an experiment's rows and its Markdown from the cells that are there."""
    rows: list[Row] = []
    missing = []
    for line in lines:
        keys = [key_of(cell) for cell in line.cells]
        if all(key in store for key in keys):
            rows += experiment.rows(line, [store[key] for key in keys])
        elif line.cells[0].params.get("device", scope.device) == scope.device:
            missing.append(f"{line.method} on {line.graph}")
    if not rows:
        return []
    content: dict[str, Any] = {
        "experiment": experiment.name,
        "title": experiment.title,
        "quick": scope.quick,
        "seeds_at_most": scope.seeds,
        "protocols": {name: protocol.words for name, protocol in PROTOCOLS.items()},
        "versions": versions(),
        "missing": missing,
        "rows": rows,
    }
    table = out / f"{experiment.name}.md"
    stored = out / f"{experiment.name}.json"
    write_atomically(stored, lines_of(content).encode())
    write_atomically(table, markdown_of(content).encode())
    return [stored, table]


def markdown_of(content: dict[str, Any]) -> str:
    """Return the Markdown of a stored result."""
    experiment = EXPERIMENTS[content["experiment"]]
    parts = [f"## {experiment.title}"]
    if content["quick"] and any(row.get("seeds") for row in content["rows"]):
        parts.append(
            "A quick look with tiny settings: it shows that everything runs; its figures mean nothing."
        )
    if content["missing"]:
        parts.append(f"Not run yet: {_grouped(content['missing'])}.")
    return "\n\n".join([*parts, experiment.text(content["rows"])]) + "\n"


def _grouped(missing: Sequence[str]) -> str:
    """Return `a on x`, `b on x`, `a on y`, `b on y` as "a, b on x, y"."""
    graphs: dict[str, list[str]] = {}
    for line in missing:
        method, _, graph = line.rpartition(" on ")
        graphs.setdefault(method, []).append(graph)
    methods: dict[tuple[str, ...], list[str]] = {}
    for method, found in graphs.items():
        methods.setdefault(tuple(found), []).append(method)
    return "; ".join(f"{', '.join(some)} on {', '.join(found)}" for found, some in methods.items())


def read_result(path: Path) -> dict[str, Any]:
    """Read a stored result."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
