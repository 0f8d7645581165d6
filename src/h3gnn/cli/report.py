"""`h3gnn report`, `plot` and `demo`: pages and pictures of a fitted model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import File, RunArgument, Tables, Text, option
from h3gnn.cli.output import echo_json, open_page, print_table, say, stages
from h3gnn.errors import InputError, check_choice

if TYPE_CHECKING:
    from h3gnn.cli.databases import FoundRun
    from h3gnn.estimator import H3GNN
    from h3gnn.experiments.report_columns import OwnColumns
    from h3gnn.report.findings import Category, Measure, Scoreboard


SCORING = 0.7
"""The approximate share of time for the scores; the rest is for the maps."""
KINDS = ("map", "history", "homophily", "attention", "accuracy")
TypeOption = Annotated[
    Text, option("Of several tables: a table or node type, or `TABLE.COLUMN` that is predicted.", "--type")
]
MapOption = Annotated[str, option("Projection: tsne, umap (needs `h3gnn[umap]`) or pca.", "--map")]


def report(
    run: RunArgument,
    type_: TypeOption = None,
    out: Annotated[File, option("The page, .html; default: report.html in the run.")] = None,
    table: Annotated[File, option("Also write a table of all nodes: .parquet.")] = None,
    with_: Annotated[
        File, option("Another run on the same nodes, beside it.", "--with", metavar="OTHER")
    ] = None,
    columns: Annotated[File, option("A table of the nodes to colour and filter by.", metavar="FILE")] = None,
    id_column: Annotated[Text, option("The id column of --columns; default: detected.")] = None,
    title: Annotated[Text, option("Title of the page.")] = None,
    open_: Annotated[bool, option("Open the page in the browser.", "--open")] = False,
    map_: MapOption = "tsne",
    nodes: Annotated[int, option("Maximum number of nodes shown, evenly spaced.", min=1)] = 50_000,
    seed: options.SeedOption = 0,
    unfinished: options.UnfinishedOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Write one self-contained HTML page to explore the embedding, the training and the scores.

    `h3gnn report run/ --columns accounts.csv --open`

    `h3gnn report bank/ --type loan.status`
    """
    from h3gnn.experiments.report_columns import read_columns
    from h3gnn.experiments.report_data import collect_findings
    from h3gnn.graphs.graph import Graph
    from h3gnn.graphs.ids import check_ids
    from h3gnn.report.page import page_maps, write_page
    from h3gnn.report.tables import write_node_table
    from h3gnn.storage.runs import read_predictions

    if id_column is not None and columns is None:
        raise InputError("--id-column needs --columns FILE", code="option-needs-columns")
    options.check_output(out, ".html")
    options.check_output(table, ".parquet")
    found = _find(run, type_, device)
    model, path = _load_run(found.run, device, map_, unfinished), out or found.run / "report.html"
    if isinstance(model.graph_, Graph):
        model.graph_ = found.asked_last(model.graph_)
    if table is not None:
        check_ids(model.graph_.node_ids, table)
    other = None
    if with_ is not None:
        other = with_.name or with_.resolve().name, _load_run(with_, device, map_, unfinished)
    own = (
        _own_columns(found, model)
        if columns is None
        else read_columns(columns, model.graph_.node_ids, id_column)
    )
    for note in () if own is None else own.notes:
        say(f"note: {note}")
    with stages() as stage:
        findings = collect_findings(
            model,
            most_nodes=nodes,
            title=title,
            columns=own,
            other=other,
            predictions=read_predictions(found.run),
            names=None if found.database is None else found.database.rows(found.node_type).names,
            watch=lambda words, share: stage(words, SCORING * share),
        )
        maps = page_maps(
            findings,
            method=map_,
            seed=seed,
            progress=lambda words, share: stage(words, SCORING + (1 - SCORING) * share),
        )
        write_page(path, findings, maps)
    if table is not None:
        write_node_table(table, findings, *maps.values())
    if as_json:
        summary = {"page": path, "table": table, "bytes": path.stat().st_size, "nodes": findings.nodes}
        about = {"title": findings.title, "other": with_, "map": map_, "provenance": findings.run.provenance}
        echo_json(summary | about)
    else:
        if table is not None:
            typer.echo(f"table: {table}")
        typer.echo(f"report: {path} ({path.stat().st_size / 2**20:.1f} MB)")
    if open_:
        open_page(path)


