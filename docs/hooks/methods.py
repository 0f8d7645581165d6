"""Generate the page of systems from their cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from h3gnn.baselines.registry import GROUPS, System, systems

PAGE = "systems.md"
START = """# Systems

Every system that `h3gnn compare --methods` runs beside H3GNN, reimplemented from its paper. `h3gnn methods
NAME` shows the same; `from h3gnn.baselines import GREET` gives the estimator. [The other
systems](baselines.md) compares each with its authors' figure.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those that mkdocs found."""
    files.append(File.generated(config, PAGE, content=systems_page()))
    return files


def systems_page() -> str:
    """Return the page of all systems as Markdown."""
    parts = [START]
    for group in GROUPS:
        parts.append(f"\n## {group.capitalize()}\n")
        parts += [_about(one) for one in systems().values() if one.group == group]
    return "\n".join(parts)


def _about(system: System) -> str:
    return "\n".join(
        [
            f"### {system.title}",
            "",
            f"`{system.name}` · `h3gnn.baselines.{system.estimator}` · {system.paper}, {system.year}.",
            f"Sees {', '.join(system.sees)}. Cost: {system.cost}.",
            "",
            "| setting | default | to choose from | published |",
            "| --- | --- | --- | --- |",
            *_rows(system),
            "",
            *([f"Published settings: {system.source}.", ""] if system.source else []),
            *([f"Its authors' code chooses on test nodes: {system.on_test}.", ""] if system.on_test else []),
        ]
    )


def _rows(system: System) -> Iterator[str]:
    defaults: Mapping[str, Any] = asdict(system.settings)
    names = dict.fromkeys([*defaults, *(name for one in system.published.values() for name in one)])
    for name in names:
        default = f"`{defaults[name]}`" if name in defaults else "the grid's"
        ranges = ", ".join(f"`{value}`" for value in system.ranges.get(name, ()))
        published = [f"{graph} `{one[name]}`" for graph, one in system.published.items() if name in one]
        yield f"| `{name}` | {default} | {ranges} | {', '.join(published)} |"
