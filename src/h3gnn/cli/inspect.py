"""`h3gnn inspect`: what kind of graph is this?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.source import Source, takes_graph

if TYPE_CHECKING:
    from h3gnn.tables.plan import TablePlan


@takes_graph
def inspect(
    *,
    source: Source,
    as_json: settings.JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the picture into this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Say what kind of graph this is: size, degrees, homophily, and what that means for this method.

    Of your own tables it also says what each column of the features holds and how it becomes numbers:

    `h3gnn inspect --edges transactions.csv --features accounts.csv`

    Where that is wrong, `--columns zip=category,opened=date:dmy` says it, here, in `fit` and elsewhere.
    """
    from h3gnn.graphs.profile import profile

    loaded = source.load()
    measured = profile(loaded)
    if plot is not None:
        from h3gnn.report.graphics import plot_profile

        plot_profile(measured, plot)
    if as_json:
        typer.echo(json.dumps(measured.as_dict(), indent=2, ensure_ascii=False))
        return
    _print_table(measured)
    if loaded.plan is not None:
        _print_plan(loaded.plan)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _print_table(measured: Any) -> None:
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
