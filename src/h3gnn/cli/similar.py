"""`h3gnn similar`: the nodes that are most like a node, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import write_table
from h3gnn.cli.report import RunArgument
from h3gnn.cli.run import TABLE_ENDINGS, open_run


def similar(
    run: RunArgument,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE…", help="Ids of the nodes that ask.")],
    k: Annotated[int, typer.Option("--k", help="How many for each.", min=1)] = 10,
    among: Annotated[
        str | None,
        typer.Option(help="Choose from these nodes only: ids with commas between.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write the table: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: settings.SafeCsvOption = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """List the nodes that are nearest in the embedding, and what they share.

    `h3gnn similar run/ ann bob --k 5`

    By cosine, exact: every node is looked at. The reasons: whether an edge joins the two, the neighbours and
    features that they share (those that set them apart from the rest first), and in which of the encoder's
    tokens, their own features or what they hear hop by hop, they agree. `--json` has all of it.
    """
    if out is not None:
        settings.check_output(out, TABLE_ENDINGS)
    model = open_run(run, device)
    table = model.similar(nodes, k, among=None if among is None else among.split(","))
    if out is not None:
        write_table(out, table, safe=safe_csv)
    if as_json:
        typer.echo(table.to_json(orient="records", indent=2, force_ascii=False))
        return
    for asked, rows in table.groupby("node", sort=False):
        _print(asked, json.loads(rows.to_json(orient="records")))
    if out is not None:
        typer.echo(f"wrote {out}")


def _print(asked: Any, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Most like {escape(str(asked))}")
    for name in ("node", "cosine", "edge", "shared neighbours", "shared features", "agree most in"):
        table.add_column(name, justify="right" if name == "cosine" else "left")
    for row in rows:
        agree = {name.removeprefix("agree: "): row[name] for name in row if name.startswith("agree: ")}
        best = max(agree, key=lambda name: agree[name], default="")
        shared = ", ".join(map(str, row["neighbours"]))
        more = "" if len(row["neighbours"]) == row["shared_neighbours"] else ", …"
        table.add_row(
            escape(str(row["similar"])),
            f"{row['similarity']:.3f}",
            "yes" if row["linked"] else "",
            f"{row['shared_neighbours']}: {escape(shared)}{more}" if shared else "",
            escape(", ".join(row["features"])),
            f"{best} ({agree[best]:.2f})" if best else "",
        )
    Console().print(table)
