"""A graph without features that grows is embedded in the fitted graph's terms, in Python and by command."""

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


def grown(network: nx.Graph, by: int = 10) -> nx.Graph:
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


@pytest.mark.parametrize("form", [adjacency, named, shuffled], ids=lambda form: form.__name__)
def test_old_nodes_stay_where_they_were_and_new_ones_stand_with_their_neighbours(form: Any) -> None:
    model = H3GNN.from_settings(SMALL).fit(form(communities()))
    place = {name: position for position, name in enumerate(model.graph_.node_ids.tolist())}
    block = BLOCK[[int(str(name).lstrip("n")) for name in model.graph_.node_ids]]
    probe = LogisticRegression(max_iter=2000).fit(model.embedding_, block)
    assert probe.score(model.embedding_, block) > 0.95
    graph = form(grown(communities()))
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


def test_a_saved_model_embeds_a_grown_graph_alike(tmp_path: Path) -> None:
    model = H3GNN.from_settings(SMALL).fit(named(communities()))
    model.save(tmp_path / "run")
    graph = named(grown(communities()))
    np.testing.assert_allclose(
        H3GNN.load(tmp_path / "run").transform(graph), model.transform(graph), atol=1e-5
    )


def test_another_graph_has_no_place_in_the_fitted_one() -> None:
    model = H3GNN.from_settings(SMALL).fit(adjacency(communities()))
    stranger = nx.gnm_random_graph(130, 700, seed=3)
    with rejects("structural-features-not-comparable"):
        model.transform(adjacency(stranger))
    names = H3GNN.from_settings(SMALL).fit(named(communities()))
    with rejects("structural-features-not-comparable"):
        names.transform(named(stranger))  # the same names, other neighbours
    with rejects("structural-features-not-comparable"):
        names.transform(nx.relabel_nodes(grown(communities()), lambda number: f"other {number}"))


def test_features_of_ones_own_do_not_meet_structural_ones() -> None:
    model = H3GNN.from_settings(SMALL).fit(named(communities()))
    width = model.n_features_in_
    edges = np.array(communities().edges).T
    with rejects("features-unexpected"):
        model.transform(np.ones((120, width)), edge_index=edges)
    features = np.random.default_rng(0).normal(size=(120, width))
    with_features = H3GNN.from_settings(SMALL).fit(features, edge_index=edges)
    with rejects("features-missing"):
        with_features.transform(named(communities()))


def test_new_nodes_that_nobody_knows_are_said_aloud() -> None:
    model = H3GNN.from_settings(SMALL).fit(named(communities()))
    apart = nx.compose(named(communities()), nx.path_graph(["p", "q"]))
    with pytest.warns(UserWarning, match=r"2 node.* not connected to any fitted node"):
        embedding = model.transform(apart)
    np.testing.assert_allclose(embedding[:120], model.embedding_, atol=1e-4)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    for name, network in (("old", communities()), ("new", grown(communities()))):
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
