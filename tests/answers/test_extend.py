from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn import H3GNN, Graph, GraphError, as_graph
from h3gnn.encoder.support import NewEdges
from h3gnn.graphs.checks import check_graph
from h3gnn.inference import smooth_attached
from tests.rejects import rejects

QUICK: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 1, "device": "cpu"}
NAMES = np.array([f"p{i}" for i in range(40)], dtype=object)


def random_graph(weighted: bool = False, sparse: bool = False) -> Graph:
    random = np.random.default_rng(0)
    ends = random.integers(0, 40, (2, 90))
    features: Any = random.normal(size=(40, 5))
    if sparse:
        features = sp.random(40, 50, density=0.05, random_state=0, format="csr")
    weights = random.uniform(0.5, 2, 90) if weighted else None
    return check_graph(features, ends, edge_weight=weights, node_ids=NAMES)


def new_nodes(columns: int = 5, count: int = 2) -> pd.DataFrame:
    random = np.random.default_rng(7)
    return pd.DataFrame(random.normal(size=(count, columns)), index=[f"new{i}" for i in range(count)])


LOCAL = {"smoothing": 0.0, "input_weight": 0.0}
"""No walks, which in the extended graph also change the fitted nodes and return from them."""


@pytest.fixture(scope="module")
def fitted() -> H3GNN:
    return H3GNN.from_settings(QUICK).fit(random_graph())


EDGES = pd.DataFrame({"source": ["p3", "new0", "p9", "new1"], "target": ["new0", "p5", "new1", "new0"]})


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_one_new_node_is_embedded_as_in_the_extended_graph(weighted: bool, self_loops: bool) -> None:
    options: dict[str, Any] = {**LOCAL, "self_loops": self_loops and not weighted}
    model = H3GNN.from_settings({**QUICK, **options, "hops": 1}).fit(random_graph(weighted))
    edges = EDGES.iloc[:2].assign(**({"weight": [0.7, 1.9]} if weighted else {}))
    found = model.extend(new_nodes(count=1), edges)
    assert found.node_ids.tolist() == ["new0"]
    np.testing.assert_allclose(found.embedding, model.transform(found.graph)[-1:], atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_directed_edges_to_new_nodes_give_the_same_as_a_refresh(sparse: bool) -> None:
    options: dict[str, Any] = {
        **LOCAL,
        "undirected": False,
        "edge_init": 0.5,
        "edge_weights": "learned",
    }
    graph = random_graph(sparse=sparse)
    model = H3GNN.from_settings({**QUICK, **options}).fit(graph)
    edges = pd.DataFrame({"a": ["p3", "p5", "p9", "new1"], "b": ["new0", "new0", "new1", "new0"]})
    nodes = new_nodes(graph.num_features)
    found = model.extend(nodes, edges)
    whole = model.extend(nodes, edges, refresh=True)
    assert whole.node_ids.tolist() == [*NAMES.tolist(), "new0", "new1"]
    np.testing.assert_allclose(whole.embedding[:40], model.embedding_, atol=1e-5)
    np.testing.assert_allclose(found.embedding, whole.embedding[40:], atol=1e-5)


def test_a_new_node_does_not_depend_on_unconnected_new_nodes() -> None:
    model = H3GNN.from_settings({**QUICK, "smoothing": 0.5}).fit(random_graph())
    edges = pd.DataFrame({"source": ["p3", "p3", "p3"], "target": ["new0", "new1", "new2"]})
    together = model.extend(new_nodes(count=3), edges).embedding
    alone = model.extend(new_nodes(count=3).iloc[1:2], edges.iloc[1:2]).embedding
    np.testing.assert_allclose(together[1:2], alone, atol=1e-5)


def test_extend_does_not_change_the_model(fitted: H3GNN) -> None:
    model = fitted
    before, digest = model.embedding_.copy(), model.graph_.provenance.sha256
    model.extend(new_nodes(), EDGES)
    model.extend(new_nodes(), EDGES, refresh=True)
    np.testing.assert_array_equal(model.embedding_, before)
    assert model.graph_.provenance.sha256 == digest


def test_arrays_are_positions_after_the_fitted_nodes() -> None:
    graph = as_graph(np.random.default_rng(0).normal(size=(10, 3)), np.array([[0, 1, 2], [1, 2, 3]]))
    model = H3GNN.from_settings(QUICK).fit(graph)
    found = model.extend(np.ones((2, 3)), np.array([[0, 10], [10, 11]]))
    assert found.node_ids.tolist() == [10, 11]
    assert found.graph.num_nodes == 12
    named = pd.DataFrame(np.ones((1, 3)), index=[700])
    later = model.extend(named, pd.DataFrame({"a": [4], "b": [700]}), refresh=True)
    assert later.node_ids.tolist() == [*range(10), 700]


def test_new_rows_of_a_table_need_no_edges() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4))
    model = H3GNN.from_settings({**QUICK, "n_neighbors": 3}).fit(rows)
    new = np.random.default_rng(1).normal(size=(2, 4))
    np.testing.assert_allclose(model.extend(new).embedding, model.transform(new), atol=1e-5)


