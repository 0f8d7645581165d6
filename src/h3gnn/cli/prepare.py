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
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Memory for joining and sorting, e.g. 8GB; default half of it."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Convert tables of any size to a graph on disk, which training reads in parts.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`, then
    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`

    The tables are joined and sorted within a memory limit (`--memory`). The folder appears when it is
    complete. After Ctrl-C, a kill or a full disk, the same command keeps the finished stages; other files or
    columns start again.
    """
    if not source.edges or features is None or out is None:
        raise InputError("prepare needs --edges, --features and --out", code="prepare-options")
    if len(source.edges) > 1:
        raise InputError("prepare reads one table of edges: concatenate the tables", code="prepare-options")
    if source.labels is None and (source.label_column or source.label_id_column or source.split_columns):
        raise InputError("label and split columns need --labels FILE", code="prepare-options")
    from h3gnn.ondisk.engine import hidden_beside
    from h3gnn.ondisk.prepare import prepare_graph
    from h3gnn.settings import parse_memory

    columns = {
        "node_column" if name == "id_column" else name: value for name, value in source.reading().items()
    }
    wrote = "replaced" if out.exists() else "wrote"
    if hidden_beside(out).exists():
        say(f"resuming {out}")
    with saying_how(hidden_beside(out).exists, "the same command resumes"), progress() as add_bar:
        bars = {stage: add_bar(stage, 1.0) for stage in ("features", "edges", "sorting")}
        graph = prepare_graph(
            source.edges[0],
            features,
            out,
            labels=source.labels,
            **columns,
            memory=None if memory is None else parse_memory(memory),
            progress=lambda stage, share: bars[stage](completed=share),
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
