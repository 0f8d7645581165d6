"""Describe graphs, benchmarks and methods: `h3gnn inspect`, `datasets`, `download` and `methods`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import DataDirOption, File, Source, Text, argument, option, takes_graph
from h3gnn.cli.output import ask_questions, echo_json, echo_written, is_terminal, print_table, say
from h3gnn.errors import InputError, counted
from h3gnn.resources import new_table, show

if TYPE_CHECKING:
    from h3gnn.experiments.methods import Method
    from h3gnn.graphs.profile import GraphProfile
    from h3gnn.tables.database import OpenedTables
    from h3gnn.tables.schema import Schema


@takes_graph
def inspect(
    *,
    source: Source,
    as_json: options.JsonOption = False,
    plot: Annotated[File, option("Draw the profile into this file (.png, .svg, .pdf).")] = None,
    write: Annotated[File, option("Write the schema of several tables into this file (.toml).")] = None,
    accept: Annotated[
        Text, option("Accept the proposals of these questions about several tables: 1,3 or all.")
    ] = None,
    details: Annotated[bool, option("Show the columns of several tables, and what becomes of them.")] = False,
) -> None:
    """Show a graph (size, homophily, encoding of columns), or several tables (keys, links, times, columns).

    `h3gnn inspect --edges transactions.csv --features accounts.csv --columns zip=category`

    `h3gnn inspect shop.sqlite --details --write graph.toml`

    Several tables are a folder, an Excel workbook, SQLite, DuckDB, a PostgreSQL URL or a schema file.
    Possible keys, links and times are asked about at the terminal; `--accept 1,3` answers beforehand.
    """
    from h3gnn.graphs.profile import profile

    if source.graph is not None and source.names_tables:
        kinds = options.parse_columns(source.columns or [])
        _inspect_tables(source.graph, write, accept, kinds, details=details, as_json=as_json)
        return
    given = {"--write": write is not None, "--accept": accept is not None, "--details": details}
    if any(given.values()):
        message = f"{next(one for one in given if given[one])} needs several tables"
        message += ": a folder, a workbook, a database or a URL"
        raise InputError(message, code="option-needs-tables")
    loaded = source.load()
    measured = profile(loaded)
    if plot is not None:
        from h3gnn.report.figures import plot_profile

        plot_profile(measured, plot)
    if as_json:
        echo_json(measured.as_dict())
        return
    _print_profile(measured)
    if loaded.plan is not None:
        title = f"features, column by column ({len(loaded.plan.names):,} numbers for each node):"
        _print_plan(title, loaded.plan.lines())
    if loaded.link_columns is not None:
        links = loaded.link_columns
        _print_plan(f"link columns ({len(links.names):,} numbers for each node):", links.plan.lines())
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _inspect_tables(
    given: str,
    write: Path | None,
    accept: str | None,
    kinds: dict[str, str],
    *,
    details: bool,
    as_json: bool,
) -> None:
    """Show the schema of several tables, inferred, or that of a schema file compared with its tables."""
    from h3gnn.storage.atomic import write_atomically
    from h3gnn.tables.database import OpenedTables

    if write is not None:
        options.check_output(write, ".toml")
    asks = accept is None and write is not None and not as_json and is_terminal()
    opened = OpenedTables.open(given)
    schema = opened.schema(accept=ask_questions if asks else accept)
    if write is not None:
        where = given if "://" in given else os.path.relpath(given, write.absolute().parent)
        write_atomically(write, schema.to_toml(where).encode())
    if as_json:
        shown = schema.as_dict()
        for name, one in shown["tables"].items():
            one["dated_by"] = [*schema.dated_by(name)]
        shown |= {"source": opened.name, "notes": opened.notes, "schema": write}
        echo_json(shown | {"encoding": column_uses(opened, schema, kinds)})
        return
    for note in opened.notes:
        say(f"note: {note}")
    _print_schema(schema, column_uses(opened, schema, kinds) if details else {})
    if not details:
        say("--details shows the columns, and what becomes of them")
    echo_written(write)


def column_uses(
    opened: OpenedTables, schema: Schema, kinds: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return for each column of each table what it holds, per cent missing, and what becomes of it."""
    from h3gnn.tables.database import read_database
    from h3gnn.tables.plan import TablePlan
    from h3gnn.tables.schema import Profile

    graph, found = read_database(opened, schema, columns=kinds), dict[str, list[dict[str, Any]]]()
    for name, table in schema.tables.items():
        plan, profile = graph.type(name).plan, Profile(name, opened.frame(name))
        columns = () if plan is None else plan.columns
        lines = {one.name: TablePlan((one,)).lines()[0] for one in columns}
        roles = dict.fromkeys(table.key, "identifies the row")
        roles |= {one: f"nodes ({kind})" for kind, of in table.nodes.items() for one in of}
        roles |= {one: f"link to {link.to}" for link in table.links for one in link.columns}
        found[name] = []
        for column in profile.names:
            _, holds, becomes = lines.get(column, ("", "no feature", "left out"))
            if column in roles:
                holds, becomes = "key" if column in table.key else "link", roles[column]
            becomes += ", and the time of the row" if column == table.time else ""
            missing = 100 * float(profile.texts(column).isna().mean()) if table.rows else 0.0
            found[name].append({"column": column, "holds": holds, "missing": missing, "becomes": becomes})
    return found


