"""`h3gnn prepare`: convert tables of any size to a graph on disk."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from h3gnn.cli import options
from h3gnn.cli.options import File, Source, Text, option, takes_graph
from h3gnn.cli.output import echo_json, say, say_repairs
from h3gnn.cli.training import advising
from h3gnn.errors import InputError
from h3gnn.resources import progress

OF_OTHER_COMMANDS = (
    *("graph", "features", "text_model", "unknown_nodes"),
    *("weights", "repeated", "undirected", "data_dir"),
)


@partial(takes_graph, without=OF_OTHER_COMMANDS)
def prepare(
    *,
    source: Source,
    features: Annotated[File, option("Features: CSV, TSV, Parquet, NPY or NPZ.")] = None,
    out: Annotated[File, option("Folder for the graph.")] = None,
    memory: Annotated[Text, option("Memory for joining and sorting, e.g. 8GB; default: half.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Convert tables of any size to a graph on disk, which training reads in parts.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`, then
    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`

    The folder appears when it is complete. After Ctrl-C, a kill or a full disk, the same command keeps the
    finished stages.
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

    reading = source.reading()
    if "id_column" in reading:
        reading["node_column"] = reading.pop("id_column")
    wrote = "replaced" if out.exists() else "wrote"
    if hidden_beside(out).exists():
        say(f"resuming {out}")
    with advising(hidden_beside(out).exists, "the same command resumes"), progress() as add_bar:
        bars = {stage: add_bar(stage, 1.0) for stage in ("features", "edges", "sorting")}
        graph = prepare_graph(
            source.edges[0],
            features,
            out,
            labels=source.labels,
            **reading,
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
