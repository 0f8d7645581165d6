"""`h3gnn embed`: embeddings of a fitted graph, of new nodes, or of another graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.databases import find_run
from h3gnn.cli.options import (
    NEW,
    NewEdgesOption,
    NewFeaturesOption,
    RunArgument,
    Source,
    Tables,
    option,
    takes_graph,
)
from h3gnn.cli.output import EMBEDDING_ENDINGS, echo_json, say_repairs, write_result, write_rows
from h3gnn.errors import InputError

if TYPE_CHECKING:
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph


@takes_graph
def embed(
    *,
    run: RunArgument,
    source: Source,
    out: Annotated[Path, option("The file: .parquet, .csv or .npy.")] = Path("embeddings.parquet"),
    new_features: NewFeaturesOption = None,
    new_edges: NewEdgesOption = None,
    new_tables: options.NewTablesOption = None,
    refresh: Annotated[
        bool, option("Embed all nodes, not only the new ones.", "--refresh", panel=NEW)
    ] = False,
    tables: Tables,
    safe_csv: options.SafeCsvOption = False,
    unfinished: options.UnfinishedOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Write the embeddings of a saved model's graph, of nodes added to it, or of another graph.

    `h3gnn embed run/ --new-features today.csv --new-edges today-edges.csv --out today.parquet`

    Of several linked tables, name a type: `h3gnn embed f1/ --type drivers --tables data/ --out
    drivers.parquet`, then `h3gnn embed f1/ --type drivers --new-tables season/ --out new.parquet`
    """
    options.check_output(out, *EMBEDDING_ENDINGS)
    asked = find_run(run, tables, device)
    run = asked.run
    if new_features is not None or new_edges is not None or new_tables is not None:
        if source.is_given:
            raise InputError("give new nodes or another graph, not both", code="two-graphs")
        model = options.open_run(run, device, unfinished=unfinished)
        if (new_tables is None) != (asked.database is None):
            name = "--new-features" if new_tables is None else "--new-tables"
            message = f"{name}: rows that were added to several tables are given by --new-tables, nodes of a "
            raise InputError(f"{message}single graph by --new-features", code="option-of-graph")
        if new_tables is not None:
            found = asked.extend(new_tables, refresh=refresh)
        else:
            found = options.extend_run(model, new_features, new_edges, source.reading(), refresh=refresh)
        write_rows(out, found.embedding, found.node_ids, safe=safe_csv)
        more = {"new_nodes": found.new, "refreshed": found.refreshed, "notes": list(found.notes)}
        more["repairs"] = [one.as_dict() for one in found.repairs]
        nodes, dimensions = found.embedding.shape
        which = f"all {nodes:,} nodes, {found.new:,} of them new" if refresh else f"{found.new:,} new nodes"
        _report(out, nodes, dimensions, found.graph, which, as_json, more)
        return
    if refresh:
        message = "--refresh is for an extended graph: give --new-features and --new-edges, or --new-tables"
        raise InputError(message, code="refresh-alone")
    source.check_unused()
    model = options.open_run(run, device, unfinished=unfinished, in_files=True)
    graph = model.graph_
    if source.is_given:
        graph = _with_drift(graph, source.load(in_files=True, plan=graph.plan, links=graph.link_columns))
        say_repairs(graph)
    if not graph.in_memory:
        write_result(out, model, graph)
    else:
        write_rows(out, model.transform(graph), graph.node_ids, safe=safe_csv)
    dimensions = len(model.get_feature_names_out())
    _report(out, graph.num_nodes, dimensions, graph, f"{graph.num_nodes:,} nodes", as_json, {})


def _with_drift(fitted: Graph | MappedGraph, other: Graph | MappedGraph) -> Graph | MappedGraph:
    """Return another graph with the notes on columns of unchanged numbers that differ from the fit."""
    from h3gnn.answers.extend import drift_of_numbers
    from h3gnn.graphs.structural import check_same_features
    from h3gnn.preprocessing import align_columns

    if not (fitted.in_memory and other.in_memory):
        return other
    check_same_features(fitted, other)
    aligned = other if other.provenance.structural else align_columns(fitted, other)
    return other.with_repairs(*drift_of_numbers(fitted, aligned))


def _report(
    out: Path, nodes: int, dimensions: int, graph: Any, which: str, as_json: bool, more: dict[str, Any]
) -> None:
    if as_json:
        result = {"nodes": nodes, "dimensions": dimensions, "embeddings": str(out), **more}
        echo_json(result | {"provenance": graph.provenance.as_dict()})
    else:
        typer.echo(f"wrote {out}: {which}, {dimensions:,} dimensions")
