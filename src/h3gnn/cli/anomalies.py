"""`h3gnn anomalies`: nodes that neither their features nor their neighbours predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import say, write_table
from h3gnn.cli.report import RunArgument
from h3gnn.cli.run import TABLE_ENDINGS, open_run


def anomalies(
    run: RunArgument,
    top: Annotated[int, typer.Option("--top", help="Show so many nodes; the file has all.", min=1)] = 20,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for all nodes: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: settings.SafeCsvOption = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """List the nodes that neither their features nor their neighbours predict, the oddest first.

    `h3gnn anomalies run/ --out anomalies.csv`

    What the score is made of stands beside it: how far a node's features are from what its neighbours
    predict, and how many of its edges nothing explains; then how hard it was in training and how much the
    models disagree on it. docs/answers.md tells how well anomalies that were put in are found.
    """
    if out is not None:
        settings.check_output(out, TABLE_ENDINGS)
    model = open_run(run, device)
    if not as_json:
        say(f"looking at {model.graph_.num_nodes:,} nodes …")
    table = model.anomalies()
    if out is not None:
        write_table(out, table, safe=safe_csv)
    rows = json.loads(table.head(top).to_json(orient="records"))
    if as_json:
        told = {
            "nodes": len(table),
            "parts": [name for name in table if name not in ("node", "score")],
            "anomalies": rows,
            "out": None if out is None else str(out),
            "provenance": model.graph_.provenance.as_dict(),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print(rows, len(table))
    if out is not None:
        typer.echo(f"wrote {out}")


def _print(rows: list[dict[str, Any]], nodes: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"The oddest {len(rows)} of {nodes:,} nodes")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "node" else "right")
    for row in rows:
        table.add_row(escape(str(row.pop("node"))), *(f"{value:.3f}" for value in row.values()))
    Console().print(table)
