"""`h3gnn embed` of a new graph: its columns are known by their names, attributes are chosen by theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from h3gnn import H3GNN
from h3gnn.cli.app import app
from h3gnn.errors import GraphError

QUICK = ("--preset", "single", "--epochs", "2", "--channels", "8", "--device", "cpu")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of thirty people in a ring with the features a, b, c."""
    chance = np.random.default_rng(0)
    features = pd.DataFrame(chance.normal(size=(30, 3)), columns=list("abc"))
    features.insert(0, "id", [f"n{i}" for i in range(30)])
    features.to_csv(tmp_path / "f.csv", index=False)
    ring = pd.DataFrame({"source": features["id"], "target": np.roll(features["id"], 1)})
    ring.to_csv(tmp_path / "e.csv", index=False)
    done = run(
        "fit",
        "--edges",
        tmp_path / "e.csv",
        "--features",
        tmp_path / "f.csv",
        "--out",
        tmp_path / "run",
        *QUICK,
    )
    assert done.exit_code == 0, done.output
    return tmp_path


def embed(folder: Path, table: pd.DataFrame, **how: Any) -> Result:
    table.to_csv(folder / "g.csv", index=False, **how)
    return run(
        "embed", folder / "run", "--edges", folder / "e.csv", "--features", folder / "g.csv",
        "--device", "cpu", "--out", folder / "out.npy",
    )  # fmt: skip


def test_columns_of_a_file_are_put_in_order_by_name(folder: Path) -> None:
    table = pd.read_csv(folder / "f.csv")
    model = H3GNN.load(folder / "run")
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    done = embed(folder, table[["c", "id", "a", "b"]])
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(folder / "out.npy"), model.embedding_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"b": "z"}}, "'b' is missing and 'z' is unknown"),
        ({"columns": {"a": "b", "b": "d"}}, "'a' is missing and 'd' is unknown"),
    ],
)
def test_columns_of_other_names_are_refused(folder: Path, change: Any, message: str) -> None:
    done = embed(folder, pd.read_csv(folder / "f.csv").rename(**change))
    assert isinstance(done.exception, GraphError)  # which `main` turns into a sentence and exit code 2
    assert done.exit_code == 1
    assert done.exception.code == "feature-columns-differ"
    assert message in str(done.exception)
    assert not (folder / "out.npy").exists()


def test_a_file_without_names_is_taken_by_position_and_that_is_said(folder: Path) -> None:
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        done = embed(folder, pd.read_csv(folder / "f.csv"), header=False)
    assert done.exit_code == 0, done.output


def test_a_fit_of_graphml_takes_attributes_by_name_and_names_the_others(tmp_path: Path) -> None:
    network = nx.cycle_graph(["u", "v", "w", "x", "y", "z"])
    for number, name in enumerate(network):
        network.nodes[name].update(a=float(number), b=1.5 * number, label="odd" if number % 2 else "even")
    nx.write_graphml(network, tmp_path / "g.graphml")
    plain = run("inspect", tmp_path / "g.graphml")
    assert "node attributes not used: a, b, label" in plain.output
    assert plain.output.count("not used") == 1
    assert "--feature-columns a,b --label-column label" in plain.output
    chosen = ("--feature-columns", "b,a", "--label-column", "label")
    told = run("inspect", tmp_path / "g.graphml", *chosen, "--json")
    assert told.exit_code == 0, told.output
    assert '"features": 2' in told.stdout
    assert '"classes": 2' in told.stdout
    done = run("fit", tmp_path / "g.graphml", *chosen, "--out", tmp_path / "run", *QUICK)
    assert done.exit_code == 0, done.output
    assert H3GNN.load(tmp_path / "run").feature_names_in_.tolist() == ["b", "a"]
    wrong = run("inspect", tmp_path / "g.graphml", "--feature-columns", "age")
    assert "attributes: a, b, label" in str(wrong.exception)
    other = run("inspect", "synthetic", "--feature-columns", "age")
    assert "needs --edges" in str(other.exception)
