"""`h3gnn prepare`: tables of any size into a graph in memory-mapped files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import settings, source
from h3gnn.cli.output import say
from h3gnn.errors import InputError


def prepare(
    edges: source.EdgesOption = None,
    features: Annotated[
        Path | None, typer.Option("--features", help="Features: CSV, TSV, Parquet or NPY.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the graph.")] = None,
    source_column: source.SourceColumnOption = None,
    target_column: source.TargetColumnOption = None,
    weight_column: source.WeightColumnOption = None,
    id_column: source.IdColumnOption = None,
    feature_columns: source.FeatureColumnsOption = None,
    header: source.HeaderOption = None,
    delimiter: source.DelimiterOption = None,
    as_json: settings.JsonOption = False,
) -> None:
    """Turn edges and features of any size into files that training reads piece by piece.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`

    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`

    The tables are streamed: memory holds a block of rows and the ids of the nodes. The folder appears when it
    is whole.
    """
    if edges is None or features is None or out is None:
        raise InputError("prepare needs --edges FILE, --features FILE and --out FOLDER")
    from h3gnn.graphs.prepare import prepare_graph

    with progress("features", "edges") as (features_progress, edges_progress):
        graph = prepare_graph(
            edges,
            features,
            out,
            source_column=source_column,
            target_column=target_column,
            weight_column=weight_column,
            node_column=id_column,
            feature_columns=None if feature_columns is None else feature_columns.split(","),
            header=header,
            delimiter=delimiter,
            features_progress=features_progress,
            edges_progress=edges_progress,
        )
    for note in graph.provenance.mended:
        say(f"note: {note}")
    if as_json:
        sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
        typer.echo(json.dumps({**sizes, "graph": str(out), "sha256": graph.provenance.sha256}, indent=2))
        return
    typer.echo(
        f"wrote {out}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} features"
    )


@contextmanager
def progress(*titles: str) -> Iterator[tuple[Callable[[float], None], ...]]:
    """Show one bar per title on standard error; nothing where that is not a terminal."""
    if not sys.stderr.isatty():
        yield tuple(lambda share: None for _ in titles)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bars:
        tasks = [bars.add_task(title, total=1.0) for title in titles]

        def watch(task: int) -> Callable[[float], None]:
            return lambda share: bars.update(tasks[task], completed=share)

        yield tuple(watch(number) for number in range(len(titles)))
