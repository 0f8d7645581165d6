"""The page for pandas users and the notebook run: with short fits always, unchanged in the slow tests."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from h3gnn import H3GNN

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(params=["short", pytest.param("full", marks=pytest.mark.slow)], autouse=True)
def _fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = H3GNN.fit

    def short(self: H3GNN, *given: Any, **named: Any) -> H3GNN:
        self.epochs, self.channels = min(self.epochs, 1), 8
        return fit(self, *given, **named)

    if request.param == "short":
        monkeypatch.setattr(H3GNN, "fit", short)


def run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """Run a cell, and evaluate its last expression as a notebook does to show it."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        repr(eval(compile(ast.Expression(last.value), name, "eval"), names))


def test_the_page_for_pandas_users(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "pandas.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        run_cell(block, "pandas.md", names)
    assert set(names["table"].index) == set(names["unknown"])
    assert names["table"][["farm", "home", "shop"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert names["extension"].node_ids.tolist() == ["n1", "n2"]
    assert names["model"].embedding_.shape[0] == 240
    printed = capsys.readouterr().out
    assert "note | text" in printed
    assert "embedder__epochs" in printed


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = NOTEBOOKS
    for script in path.parent.glob("*.py"):
        shutil.copy(script, tmp_path)
    monkeypatch.chdir(tmp_path)
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "notebooks are stored without output"
            assert cell["execution_count"] is None
            run_cell("".join(cell["source"]), f"{path.name} {cell['id']}", names)
    assert names["later"].between(0, 1).all()
    assert len(names["answers"]) == len(names["accounts"]) - len(names["known"])
