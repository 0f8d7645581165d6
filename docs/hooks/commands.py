"""Makes the page of the command line from the commands themselves, so that it cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from h3gnn.cli.app import app

PAGE = "cli.md"
START = """# Command line

What `h3gnn COMMAND --help` says, for every command. The exit code is 0 when a command did what was asked,
2 with one sentence when the input must be corrected, 130 after Ctrl-C.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those that mkdocs found."""
    files.append(File.generated(config, PAGE, content=command_page(typer.main.get_command(app))))
    return files


def command_page(group: Any) -> str:
    """Return the page of all commands that `h3gnn --help` lists, as Markdown.

    Args:
        group: the commands, as Typer hands them to click.
    """
    shown = ((name, command) for name, command in group.commands.items() if not command.hidden)
    return START + "".join(_section(name, command) for name, command in shown)


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["h3gnn", name, *command.collect_usage_pieces(context)])
    parts = [f"\n## {name}\n\n{command.help}\n", f"\n```\n{usage}\n```\n"]
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            fallback = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(parameter.rich_help_panel or fallback, []).append(record)
    for title, records in panels.items():
        parts += [f"\n| {title} | |\n| --- | --- |\n", *_rows(records)]
    return "".join(parts)


def _rows(records: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in records:
        described = " ".join(text.split()).replace("|", "\\|")
        yield f"| `{name}` | {described} |\n"
