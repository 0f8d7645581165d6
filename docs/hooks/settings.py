"""Makes the page of settings from their one list, so that it cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from h3gnn.estimator import H3GNN
from h3gnn.settings import GROUP_OF, GROUPS, SETTINGS

PAGE = "settings.md"
START = """# Settings

The arguments of `H3GNN` and of its three groups. On the command line, `--set NAME=VALUE` sets any of them; a
setting of a group may be written with it, as in `--set encoder.heads=2`.
[The method](method.md) explains the equations, [the estimator](api/estimator.md) each argument at length.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those that mkdocs found."""
    files.append(File.generated(config, PAGE, content=settings_page()))
    return files


def settings_page() -> str:
    """Return the page of all settings as Markdown."""
    titles = {None: "Arguments"} | {
        group: f"`{group}={config.__name__}(…)`" for group, config in GROUPS.items()
    }
    return START + "".join(
        f"\n## {title}\n\n{_table([name for name in SETTINGS if GROUP_OF.get(name) == group])}"
        for group, title in titles.items()
    )


def _table(names: list[str]) -> str:
    return "| setting | values | default | |\n| --- | --- | --- | --- |\n" + "".join(_rows(names))


def _rows(names: list[str]) -> Iterator[str]:
    defaults = H3GNN().get_settings()
    for name in names:
        setting = SETTINGS[name]
        values = f"{setting.values}, None" if setting.may_be_none else setting.values
        yield f"| `{name}` | {values} | `{defaults[name]!r}` | {setting.help} |\n"
