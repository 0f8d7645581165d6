"""A graph without features that gains nodes is embedded with features comparable to the fitted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from h3gnn import H3GNN
from h3gnn.cli.app import app
from tests.rejects import rejects

SMALL: dict[str, Any] = {"n_models": 2, "epochs": 5, "channels": 8, "heads": 2, "device": "cpu"}
SIZES = [40, 40, 40]
BLOCK = np.repeat([0, 1, 2], SIZES)


def communities() -> nx.Graph:
    chances = [[0.25 if a == b else 0.01 for a in range(3)] for b in range(3)]
    return nx.Graph(nx.stochastic_block_model(SIZES, chances, seed=1).edges)


def enlarged(network: nx.Graph, by: int = 10) -> nx.Graph:
    """The same graph and ten nodes more, each joined to four nodes of one community."""
    more = nx.Graph(network)
    chance = np.random.default_rng(5)
    for new in range(by):
        members = np.flatnonzero(new % 3 == BLOCK)
        more.add_edges_from((120 + new, int(one)) for one in chance.choice(members, 4, replace=False))
    return more


def adjacency(network: nx.Graph) -> Any:
    return sp.csr_array(nx.to_scipy_sparse_array(network, nodelist=sorted(network), dtype=float))


def named(network: nx.Graph) -> nx.Graph:
    return nx.relabel_nodes(network, lambda number: f"n{number:03d}")


def shuffled(network: nx.Graph) -> nx.Graph:
    """Named nodes, the new ones first."""
    other = nx.Graph()
    other.add_nodes_from(reversed(list(named(network))))
    other.add_edges_from(named(network).edges)
    return other


@pytest.fixture(scope="module")
def model() -> H3GNN:
    return H3GNN.from_settings(SMALL).fit(named(communities()))


@pytest.mark.parametrize("form", [adjacency, named, shuffled], ids=lambda form: form.__name__)
def test_fitted_nodes_keep_their_embedding_and_new_ones_resemble_their_neighbours(form: Any) -> None:
    model = H3GNN.from_settings(SMALL).fit(form(communities()))
    place = {name: position for position, name in enumerate(model.graph_.node_ids.tolist())}
    block = BLOCK[[int(str(name).lstrip("n")) for name in model.graph_.node_ids]]
    probe = LogisticRegression(max_iter=2000).fit(model.embedding_, block)
    assert probe.score(model.embedding_, block) > 0.95
    graph = form(enlarged(communities()))
    ids = list(graph) if isinstance(graph, nx.Graph) else list(range(130))
    embedding = model.transform(graph)
    old = [row for row, name in enumerate(ids) if name in place]
    assert len(old) == 120
    assert probe.score(embedding[old], block[[place[ids[row]] for row in old]]) > 0.95
    fitted = model.embedding_[[place[ids[row]] for row in old]]
    assert np.abs(embedding[old] - fitted).mean() < 0.15 * np.abs(fitted).mean()
    new = [row for row in range(130) if row not in old]
    wanted = [(int(str(ids[row]).lstrip("n")) - 120) % 3 for row in new]
    assert probe.score(embedding[new], wanted) > 0.8


def test_a_saved_model_embeds_a_larger_graph_alike(model: H3GNN, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    graph = named(enlarged(communities()))
    np.testing.assert_allclose(
        H3GNN.load(tmp_path / "run").transform(graph), model.transform(graph), atol=1e-5
    )


def test_unrelated_graphs_are_rejected(model: H3GNN) -> None:
    by_position = H3GNN.from_settings({**SMALL, "epochs": 1}).fit(adjacency(communities()))
    unrelated = nx.gnm_random_graph(130, 700, seed=3)
    with rejects("structural-features-not-comparable"):
        by_position.transform(adjacency(unrelated))
    with rejects("structural-features-not-comparable"):
        model.transform(named(unrelated))  # the same names, other neighbours
    with rejects("structural-features-not-comparable"):
        model.transform(nx.relabel_nodes(enlarged(communities()), lambda number: f"other {number}"))


def test_structural_and_other_features_are_not_mixed(model: H3GNN) -> None:
    width = model.n_features_in_
    edges = np.array(communities().edges).T
    with rejects("features-unexpected"):
        model.transform(np.ones((120, width)), edge_index=edges)
    features = np.random.default_rng(0).normal(size=(120, width))
    with_features = H3GNN.from_settings({**SMALL, "epochs": 1}).fit(features, edge_index=edges)
    with rejects("features-missing"):
        with_features.transform(named(communities()))


def test_a_warning_counts_nodes_without_a_path_to_fitted_nodes(model: H3GNN) -> None:
    apart = nx.compose(named(communities()), nx.path_graph(["p", "q"]))
    with pytest.warns(UserWarning, match=r"2 node.* not connected to any fitted node"):
        embedding = model.transform(apart)
    np.testing.assert_allclose(embedding[:120], model.embedding_, atol=1e-4)


def test_the_command_embeds_a_larger_graph(tmp_path: Path) -> None:
    for name, network in (("old", communities()), ("new", enlarged(communities()))):
        rows = "\n".join(f"{start},{end}" for start, end in named(network).edges)
        (tmp_path / f"{name}.csv").write_text(f"source,target\n{rows}\n")
    options = ["--epochs", "3", "--models", "1", "--channels", "8", "--set", "heads=2", "--device", "cpu"]
    run = CliRunner()
    command = ["fit", "--edges", str(tmp_path / "old.csv"), "--undirected", "--out", str(tmp_path / "run")]
    fitted = run.invoke(app, [*command, *options])
    assert fitted.exit_code == 0, fitted.output
    command = ["embed", str(tmp_path / "run"), "--undirected", "--json", "--device", "cpu"]
    done = run.invoke(
        app, [*command, "--edges", str(tmp_path / "new.csv"), "--out", str(tmp_path / "new.npy")]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nodes"] == 130
    embedding = np.load(tmp_path / "new.npy")
    model = H3GNN.load(tmp_path / "run")
    assert np.abs(embedding[:120] - model.embedding_).mean() < 0.15 * np.abs(model.embedding_).mean()
