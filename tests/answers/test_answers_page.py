"""The example of docs/predict.md runs, and the pages name every command and format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def test_the_scikit_learn_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page("predict"), re.DOTALL)
    (example,) = [one for one in blocks if "NodeClassifier" in one]
    exec(compile(example, "predict.md", "exec"), {})
    assert "embedder__epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("predict", ["predict"]),
        ("similarity", ["similar", "anomalies"]),
        ("links", ["links"]),
        ("embeddings", ["embed", "export"]),
    ],
)
def test_the_first_block_of_a_page_has_its_commands(name: str, commands: list[str]) -> None:
    first = re.findall(r"^```(?:sh)?\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)[0]
    assert all(f"h3gnn {command} run/" in first for command in commands)


def test_the_export_page_names_every_format() -> None:
    from h3gnn.cli.ask import EXPORTS

    assert all(f"`{name}`" in page("embeddings") for name in EXPORTS)


@pytest.mark.parametrize("name", ["similarity", "embeddings"])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    from tests.shell import run_in_process, shell_blocks

    (commands,) = shell_blocks(page(name))
    small = "--preset single --epochs 2 --set channels=8 --set heads=2"
    run_in_process(commands.replace("--preset quick", small), tmp_path)
    assert any(path.name != "run" for path in tmp_path.iterdir())
