"""What is available and what it looks like: `h3gnn inspect`, `datasets` and `methods`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import DataDirOption, Source, option, takes_graph
from h3gnn.cli.output import echo_json, print_table

if TYPE_CHECKING:
    from h3gnn.experiments.methods import Method
    from h3gnn.tables.plan import TablePlan


@takes_graph
def inspect(
    *,
    source: Source,
    as_json: options.JsonOption = False,
    plot: Annotated[
        Path | None, option("Draw the profile into this file (.png, .svg, .pdf).", "--plot")
    ] = None,
) -> None:
    """Show size, degrees and homophily of a graph, and how the columns of its features are encoded.

    `h3gnn inspect --edges transactions.csv --features accounts.csv --columns zip=category`
    """
    from h3gnn.graphs.profile import profile

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
        _print_plan(loaded.plan)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _print_profile(measured: Any) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title=escape(measured.source), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in _rows(measured):
        table.add_row(escape(name), escape(value))
    console.print(table)
    for repair in measured.repairs:
        console.print(f"note: {repair.message}", markup=False, highlight=False, soft_wrap=True)
    console.print(measured.verdict, markup=False, highlight=False, soft_wrap=True)


def _print_plan(plan: TablePlan) -> None:
    """Print one line for each column of the features: what it holds, why, and what becomes of it."""
    lines = plan.lines()
    names = max(len(name) for name, _, _ in lines)
    typer.echo(f"features, column by column ({len(plan.names):,} numbers for each node):")
    for name, holds, becomes in lines:
        typer.echo(f"  {name:<{names}}  {holds} -> {becomes}")


def _rows(measured: Any) -> Iterator[tuple[str, str]]:
    degrees = measured.degrees
    yield "nodes", f"{measured.nodes:,}"
    yield "edges", f"{measured.edges:,} directed" if measured.directed else _undirected(measured)
    yield "self-loops", f"{measured.self_loops:,}"
    yield "edge weights", "yes" if measured.weighted else "no"
    yield "components", f"{measured.components:,} (largest {measured.largest_component:,} nodes)"
    yield "isolated nodes", f"{measured.isolated:,}"
    yield (
        "degree",
        f"mean {degrees.mean:.2f}, median {degrees.median:g}, {degrees.minimum} to {degrees.maximum:,}",
    )
    yield "features", f"{measured.features:,} ({100 * measured.feature_density:.2f} % not 0)"
    yield "smoothness", f"{_figure(measured.smoothness)} (centred {_figure(measured.centred_smoothness)})"
    if measured.classes:
        yield (
            "classes",
            f"{measured.classes} ({measured.labelled:,} nodes labelled, {measured.splits} split(s))",
        )
    if measured.adjusted_homophily_interval is not None:
        yield "edges between labelled nodes", f"{measured.labelled_pairs:,}"
    if measured.edge_homophily is not None:
        yield "edge homophily", _figure(measured.edge_homophily)
        yield "node homophily", _figure(measured.node_homophily)
        yield "class-insensitive homophily", _figure(measured.class_insensitive_homophily)
        yield "adjusted homophily", _within(measured.adjusted_homophily, measured.adjusted_homophily_interval)
        yield (
            "label informativeness",
            _within(measured.label_informativeness, measured.label_informativeness_interval),
        )
        for name, share in measured.class_homophily.items():
            yield f"  {f'class {name}' if name.isdecimal() else name}", _figure(share)
        yield "nodes with mixed neighbours", f"{100 * (measured.mixed_share or 0):.0f} %"
        yield (
            "nodes by homophily, 0 to 1",
            " ".join(f"{count:,}" for count in measured.node_homophily_histogram),
        )


def _undirected(measured: Any) -> str:
    pairs = (measured.edges - measured.self_loops) // 2
    return f"{measured.edges:,} ({pairs:,} undirected pairs)"


def _within(value: float | None, interval: tuple[float, float] | None) -> str:
    """Return a figure with its 95 % interval, where few labels leave it open."""
    if value is None or interval is None:
        return _figure(value)
    return f"{value:.3f} (95 %: {interval[0]:.2f} to {interval[1]:.2f})"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def datasets(as_json: options.JsonOption = False, data_dir: DataDirOption = None) -> None:
    """List the benchmark graphs: size, homophily, source, licence, and whether they are cached.

    `h3gnn datasets --json`
    """
    from h3gnn.graphs.datasets import benchmarks

    names = ("name", "nodes", "edges", "features", "classes", "edge_homophily", "source", "licence")
    rows = [
        {name: getattr(one, name) for name in names}
        | {"cached": one.is_cached(data_dir), "notes": list(one.notes)}
        for one in benchmarks().values()
    ]
    if as_json:
        echo_json(rows)
        return
    cells = [
        [
            row["name"],
            *(f"{row[name]:,}" for name in names[1:5]),
            f"{row['edge_homophily']:.3f}",
            "yes" if row["cached"] else "no",
        ]
        for row in rows
    ]
    headings = (*names[:5], "homophily", "cached")
    print_table("", headings, cells, right=headings[1:6])
    for line in _lines_below(rows):
        typer.echo(line)


def _lines_below(rows: list[dict[str, Any]]) -> Iterator[str]:
    for source in dict.fromkeys((row["source"], row["licence"]) for row in rows):
        names = ", ".join(row["name"] for row in rows if (row["source"], row["licence"]) == source)
        yield f"source: {source[0]} (licence: {source[1]}): {names}"
    for row in rows:
        yield from (f"note: {note}" for note in row["notes"])
    yield (
        "Edges are counted directed: an undirected edge counts twice. Homophily is that of edges. "
        "Also `pyg:Class/Name` for any single graph of PyG, as in pyg:Amazon/Photo."
    )


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to show its details.")] = None,
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
    return {
        "name": method.name,
        "title": system.title if system else method.title,
        "group": system.group if system else ("no training" if not method.has_chance else "h3gnn"),
        "year": system.year if system else None,
        "paper": system.paper if system else None,
        "sees": list(method.sees),
        "estimator": f"h3gnn.baselines.{system.estimator}" if system else None,
        "cost": system.cost if system else None,
        "settings": dict(method.settings),
        "ranges": {key: list(values) for key, values in system.ranges.items()} if system else {},
        "published": system.published if system else {},
        "source": system.source if system else None,
    }


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
