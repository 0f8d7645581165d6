"""Hooks of the documentation site: generated pages, formulas, and no files from the network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from h3gnn import H3GNN
from h3gnn.cli.app import app
from h3gnn.experiments.spaces import SPACES

DOCS = Path(__file__).parents[1] / "docs"


def hook(name: str) -> ModuleType:
    """Import a hook of the site, which is not in a package."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_has_every_option() -> None:
    group: Any = typer.main.get_command(app)
    page = hook("commands").command_page(group)
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    commands = {name: command for name, command in group.commands.items() if not command.hidden}
    assert list(sections) == list(commands)
    for name, command in commands.items():
        assert f"```\nh3gnn {name} " in sections[name]
        for parameter in command.params:
            if getattr(parameter, "hidden", False):  # a former option that only names its replacement
                continue
            option = parameter.param_type_name == "option"
            shown = parameter.opts[0] if option else parameter.metavar or parameter.name.upper()
            assert f"| `{shown}".lower() in sections[name].lower(), f"{name} {shown}"


def test_the_page_of_settings_has_every_argument() -> None:
    page = hook("settings").settings_page()
    for name in H3GNN().get_settings():
        assert page.count(f"| `{name}` | ") == 1


def test_formulas_become_mathml() -> None:
    text = r"""Of N, :math:`a_v` are.

.. math:: \mathbb A = 1

Then

    .. math::
        a &= b \\
        c &= d

    End"""
    lines = hook("formulas").with_formulas(text).split("\n")
    assert lines[0].startswith('Of N, <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert lines[0].endswith("<msub><mi>a</mi><mi>v</mi></msub></mrow></math> are.")
    assert "<mi>𝔸</mi>" in lines[2]
    assert 'display="block"' in lines[2]
    assert lines[6].startswith("    <math")
    assert lines[6].count("<mtr>") == 2
    assert lines[7:] == ["", "    End"]


def test_arguments_get_a_line_each() -> None:
    text = "Do, this: that.\n\nArgs:\n    a, b: said\n        of both.\n    c: it."
    expected = (
        "Do, this: that.\n\nArgs:\n    a: said\n        of both.\n    b: said\n        of both.\n    c: it."
    )
    assert hook("arguments").one_by_one(text) == expected


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<link rel="stylesheet" href="assets/a.css"><img src="../b.png">', []),
        ('<a href="https://example.org/">a link</a>', []),
    ],
)
def test_external_files_of_a_page_are_found(html: str, found: list[str]) -> None:
    assert hook("offline").loaded_from_elsewhere(html) == found


def test_a_page_is_removed_from_nested_navigation() -> None:
    nav = [{"Home": "index.md"}, {"More": [{"Tables": "reproduction.md"}, {"Speed": "performance.md"}]}]
    kept = [{"Home": "index.md"}, {"More": [{"Speed": "performance.md"}]}]
    assert hook("reproduction").without(nav, "reproduction.md") == kept


def test_the_tuning_page_lists_the_search_spaces() -> None:
    page = (DOCS / "tuning.md").read_text(encoding="utf-8")
    for argument in SPACES["full"].choices:
        columns = {name: _cell(name, argument) for name in SPACES}
        full = columns["full"]
        if full in (columns["paper"], columns["structure"]):
            full = "the same"
        row = f"| `{argument}` | {columns['paper']} | {columns['structure']} | {full} |"
        assert row in page
    for argument in SPACES["committee"].choices:
        assert f"| `{argument}` | {_cell('committee', argument)} |" in page


def _cell(space: str, argument: str) -> str:
    values = SPACES[space].choices.get(argument, ())
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
