"""`h3gnn prepare`: convert tables of any size to a graph on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import options
from h3gnn.cli.options import Source, takes_graph
from h3gnn.cli.output import echo_json, say, say_repairs
from h3gnn.cli.training import saying_how
from h3gnn.errors import InputError
from h3gnn.resources import progress

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
    """Convert tables of any size to a graph on disk, which training reads in parts.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`, then
    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`
    """
    if not source.edges or features is None or out is None:
        raise InputError("prepare needs --edges, --features and --out", code="prepare-options")
    if len(source.edges) > 1:
        raise InputError("prepare reads one table of edges: concatenate the tables", code="prepare-options")
    if source.labels is None and (source.label_column or source.label_id_column or source.split_columns):
        raise InputError("label and split columns need --labels FILE", code="prepare-options")
    from h3gnn.ondisk.prepare import prepare_graph

    how = {"node_column" if name == "id_column" else name: value for name, value in source.reading().items()}
    from h3gnn.ondisk.prepare import NOTE, hidden_beside

    begun, wrote = hidden_beside(out) / NOTE, "replaced" if out.exists() else "wrote"
    with saying_how(begun.is_file, "the same command continues"), progress() as add_bar:
        read_features, read_edges = add_bar("features", 1.0), add_bar("edges", 1.0)
        graph = prepare_graph(
            source.edges[0],
            features,
            out,
            labels=source.labels,
            **how,
            features_progress=lambda share: read_features(completed=share),
            edges_progress=lambda share: read_edges(completed=share),
            going_on=lambda words: say(f"continuing {out}: {words} are complete"),
        )
    say_repairs(graph)
    if as_json:
        sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
        echo_json({**sizes, "graph": str(out), "sha256": graph.provenance.sha256})
        return
    typer.echo(
        f"{wrote} {out}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
        f"{graph.num_features:,} features"
    )
