"""`h3gnn report`: a page on which a run can be explored."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import say, stages
from h3gnn.errors import InputError
from h3gnn.strangers import check_ids

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.estimator import H3GNN

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `h3gnn fit --out` wrote.")]
SCORING = 0.7
"""About this share of the time goes into scores; the rest into maps."""
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
    with_: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="OTHER",
            help="Another run on the same nodes: its map stands beside, its scores below.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(
            "--columns",
            metavar="FILE",
            help="A table about the nodes (.csv, .tsv, .parquet) to colour, filter and search by.",
            show_default=False,
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Which column of --columns holds the ids; else found out.", show_default=False),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="Of the page; else what the graph is, as far as is known.", show_default=False),
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

    `--columns accounts.csv` adds columns of your own, to colour and filter nodes by and to search in;
    `--with other-run/` puts a second run beside this one.

    `--table nodes.parquet` writes the same for other embedding viewers (see docs/report.md).
    """
    from h3gnn.experiments.report_data import collect_findings, read_columns
    from h3gnn.report.page import page_maps, write_page

    if id_column is not None and columns is None:
        raise InputError("--id-column is about a table of your own: give --columns FILE as well")
    if out is not None:
        settings.check_output(out, (".html",))
    if table is not None:
        settings.check_output(table, (".parquet",))
    model, path = load_run(run, device, map_), run / "report.html" if out is None else out
    if table is not None:
        check_ids(model.graph_.node_ids, table)
    other = None if with_ is None else (_name_of(with_), load_run(with_, device, map_))
    own = None if columns is None else read_columns(columns, model.graph_.node_ids, id_column)
    for note in () if own is None else own.notes:
        say(f"note: {note}")
    said = not as_json and not sys.stderr.isatty()  # where there is no bar
    with stages(show=not as_json) as told:
        if said:
            say("scoring …")
        findings = collect_findings(
            model,
            most_nodes=nodes,
            title=title,
            columns=own,
            other=other,
            told=lambda words, share: told(words, SCORING * share),
        )
        if said:
            say(f"placing {findings.nodes:,} nodes …")
        maps = page_maps(
            findings,
            method=map_,
            seed=seed,
            told=lambda words, share: told(words, SCORING + (1 - SCORING) * share),
        )
        write_page(path, findings, maps)
    if table is not None:
        from h3gnn.report.tables import write_node_table

        write_node_table(table, findings, *maps.values())
    if as_json:
        summary = {
            "page": str(path),
            "table": None if table is None else str(table),
            "bytes": path.stat().st_size,
            "nodes": findings.nodes,
            "title": findings.title,
            "other": None if with_ is None else str(with_),
            "map": map_,
            "provenance": findings.run.provenance,
        }
        typer.echo(json.dumps(summary, indent=2))
    else:
        if table is not None:
            typer.echo(f"table: {table}")
        typer.echo(f"report: {path} ({path.stat().st_size / 2**20:.1f} MB)")
    if open_:
        open_page(path)


def _name_of(run: Path) -> str:
    """Return what to call a run: its folder, or where that is only "." the one around it."""
    return run.name or run.resolve().name


def load_run(run: Path, device: str, map_: str) -> H3GNN:
    """Read a fitted run, to be computed with on a device; what cannot be drawn is refused first."""
    from h3gnn.estimator import H3GNN
    from h3gnn.evaluation.projection import check_map
    from h3gnn.experiments.report_data import refuse_files
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
