"""The page for people of pandas and the notebook run as they stand."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def shown(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return what its last line is worth."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


def test_the_page_for_people_of_pandas(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "pandas.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        shown(block, "pandas.md", names)
    assert set(names["table"].index) == set(names["unknown"])
    assert names["table"][["farm", "home", "shop"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert names["extension"].node_ids.tolist() == ["n1", "n2"]
    assert names["model"].embedding_.shape[0] == 240
    told = capsys.readouterr().out
    assert "note | text" in told
    assert "embedder__epochs" in told


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in path.parent.glob("*.py"):
        shutil.copy(script, tmp_path)
    monkeypatch.chdir(tmp_path)
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "a notebook is kept without what it printed on some machine"
            assert cell["execution_count"] is None
            shown("".join(cell["source"]), f"{path.name} {cell['id']}", names)
    assert names["later"].between(0, 1).all()
    assert len(names["answers"]) == len(names["accounts"]) - len(names["known"])