def _print_schema(schema: Schema, uses: dict[str, list[dict[str, Any]]]) -> None:
    for name, table in schema.tables.items():
        parts = [counted(table.rows, "row"), f"key {' + '.join(table.key)}" if table.key else "no key"]
        parts += [f"time {table.time}"] * bool(table.time) + ["link table"] * schema.is_link_table(name)
        if dated_by := schema.dated_by(name):
            parts.append(f"no time of its own: dated by {' and '.join(dated_by)}")
        typer.echo(f"{name}: {', '.join(parts)}")
        for link in table.links:
            share = f"{100 * link.share:.4g} % of its values are keys there"
            typer.echo(f"  {' + '.join(link.columns)} -> {link.to} ({share})")
        if name in uses:
            gaps = [f", {one['missing']:.2g} % missing" if one["missing"] else "" for one in uses[name]]
            pairs = zip(uses[name], gaps, strict=True)
            _print_plan(
                "", [(f"  {one['column']}", one["holds"] + gap, one["becomes"]) for one, gap in pairs]
            )
    for number, question in schema.numbered.items():
        typer.echo(f"question {number}: {question.table}: {question.text}")
    if schema.acceptable:
        typer.echo(f"Accept some with `--accept {schema.acceptable} --write graph.toml`, or edit that file.")


