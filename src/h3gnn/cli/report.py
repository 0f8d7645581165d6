"""`h3gnn report`: a page on which a run can be explored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import say

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.estimator import H3GNN

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `h3gnn fit --out` wrote.")]
MapOption = Annotated[
    str, typer.Option("--map", help="How nodes are placed: tsne, umap (needs `h3gnn[umap]`) or pca.")
]


def report(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The page, .html; `report.html` inside RUN if not given.", show_default=False
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="Also write all that is known about each node, for other viewers: .parquet.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    map_: MapOption = "tsne",
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Show at most so many nodes, evenly spaced.")
    ] = 50_000,
    seed: settings.SeedOption = 0,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Write a page on which the embedding can be explored and the run understood.

    `h3gnn report run/ --open`

    One HTML file that needs nothing else: a map of the embedding beside one of the raw features, each node's
    neighbours with the learned edge weights, the training, and the scores. It works without labels too.

    `--table nodes.parquet` writes the same for other embedding viewers (see docs/report.md).
    """
    from h3gnn.experiments.collect import collect_findings
    from h3gnn.report.page import page_maps, write_page

    if out is not None:
        settings.check_output(out, (".html",))
    if table is not None:
        settings.check_output(table, (".parquet",))
    model, path = load_run(run, device, map_), run / "report.html" if out is None else out
    if not as_json:
        say("scoring …")
    findings = collect_findings(model, most_nodes=nodes)
    if not as_json:
        say(f"placing {findings.nodes:,} nodes …")
    maps = page_maps(findings, method=map_, seed=seed)
    write_page(path, findings, maps)
    if table is not None:
        from h3gnn.report.tables import write_node_table

        write_node_table(table, findings, *maps.values())
    if as_json:
        told = {
            "page": str(path),
            "table": None if table is None else str(table),
            "bytes": path.stat().st_size,
            "nodes": findings.nodes,
            "map": map_,
            "provenance": findings.run.provenance,
        }
        typer.echo(json.dumps(told, indent=2))
    else:
        if table is not None:
            typer.echo(f"table: {table}")
        typer.echo(f"report: {path} ({path.stat().st_size / 2**20:.1f} MB)")
    if open_:
        open_page(path)


def load_run(run: Path, device: str, map_: str) -> H3GNN:
    """Read a fitted run, to be computed with on a device; what cannot be drawn is refused first."""
    from h3gnn.estimator import H3GNN
    from h3gnn.evaluation.places import check_map
    from h3gnn.experiments.collect import refuse_files
    from h3gnn.training.resources import pick_device

    check_map(map_, "--map")
    pick_device(device)
    model = H3GNN.load(run)
    model.set_params(device=device)
    refuse_files(model)
    return model


def open_page(path: Path) -> None:
    """Show a page in the browser, or say that there is none here."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser could be started here: open {path} yourself")
