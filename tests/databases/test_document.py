"""The commands and the code of docs/databases.md, and the commands of the README.

With small sizes always, unchanged in the slow tests.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN
from h3gnn.graphs.libraries import import_pyg
from tests.shell import ROOT, run_in_process, run_in_shell, shell_blocks

PAGE = (ROOT / "docs" / "databases.md").read_text(encoding="utf-8")
SMALLER = {
    "--preset quick": "--preset single --epochs 2 --set channels=8 --set heads=2",
    "--out shop/": "--out shop/ --customers 80",
    "orders.returned ": "orders.returned --head logistic ",
    "orders.returned=yes ": "orders.returned=yes --head logistic ",
    "customers.subscribes --new": "customers.subscribes --head logistic --new",
    '"customers.subscribes", ': '"customers.subscribes", head="logistic", ',
}
NAMED = {
    "shop/tables/products.csv": ("Tarn mug 1", 1, "title"),
    "shop/tables/customers.csv": ("Bob Imhof 3", 3, "name"),
}
"""Rows that the page names: where they are."""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the shell commands of the page were run, on fewer rows."""
    made = tmp_path_factory.mktemp("page")
    (made / "examples").symlink_to(ROOT / "examples")
    for block in shell_blocks(PAGE):
        run_in_process(smaller(block, made), made)
    return made


def smaller(code: str, folder: Path) -> str:
    """Return commands or code with small sizes, and the names of the same rows in the smaller shop."""
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    for file, (name, row, column) in NAMED.items():
        if (folder / file).exists():
            code = code.replace(name, str(pd.read_csv(folder / file)[column][row]))
    return code


def test_the_shop_is_the_one_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shown = re.search(r"^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert run_in_process(shell_blocks(PAGE)[0], tmp_path).endswith(shown[1])
    customers = pd.read_csv(tmp_path / "shop/tables/customers.csv")
    assert f"{customers['subscribes'].isna().sum()} customers have no\nvalue of" in PAGE
    for file, (name, row, column) in NAMED.items():
        assert pd.read_csv(tmp_path / file)[column][row] == name


def test_predictions_are_about_rows_without_a_value(folder: Path) -> None:
    customers = pd.read_csv(folder / "shop/tables/customers.csv")
    unknown = customers["customer_id"][customers["subscribes"].isna()]
    found = pd.read_csv(folder / "subscribes.csv")
    assert found["node"].tolist() == unknown.tolist()
    assert set(found["class"]) <= {"yes", "no"}
    added = pd.read_csv(folder / "shop/new/customers.csv")["customer_id"]
    assert pd.read_csv(folder / "joined.csv")["node"].tolist() == added.tolist()
    assert pd.read_parquet(folder / "joined.parquet")["node"].tolist() == added.tolist()
    everyone = pd.read_parquet(folder / "all.parquet")["node"].tolist()
    assert everyone == [*customers["customer_id"], *added]


def test_the_planted_lines_are_the_most_unusual(folder: Path) -> None:
    lines = pd.read_csv(folder / "shop/tables/order_lines.csv").astype(str)
    planted = (lines["order_id"] + "/" + lines["product_id"])[lines["quantity"] == "100"]
    assert len(planted) == 5
    assert set(pd.read_csv(folder / "odd.csv")["node"][:5]) == set(planted)


def test_rows_from_a_date_and_up_to_a_date(folder: Path) -> None:
    orders = pd.read_csv(folder / "shop/tables/orders.csv")
    autumn, spring = (pd.read_csv(folder / f"{name}.csv")["node"].tolist() for name in ("autumn", "spring"))
    assert autumn == orders["order_id"][orders["day"] >= "2024-08-01"].tolist()
    assert spring == orders["order_id"][orders["day"] <= "2024-06-01"].tolist()


def test_the_python_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = H3GNN.fit

    def short(self: H3GNN, *given: Any, **named: Any) -> H3GNN:
        self.epochs, self.channels, self.n_models = 1, 8, 1
        return fit(self, *given, **named)

    monkeypatch.setattr(H3GNN, "fit", short)
    monkeypatch.chdir(folder)
    import_pyg()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(smaller(block, folder), "databases.md", "exec"), names)
    assert names["extension"].new == len(names["new"]["customers"])
    assert names["vectors"].index.tolist() == names["shop"]["products"]["product_id"].tolist()
    assert len(names["groups"]) == len(names["shop"]["customers"])
    assert names["graph"].num_nodes == 40
    assert np.isfinite(names["model"].embedding_).all()


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Several tables and databases")[1]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = smaller("".join(shell_blocks(section.split("\n## ")[0])), tmp_path)
    run_in_process(commands.replace(" --label-time now", " --label-time now --head logistic"), tmp_path)
    assert pd.read_csv(tmp_path / "joined.csv").columns[:2].tolist() == ["node", "name"]


@pytest.mark.slow
def test_the_whole_page_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in shell_blocks(PAGE):
        run_in_shell(block, tmp_path)
    for name in ("models/database.json", "report.html", "graph.toml", "clusters.csv"):
        assert (tmp_path / name).stat().st_size > 500
