"""`h3gnn datasets`: which benchmark graphs are known by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.source import DataDirOption


def datasets(as_json: settings.JsonOption = False, data_dir: DataDirOption = None) -> None:
    """List the benchmark graphs: size, homophily, source, licence, and whether they are cached."""
    from h3gnn.graphs.datasets import benchmarks

    rows = [
        {
            "name": one.name,
            "nodes": one.nodes,
            "edges": one.edges,
            "features": one.features,
            "classes": one.classes,
            "edge_homophily": one.edge_homophily,
            "source": one.source,
            "licence": one.licence,
            "cached": one.is_cached(data_dir),
            "notes": list(one.notes),
        }
        for one in benchmarks().values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_table(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    for name in ("nodes", "edges", "features", "classes", "homophily"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cached", no_wrap=True)
    for row in rows:
        sizes = [f"{row[name]:,}" for name in ("nodes", "edges", "features", "classes")]
        cached = "yes" if row["cached"] else "no"
        table.add_row(row["name"], *sizes, f"{row['edge_homophily']:.3f}", cached)
    console.print(table)
    for line in _lines_below(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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
