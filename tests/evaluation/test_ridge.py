from __future__ import annotations

import numpy as np
import torch

from h3gnn.evaluation.criteria import RidgeValidation


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    embedding = torch.nn.functional.one_hot(labels, 3) + torch.randn(60, 3, generator=generator)
    order = torch.rand(60, 2, generator=generator).argsort(dim=0)
    return embedding, labels, order < 20, (order >= 20) & (order < 40)


def test_equals_ridge_regression_onto_the_classes() -> None:
    embedding, labels, train, val = data()
    found = RidgeValidation(labels, train, val, torch.device("cpu"), ridges=(0.3,)).accuracies(
        embedding[None]
    )
    rows = ((embedding - embedding.mean(0)) / embedding.std(0, correction=0) / 3**0.5).double().numpy()
    rows = np.hstack([rows, np.ones((60, 1))])  # the constant of the kernel is a column of ones
    for split in range(2):
        x, y = rows[train[:, split]], np.eye(3)[labels[train[:, split]].numpy()]
        weights = np.linalg.solve(x.T @ x + 0.3 * np.eye(4), x.T @ y)
        chosen = val[:, split]
        right = (rows[chosen] @ weights).argmax(1) == labels[chosen].numpy()
        assert found[0, split].item() == np.float32(right.mean())


def test_labels_of_test_nodes_change_nothing() -> None:
    embedding, labels, train, val = data()
    garbled = torch.where((train | val).any(dim=1), labels, 2 - labels)
    device = torch.device("cpu")
    honest = RidgeValidation(labels, train, val, device).accuracies(embedding[None])
    assert torch.equal(honest, RidgeValidation(garbled, train, val, device).accuracies(embedding[None]))


def test_an_embedding_that_is_not_finite_scores_nothing() -> None:
    embedding, labels, train, val = data()
    broken = torch.stack([embedding, embedding])
    broken[1, 5, 0] = float("nan")
    scores = RidgeValidation(labels, train, val, torch.device("cpu")).accuracies(broken)
    assert (scores[0] > 0.3).all()
    assert (scores[1] == 0).all()
