"""`h3gnn cluster`: groups of nodes that embeddings show, with or without labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import EmbeddingsArgument, Source, takes_graph
from h3gnn.cli.output import Embedded, read_embedded, write_table
from h3gnn.errors import InputError
from h3gnn.evaluation import MOST_CLUSTERS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PANEL = "The clusters"
CountOption = Annotated[
    int | None,
    typer.Option(
        "--clusters",
        help="How many; else as many as classes, or what the silhouette picks.",
        min=1,
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
MostOption = Annotated[
    int,
    typer.Option("--max-clusters", help="The silhouette picks from 2 to this.", min=2, rich_help_panel=PANEL),
]
StartsOption = Annotated[
    int, typer.Option(help="Starts of k-means; the best is taken.", min=1, rich_help_panel=PANEL)
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="File for each node's cluster: .csv or .parquet.", show_default=False),
]


@takes_graph
def cluster(
    *,
    embeddings: EmbeddingsArgument = None,
    source: Source,
    out: OutOption = None,
    clusters: CountOption = None,
    max_clusters: MostOption = MOST_CLUSTERS,
    starts: StartsOption = 10,
    seed: options.SeedOption = 0,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Group the nodes by their embeddings with k-means; no labels are needed.

    `h3gnn cluster run/ --out clusters.csv`

    `h3gnn cluster embeddings.parquet --clusters 8 --out clusters.csv`

    Without labels, the number of clusters is the one with the clearest silhouette (1: every node far nearer
    to its own cluster than to the next; 0: no clusters to speak of). With labels, there are as many clusters
    as classes, and the table says how well they agree.
    """
    if embeddings is None:
        raise InputError("say what to cluster: a folder of `h3gnn fit --out`, or a file of embeddings")
    if out is not None:
        options.check_output(out, (".csv", ".parquet"))
    source.refuse_alone()
    read = read_embedded(embeddings, source.load() if source.is_given else None, device)
    if out is not None:
        from h3gnn.graphs.ids import check_ids

        check_ids(read.ids, out)
    found, summary = _cluster(read, clusters, max_clusters, starts, seed)
    if out is not None:
        _write(out, read, found, safe=safe_csv)
        summary["out"] = str(out)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    _print(summary)
    if out is not None:
        typer.echo(f"wrote {out}")


def _cluster(
    read: Embedded, clusters: int | None, most: int, starts: int, seed: int
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    import numpy as np

    from h3gnn.evaluation.clustering import compare_clusters, pick_clusters
    from h3gnn.storage.origin import made_with

    nodes = len(read.values)
    known = None if read.graph is None or read.graph.labels is None else read.graph.labels.numpy()
    classes = 0 if known is None else np.unique(known[known >= 0]).size
    count = clusters or classes or None
    if (count or 2) > nodes:
        raise InputError(f"{count or 2} clusters are more than the {nodes} node(s) that there are")
    found, measured = pick_clusters(
        read.values, None if count is None else [count], most=most, starts=starts, seed=seed
    )
    sizes = np.bincount(found).tolist()
    shown = {str(one): None if np.isnan(value) else value for one, value in measured.items()}
    return found, {
        "nodes": nodes,
        "clusters": len(sizes),
        "chosen_by": "--clusters" if clusters else "classes" if classes else "silhouette",
        "sizes": sizes,
        "silhouette": max((value for value in shown.values() if value is not None), default=None),
        "silhouettes": shown,
        "clustering": compare_clusters(found, known) if known is not None and classes else None,
        "method": read.method,
        "graph": None if read.graph is None else read.graph.provenance.as_dict(),
        "params": read.params,
        "starts": starts,
        "seed": seed,
        **made_with(),
    }


def _write(out: Path, read: Embedded, clusters: npt.NDArray[np.int64], *, safe: bool) -> None:
    import pandas as pd

    write_table(out, pd.DataFrame({"node": read.ids, "cluster": clusters}), safe=safe)


def _print(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{summary['clusters']} clusters of {summary['nodes']:,} nodes")
    table.add_column("cluster")
    table.add_column("nodes", justify="right")
    table.add_column("share", justify="right")
    for number, size in enumerate(summary["sizes"]):
        table.add_row(str(number), f"{size:,}", f"{100 * size / summary['nodes']:.1f} %")
    Console().print(table)
    clearness = summary["silhouette"]
    typer.echo(f"silhouette {'–' if clearness is None else f'{clearness:.3f}'}")
    if summary["chosen_by"] == "silhouette":
        others = ", ".join(f"{k}: {v:.3f}" for k, v in summary["silhouettes"].items() if v is not None)
        typer.echo(f"silhouette by number of clusters: {others}")
    if summary["clustering"] is not None:
        agreed = ", ".join(f"{name} {100 * value:.1f} %" for name, value in summary["clustering"].items())
        typer.echo(f"agreement with the classes: {agreed}")
