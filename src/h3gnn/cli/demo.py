"""`h3gnn demo`: the method at work on the built-in graph."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.output import open_page, say

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.estimator import H3GNN
    from h3gnn.report.findings import Findings, Scoreboard


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="The picture; the report page goes beside it, ending in .html.")
    ] = Path("h3gnn-demo.png"),
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the picture and write the page.")
    ] = True,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Fit the built-in graph and compare with raw features and an untrained encoder.

    The graph has a thousand nodes in five classes: three whose neighbours are alike, two whose neighbours
    are unlike. A linear probe and k-means score each representation; the probe's strength is chosen on
    validation nodes. The report page, as `h3gnn report` writes it for any run, lets you explore the result.
    """
    from h3gnn.experiments.report_data import collect_findings
    from h3gnn.graphs.synthetic import mixed_graph
    from h3gnn.report.figures import ENDINGS

    page = out.with_suffix(".html")
    if picture:
        options.check_output(out, ENDINGS)
        options.check_output(page, (".html",))
    one_each = {"n_models": 4}  # of each objective; the default has two, and takes twice as long
    model = options.build_estimator(None, one_each, None, seed=seed, device=device)
    model.set_params(verbose=True)
    if not as_json:
        say("fitting a synthetic graph of mixed homophily (under a minute) …")
    started = time.perf_counter()
    findings = collect_findings(model.fit(mixed_graph()))
    assert findings.scores is not None
    rows, seconds = _rows(findings.scores), time.perf_counter() - started
    if picture:
        _draw(findings, out, page)
    if as_json:
        typer.echo(json.dumps(_summary(model, rows, seconds), indent=2))
    else:
        _print_table(rows)
    if picture and not as_json:
        typer.echo(f"picture: {out}")
        typer.echo(f"report: {page}  (open it in a browser)")
    if picture and open_:
        open_page(page)


def _rows(scores: Scoreboard) -> list[dict[str, Any]]:
    from h3gnn.report.findings import RAW, TRAINED, UNTRAINED

    rows = []
    for one in (row for row in scores.rows if row.representation in (RAW, UNTRAINED, TRAINED)):
        assert one.probe is not None
        rows.append(
            {
                "method": one.representation,
                "probe_accuracy": float(one.probe.mean()),
                "probe_std": float(one.probe.std()),
                "kmeans_accuracy": float(one.clustering["accuracy"][0]),
            }
        )
    return rows


def _summary(model: H3GNN, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    from h3gnn.storage.origin import made_with

    return {
        "rows": rows,
        "protocol": "validation",
        "provenance": model.graph_.provenance.as_dict(),
        "params": {name: value for name, value in model.get_params().items() if name != "verbose"},
        **made_with(),
        "seconds": round(seconds, 2),
    }


def _draw(findings: Findings, out: Path, page: Path) -> None:
    from h3gnn.report.figures import draw_maps
    from h3gnn.report.page import page_maps, write_page

    maps = page_maps(findings)
    draw_maps(out, dict(reversed(maps.items())), findings.category("class"))
    write_page(page, findings, maps)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Built-in graph, mean over 10 splits")
    table.add_column("representation")
    table.add_column("linear probe, test accuracy", justify="right")
    table.add_column("k-means accuracy", justify="right")
    for row in rows:
        probe, spread = 100 * row["probe_accuracy"], 100 * row["probe_std"]
        kmeans = 100 * row["kmeans_accuracy"]
        table.add_row(row["method"], f"{probe:.1f} ± {spread:.1f} %", f"{kmeans:.1f} %")
    Console().print(table)
