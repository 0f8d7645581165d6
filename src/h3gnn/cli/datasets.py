"""`h3gnn datasets`: which benchmark graphs are known by name."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from h3gnn.cli.source import DataDirOption

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def datasets(as_json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """List the benchmark graphs: size, homophily, source, licence, and whether they are cached."""
    from h3gnn.graphs.catalogue import benchmarks

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
    table = Table(title="Benchmark graphs", title_justify="left")
    table.add_column("name", no_wrap=True)
    for name in ("nodes", "edges", "features", "classes", "edge homophily"):
        table.add_column(name, justify="right")
    for name in ("source", "licence", "cached"):
        table.add_column(name)
    for row in rows:
        sizes = [f"{row[name]:,}" for name in ("nodes", "edges", "features", "classes")]
        words = [
            f"{row['edge_homophily']:.3f}",
            row["source"],
            row["licence"],
            "yes" if row["cached"] else "no",
        ]
        table.add_row(row["name"], *sizes, *words)
    console.print(table)
    for row in rows:
        for note in row["notes"]:
            console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        "Edges are counted directed: an undirected edge counts twice.", highlight=False, soft_wrap=True
    )
    console.print(
        "Also `pyg:Class/Name` for any single graph of PyG, as in pyg:Amazon/Photo.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
