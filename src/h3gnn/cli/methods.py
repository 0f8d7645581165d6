"""`h3gnn methods`: what can be compared, whose it is, and what it sees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import settings

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.experiments.methods import Method

NameArgument = Annotated[
    str | None, typer.Argument(help="A method, to see all about it.", show_default=False)
]


def methods(name: NameArgument = None, as_json: settings.JsonOption = False) -> None:
    """List all that `h3gnn compare` can run: name, year, what it sees, and the paper.

    `h3gnn methods greet` shows one with its cost, its settings, what a search may choose from, and the
    settings that its authors published for each graph.
    """
    from h3gnn.experiments.methods import METHODS, find_methods

    chosen = list(METHODS.values()) if name is None else find_methods(name)
    rows = [_about(method) for method in chosen]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    elif name is None:
        _print_table(rows)
    else:
        for row in rows:
            _print_one(row)


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


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for group in dict.fromkeys(row["group"] for row in rows):
        table = Table(box=None, pad_edge=False, header_style="bold", title=group, title_justify="left")
        for heading in ("name", "year", "sees", "paper"):
            table.add_column(heading, no_wrap=heading in ("name", "year"))
        for row in rows:
            if row["group"] == group:
                sees = ", ".join(row["sees"])
                table.add_row(row["name"], str(row["year"] or ""), sees, row["paper"] or row["title"])
        console.print(table)
        console.print()
    console.print("`h3gnn methods NAME` shows one; `h3gnn compare GRAPH --methods NAME,NAME` runs them.")


def _print_one(row: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()

    def show(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    show(f"{row['name']}: {row['title']}")
    for key in ("paper", "year", "group", "cost", "estimator"):
        if row[key] is not None:
            show(f"  {key}: {row[key]}")
    show(f"  sees: {', '.join(row['sees'])}")
    for key in ("settings", "ranges", "published"):
        if row[key]:
            show(f"  {key}:")
            for name, value in row[key].items():
                show(f"    {name}: {value}")
    if row["source"]:
        show(f"  published settings from: {row['source']}")
