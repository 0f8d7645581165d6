"""Random splits: shares within each class, the same for the same seed."""

from __future__ import annotations

import numpy as np
import torch

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import random_splits, with_splits


def draw(labels: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return random_splits(labels, generator=torch.Generator().manual_seed(seed))


def test_shares_hold_within_each_class_and_unlabelled_nodes_are_left_out() -> None:
    labels = torch.tensor([0] * 100 + [1] * 50 + [-1] * 7)
    train, val, test = draw(labels)
    assert train.shape == (157, 10)
    for one, sizes in ((0, (48, 32, 20)), (1, (24, 16, 10)), (-1, (0, 0, 0))):
        members = labels == one
        for mask, size in zip((train, val, test), sizes, strict=True):
            assert (mask[members].sum(0) == size).all()
    assert not (train & val).any()
    assert not (train & test).any()
    assert not (val & test).any()


def test_the_seed_decides_and_splits_differ() -> None:
    labels = torch.arange(60) % 3
    first, again, other = draw(labels), draw(labels), draw(labels, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][:, 0], first[0][:, 1])


def test_a_class_of_one_stands_in_train() -> None:
    train, _, _ = draw(torch.tensor([0, 1, 1, 1, 1]))
    assert train[0].all()


def test_a_labelled_graph_without_splits_gets_them_and_says_so() -> None:
    features, edges = np.eye(4), np.array([[0, 1], [1, 2]])
    plain = check_graph(features, edges, labels=np.array([0, 1, 0, 1]))
    split = with_splits(plain)
    assert split.num_splits == 10
    assert split.provenance.sha256 != plain.provenance.sha256
    assert split.provenance.repairs[-1].code == "random-splits"
    assert with_splits(split) is split
    assert with_splits(check_graph(features, edges)).train_mask is None
