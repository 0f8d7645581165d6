from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import InputError
from h3gnn.graphs.synthetic import HOMOPHILY, mixed_graph


def class_homophily(labels: torch.Tensor, edge_index: torch.Tensor) -> list[float]:
    """Share of each class's edge ends that meet their own class."""
    same = labels[edge_index[0]] == labels[edge_index[1]]
    return [float(same[labels[edge_index[1]] == label].float().mean()) for label in range(5)]


def test_some_classes_are_homophilic_and_some_are_not() -> None:
    graph = mixed_graph()
    assert graph.labels is not None
    shares = class_homophily(graph.labels, graph.edge_index)
    assert min(shares[:3]) > 0.5
    assert max(shares[3:]) < 0.2
    assert (graph.num_nodes, graph.num_classes, graph.num_splits) == (1000, 5, 10)
    assert 4 < graph.num_edges / graph.num_nodes < 6
    assert 0.005 < float((graph.features != 0).float().mean()) < 0.05


def test_it_is_the_same_graph_every_time() -> None:
    assert mixed_graph().provenance.sha256 == mixed_graph().provenance.sha256
    assert mixed_graph().provenance.sha256 != mixed_graph(seed=1).provenance.sha256


def test_edges_go_both_ways_and_never_to_oneself() -> None:
    source, target = mixed_graph(200).edge_index
    pairs = set(zip(source.tolist(), target.tolist(), strict=True))
    assert all((b, a) in pairs and a != b for a, b in pairs)


def test_splits_are_stratified_parts() -> None:
    graph = mixed_graph(200, splits=2)
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    assert graph.test_mask is not None
    total = graph.train_mask.int() + graph.val_mask.int() + graph.test_mask.int()
    assert (total == 1).all()
    assert graph.labels is not None
    counts = [int(graph.train_mask[graph.labels == label, 0].sum()) for label in range(5)]
    assert counts == [19] * 5  # 48 % of 40


def test_the_user_sets_the_homophily() -> None:
    for share, low, high in ((0.9, 0.6, 1.0), (0.0, 0.0, 0.3)):
        graph = mixed_graph(500, homophily=share)
        assert graph.labels is not None
        assert low <= np.mean(class_homophily(graph.labels, graph.edge_index)) <= high
    assert mixed_graph(homophily=[0.5, 0.1]).num_classes == 2
    assert len(HOMOPHILY) == 5


def test_impossible_graphs_are_refused() -> None:
    impossible: list[dict[str, Any]] = [
        {"nodes": 10},
        {"homophily": 1.5},
        {"degree": 0},
        {"words": 3},
        {"noise": -1},
    ]
    for wrong in impossible:
        with pytest.raises(InputError):
            mixed_graph(**wrong)
