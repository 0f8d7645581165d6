from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from tests.graphs.helpers import listed
from tests.rejects import rejects


def class_homophily(graph: Graph) -> list[float]:
    labels, edge_index = graph.labels, graph.edge_index
    assert labels is not None
    same = labels[edge_index[0]] == labels[edge_index[1]]
    return [float(same[labels[edge_index[1]] == label].float().mean()) for label in range(5)]


def test_classes_are_homophilic_or_heterophilic() -> None:
    graph = mixed_graph()
    shares = class_homophily(graph)
    assert min(shares[:3]) > 0.5
    assert max(shares[3:]) < 0.2
    assert (graph.num_nodes, graph.num_classes, graph.num_splits) == (1000, 5, 10)
    assert 4 < graph.num_edges / graph.num_nodes < 6
    assert 0.005 < float((graph.features != 0).float().mean()) < 0.05


def test_the_seed_determines_the_graph() -> None:
    assert mixed_graph().provenance.sha256 == mixed_graph().provenance.sha256
    assert mixed_graph().provenance.sha256 != mixed_graph(seed=1).provenance.sha256


def test_edges_are_undirected_and_without_self_loops() -> None:
    source, target = mixed_graph(200).edge_index
    pairs = set(zip(source.tolist(), target.tolist(), strict=True))
    assert all((b, a) in pairs and a != b for a, b in pairs)


def test_splits_are_stratified() -> None:
    graph = mixed_graph(200, splits=2)
    train, val, test = (
        np.array(listed(mask)) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
    )
    assert (train.astype(int) + val + test == 1).all()
    counts = [int(train[np.array(listed(graph.labels)) == label, 0].sum()) for label in range(5)]
    assert counts == [19] * 5  # 48 % of 40


def test_homophily_is_configurable() -> None:
    for share, low, high in ((0.9, 0.6, 1.0), (0.0, 0.0, 0.3)):
        assert low <= np.mean(class_homophily(mixed_graph(500, homophily=share))) <= high
    assert mixed_graph(homophily=[0.5, 0.1]).num_classes == 2


@pytest.mark.parametrize(
    "wrong", [{"nodes": 10}, {"homophily": 1.5}, {"degree": 0}, {"words": 3}, {"noise": -1}], ids=str
)
def test_invalid_arguments_are_rejected(wrong: dict[str, Any]) -> None:
    with rejects("value-invalid"):
        mixed_graph(**wrong)
