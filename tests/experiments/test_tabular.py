"""Boosting, label propagation and Correct & Smooth among the methods of a comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.experiments.methods import METHODS, Method, Task, grid_of, variant
from h3gnn.experiments.run import labels_and_masks
from h3gnn.experiments.search import ranges_of, run_nested
from h3gnn.experiments.spaces import SearchBudget
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph, first_splits

NAMES = ("boosting", "boosting-neighbours", "label-propagation", "correct-smooth")
FAST = {"max_iter": 5}


def one_setting(name: str) -> Method:
    (point,) = variant(METHODS[name], "quick").settings["grid"]
    fast = FAST if "max_iter" in point else {}
    return METHODS[name].with_settings(grid=[{**point, **fast}])


def scores_of(method: Method, graph: Graph) -> Tensor:
    (found,) = method.predict(Task(graph, [0], torch.device("cpu"), method.settings))  # type: ignore[misc]
    return found.scores


@pytest.fixture(scope="module")
def graph(small_mixed: Graph) -> Graph:
    return first_splits(small_mixed, 2)


def shuffled(graph: Graph, nodes: Tensor) -> Graph:
    """Return the graph with the labels of some nodes in another order."""
    labels = labels_and_masks(graph)[0].clone()
    labels[nodes] = labels[nodes].roll(1)
    return replace(graph, labels=labels)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_depend_on_the_labels_of_training_nodes_alone(name: str, graph: Graph) -> None:
    method, train = one_setting(name), labels_and_masks(graph)[1]
    before = scores_of(method, graph)
    for split in range(2):
        after = scores_of(method, shuffled(graph, ~train[:, split]))
        assert torch.equal(after[split], before[split])
        other = scores_of(method, shuffled(graph, train[:, split]))
        assert not torch.equal(other[split], before[split])
    assert before.shape == (2, 100, 5)
    torch.testing.assert_close(before.exp().sum(dim=-1), torch.ones(2, 100))


def test_test_labels_choose_no_setting(graph: Graph) -> None:
    method, test = METHODS["label-propagation"], labels_and_masks(graph)[3]
    for split in range(2):
        after = scores_of(method, shuffled(graph, test[:, split]))
        assert torch.equal(after[split], scores_of(method, graph)[split])


@pytest.mark.parametrize("name", NAMES)
def test_what_each_method_sees(name: str, graph: Graph) -> None:
    method, before = one_setting(name), scores_of(one_setting(name), graph)
    without_edges = replace(graph, edge_index=graph.edge_index[:, :0])
    assert torch.equal(scores_of(method, without_edges), before) == ("edges" not in method.sees)
    blank = replace(graph, features=torch.zeros(graph.num_nodes, 1))
    assert torch.equal(scores_of(method, blank), before) == ("features" not in method.sees)


def split_path(labels: list[int]) -> Graph:
    """0 – 1 – 2 – 3 – 4: 0, 3 and 4 are training nodes, 1 the validation node, 2 the test node."""
    train, val, test = torch.zeros(3, 5, 1, dtype=torch.bool)
    train[[0, 3, 4]], val[1], test[2] = True, True, True
    ends = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    found = check_graph(torch.eye(5), torch.cat([ends, ends.flip(0)], dim=1), labels=labels)
    return replace(found, train_mask=train, val_mask=val, test_mask=test)


def test_label_propagation_by_hand() -> None:
    """In one step with restart 0.5, node 2 meets class 1 at 3 only, and 1 meets class 0 at 0 only."""
    method = METHODS["label-propagation"].with_settings(grid=[{"restart": 0.5, "steps": 1}])
    (p,) = scores_of(method, split_path([0, 1, 0, 1, 0])).exp()
    np.testing.assert_allclose(p[1:3], [[1, 0], [0, 1]], atol=1e-3)
    # 3: 0.5 + 0.5 / 3 of class 1 and 0.5 / 3 of class 0
    np.testing.assert_allclose(p[3], [0.2, 0.8], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_one_class_among_the_training_nodes_is_predicted(name: str) -> None:
    (p,) = scores_of(one_setting(name), split_path([1, 0, 0, 1, 1])).exp()
    np.testing.assert_allclose(p, [[0, 1]] * 5, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_grids_and_ranges(name: str) -> None:
    method = METHODS[name]
    own, full = method.settings["grid"], grid_of(method, "full")
    assert grid_of(method, "small") == own
    assert len(own) == 4
    assert full[0] == own[0]  # the default
    assert all(point in full for point in own)
    assert len(full) == np.prod([len(values) for values in ranges_of(method).values()])


def test_trials_search_the_ranges_of_the_method(graph: Graph) -> None:
    found = run_nested(
        METHODS["label-propagation"], graph, seeds=[0], budget=SearchBudget(6), device="cpu"
    ).results["nested"]
    tried = found.params["tried"]
    assert tried[:4] == [{}, {"restart": 0.03}, {"restart": 0.3}, {"restart": 0.5}]
    assert len(tried) == 6
    assert all(one.keys() == {"restart", "steps"} for one in found.chosen[0])
