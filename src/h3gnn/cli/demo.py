"""`h3gnn demo`: the method at work on the built-in graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import say


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="The picture; none with `--no-picture`.")] = Path(
        "h3gnn-demo.png"
    ),
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the embedding before and after.")
    ] = True,
    seed: settings.SeedOption = 0,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Fit the built-in graph and compare with raw features and an untrained encoder.

    The graph has a thousand nodes in five classes: three whose neighbours are alike, two whose neighbours
    are unlike. A linear probe and k-means score each representation; the probe's strength is chosen on
    validation nodes.
    """
    from h3gnn.experiments.demo import run_demo

    if picture and out is not None:
        settings.check_output(out, (".png", ".pdf", ".svg"))
    model = settings.build_estimator(None, {}, None, seed=seed, device=device)
    model.set_params(verbose=True)
    if not as_json:
        say("fitting a synthetic graph of mixed homophily (under a minute) …")
    result = run_demo(model)
    if picture and out is not None:
        from h3gnn.report.maps import draw_maps

        maps = {row.method: row.embedding for row in result.rows if row.method != "untrained encoder"}
        draw_maps(out, maps, result.graph.labels, result.graph.class_names)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
        return
    _print_table(result.as_dict()["rows"])
    if picture and out is not None:
        typer.echo(f"picture: {out}")


def _print_table(rows: list[dict[str, float | str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Built-in graph, mean over 10 splits")
    table.add_column("representation")
    table.add_column("linear probe, test accuracy", justify="right")
    table.add_column("k-means accuracy", justify="right")
    for row in rows:
        probe, spread = 100 * float(row["probe_accuracy"]), 100 * float(row["probe_std"])
        kmeans = 100 * float(row["kmeans_accuracy"])
        table.add_row(str(row["method"]), f"{probe:.1f} ± {spread:.1f} %", f"{kmeans:.1f} %")
    Console().print(table)
