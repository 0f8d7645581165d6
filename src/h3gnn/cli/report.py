"""`h3gnn report`: a page on which a run can be explored."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import options
from h3gnn.cli.options import RunArgument
from h3gnn.cli.output import open_page, say, stages
from h3gnn.errors import InputError

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN
    from h3gnn.report.findings import Category, Measure

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
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
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
        options.check_output(out, (".html",))
    if table is not None:
        options.check_output(table, (".parquet",))
    model, path = load_run(run, device, map_), run / "report.html" if out is None else out
    if table is not None:
        from h3gnn.graphs.ids import check_ids

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


KINDS = ("map", "history", "homophily", "attention", "accuracy")


def plot(
    run: RunArgument,
    kind: Annotated[str, typer.Option("--kind", help=f"What to draw: {', '.join(KINDS)}.")] = "map",
    out: Annotated[Path, typer.Option("--out", help="The picture: .png, .pdf or .svg.")] = Path("h3gnn.png"),
    colour: Annotated[
        str | None,
        typer.Option(
            "--colour",
            help="Of a map's nodes: class, cluster, homophily, degree, difficulty, attention (to "
            "neighbours), attention_linear, attention_hop1, …; the class, or else the cluster, if not given.",
            show_default=False,
        ),
    ] = None,
    map_: MapOption = "tsne",
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
) -> None:
    """Draw a run for a paper or a slide.

    `h3gnn plot run/ --out map.pdf` draws the embedding beside the raw features.

    `h3gnn plot run/ --kind history --out training.svg` draws the training; `homophily` what kind of graph it
    is; `attention` who listens to what; `accuracy` the linear probe by class and by local homophily.
    """
    from h3gnn.report.figures import ENDINGS

    if kind not in KINDS:
        raise InputError(f"--kind {kind}: there are {', '.join(KINDS)}")
    if colour is not None and kind != "map":
        raise InputError(f"--colour is for maps: leave it out with --kind {kind}")
    options.check_output(out, ENDINGS)
    _draw(load_run(run, device, map_), kind, out, colour, map_, seed)
    typer.echo(f"picture: {out}")


def _draw(model: H3GNN, kind: str, out: Path, colour: str | None, method: str, seed: int) -> None:
    from h3gnn.encoder.tokens import token_names
    from h3gnn.experiments import report_data as collect
    from h3gnn.report import figures, graphics

    if kind == "map":
        from h3gnn.evaluation.projection import place

        chosen = _colour(model, colour)
        shown = {"raw features": collect.raw_features(model.graph_), "H3GNN": model.embedding_}
        places = {title: place(rows, method=method, seed=seed) for title, rows in shown.items()}
        figures.draw_maps(out, places, chosen)
    elif kind == "history":
        log = collect.run_log(model)
        graphics.draw_history(out, log.columns, log.members)
    elif kind == "homophily":
        from h3gnn.graphs.profile import profile

        graphics.plot_profile(profile(model.graph_), out)
    elif kind == "attention":
        attention = collect.token_attention(model)
        if attention is None:
            raise InputError('this run was fitted with fusion="mlp", which has no attention to draw')
        classes = collect.node_classes(model.graph_)
        graphics.draw_attention(out, attention, token_names(model.hops), classes)
    else:
        scores = collect.collect_findings(model).scores
        assert scores is not None
        graphics.draw_accuracy(out, scores)


def _colour(model: H3GNN, key: str | None) -> Category | Measure:
    from h3gnn.experiments.report_data import node_classes, node_clusters, node_measures, token_attention

    classes = node_classes(model.graph_)
    if classes is not None and key in ("class", None):
        return classes
    if key in ("cluster", None):
        return node_clusters(model)
    measures = {one.key: one for one in node_measures(model, model.graph_, token_attention(model))}
    if key not in measures:
        known = ["cluster"] if classes is None else ["class", "cluster"]
        raise InputError(f"--colour {key}: this run has {', '.join([*known, *measures])}")
    return measures[key]
