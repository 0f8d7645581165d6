from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from h3gnn.evaluation import evaluator
from h3gnn.evaluation.evaluator import RIDGES, RidgeValidation
from h3gnn.evaluation.probe import standardise

CPU = torch.device("cpu")


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    embedding = torch.nn.functional.one_hot(labels, 3) + torch.randn(60, 3, generator=generator)
    order = torch.rand(60, 2, generator=generator).argsort(dim=0)
    return embedding, labels, order < 20, (order >= 20) & (order < 40)


def test_accuracy_equals_ridge_regression_onto_the_classes() -> None:
    embedding, labels, train, val = data()
    found = RidgeValidation(labels, train, val, CPU, ridges=(0.3,)).accuracies(embedding)
    rows = ((embedding - embedding.mean(0)) / embedding.std(0, correction=0) / 3**0.5).double().numpy()
    rows = np.hstack([rows, np.ones((60, 1))])  # the constant of the kernel is a column of ones
    for split in range(2):
        x, y = rows[train[:, split]], np.eye(3)[labels[train[:, split]].numpy()]
        weights = np.linalg.solve(x.T @ x + 0.3 * np.eye(4), x.T @ y)
        chosen = val[:, split]
        right = (rows[chosen] @ weights).argmax(1) == labels[chosen].numpy()
        assert found[split].item() == np.float32(right.mean())


def test_labels_of_test_nodes_have_no_effect_and_nan_scores_zero() -> None:
    embedding, labels, train, val = data()
    garbled = torch.where((train | val).any(dim=1), labels, 2 - labels)
    ridge = RidgeValidation(labels, train, val, CPU)
    found = ridge.accuracies(embedding)
    assert (found > 0.3).all()
    assert torch.equal(found, RidgeValidation(garbled, train, val, CPU).accuracies(embedding))
    embedding[5, 0] = float("nan")
    assert (ridge.accuracies(embedding) == 0).all()


def uneven() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three splits of different sizes, with enough noise that the penalty matters."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(60) % 3
    embedding = torch.nn.functional.one_hot(labels, 3) + 1.5 * torch.randn(60, 3, generator=generator)
    embedding = torch.cat([embedding, torch.randn(60, 30, generator=generator)], dim=1)
    order = torch.rand(60, 3, generator=generator).argsort(dim=0)
    sizes, asked = torch.tensor([6, 30, 15]), torch.tensor([40, 11, 23])
    return embedding, labels, order < sizes, (order >= sizes) & (order < sizes + asked)


def one_by_one(
    embedding: torch.Tensor, labels: torch.Tensor, train: torch.Tensor, val: torch.Tensor
) -> npt.NDArray[np.float64]:
    """Return the accuracy of each split with each penalty, `[ridges, splits]`, solved alone."""
    rows, known = embedding.double().numpy(), labels.numpy()
    rows = (rows - rows.mean(0)) / rows.std(0) / rows.shape[1] ** 0.5
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    found = np.zeros((len(RIDGES), train.shape[1]))
    for place, ridge in enumerate(RIDGES):
        for split in range(train.shape[1]):
            learned, asked = train[:, split].numpy(), val[:, split].numpy()
            weights = np.linalg.solve(
                rows[learned].T @ rows[learned] + ridge * np.eye(rows.shape[1]),
                rows[learned].T @ np.eye(3)[known[learned]],
            )
            found[place, split] = ((rows[asked] @ weights).argmax(1) == known[asked]).mean()
    return found


def test_splits_solved_together_equal_splits_solved_alone() -> None:
    embedding, labels, train, val = uneven()
    each = one_by_one(embedding, labels, train, val)
    together = RidgeValidation(labels, train, val, CPU)
    best = each.mean(axis=1).argmax()
    np.testing.assert_allclose(together.accuracies(embedding), each[best], atol=1e-6)
    own = [RidgeValidation(labels, train[:, [i]], val[:, [i]], CPU) for i in range(3)]
    assert len(set(each.argmax(axis=0))) > 1  # the best penalty differs
    beside = RidgeValidation.concat(own)
    np.testing.assert_allclose(beside.accuracies(embedding), each.max(axis=0), atol=1e-6)
    two = RidgeValidation.concat([RidgeValidation(labels, train[:, :2], val[:, :2], CPU), own[2]])
    shared = each[:, :2].mean(axis=1).argmax()
    np.testing.assert_allclose(two.accuracies(embedding), [*each[shared, :2], each[:, 2].max()], atol=1e-6)


def test_chunks_of_splits_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, labels, train, val = uneven()
    criterion = RidgeValidation(labels, train, val, CPU)
    whole = criterion.accuracies(embedding)
    monkeypatch.setattr(evaluator, "CHUNK_BYTES", 1)  # one split at a time
    assert torch.equal(criterion.accuracies(embedding), whole)


def test_primal_and_dual_forms_are_equal() -> None:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (80,), generator=generator)
    rows = torch.randn(80, 6, generator=generator) + 0.7 * torch.nn.functional.one_hot(labels, 6)
    train = torch.rand(80, 4, generator=generator) < torch.tensor([0.3, 0.4, 0.5, 0.6])  # uneven padding
    ridge = RidgeValidation(labels, train, ~train, CPU, ridges=(0.3,))
    scaled = standardise(rows)[ridge.used] * 6**-0.5
    every = torch.arange(4)
    few = ridge._accuracy(*ridge._primal(torch.nn.functional.pad(scaled, (0, 1), value=1.0), every), every)
    many = ridge._accuracy(*ridge._dual(scaled @ scaled.mT + 1, every), every)
    assert 0.4 < float(few.mean()) < 1
    assert torch.equal(few, many)
    assert torch.equal(ridge.accuracies(rows), few[0])