def _find(run: Path, type_: str | None, device: str) -> FoundRun:
    """Return a run, or that of a type; the folder of a type belongs to the tables in the folder around it."""
    from h3gnn.cli.databases import find_run
    from h3gnn.storage.models import is_database, read_stored

    home = run.resolve().parent
    if type_ is None and not is_database(run) and is_database(home):
        inside = {one.folder: one.title for one in read_stored(home).fitted}
        run, type_ = (home, inside[run.name]) if run.name in inside else (run, None)
    return find_run(run, Tables(type=type_), device)


def _own_columns(found: FoundRun, model: H3GNN) -> OwnColumns | None:
    """Return the columns of a table among several, where it can still be read as it was."""
    from h3gnn.experiments.report_columns import table_columns

    if found.database is None:
        return None
    try:
        source = found.database.source
    except InputError as error:
        say(f"note: the page does not show the columns of {found.node_type}: {error}")
        return None
    graph = model.graph_
    return table_columns(source, found.database.schema, found.node_type, graph.node_ids, graph.target_name)


def _load_run(run: Path, device: str, map_: str, unfinished: bool) -> H3GNN:
    from h3gnn.evaluation.clustering import check_map

    check_map(map_, "--map")
    return options.open_run(run, device, unfinished=unfinished)


def plot(
    run: RunArgument,
    type_: TypeOption = None,
    kind: Annotated[str, option(f"The figure: {', '.join(KINDS)}.")] = "map",
    out: Annotated[Path, option("The file: .png, .pdf or .svg.")] = Path("h3gnn.png"),
    colour: Annotated[
        str | None,
        option(
            "Colour of a map: class, cluster, homophily, degree, difficulty, attention, attention_linear, "
            "attention_hop1, …; default: class, else cluster."
        ),
    ] = None,
    map_: MapOption = "tsne",
    seed: options.SeedOption = 0,
    unfinished: options.UnfinishedOption = False,
    device: options.DeviceOption = "auto",
) -> None:
    """Draw a static figure of a run: map, training history, homophily, attention or accuracy.

    `h3gnn plot run/ --kind history --out training.svg`
    """
    from h3gnn.report.figures import ENDINGS

    check_choice("--kind", kind, KINDS)
    if colour is not None and kind != "map":
        raise InputError(f"--colour is for maps; omit it with --kind {kind}", code="colour-without-map")
    options.check_output(out, *ENDINGS)
    _draw(_load_run(_find(run, type_, device).run, device, map_, unfinished), kind, out, colour, map_, seed)
    typer.echo(f"picture: {out}")


def _draw(model: H3GNN, kind: str, out: Path, colour: str | None, method: str, seed: int) -> None:
    from h3gnn.experiments import report_data as collect
    from h3gnn.report import figures

    if kind == "map":
        from h3gnn.evaluation.clustering import project_to_plane

        chosen = _colour(model, colour)
        shown = {"raw features": collect.raw_features(model.graph_), "H3GNN": model.embedding_}
        places = {title: project_to_plane(rows, method=method, seed=seed) for title, rows in shown.items()}
        figures.draw_maps(out, places, chosen)
    elif kind == "history":
        log = collect.run_log(model)
        figures.draw_history(out, log.columns, log.members)
    elif kind == "homophily":
        from h3gnn.graphs.profile import profile

        figures.plot_profile(profile(model.graph_), out)
    elif kind == "attention":
        attention = collect.token_attention(model)
        if attention is None:
            raise InputError('fusion="mlp" of this run has no attention to draw', code="no-attention")
        classes = collect.node_classes(model.graph_)
        figures.draw_attention(out, attention, model.token_names, classes)
    else:
        scores = collect.collect_findings(model).scores
        assert scores is not None
        figures.draw_accuracy(out, scores)


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
        message = f"--colour {key}: this run has {', '.join([*known, *measures])}"
        raise InputError(message, code="value-invalid")
    return measures[key]


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
