"""`h3gnn export`: a run's embeddings and graph, for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import EMBEDDING_ENDINGS, say, write_rows
from h3gnn.cli.report import RunArgument
from h3gnn.cli.run import open_run
from h3gnn.errors import InputError, check_choice
from h3gnn.strangers import check_ids

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
    safe_csv: settings.SafeCsvOption = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Write a run's embeddings and graph as other programs read them.

    `h3gnn export run/ --to tensorboard` writes a folder for `tensorboard --logdir projector`.

    `h3gnn export run/ --to graphml` is for Gephi; `--to neo4j` for `neo4j-admin database import full
    --nodes=neo4j/nodes.csv --relationships=neo4j/relationships.csv`.

    `h3gnn export run/ --to faiss --dimensions 256` writes an index for cosine search, where FAISS is
    installed; `--to npy`, `parquet` and `csv` are what any vector store takes.

    Nodes keep their ids in all of them, but for `--safe-csv`, which is about the formats of text.
    """
    from h3gnn.answers.exporting import FOLDERS, WRITERS, Exported, check_folder, reduce_columns

    check_choice("--to", to, tuple(USUAL))
    path = Path(USUAL[to]) if out is None else out
    if to in FOLDERS:
        check_folder(path)
    else:
        settings.check_output(path, (Path(USUAL[to]).suffix,))
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
        from h3gnn.answers.exporting import MOST_ATTRIBUTES

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
