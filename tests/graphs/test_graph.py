"""Graphs: random splits, order of columns, and matching the nodes of two graphs."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import random_splits, with_columns, with_splits
from h3gnn.graphs.ids import match_nodes


def draw(labels: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return random_splits(labels, generator=torch.Generator().manual_seed(seed))


def test_splits_are_stratified_and_omit_unlabelled_nodes() -> None:
    labels = torch.tensor([0] * 100 + [1] * 50 + [-1] * 7)
    train, val, test = draw(labels)
    assert train.shape == (157, 10)
    for one, sizes in ((0, (48, 32, 20)), (1, (24, 16, 10)), (-1, (0, 0, 0))):
        members = labels == one
        for mask, size in zip((train, val, test), sizes, strict=True):
            assert (mask[members].sum(0) == size).all()
    assert int((train.int() + val.int() + test.int()).max()) == 1


def test_splits_depend_on_the_seed_and_differ() -> None:
    labels = torch.arange(60) % 3
    first, again, other = draw(labels), draw(labels), draw(labels, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][:, 0], first[0][:, 1])


def test_a_class_of_one_node_is_in_training() -> None:
    train, _, _ = draw(torch.tensor([0, 1, 1, 1, 1]))
    assert train[0].all()


def test_a_labelled_graph_without_splits_gets_random_ones() -> None:
    features, edges = np.eye(4), np.array([[0, 1], [1, 2]])
    plain = check_graph(features, edges, labels=np.array([0, 1, 0, 1]))
    split = with_splits(plain)
    assert split.num_splits == 10
    assert split.provenance.sha256 != plain.provenance.sha256
    assert split.provenance.repairs[-1].code == "random-splits"
    assert with_splits(split) is split
    assert with_splits(check_graph(features, edges)).train_mask is None


def test_columns_of_sparse_features_are_reordered_without_making_them_dense() -> None:
    values = sp.csr_array(sp.random_array((40, 60), density=0.05, rng=np.random.default_rng(0)))
    order = np.random.default_rng(1).permutation(60).tolist()
    graph = check_graph(values, np.array([[0], [1]]))
    moved = with_columns(graph, order, tuple("abc"))
    assert moved.features.layout == torch.sparse_csr
    assert torch.equal(moved.dense_features(), graph.dense_features()[:, order])
    same = check_graph(values[:, order], np.array([[0], [1]]))
    assert moved.provenance.sha256 == same.provenance.sha256


def test_nodes_match_by_id_of_any_type_or_by_position_and_features() -> None:
    features, edges = np.diag([1.0, 2.0, 3.0]), np.array([[0], [1]])
    named = check_graph(features, edges, node_ids=np.array([7, 8, 9]))
    texts = check_graph(features[:2], edges, node_ids=np.array(["9", "x"], dtype=object))
    assert match_nodes(named, texts).tolist() == [2, -1]
    plain, sparse = check_graph(features, edges), check_graph(sp.csr_array(np.eye(40)), edges)
    changed = check_graph(np.diag([1.0, 5.0, 3.0])[:, [0, 1, 2]], edges)
    assert match_nodes(plain, changed).tolist() == [0, -1, 2]
    assert match_nodes(plain, sparse).tolist() == [-1] * 40
    assert match_nodes(sparse, sparse).tolist() == list(range(40))
