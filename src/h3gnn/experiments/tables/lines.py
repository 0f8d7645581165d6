"""Lines of a table: which cells one comes from, and how their outcomes become a `Result` or a plain row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from h3gnn.evaluation.clustering import spread
from h3gnn.evaluation.protocols import PROTOCOLS, TEST_EPOCH
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.fits import read_scores
from h3gnn.experiments.tables.scope import Scope
from h3gnn.experiments.tables.store import Record, rounded

Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A method on a graph, and the cells that its row is made from."""

    method: str
    graph: str
    cells: tuple[Cell, ...]


def fit_line(
    scope: Scope,
    method: str,
    graph: str,
    wants: tuple[str, ...] = (),
    *,
    seeds: int | None = None,
    purpose: str | None = None,
    **changes: Any,
) -> Line:
    """Return the line of H3GNN with a graph's preset and some changes: one cell for each seed.

    Args:
        scope: how much to run.
        method: the line's name.
        graph: name of the graph.
        wants: what is measured beside the scores; a map is drawn from the first seed alone.
        seeds: how many; by default those of the graph's preset, or of a variant of it.
        purpose: which preset, see `Scope.settings_of`.
        changes: arguments of `H3GNN`.
    """
    params = scope.settings_of(graph, purpose=purpose, **changes)
    used = (
        scope.seeds_of(graph, variant=params != scope.settings_of(graph))
        if seeds is None
        else scope.seeds_up_to(seeds)
    )
    cells = [
        Cell(
            "fit",
            graph,
            params,
            (seed,),
            scope.splits,
            tuple(want for want in wants if want != "map" or seed == used[0]),
        )
        for seed in used
    ]
    return Line(method, graph, tuple(cells))


def scored_rows(line: Line, records: Sequence[Record]) -> list[Row]:
    """Return one row for each protocol under which the line was scored."""
    if line.cells[0].kind == "method":
        about = {"method": line.method, "device": records[0]["device"]}
        return [{**row, **about} for record in records for row in record["out"]["rows"]]
    return [pack(_joined(line, records, protocol)) for protocol in PROTOCOLS]


def plain_rows(line: Line, records: Sequence[Record]) -> list[Row]:
    """Return what was measured, with its origin."""
    return [
        {
            "method": line.method,
            "graph": line.graph,
            **record["out"],
            **{name: record[name] for name in ("sha256", "device", "versions", "seconds")},
            "params": record["cell"]["params"],
            "seeds": record["cell"]["seeds"],
        }
        for record in records
    ]


def pack(result: Result) -> Row:
    """Return a result as plain values, small: five digits, and what was chosen in columns."""
    row: Row = rounded(result.as_dict())
    del row["protocol_in_words"]  # said once for the whole file
    names = list(dict.fromkeys(name for run in result.chosen for split in run for name in split))
    row["chosen"] = {name: [[split.get(name) for split in run] for run in result.chosen] for name in names}
    return row


def unpack(row: Row) -> Result:
    """Read what `pack` returned."""
    columns = row["chosen"]
    per_split = row["probe"]["per_split"]
    chosen = [
        [{name: columns[name][run][split] for name in columns} for split in range(len(values))]
        for run, values in enumerate(per_split)
    ]
    return Result.from_dict({**row, "chosen": chosen})


def _joined(line: Line, records: Sequence[Record], protocol: str) -> Result:
    first = records[0]
    scores = [read_scores(record["out"][protocol]) for record in records]
    clustering = [record["out"]["clustering"] for record in records]
    found = None
    if all(clustering):
        each = [one[protocol] for one in clustering]
        found = spread({name: [value for one in each for value in one[name]] for name in each[0]})
    return Result(
        method=line.method,
        graph=line.graph,
        sha256=first["sha256"],
        protocol=protocol,
        epoch_rule=TEST_EPOCH if PROTOCOLS[protocol].sees_test else "last",
        params=first["cell"]["params"],
        seeds=[seed for record in records for seed in record["cell"]["seeds"]],
        versions=first["versions"],
        device=first["device"],
        seconds=sum(record["seconds"] for record in records),
        clustering=found,
        **join_seeds(scores),
    )
