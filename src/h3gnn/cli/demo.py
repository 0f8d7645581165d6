"""`h3gnn demo`: the method at work on the built-in graph."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import option
from h3gnn.cli.output import echo_json, open_page, print_table, say

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.report.findings import Scoreboard

OUT = Path("h3gnn-demo.png")


def demo(
    out: Annotated[Path, option("The picture; the report page has the same name, ending in .html.")] = OUT,
    picture: Annotated[bool, option("Draw the picture and write the page.")] = True,
    open_: Annotated[bool, option("Open the page in the browser.", "--open")] = False,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Fit the built-in graph and compare with raw features and an untrained encoder.

    `h3gnn demo --open`
    """
    from h3gnn.experiments.report_data import collect_findings
    from h3gnn.graphs.synthetic import mixed_graph
    from h3gnn.report.figures import ENDINGS, draw_maps
    from h3gnn.report.page import page_maps, write_page
    from h3gnn.storage.runs import made_with

    page = out.with_suffix(".html")
    if picture:
        options.check_output(out, *ENDINGS)
        options.check_output(page, ".html")
    one_each = {"n_models": 4}  # one model of each objective; the default has two
    model = options.build_estimator(None, one_each, None, seed=seed, device=device)
    if not as_json:
        say("fitting a synthetic graph of mixed homophily (under a minute) …")
    started = time.perf_counter()
    findings = collect_findings(model.set_params(verbose=True).fit(mixed_graph()))
    assert findings.scores is not None
    rows, seconds = _rows(findings.scores), time.perf_counter() - started
    if picture:
        maps = page_maps(findings)
        draw_maps(out, dict(reversed(maps.items())), findings.category("class"))
        write_page(page, findings, maps)
    if as_json:
        about = {"protocol": "validation", "provenance": model.graph_.provenance.as_dict()}
        params = {name: value for name, value in model.get_settings().items() if name != "verbose"}
        echo_json({"rows": rows, **about, "params": params, **made_with(), "seconds": round(seconds, 2)})
    else:
        _print_table(rows)
        if picture:
            typer.echo(f"picture: {out}")
            typer.echo(f"report: {page}  (open it in a browser)")
    if picture and open_:
        open_page(page)


def _rows(scores: Scoreboard) -> list[dict[str, Any]]:
    from h3gnn.report.findings import RAW, TRAINED, UNTRAINED

    return [
        {
            "method": row.representation,
            "probe_accuracy": float(row.probe.mean()),
            "probe_std": float(row.probe.std()),
            "kmeans_accuracy": float(row.clustering["accuracy"][0]),
        }
        for row in scores.rows
        if row.representation in (RAW, UNTRAINED, TRAINED) and row.probe is not None
    ]


def _print_table(rows: list[dict[str, Any]]) -> None:
    headings = ("representation", "linear probe, test accuracy", "k-means accuracy")
    cells = [
        [
            row["method"],
            f"{100 * row['probe_accuracy']:.1f} ± {100 * row['probe_std']:.1f} %",
            f"{100 * row['kmeans_accuracy']:.1f} %",
        ]
        for row in rows
    ]
    print_table("Built-in graph, mean over 10 splits", headings, cells, right=headings[1:])