def test_a_symmetric_graph_takes_new_edges_both_ways(path_graph: Graph) -> None:
    model = H3GNN.from_settings(QUICK).fit(path_graph)
    extended = model.extend(np.ones((1, 5)), np.array([[4], [5]])).graph
    assert {(4, 5), (5, 4)} <= set(map(tuple, extended.edge_index.T.tolist()))
    assert extended.labels is not None
    assert extended.labels.tolist() == [0, 0, 0, 1, 1, -1]


@pytest.mark.parametrize(
    ("nodes", "edges", "code"),
    [
        (new_nodes(3), EDGES, "feature-count-differs"),
        (new_nodes().rename(index={"new1": "p3"}), EDGES.iloc[:2], "node-already-fitted"),
        (new_nodes(), EDGES.replace("p9", "p99"), "unknown-node"),
        (new_nodes(), EDGES.replace("new1", "p2"), "edge-between-fitted"),
        (new_nodes(), EDGES.assign(weight=1.0), "new-edge-weights"),
        (new_nodes(), None, "new-edges-missing"),
        (new_nodes().to_numpy(), np.array([[0], [40]]), "new-nodes-without-ids"),
    ],
)
def test_new_nodes_that_do_not_match_are_rejected(fitted: H3GNN, nodes: Any, edges: Any, code: str) -> None:
    with rejects(code, GraphError):
        fitted.extend(nodes, edges)


def test_source_and_target_of_new_edges_are_found_by_name(fitted: H3GNN) -> None:
    wanted = fitted.extend(new_nodes(), EDGES).graph
    turned = fitted.extend(new_nodes(), EDGES[["target", "source"]]).graph
    assert turned.edge_index.tolist() == wanted.edge_index.tolist()


def test_models_that_cannot_be_extended_are_rejected() -> None:
    model = H3GNN.from_settings({**QUICK, "smoother": "powers", "smoothing": 0.5}).fit(random_graph())
    with rejects("extend-needs-refresh"):
        model.extend(new_nodes(), EDGES)
    assert len(model.extend(new_nodes(), EDGES, refresh=True).embedding) == 42
    bare = H3GNN.from_settings(QUICK).fit(sp.csr_array(np.eye(6, k=1)))
    with rejects("extend-structural", GraphError):
        bare.extend(np.ones((1, bare.n_features_in_)), np.array([[0], [6]]))


def test_attention_of_some_nodes_equals_that_of_all(fitted: H3GNN) -> None:
    np.testing.assert_allclose(fitted.attention([7, 2]), fitted.attention()[:, [7, 2]], atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(4, 6)), min_size=1), st.floats(-0.95, 0.95))
def test_new_nodes_are_smoothed_with_fixed_fitted_nodes(
    pairs: list[tuple[int, int]], strength: float
) -> None:
    """The dense formula in float64, for four known and three new nodes."""
    draw = torch.Generator().manual_seed(0)
    own, known = torch.randn(3, 2, generator=draw), torch.randn(4, 2, generator=draw)
    adjacency = torch.eye(7, dtype=torch.float64)
    for a, b in pairs:
        adjacency[a, b] = adjacency[b, a] = 1
    walk = (adjacency / adjacency.sum(dim=1, keepdim=True))[4:]
    right = (1 - strength) * own.double() + strength * walk[:, :4] @ known.double()
    wanted = torch.linalg.solve(torch.eye(3, dtype=torch.float64) - strength * walk[:, 4:], right)
    edges = NewEdges(torch.tensor(pairs).T, None, 4, 3)
    found = smooth_attached(own, known, edges, strength)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
