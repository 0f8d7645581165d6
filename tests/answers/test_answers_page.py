"""The example of docs/answers.md runs, and the page is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


def test_the_scikit_learn_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [one for one in blocks if "NodeClassifier" in one]
    exec(compile(example, "answers.md", "exec"), {})
    assert "embedder__epochs" in capsys.readouterr().out


def test_the_page_names_every_command_and_format() -> None:
    from h3gnn.cli.ask import EXPORTS

    text = PAGE.read_text(encoding="utf-8")
    for word in ("predict", "similar", "anomalies", "links", "embed", "export"):
        assert f"h3gnn {word} run/" in text
    assert all(f"`{name}`" in text for name in EXPORTS)
