"""`h3gnn links`: edges that are likely missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import say, write_table
from h3gnn.cli.report import RunArgument
from h3gnn.cli.run import TABLE_ENDINGS, open_run
from h3gnn.errors import check_choice


def links(
    run: RunArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE…", help="Pairs with one of these nodes only.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option("--top", help="So many pairs.", min=1)] = 100,
    check: Annotated[
        str,
        typer.Option(
            help="refit: hide edges, fit once more without them, learn and score on these. none: rank by "
            "similarity, unchecked and at once."
        ),
    ] = "refit",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the pairs: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: settings.SafeCsvOption = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """List the likeliest pairs of nodes that no edge joins, with scores on edges that nothing had seen.

    `h3gnn links run/ --top 50 --out links.csv`

    `h3gnn links run/ ann bob --check none`

    The embedding of the run has seen every edge, so a tenth of them is hidden and the same model is
    fitted once more, which takes as long as the fit did. Half of the hidden edges teach how an unseen
    edge looks, and the other half score it, against random pairs and against pairs two steps apart,
    which are harder. Candidates are the nearest nodes in the embedding and nodes two steps apart.
    """
    if out is not None:
        settings.check_output(out, TABLE_ENDINGS)
    check_choice("--check", check, ("refit", "none"))
    model = open_run(run, device).set_params(verbose=True)
    if check == "refit":
        seconds = model.cost_.get("seconds")
        took = "" if seconds is None else f", which took {seconds:.0f} s the first time"
        say(f"hiding edges and fitting once more without them{took} …")
    found = model.links(nodes or None, top=top, check=check == "refit")
    if out is not None:
        write_table(out, found.table, safe=safe_csv)
    rows = json.loads(found.table.to_json(orient="records"))
    if as_json:
        told = {
            "links": rows,
            "held_out": found.scores,
            "how": found.how,
            **found.counts,
            "out": None if out is None else str(out),
            "provenance": model.graph_.provenance.as_dict(),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print(rows[:20], len(rows), found.scores)
    typer.echo(f"score: {found.how}")
    if out is not None:
        typer.echo(f"wrote {out}")


def _print(rows: list[dict[str, Any]], every: int, scores: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"The likeliest {len(rows)} of {every:,} pairs")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        cells = (f"{one:.3f}" if isinstance(one, float) else escape(str(one)) for one in row.values())
        table.add_row(*cells)
    console = Console()
    console.print(table)
    for against, told in scores.items():
        console.print(
            f"hidden edges against {against}: AUC {told['auc']:.3f} (similarity alone "
            f"{told['auc_of_similarity']:.3f}, shared neighbours {told['auc_of_shared_neighbours']:.3f}), "
            f"average precision {told['average_precision']:.3f}",
            highlight=False,
        )
