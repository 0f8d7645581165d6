"""`h3gnn embed`: embeddings from a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.output import EMBEDDING_ENDINGS, is_mapped, say, write_embedding, write_result
from h3gnn.cli.source import Source, takes_graph


@takes_graph
def embed(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `h3gnn fit --out` wrote.")],
    source: Source,
    out: Annotated[
        Path, typer.Option("--out", help="File for the embeddings: .parquet, .csv or .npy.")
    ] = Path("embeddings.parquet"),
    safe_csv: settings.SafeCsvOption = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Write the embeddings of a saved model's graph, or of a new graph with the same feature columns.

    `h3gnn embed run/ --out embeddings.parquet`

    `h3gnn embed run/ --edges new-edges.csv --features new-features.csv --out new.parquet`

    In a new graph, edges that the model was fitted on keep their learned weights; all others take their
    start value.
    """
    from h3gnn.estimator import H3GNN
    from h3gnn.training.resources import pick_device

    settings.check_output(out, EMBEDDING_ENDINGS)
    pick_device(device)
    model = H3GNN.load(run).set_params(device=device)
    asked = model.graph_
    if source.is_given:
        asked = source.load()
        for note in asked.provenance.mended:
            say(f"note: {note}")
    if is_mapped(asked):
        write_result(out, model, asked)
        nodes, dimensions = asked.num_nodes, model.n_models * model.encoder_.out_channels
    else:
        embedding = model.transform(asked)
        write_embedding(out, embedding, asked, safe=safe_csv)
        nodes, dimensions = embedding.shape
    if as_json:
        result = {"nodes": nodes, "dimensions": dimensions, "embeddings": str(out)}
        typer.echo(json.dumps(result | {"provenance": asked.provenance.as_dict()}, indent=2))
    else:
        typer.echo(f"wrote {out}: {nodes:,} nodes, {dimensions:,} dimensions")
