"""`h3gnn embed`: embeddings from a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from h3gnn.cli import options
from h3gnn.cli.options import (
    NEW,
    NewEdgesOption,
    NewFeaturesOption,
    Source,
    extend_run,
    open_run,
    takes_graph,
)
from h3gnn.cli.output import EMBEDDING_ENDINGS, is_mapped, say, write_embedding, write_result, write_rows
from h3gnn.errors import InputError


@takes_graph
def embed(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `h3gnn fit --out` wrote.")],
    source: Source,
    out: Annotated[
        Path, typer.Option("--out", help="File for the embeddings: .parquet, .csv or .npy.")
    ] = Path("embeddings.parquet"),
    new_features: NewFeaturesOption = None,
    new_edges: NewEdgesOption = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Embed all nodes of the grown graph anew, not the new ones alone.",
            rich_help_panel=NEW,
        ),
    ] = False,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Write the embeddings of a saved model's graph, of nodes that joined it, or of a new graph.

    `h3gnn embed run/ --out embeddings.parquet`

    `h3gnn embed run/ --new-features today.csv --new-edges today-edges.csv --out today.parquet`

    `h3gnn embed run/ --edges other-edges.csv --features other-features.csv --out other.parquet`

    New nodes hear the fitted ones and each other; only their rows are worked out and written, and fitted
    nodes keep the embeddings that they have, in a vector store, say. `--refresh` embeds and writes all nodes
    of the grown graph. docs/answers.md says how well the two agree.

    Columns of the new features are found by name and encoded as they were in the fit.

    A graph that memory does not hold is first prepared: `h3gnn embed run/ other-graph/ --out other.parquet`.

    In a new graph, edges that the model was fitted on keep their learned weights; all others take their
    start value.
    """
    from h3gnn.estimator import H3GNN
    from h3gnn.training.resources import pick_device

    options.check_output(out, EMBEDDING_ENDINGS)
    pick_device(device)
    if new_features is not None or new_edges is not None:
        if source.is_given:
            raise InputError("give new nodes of the fitted graph, or another graph, not both")
        _embed_new(run, source, out, new_features, new_edges, refresh, device, as_json, safe_csv)
        return
    if refresh:
        raise InputError("--refresh is for a graph that has grown: give --new-features and --new-edges")
    source.refuse_alone()
    model = H3GNN.load(run).set_params(device=device)
    asked = model.graph_
    if source.is_given:
        asked = source.load(in_files=True, plan=asked.plan)
        for repair in asked.provenance.repairs:
            say(f"note: {repair.message}")
    if is_mapped(asked):
        write_result(out, model, asked)
        nodes, dimensions = asked.num_nodes, len(model.get_feature_names_out())
    else:
        embedding = model.transform(asked)
        write_embedding(out, embedding, asked, safe=safe_csv)
        nodes, dimensions = embedding.shape
    if as_json:
        result = {"nodes": nodes, "dimensions": dimensions, "embeddings": str(out)}
        typer.echo(json.dumps(result | {"provenance": asked.provenance.as_dict()}, indent=2))
    else:
        typer.echo(f"wrote {out}: {nodes:,} nodes, {dimensions:,} dimensions")


def _embed_new(
    run: Path,
    source: Source,
    out: Path,
    features: Path | None,
    edges: Path | None,
    refresh: bool,
    device: str,
    as_json: bool,
    safe: bool,
) -> None:
    model = open_run(run, device)
    found = extend_run(model, features, edges, source.reading(), refresh=refresh)
    write_rows(out, found.embedding, found.node_ids, safe=safe)
    if as_json:
        told = {
            "nodes": len(found.embedding),
            "new_nodes": found.new,
            "refreshed": found.refreshed,
            "dimensions": found.embedding.shape[1],
            "embeddings": str(out),
            "notes": list(found.notes),
        }
        typer.echo(json.dumps(told | {"provenance": found.graph.provenance.as_dict()}, indent=2))
        return
    which = (
        f"all {len(found.embedding):,} nodes, {found.new:,} of them new"
        if refresh
        else f"{found.new:,} new nodes"
    )
    typer.echo(f"wrote {out}: {which}, {found.embedding.shape[1]:,} dimensions")
