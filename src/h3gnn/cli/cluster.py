"""`h3gnn cluster`: k-means clusters of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import EmbeddingsArgument, Source, TableOption, check_table, option, takes_graph
from h3gnn.cli.output import Embedded, echo_json, print_table, read_embedded, write_table
from h3gnn.errors import InputError
from h3gnn.evaluation import MAX_CLUSTERS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PANEL = "Clusters"


@takes_graph
def cluster(
    *,
    embeddings: EmbeddingsArgument = None,
    source: Source,
    out: TableOption = None,
    clusters: Annotated[
        int | None,
        option(
            "Number of clusters; default: the number of classes, or chosen by silhouette.",
            "--clusters",
            panel=PANEL,
            min=1,
        ),
    ] = None,
    max_clusters: Annotated[
        int, option("The silhouette chooses from 2 to this.", "--max-clusters", panel=PANEL, min=2)
    ] = MAX_CLUSTERS,
    starts: Annotated[int, option("Initializations of k-means.", panel=PANEL, min=1)] = 10,
    seed: options.SeedOption = 0,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Cluster the nodes by their embeddings with k-means; labels are not needed.

    `h3gnn cluster run/ --out clusters.csv`
    """
    if embeddings is None:
        raise InputError("give a folder of `h3gnn fit --out`, or a file of embeddings", code="no-embeddings")
    check_table(out)
    source.refuse_alone()
    read = read_embedded(embeddings, source.load() if source.is_given else None, device)
    if out is not None:
        from h3gnn.graphs.ids import check_ids

        check_ids(read.ids, out)
    found, summary = _cluster(read, clusters, max_clusters, starts, seed)
    if out is not None:
        import pandas as pd

        write_table(out, pd.DataFrame({"node": read.ids, "cluster": found}), safe=safe_csv)
        summary["out"] = str(out)
    if as_json:
        echo_json(summary)
        return
    _print(summary)
    if out is not None:
        typer.echo(f"wrote {out}")


def _cluster(
    read: Embedded, clusters: int | None, most: int, starts: int, seed: int
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    import numpy as np

    from h3gnn.evaluation.clustering import compare_clusters, pick_clusters
    from h3gnn.storage.runs import made_with

    nodes = len(read.values)
    labels = None if read.graph is None or read.graph.labels is None else read.graph.labels.numpy()
    classes = 0 if labels is None else np.unique(labels[labels >= 0]).size
    count = clusters or classes or None
    if (count or 2) > nodes:
        raise InputError(f"{count or 2} clusters need as many nodes; there are {nodes}", code="too-few-nodes")
    given = None if count is None else [count]
    found, measured = pick_clusters(read.values, given, most=most, n_init=starts, seed=seed)
    sizes = np.bincount(found).tolist()
    silhouettes = {str(one): None if np.isnan(value) else value for one, value in measured.items()}
    return found, {
        "nodes": nodes,
        "clusters": len(sizes),
        "chosen_by": "--clusters" if clusters else "classes" if classes else "silhouette",
        "sizes": sizes,
        "silhouette": max((value for value in silhouettes.values() if value is not None), default=None),
        "silhouettes": silhouettes,
        "clustering": compare_clusters(found, labels) if labels is not None and classes else None,
        "method": read.method,
        "graph": None if read.graph is None else read.graph.provenance.as_dict(),
        "params": read.params,
        "starts": starts,
        "seed": seed,
        **made_with(),
    }


def _print(summary: dict[str, Any]) -> None:
    nodes = summary["nodes"]
    rows = [
        [str(number), f"{size:,}", f"{100 * size / nodes:.1f} %"]
        for number, size in enumerate(summary["sizes"])
    ]
    title = f"{summary['clusters']} clusters of {nodes:,} nodes"
    print_table(title, ("cluster", "nodes", "share"), rows, right=("nodes", "share"))
    silhouette = summary["silhouette"]
    typer.echo(f"silhouette {'–' if silhouette is None else f'{silhouette:.3f}'}")
    if summary["chosen_by"] == "silhouette":
        others = ", ".join(f"{k}: {v:.3f}" for k, v in summary["silhouettes"].items() if v is not None)
        typer.echo(f"silhouette by number of clusters: {others}")
    if summary["clustering"] is not None:
        agreed = ", ".join(f"{name} {100 * value:.1f} %" for name, value in summary["clustering"].items())
        typer.echo(f"agreement with the classes: {agreed}")
