"""Questions to a fitted model: `h3gnn embed`, `similar`, `anomalies`, `links` and `export`."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.databases import find_run, is_about_tables, open_links, split_type
from h3gnn.cli.options import File, Number, Source, Tables, Text, Use, argument, option, takes_graph
from h3gnn.cli.output import (
    EMBEDDING_ENDINGS,
    echo_json,
    echo_written,
    is_first,
    print_table,
    say,
    say_repairs,
    work_alone,
    write_result,
    write_rows,
    write_table,
)
from h3gnn.errors import InputError, check_choice

if TYPE_CHECKING:
    import pandas as pd

    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph


LONGEST = 90
"""Letters of a reason in a printed table."""
SHOWN_LINKS = 20
MOST_SHOWN = 5
"""Users and items for which recommendations are printed; the file has all."""
_recommend = partial(option, panel="Recommendations")
EXPORTS = {
    "parquet": "embeddings.parquet",
    "csv": "embeddings.csv",
    "npy": "embeddings.npy",
    "tensorboard": "projector",
    "graphml": "graph.graphml",
    "neo4j": "neo4j",
    "faiss": "embeddings.faiss",
}
"""The default file or folder of each export format."""


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows


@takes_graph
def similar(
    *,
    run: options.RunArgument,
    nodes: Annotated[
        list[str], argument("Ids of the query nodes; of several tables, the type and ids or names.", "NODE…")
    ],
    k: Annotated[int, option("Number of similar nodes for each query.", min=1)] = 10,
    among: Annotated[Text, option("Candidates: comma-separated ids; default all nodes.")] = None,
    search: Annotated[
        str,
        option("auto (exact up to 100,000 nodes), exact, or approximate, by an index that the run keeps."),
    ] = "auto",
    out: options.TableOption = None,
    tables: Tables,
    use: Use,
) -> None:
    """List the most similar nodes by cosine similarity, and what they share.

    `h3gnn similar run/ ann bob --k 5`

    Of several linked tables, the type comes first:
    `h3gnn similar f1/ drivers "Lewis Hamilton" --tables data/`
    """
    options.check_table(out)
    tables, nodes = split_type(run, nodes, tables)
    candidates = [] if among is None else among.split(",")
    tables.check_settings(run)
    found = find_run(run, tables, use.device, [*nodes, *candidates])
    model = use.open(found.run, in_files=True)
    options.keep_embedding(model, found.run)
    others = found.keys(model, candidates) or None
    _say_search(search, model, others)
    table = found.with_names(model.similar(found.keys(model, nodes), k, among=others, search=search))
    options.keep_index(model, found.run)
    if out is not None:
        write_table(out, table, safe=use.safe_csv)
    if use.as_json:
        echo_json(_records(table))
        return
    for query, rows in table.groupby("node", sort=False):
        cells = [_similar_cells(row) for row in _records(rows)]
        headings = ["node", "cosine", "edge", "shared neighbours", "most unusual in common"]
        if found.database is not None:  # nodes that are linked rows, in the file
            headings, cells = _without(headings, cells, {"edge", "shared neighbours"})
        headings, cells = _without(
            headings, cells, {one for one, *of in zip(headings, *cells, strict=True) if not any(of)}
        )
        name = f" {rows['name'].iloc[0]}" if "name" in rows else ""
        print_table(f"Most similar to {query}{name}", headings, cells, right=("cosine",))
    if out is None:
        typer.echo("--out FILE writes further reasons, and the agreement in each part of the embedding.")
    echo_written(out)


def _say_search(search: str, model: H3GNN, among: Any) -> None:
    """Report when an index is used, or built."""
    from h3gnn.answers.similarity import searches_exactly

    nodes, stored = model.graph_.num_nodes, model.inference_.stored
    indexed = stored is not None and stored.index is not None
    if among is None and not searches_exactly(search, nodes, indexed=indexed):
        how = (
            "approximate search by the index of the run"
            if indexed
            else f"building an index of {nodes:,} nodes"
        )
        say(f"{how}; --search exact compares all nodes")


def _without(
    headings: list[str], cells: list[list[str]], dropped: Collection[str]
) -> tuple[list[str], list[list[str]]]:
    """Return a table without some columns."""
    kept = [at for at, one in enumerate(headings) if one not in dropped]
    return [headings[at] for at in kept], [[row[at] for at in kept] for row in cells]


def _similar_cells(row: dict[str, Any]) -> list[str]:
    shared, more = ", ".join(map(str, row["neighbours"])), len(row["neighbours"]) < row["shared_neighbours"]
    return [
        " ".join(filter(None, [str(row["similar"]), row.get("similar_name")])),
        f"{row['similarity']:.3f}",
        "yes" if row["linked"] else "",
        f"{row['shared_neighbours']}: {shared}{', …' if more else ''}" if shared else "",
        _shorter(next(iter(row["reasons"]), "")),
    ]


def _shorter(text: str) -> str:
    """Return a text without its middle if it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 3]} … {text[-LONGEST * 2 // 3 :]}"


@takes_graph
def anomalies(
    *,
    run: options.RunArgument,
    node_type: Annotated[Text, argument("Of several tables: the table or node type.", "TYPE")] = None,
    top: Annotated[int, option("Number of nodes to show; the file has all.", min=1)] = 20,
    out: options.TableOption = None,
    tables: Tables,
    use: Use,
) -> None:
    """List the nodes that their neighbours predict worst, and which of their columns are unusual.

    `h3gnn anomalies run/ --out anomalies.csv`

    Of several linked tables, name one: `h3gnn anomalies bank/ transfers --tables data/`

    Columns: features is the distance of a node's columns from what its neighbours and their embeddings
    predict, neighbours the sum of its distances to them. The score is -log10 of the share of nodes with at
    least such a distance, the larger of the two. reason has the columns furthest from usual, and from which
    to which value nine tenths of all nodes are. Not in the score are difficulty, the percentile of the node's
    loss in training, and disagreement, 1 - the correlation of the models' views of it.
    """
    options.check_table(out)
    tables.check_settings(run)
    found = find_run(run, replace(tables, type=node_type or tables.type), use.device)
    model = use.open(found.run)
    table = found.with_names(model.anomalies(edges=found.has_links))
    if out is not None:
        write_table(out, table, safe=use.safe_csv)
    rows, headings = _records(table.head(top)), list(map(str, table))
    if use.as_json:
        parts = [name for name in headings if name not in ("node", "name", "score", "reason")]
        result = {"nodes": len(table), "parts": parts, "anomalies": rows}
        echo_json(result | {"out": out, "provenance": model.graph_.provenance.as_dict()})
        return
    headings = [one for one in ("node", "name", "score", "features", "neighbours", "reason") if one in table]
    numbers = [one for one in headings if one not in ("node", "name", "reason")]
    cells = [[f"{row[one]:.3f}" if one in numbers else str(row[one]) for one in headings] for row in rows]
    print_table(f"The top {len(rows)} of {len(table):,} nodes", headings, cells, right=numbers)
    typer.echo(
        "score 2: one node in 100 has such a distance to what its neighbours predict (features"
        f"{'), or to its neighbours (neighbours' if 'neighbours' in numbers else ''}); 3: one in 1,000. "
        "difficulty and disagreement of training, which do not count, are in --out FILE."
    )
    echo_written(out)


@takes_graph
def links(
    *,
    run: options.RunArgument,
    nodes: Annotated[
        list[str] | None,
        argument("Only pairs with one of these nodes; of several tables, the table with the links.", "NODE…"),
    ] = None,
    top: Annotated[
        Number, option("Number of pairs (default 100), or of items for each user (default 20).", min=1)
    ] = None,
    check: Annotated[str, option("refit (without some edges, to score on them) or none.")] = "refit",
    to: Annotated[
        list[str] | None,
        _recommend("Key or name of a user to whom items are recommended; default: all.", "--for"),
    ] = None,
    together: Annotated[
        list[str] | None,
        _recommend("Key or name of an item: list what is chosen together with it.", "--together"),
    ] = None,
    users: Annotated[Text, _recommend("Who chooses: a type, or a column that leads to it.")] = None,
    items: Annotated[Text, _recommend("What is chosen: a type, or a column that leads to it.")] = None,
    weight: Annotated[Text, _recommend("Column with the strength of each link.", metavar="COLUMN")] = None,
    at_least: Annotated[float | None, _recommend("Weaker links are no choice.", metavar="NUMBER")] = None,
    out: options.TableOption = None,
    tables: Tables,
    use: Use,
) -> None:
    """List the most probable missing edges, with scores on hidden edges.

    `h3gnn links run/ --top 50 --out links.csv`

    Of several linked tables, recommend items to users: `h3gnn links shop/ ratings --for 17 --tables data/
    --weight stars --at-least 4`, or `h3gnn links shop/ orderlines --together "green tea"`.
    """
    options.check_table(out)
    check_choice("--check", check, ("refit", "none"))
    how: dict[str, Any] = {"users": users, "items": items, "weight": weight, "at_least": at_least}
    if is_about_tables(run, tables):
        database, (table, *more) = open_links(run, nodes or [], tables, use.device)
        wanted = [*more, *(to or [])]
        if together and wanted:
            raise InputError("--together lists items for items: omit --for", code="option-conflict")
        if together:
            listed = database.together(table, together, top or SHOWN_LINKS, **how)
        else:
            listed = database.recommend(table, wanted or None, top or SHOWN_LINKS, **how)
        found = (database.recommender_of_items if together else database.recommender)(table, **how)
        if out is not None:
            write_table(out, listed, safe=use.safe_csv)
        if use.as_json:
            content = {"links": _records(listed), "held_out": found.scores, "out": out}
            echo_json(content | {"recommender": database.options_of(found)})
            return
        _print_recommended(listed, found.scores, database.options_of(found))
        echo_written(out)
        return
    tables.check_unused(run)
    if given := [name for name, one in {"for": to, "together": together, **how}.items() if one is not None]:
        raise options.needs_tables(given[0], run)
    _missing_edges(run, nodes, top or 100, check, out, use)


def _print_recommended(table: pd.DataFrame, scores: dict[str, Any], options: dict[str, Any]) -> None:
    """Print the items for some users or items, and how well hidden items were ranked."""
    used = {"users": scores["user"], "items": scores["item"]} | {
        key: one for key, one in options.items() if key in ("weight", "at_least")
    }
    given = ", ".join(f"{key.replace('_', ' ')} {one}" for key, one in used.items())
    typer.echo(f"{options['table']}: {given}")
    first = str(table.columns[0])
    for key, rows in list(table.groupby(first, sort=False))[:MOST_SHOWN]:
        name = f" {rows[f'{first}_name'].iloc[0]}" if f"{first}_name" in rows else ""
        shown = rows.drop(columns=[first, f"{first}_name"], errors="ignore")
        cells = [
            [f"{one:.3f}" if isinstance(one, float) else str(one) for one in row.values()]
            for row in _records(shown)
        ]
        what = "Recommended to" if first == "user" else "Together with"
        headings = [str(one).replace("similar", "item").replace("_", " ") for one in shown]
        print_table(f"{what} {key}{name}", headings, cells)
    if table[first].nunique() > MOST_SHOWN:
        typer.echo(f"{table[first].nunique():,} in all: --out FILE writes them")
    if first == "item":
        typer.echo(
            "score: the cosine of the baskets that hold either item, smaller if few hold both; together: the "
            "baskets with both; lift: how many times as many as by chance"
        )
    for group in ("known_users", "new_users") if first == "user" else ():
        one, title = scores[group], group.replace("_", " ")
        if one["measured"]:
            every = {"chosen": one["chosen"], **one["scorers"]}
            main = next(iter(one["chosen"]))
            figures = [
                f"{name} {of[main]['mean']:.3f} ± {of[main]['error']:.3f}" for name, of in every.items()
            ]
            typer.echo(f"{title}, {main}: {', '.join(figures)}")
        typer.echo(f"{title}: {one['how']}")
    for note in scores["notes"]:
        say(f"note: {note}")


def _missing_edges(
    run: Path,
    nodes: list[str] | None,
    top: int,
    check: str,
    out: Path | None,
    use: Use,
) -> None:
    model = use.open(run).set_params(verbose=True)
    if check == "refit":
        seconds = model.cost_.get("seconds")
        took = "" if seconds is None else f", which took {seconds:.0f} s the first time"
        say(f"hiding edges and fitting again without them{took} …")
    found = model.links(nodes or None, top=top, check=check == "refit")
    if out is not None:
        write_table(out, found.table, safe=use.safe_csv)
    rows = _records(found.table)
    if use.as_json:
        result = {"links": rows, "held_out": found.scores, "how": found.how, **found.counts}
        echo_json(result | {"out": out, "provenance": model.graph_.provenance.as_dict()})
        return
    cells = [
        [f"{one:.3f}" if isinstance(one, float) else str(one) for one in row.values()]
        for row in rows[:SHOWN_LINKS]
    ]
    headings = [str(name).replace("_", " ") for name in found.table]
    print_table(f"The top {len(cells)} of {len(rows):,} pairs", headings, cells)
    for against, scores in found.scores.items():
        rules = [name for name in scores if name.startswith("auc_of_") and name != "auc_of_similarity"]
        others = [f"{name.removeprefix('auc_of_').replace('_', ' ')} {scores[name]:.3f}" for name in rules]
        typer.echo(
            f"hidden edges against {against}: AUC {scores['auc']:.3f} (similarity alone "
            f"{scores['auc_of_similarity']:.3f}, {', '.join(others)}), average precision "
            f"{scores['average_precision']:.3f}"
        )
    typer.echo(f"score: {found.how}")
    echo_written(out)


@takes_graph
def export(
    *,
    run: options.RunArgument,
    to: Annotated[str, option(f"The format: {', '.join(EXPORTS)}.")],
    out: Annotated[File, option("The file or folder to write.")] = None,
    tables: Tables,
    dimensions: Annotated[Number, option("Reduce to this many principal components.", min=1)] = None,
    use: Use,
) -> None:
    """Write embeddings and graph for other programs.

    `h3gnn export run/ --to tensorboard` (then `tensorboard --logdir projector`), `--to graphml` (Gephi),
    `--to neo4j` (for `neo4j-admin database import full`), `--to faiss --dimensions 256`. Of several linked
    tables: `h3gnn export f1/ --type drivers --to parquet`.
    """
    from h3gnn.answers.export import FOLDERS, MAX_ATTRIBUTES, WRITERS, Exported, check_folder, reduce_columns
    from h3gnn.graphs.ids import check_ids

    check_choice("--to", to, tuple(EXPORTS))
    path = out or Path(EXPORTS[to])
    if to in FOLDERS:
        check_folder(path, to)
    else:
        options.check_output(path, Path(EXPORTS[to]).suffix)
    if path.absolute() == run.absolute():
        raise InputError(f"{path} is the run itself; choose another folder (--out)", code="output-is-run")
    model = use.open(find_run(run, tables, use.device).run)
    check_ids(model.graph_.node_ids, path)
    embedding = model.embedding_ if dimensions is None else reduce_columns(model.embedding_, dimensions)
    if to in WRITERS:
        written = WRITERS[to](path, Exported(model.graph_, embedding, use.safe_csv))
    else:
        write_rows(path, embedding, model.graph_.node_ids, safe=use.safe_csv)
        written = [path, *([path.with_suffix(".ids.csv")] if to == "npy" else [])]
    nodes, columns = embedding.shape
    if to == "graphml" and columns > MAX_ATTRIBUTES:
        say(
            f"note: the GraphML file has two coordinates only, since it cannot hold {columns:,} columns; "
            f"--dimensions {MAX_ATTRIBUTES} includes that many"
        )
    if use.as_json:
        result = {"format": to, "files": list(map(str, written)), "nodes": nodes, "dimensions": columns}
        echo_json(result | {"provenance": model.graph_.provenance.as_dict()})
    else:
        echo_written(*written)


@takes_graph
def embed(
    *,
    run: options.RunArgument,
    source: Source,
    out: Annotated[Path, option("The file: .parquet, .csv or .npy.")] = Path("embeddings.parquet"),
    new_features: options.NewFeaturesOption = None,
    new_edges: options.NewEdgesOption = None,
    new_tables: options.NewTablesOption = None,
    refresh: Annotated[
        bool, option("Embed all nodes, not only the new ones.", "--refresh", panel=options.NEW)
    ] = False,
    tables: Tables,
    use: Use,
) -> None:
    """Write the embeddings of a saved model's graph, of nodes added to it, or of another graph.

    `h3gnn embed run/ --new-features today.csv --new-edges today-edges.csv --out today.parquet`

    Of several linked tables, name a type: `h3gnn embed f1/ --type drivers --tables data/ --out
    drivers.parquet`, then `h3gnn embed f1/ --type drivers --new-tables season/ --out new.parquet`
    """
    options.check_output(out, *EMBEDDING_ENDINGS)
    if is_about_tables(run, tables) or new_features is not None or new_edges is not None:
        work_alone()
    tables.check_settings(run)
    asked = find_run(run, tables, use.device)
    run = asked.run
    if new_features is not None or new_edges is not None or new_tables is not None:
        if source.is_given:
            raise InputError("give new nodes or another graph, not both", code="two-graphs")
        model = use.open(run)
        if (new_tables is None) != (asked.database is None):
            name = "--new-features" if new_tables is None else "--new-tables"
            message = f"{name}: rows that were added to several tables are given by --new-tables, nodes of a "
            raise InputError(f"{message}single graph by --new-features", code="option-of-graph")
        if new_tables is not None:
            found = asked.extend(new_tables, refresh=refresh)
        else:
            found = options.extend_run(model, new_features, new_edges, source.reading(), refresh=refresh)
        write_rows(out, found.embedding, found.node_ids, safe=use.safe_csv)
        more = {"new_nodes": found.new, "refreshed": found.refreshed, "notes": list(found.notes)}
        more["repairs"] = [one.as_dict() for one in found.repairs]
        nodes, dimensions = found.embedding.shape
        which = f"all {nodes:,} nodes, {found.new:,} of them new" if refresh else f"{found.new:,} new nodes"
        _report(out, nodes, dimensions, found.graph, which, use.as_json, more)
        return
    if refresh:
        message = "--refresh is for an extended graph: give --new-features and --new-edges, or --new-tables"
        raise InputError(message, code="refresh-alone")
    source.check_unused()
    model = use.open(run, in_files=True)
    graph = model.graph_
    if source.is_given:
        graph = _with_drift(graph, source.load(in_files=True, plan=graph.plan, links=graph.link_columns))
        say_repairs(graph)
    else:
        options.keep_embedding(model, run)
    if not graph.in_memory:
        write_result(out, model, graph)
    else:
        work_alone()
        write_rows(out, model.transform(graph), graph.node_ids, safe=use.safe_csv)
    dimensions = len(model.get_feature_names_out())
    _report(out, graph.num_nodes, dimensions, graph, f"{graph.num_nodes:,} nodes", use.as_json, {})


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
    if not is_first():
        return
    if as_json:
        result = {"nodes": nodes, "dimensions": dimensions, "embeddings": str(out), **more}
        echo_json(result | {"provenance": graph.provenance.as_dict()})
    else:
        typer.echo(f"wrote {out}: {which}, {dimensions:,} dimensions")
        if dimensions > graph.num_nodes > 1:
            few = min(64, graph.num_nodes - 1)
            say(
                "note: there are more dimensions than nodes; principal components are written by "
                f"`h3gnn export RUN --to parquet --dimensions {few}`"
            )
