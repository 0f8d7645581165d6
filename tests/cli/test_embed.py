"""`h3gnn embed` of another graph, whose columns are matched by name, and features from GraphML attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN
from h3gnn.errors import GraphError
from tests.program import call
from tests.rejects import rejects

QUICK = ("--preset", "single", "--epochs", "2", "--channels", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of thirty nodes in a ring with the features a, b, c."""
    folder = tmp_path_factory.mktemp("embed")
    random = np.random.default_rng(0)
    features = pd.DataFrame(random.normal(size=(30, 3)), columns=list("abc"))
    features.insert(0, "id", [f"n{i}" for i in range(30)])
    features.to_csv(folder / "f.csv", index=False)
    ring = pd.DataFrame({"source": features["id"], "target": np.roll(features["id"], 1)})
    ring.to_csv(folder / "e.csv", index=False)
    call("fit", "--edges", folder / "e.csv", "--features", folder / "f.csv", "--out", folder / "run", *QUICK)
    return folder


def embed(folder: Path, table: pd.DataFrame, out: Path, **how: Any) -> None:
    table.to_csv(out.with_name("g.csv"), index=False, **how)
    graph = ("--edges", folder / "e.csv", "--features", out.with_name("g.csv"))
    call("embed", folder / "run", *graph, "--device", "cpu", "--out", out)


def test_columns_are_matched_by_name(folder: Path, tmp_path: Path) -> None:
    table, model = pd.read_csv(folder / "f.csv"), H3GNN.load(folder / "run")
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    embed(folder, table[["c", "id", "a", "b"]], tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.embedding_)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"b": "z"}, "'b' is missing and 'z' is unknown"),
        ({"a": "b", "b": "d"}, "'a' is missing and 'd' is unknown"),
    ],
)
def test_other_columns_are_rejected(
    folder: Path, tmp_path: Path, names: dict[str, str], message: str
) -> None:
    with rejects("feature-columns-differ", GraphError) as error:
        embed(folder, pd.read_csv(folder / "f.csv").rename(columns=names), tmp_path / "out.npy")
    assert message in error.message
    assert not (tmp_path / "out.npy").exists()


def test_columns_without_names_are_matched_by_position(folder: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        embed(folder, pd.read_csv(folder / "f.csv"), tmp_path / "out.npy", header=False)


def test_attributes_of_graphml_become_features_by_name(tmp_path: Path) -> None:
    path, network = tmp_path / "g.graphml", nx.cycle_graph(["u", "v", "w", "x", "y", "z"])
    for number, name in enumerate(network):
        network.nodes[name].update(a=float(number), b=1.5 * number, label="odd" if number % 2 else "even")
    nx.write_graphml(network, path)
    printed = call("inspect", path)
    assert "node attributes not used: a, b, label" in printed
    assert printed.count("not used") == 1
    assert "--feature-columns a,b --label-column label" in printed
    chosen = ("--feature-columns", "b,a", "--label-column", "label")
    profile = call("inspect", path, *chosen, "--json")
    assert (profile["features"], profile["classes"]) == (2, 2)
    call("fit", path, *chosen, "--out", tmp_path / "run", *QUICK)
    assert H3GNN.load(tmp_path / "run").feature_names_in_.tolist() == ["b", "a"]
    with rejects("attribute-unknown"):
        call("inspect", path, "--feature-columns", "age")
    with rejects("option-needs-edges"):
        call("inspect", "synthetic", "--feature-columns", "age")