def _print_profile(measured: GraphProfile) -> None:
    table = new_table(measured.source, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in _rows(measured):
        table.add_row(name, value)
    show(table)
    for repair in measured.repairs:
        typer.echo(f"note: {repair.message}")
    typer.echo(measured.verdict)


def _print_plan(title: str, lines: list[tuple[str, str, str]]) -> None:
    """Print one line for each column of a table: its type, the reason, and its encoding."""
    names = max(len(name) for name, _, _ in lines)
    if title:
        typer.echo(title)
    for name, holds, becomes in lines:
        typer.echo(f"  {name:<{names}}  {holds} -> {becomes}")


def _rows(measured: GraphProfile) -> Iterator[tuple[str, str]]:
    degrees, pairs = measured.degrees, (measured.edges - measured.self_loops) // 2
    kind = " directed" if measured.directed else f" ({pairs:,} undirected pairs)"
    yield "nodes", f"{measured.nodes:,}"
    yield "edges", f"{measured.edges:,}{kind}"
    yield "self-loops", f"{measured.self_loops:,}"
    yield "edge weights", "yes" if measured.weighted else "no"
    yield "components", f"{measured.components:,} (largest {measured.largest_component:,} nodes)"
    yield "isolated nodes", f"{measured.isolated:,}"
    degree_range = f"{degrees.minimum} to {degrees.maximum:,}"
    yield "degree", f"mean {degrees.mean:.2f}, median {degrees.median:g}, {degree_range}"
    yield "features", f"{measured.features:,} ({100 * measured.feature_density:.2f} % not 0)"
    yield "smoothness", f"{_figure(measured.smoothness)} (centred {_figure(measured.centred_smoothness)})"
    if measured.classes:
        labelled = f"{measured.labelled:,} nodes labelled, {measured.splits} split(s)"
        yield "classes", f"{measured.classes} ({labelled})"
    if measured.adjusted_homophily_interval is not None:
        yield "edges between labelled nodes", f"{measured.labelled_pairs:,}"
    if measured.edge_homophily is not None:
        yield from _homophily_rows(measured)


def _homophily_rows(measured: GraphProfile) -> Iterator[tuple[str, str]]:
    informativeness = measured.label_informativeness, measured.label_informativeness_interval
    yield "edge homophily", _figure(measured.edge_homophily)
    yield "node homophily", _figure(measured.node_homophily)
    yield "class-insensitive homophily", _figure(measured.class_insensitive_homophily)
    yield "adjusted homophily", _figure(measured.adjusted_homophily, measured.adjusted_homophily_interval)
    yield "label informativeness", _figure(*informativeness)
    for name, share in (measured.class_homophily or {}).items():
        yield f"  {f'class {name}' if name.isdecimal() else name}", _figure(share)
    yield "nodes with mixed neighbours", f"{100 * (measured.mixed_share or 0):.0f} %"
    counts = measured.node_homophily_histogram or ()
    yield "nodes by homophily, 0 to 1", " ".join(f"{count:,}" for count in counts)


def _figure(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Return a figure, with its 95 % interval if few labels make it uncertain."""
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def datasets(as_json: options.JsonOption = False, data_dir: DataDirOption = None) -> None:
    """List the benchmark graphs: size, homophily, source, licence, and whether they are cached.

    `h3gnn datasets --json`
    """
    from h3gnn.graphs.datasets import NAMED_TABLES, benchmarks

    names = ("name", "nodes", "edges", "features", "classes", "edge_homophily", "source", "licence")
    rows = [
        {name: getattr(one, name) for name in names}
        | {"cached": one.is_cached(data_dir), "notes": list(one.notes)}
        for one in benchmarks().values()
    ]
    if as_json:
        echo_json(rows)
        return
    headings, cells = (*names[:5], "homophily", "cached"), []
    for row in rows:
        sizes = [f"{row[name]:,}" for name in names[1:5]]
        cells.append([row["name"], *sizes, f"{row['edge_homophily']:.3f}", "yes" if row["cached"] else "no"])
    print_table("", headings, cells, right=headings[1:6])
    for source in dict.fromkeys((row["source"], row["licence"]) for row in rows):
        graphs = ", ".join(row["name"] for row in rows if (row["source"], row["licence"]) == source)
        typer.echo(f"source: {source[0]} (licence: {source[1]}): {graphs}")
    for note in (note for row in rows for note in row["notes"]):
        typer.echo(f"note: {note}")
    typer.echo(
        "Edges are counted directed: an undirected edge counts twice. Homophily is that of edges. "
        "Also `pyg:Class/Name` for any single graph of PyG, as in pyg:Amazon/Photo."
    )
    for name, about in NAMED_TABLES.items():
        typer.echo(f"tables, by `h3gnn download {name}`: {about.about}")


def download(
    name: Annotated[str, argument("Name of the tables, such as bitcoin-otc (`h3gnn datasets`).", "NAME")],
    out: Annotated[Path, option("Folder to write the CSV files to.", "--out")],
    data_dir: DataDirOption = None,
) -> None:
    """Download public tables, verify them by their SHA-256, and write them as CSV files.

    `h3gnn download bitcoin-otc --out bitcoin/`
    """
    from h3gnn.graphs.datasets import NAMED_TABLES, read_named_tables
    from h3gnn.storage.atomic import write_atomically

    written = {out / file: text.encode() for file, text in read_named_tables(name, data_dir).items()}
    for path, content in written.items():
        if path.exists() and path.read_bytes() != content:
            message = f"{path} exists with other content; remove it, or name another folder with --out"
            raise InputError(message, code="file-exists")
    out.mkdir(parents=True, exist_ok=True)
    for path, content in written.items():
        write_atomically(path, content)
    about = NAMED_TABLES[name.lower()]
    say(f"{about.about}. Source: {about.source}. Licence: {about.licence}")
    echo_written(*written)


def methods(
    name: Annotated[Text, argument("A method, to show its details.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the methods that `h3gnn compare` can run: name, year, inputs and paper.

    `h3gnn methods greet` shows cost, settings, search ranges and published settings of one method.
    """
    from h3gnn.experiments.methods import METHODS, find_methods

    chosen = list(METHODS.values()) if name is None else find_methods(name)
    rows = [_about(method) for method in chosen]
    if as_json:
        echo_json(rows)
    elif name is None:
        _print_methods(rows)
    else:
        for row in rows:
            _print_method(row)


def _about(method: Method) -> dict[str, Any]:
    system = method.system
    group = "supervised" if method.supervised else "h3gnn" if method.has_chance else "no training"
    about: dict[str, Any] = {"name": method.name, "title": method.title}
    about |= {"group": group, "year": None, "paper": None}
    about |= {"sees": list(method.sees), "estimator": None, "cost": None, "settings": dict(method.settings)}
    about |= {
        "ranges": {key: list(values) for key, values in method.ranges.items()},
        "published": {},
        "source": None,
    }
    if system is not None:
        same = ("title", "group", "year", "paper", "cost", "published", "source")
        about |= {name: getattr(system, name) for name in same}
        about["estimator"] = f"h3gnn.baselines.{system.estimator}"
        about["ranges"] = {key: list(values) for key, values in system.ranges.items()}
    return about


def _print_methods(rows: list[dict[str, Any]]) -> None:
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = [
            [row["name"], str(row["year"] or ""), ", ".join(row["sees"]), row["paper"] or row["title"]]
            for row in rows
            if row["group"] == group
        ]
        print_table(group, ("name", "year", "sees", "paper"), cells)
    typer.echo("`h3gnn methods NAME` shows one; `h3gnn compare GRAPH --methods NAME,NAME` runs them.")


def _print_method(row: dict[str, Any]) -> None:
    typer.echo(f"{row['name']}: {row['title']}")
    for key in ("paper", "year", "group", "cost", "estimator"):
        if row[key] is not None:
            typer.echo(f"  {key}: {row[key]}")
    typer.echo(f"  sees: {', '.join(row['sees'])}")
    for key in ("settings", "ranges", "published"):
        if row[key]:
            typer.echo(f"  {key}:")
            for name, value in row[key].items():
                typer.echo(f"    {name}: {value}")
    if row["source"]:
        typer.echo(f"  published settings from: {row['source']}")
