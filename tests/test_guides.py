"""The commands and the code of the guides to tables, graphs and tasks run, on small models."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from h3gnn import H3GNN, mixed_graph
from h3gnn.cli.ask import EXPORTS
from h3gnn.graphs.libraries import import_pyg
from tests.shell import ROOT, run_in_process, shell_blocks

SMALL = "--preset single --epochs 2 --set channels=8 --set heads=2"
SHELL = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands need a shell")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)
    return [block for language, block in found if language in languages]


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = H3GNN.fit

    def short(self: H3GNN, *given: Any, **named: Any) -> H3GNN:
        self.epochs, self.channels, self.n_models = 1, 8, 1
        return fit(self, *given, **named)

    monkeypatch.setattr(H3GNN, "fit", short)


def test_node_classifier_in_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("predict", "python")
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
    first = blocks(name, "", "sh")[0]
    assert all(f"h3gnn {command} run/" in first for command in commands)


def test_the_page_on_export_names_every_format() -> None:
    assert all(f"`{name}`" in page("embeddings") for name in EXPORTS)


@SHELL
@pytest.mark.parametrize(
    ("name", "written"),
    [("similarity", {"anomalies.csv"}), ("embeddings", {"embeddings.parquet", "projector"})],
)
def test_commands_of_a_task(name: str, written: set[str], tmp_path: Path) -> None:
    (commands,) = shell_blocks(page(name))
    run_in_process(commands.replace("--preset quick", SMALL), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run", *written}


def test_new_nodes_in_python() -> None:
    (example,) = blocks("embeddings", "python")
    graph = mixed_graph(100)
    names: dict[str, Any] = {
        "model": H3GNN(n_models=1, channels=8, epochs=1).fit(graph),
        "features": graph.features[:2].numpy(),
        "edges": np.array([[100, 101], [0, 1]]),
    }
    exec(compile(example, "embeddings.md", "exec"), names)
    assert names["extension"].new == 2


@SHELL
@pytest.mark.usefixtures("_short")
@pytest.mark.filterwarnings("ignore::UserWarning")  # notes on columns that are not used
def test_the_page_on_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = "".join(shell_blocks(page("tables"))).replace("--out run/", f"--out run/ {SMALL}")
    output = run_in_process(commands, tmp_path).splitlines()
    shown = [one for block in blocks("tables", "") for one in block.splitlines() if " -> " in one]
    assert len(shown) == 8
    assert not set(shown) - {*output}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    (code,) = blocks("tables", "python")
    exec(compile(code, "tables.md", "exec"), names)
    assert names["again"].features.equal(names["graph"].features)
    assert len(pd.read_parquet("again.parquet")) == names["graph"].num_nodes


@pytest.mark.usefixtures("_short")
def test_the_page_on_graphs() -> None:
    objects, pipelines = blocks("graphs", "python")
    pyg = import_pyg()
    graph = mixed_graph(60)
    network = nx.path_graph(4)
    nx.set_node_attributes(
        network, {one: {"age": one, "income": 1.5, "group": "ab"[one % 2]} for one in network}
    )
    names: dict[str, Any] = {
        "features": graph.features.numpy(),
        "edge_index": graph.edge_index.numpy(),
        "network": network,
        "data": pyg.data.Data(x=graph.features, edge_index=graph.edge_index),
    }
    exec(compile(objects, "graphs.md", "exec"), names)
    names |= {"H3GNN": H3GNN, "Pipeline": Pipeline, "make_pipeline": make_pipeline, "sklearn": sklearn}
    assert graph.labels is not None
    names |= {"LogisticRegression": LogisticRegression, "y": graph.labels.numpy()}
    names |= {"X": names["features"], "E": names["edge_index"]}
    names |= {"X_new": names["X"], "E_new": names["E"]}
    with sklearn.config_context(enable_metadata_routing=False):
        exec(compile(pipelines, "graphs.md", "exec"), names)
        assert names["pipeline"].predict(names["X"], edge_index=names["E"]).shape == (60,)
