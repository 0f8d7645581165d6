"""Questions to a fitted model: `h3gnn similar`, `anomalies`, `links` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import TABLE_ENDINGS, RunArgument, open_run
from h3gnn.cli.output import EMBEDDING_ENDINGS, say, write_rows, write_table
from h3gnn.errors import InputError, check_choice


def similar(
    run: RunArgument,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE…", help="Ids of the nodes that ask.")],
    k: Annotated[int, typer.Option("--k", help="How many for each.", min=1)] = 10,
    among: Annotated[
        str | None,
        typer.Option(help="Choose from these nodes only: ids with commas between.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write the table: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """List the nodes that are nearest in the embedding, and what they share.

    `h3gnn similar run/ ann bob --k 5`

    By cosine, exact: every node is looked at. The reasons: whether an edge joins the two, the neighbours and
    features that they share (those that set them apart from the rest first), and in which of the encoder's
    tokens, their own features or what they hear hop by hop, they agree. `--json` has all of it.
    """
    if out is not None:
        options.check_output(out, TABLE_ENDINGS)
    model = open_run(run, device)
    table = model.similar(nodes, k, among=None if among is None else among.split(","))
    if out is not None:
        write_table(out, table, safe=safe_csv)
    if as_json:
        typer.echo(table.to_json(orient="records", indent=2, force_ascii=False))
        return
    for asked, rows in table.groupby("node", sort=False):
        _print_similar(asked, json.loads(rows.to_json(orient="records")))
    if out is not None:
        typer.echo(f"wrote {out}")


def _print_similar(asked: Any, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Most like {escape(str(asked))}")
    for name in ("node", "cosine", "edge", "shared neighbours", "shared features", "agree most in"):
        table.add_column(name, justify="right" if name == "cosine" else "left")
    for row in rows:
        agree = {name.removeprefix("agree: "): row[name] for name in row if name.startswith("agree: ")}
        best = max(agree, key=lambda name: agree[name], default="")
        shared = ", ".join(map(str, row["neighbours"]))
        more = "" if len(row["neighbours"]) == row["shared_neighbours"] else ", …"
        table.add_row(
            escape(str(row["similar"])),
            f"{row['similarity']:.3f}",
            "yes" if row["linked"] else "",
            f"{row['shared_neighbours']}: {escape(shared)}{more}" if shared else "",
            escape(", ".join(row["features"])),
            f"{best} ({agree[best]:.2f})" if best else "",
        )
    Console().print(table)


def anomalies(
    run: RunArgument,
    top: Annotated[int, typer.Option("--top", help="Show so many nodes; the file has all.", min=1)] = 20,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for all nodes: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """List the nodes that neither their features nor their neighbours predict, the oddest first.

    `h3gnn anomalies run/ --out anomalies.csv`

    What the score is made of stands beside it: how far a node's features are from what its neighbours
    predict, and how many of its edges nothing explains; then how hard it was in training and how much the
    models disagree on it. docs/answers.md tells how well anomalies that were put in are found.
    """
    if out is not None:
        options.check_output(out, TABLE_ENDINGS)
    model = open_run(run, device)
    if not as_json:
        say(f"looking at {model.graph_.num_nodes:,} nodes …")
    table = model.anomalies()
    if out is not None:
        write_table(out, table, safe=safe_csv)
    rows = json.loads(table.head(top).to_json(orient="records"))
    if as_json:
        told = {
            "nodes": len(table),
            "parts": [name for name in table if name not in ("node", "score")],
            "anomalies": rows,
            "out": None if out is None else str(out),
            "provenance": model.graph_.provenance.as_dict(),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print_anomalies(rows, len(table))
    if out is not None:
        typer.echo(f"wrote {out}")


def _print_anomalies(rows: list[dict[str, Any]], nodes: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"The oddest {len(rows)} of {nodes:,} nodes")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "node" else "right")
    for row in rows:
        table.add_row(escape(str(row.pop("node"))), *(f"{value:.3f}" for value in row.values()))
    Console().print(table)


def links(
    run: RunArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE…", help="Pairs with one of these nodes only.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option("--top", help="So many pairs.", min=1)] = 100,
    check: Annotated[
        str,
        typer.Option(
            help="refit: hide edges, fit once more without them, learn and score on these. none: rank by "
            "similarity, unchecked and at once."
        ),
    ] = "refit",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the pairs: .parquet or .csv.", show_default=False),
    ] = None,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """List the likeliest pairs of nodes that no edge joins, with scores on edges that nothing had seen.

    `h3gnn links run/ --top 50 --out links.csv`

    `h3gnn links run/ ann bob --check none`

    The embedding of the run has seen every edge, so a tenth of them is hidden and the same model is
    fitted once more, which takes as long as the fit did. Half of the hidden edges teach how an unseen
    edge looks, and the other half score it, against random pairs and against pairs two steps apart,
    which are harder. Candidates are the nearest nodes in the embedding and nodes two steps apart.
    """
    if out is not None:
        options.check_output(out, TABLE_ENDINGS)
    check_choice("--check", check, ("refit", "none"))
    model = open_run(run, device).set_params(verbose=True)
    if check == "refit":
        seconds = model.cost_.get("seconds")
        took = "" if seconds is None else f", which took {seconds:.0f} s the first time"
        say(f"hiding edges and fitting once more without them{took} …")
    found = model.links(nodes or None, top=top, check=check == "refit")
    if out is not None:
        write_table(out, found.table, safe=safe_csv)
    rows = json.loads(found.table.to_json(orient="records"))
    if as_json:
        told = {
            "links": rows,
            "held_out": found.scores,
            "how": found.how,
            **found.counts,
            "out": None if out is None else str(out),
            "provenance": model.graph_.provenance.as_dict(),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print_links(rows[:20], len(rows), found.scores)
    typer.echo(f"score: {found.how}")
    if out is not None:
        typer.echo(f"wrote {out}")


def _print_links(rows: list[dict[str, Any]], every: int, scores: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"The likeliest {len(rows)} of {every:,} pairs")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        cells = (f"{one:.3f}" if isinstance(one, float) else escape(str(one)) for one in row.values())
        table.add_row(*cells)
    console = Console()
    console.print(table)
    for against, told in scores.items():
        console.print(
            f"hidden edges against {against}: AUC {told['auc']:.3f} (similarity alone "
            f"{told['auc_of_similarity']:.3f}, shared neighbours {told['auc_of_shared_neighbours']:.3f}), "
            f"average precision {told['average_precision']:.3f}",
            highlight=False,
        )


PLAIN = tuple(ending[1:] for ending in EMBEDDING_ENDINGS)
USUAL = {
    "parquet": "embeddings.parquet",
    "csv": "embeddings.csv",
    "npy": "embeddings.npy",
    "tensorboard": "projector",
    "graphml": "graph.graphml",
    "neo4j": "neo4j",
    "faiss": "embeddings.faiss",
}
"""What is written where nothing else is said."""


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", help=f"The format: {', '.join(USUAL)}.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file, or folder, to write.", show_default=False),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(help="Keep so many principal directions of the embedding.", min=1, show_default=False),
    ] = None,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Write a run's embeddings and graph as other programs read them.

    `h3gnn export run/ --to tensorboard` writes a folder for `tensorboard --logdir projector`.

    `h3gnn export run/ --to graphml` is for Gephi; `--to neo4j` for `neo4j-admin database import full
    --nodes=neo4j/nodes.csv --relationships=neo4j/relationships.csv`.

    `h3gnn export run/ --to faiss --dimensions 256` writes an index for cosine search, where FAISS is
    installed; `--to npy`, `parquet` and `csv` are what any vector store takes.

    Nodes keep their ids in all of them, but for `--safe-csv`, which is about the formats of text.
    """
    from h3gnn.answers.export import FOLDERS, WRITERS, Exported, check_folder, reduce_columns
    from h3gnn.graphs.ids import check_ids

    check_choice("--to", to, tuple(USUAL))
    path = Path(USUAL[to]) if out is None else out
    if to in FOLDERS:
        check_folder(path)
    else:
        options.check_output(path, (Path(USUAL[to]).suffix,))
    if path.absolute() == run.absolute():
        raise InputError(f"{path} is the run itself; choose another place (--out)")
    model = open_run(run, device)
    check_ids(model.graph_.node_ids, path)
    embedding = model.embedding_ if dimensions is None else reduce_columns(model.embedding_, dimensions)
    if to in PLAIN:
        write_rows(path, embedding, model.graph_.node_ids, safe=safe_csv)
        written = [path, *([path.with_suffix(".ids.csv")] if to == "npy" else [])]
    else:
        written = WRITERS[to](path, Exported(model.graph_, embedding, safe_csv))
    told = {
        "format": to,
        "files": [str(one) for one in written],
        "nodes": len(embedding),
        "dimensions": embedding.shape[1],
        "provenance": model.graph_.provenance.as_dict(),
    }
    if to == "graphml":
        from h3gnn.answers.export import MOST_ATTRIBUTES

        if embedding.shape[1] > MOST_ATTRIBUTES:
            say(
                f"note: {embedding.shape[1]:,} columns are too many for GraphML, which has a place in the "
                f"plane alone; --dimensions {MOST_ATTRIBUTES} puts so many in"
            )
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    for one in written:
        typer.echo(f"wrote {one}")
