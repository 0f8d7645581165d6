"""`h3gnn prepare`: tables of any size into a graph in memory-mapped files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import options
from h3gnn.cli.options import Source, takes_graph
from h3gnn.cli.output import progress, say
from h3gnn.cli.training import saying_how
from h3gnn.errors import InputError

OF_OTHER_COMMANDS = (
    *("graph", "features", "columns", "text_model", "unknown_nodes"),
    *("weights", "repeated", "undirected", "data_dir"),
)


@partial(takes_graph, without=OF_OTHER_COMMANDS)
def prepare(
    *,
    source: Source,
    features: Annotated[
        Path | None, typer.Option("--features", help="Features: CSV, TSV, Parquet, NPY or NPZ.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the graph.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Turn edges and features of any size into files that training reads piece by piece.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`

    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`

    The tables are streamed: memory holds a block of rows and the ids of the nodes. The folder appears when it
    is whole. After Ctrl-C, a kill or a full disk, the same command goes on where it was; other files or
    options begin again.

    Labels are kept for later: `--labels labels.csv`, and `h3gnn evaluate run/` and `h3gnn predict run/` find
    them. Where they have no splits, ten are drawn.
    """
    if not source.edges or features is None or out is None:
        raise InputError("prepare needs --edges FILE, --features FILE and --out FOLDER")
    if len(source.edges) > 1:
        raise InputError("prepare reads one table of edges; put the tables below one another in one file")
    if source.labels is None and (source.label_column or source.label_id_column or source.split_columns):
        raise InputError("prepare reads labels from a table of their own: give it with --labels FILE")
    from h3gnn.ondisk.prepare import prepare_graph

    how = {"node_column" if name == "id_column" else name: value for name, value in source.reading().items()}
    from h3gnn.ondisk.prepare import NOTE, hidden_beside

    begun, wrote = hidden_beside(out) / NOTE, "replaced" if out.exists() else "wrote"
    with saying_how(begun.is_file, "the same command goes on"), progress() as add_bar:
        read_features, read_edges = add_bar("features", 1.0), add_bar("edges", 1.0)
        graph = prepare_graph(
            source.edges[0],
            features,
            out,
            labels=source.labels,
            **how,
            features_progress=lambda share: read_features(completed=share),
            edges_progress=lambda share: read_edges(completed=share),
            going_on=lambda words: say(f"going on with {out}: {words} are there already"),
        )
    for repair in graph.provenance.repairs:
        say(f"note: {repair.message}")
    if as_json:
        sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
        typer.echo(json.dumps({**sizes, "graph": str(out), "sha256": graph.provenance.sha256}, indent=2))
        return
    typer.echo(
        f"{wrote} {out}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
        f"{graph.num_features:,} features"
    )
