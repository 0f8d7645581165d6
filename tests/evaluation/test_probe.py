from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.logistic import fit_logistic
from h3gnn.evaluation.probe import linear_probe, standardise


def blobs(seed: int = 0, nodes: int = 90, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % 3
    centres = 2 * torch.randn(3, width, generator=generator)
    return centres[labels] + torch.randn(nodes, width, generator=generator), labels


@pytest.mark.parametrize("strength", [0.001, 0.1, 3.0])
def test_it_finds_the_solution_that_scikit_learn_finds(strength: float) -> None:
    rows, labels = blobs()
    used = torch.zeros(2, 90, dtype=torch.bool)
    used[0, :60] = True
    used[1, 20:] = True
    targets = torch.nn.functional.one_hot(labels).double()
    strengths = torch.tensor([strength, strength], dtype=torch.double)
    weights = fit_logistic(rows[None].double(), targets, used, strengths, iterations=2000, tolerance=1e-10)[0]
    for problem in range(2):
        chosen = used[problem].numpy()
        model = LogisticRegression(C=1 / (strength * chosen.sum()), solver="newton-cg", tol=1e-10)
        model.fit(rows.double().numpy()[chosen], labels.numpy()[chosen])
        theirs = model.predict_proba(rows.double().numpy())
        ours = torch.nn.functional.pad(rows.double(), (0, 1), value=1.0) @ weights[problem]
        np.testing.assert_allclose(ours.softmax(-1).numpy(), theirs, atol=1e-5)


def test_the_basis_of_the_training_rows_changes_no_prediction() -> None:
    rows, labels = blobs(width=200)  # wider than the 30 training nodes
    train = (torch.arange(90) < 30)[:, None]
    val = ((torch.arange(90) >= 30) & (torch.arange(90) < 60))[:, None]
    test = (torch.arange(90) >= 60)[:, None]
    result = linear_probe(rows, labels, train, val, test, strengths=(0.1,))
    scaled = standardise(rows.double()).numpy()
    model = LogisticRegression(C=1 / (0.1 * 30), tol=1e-8, max_iter=5000).fit(
        scaled[:30], labels[:30].numpy()
    )
    assert result.test[0] == pytest.approx(model.score(scaled[60:], labels[60:].numpy()))


def test_nothing_but_the_final_score_depends_on_test_labels() -> None:
    rows, labels = blobs(seed=3)
    order = torch.arange(90)
    masks = [((order % 3) == part)[:, None].roll(part) for part in range(3)]
    labels = labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    first = linear_probe(rows, labels, *masks)
    changed = torch.where(masks[2][:, 0], (labels + 1) % 3, labels)
    second = linear_probe(rows, changed, *masks)
    assert first.strength.tolist() == second.strength.tolist()
    assert first.validation.tolist() == second.validation.tolist()
    assert first.test.tolist() != second.test.tolist()


def test_nodes_without_a_label_are_left_out() -> None:
    rows, labels = blobs()
    masks = [torch.zeros(90, 1, dtype=torch.bool) for _ in range(3)]
    for mask, start in zip(masks, (0, 30, 60), strict=True):
        mask[start : start + 30] = True
    hidden = labels.clone()
    hidden[[5, 35, 65]] = -1
    assert 0.5 < linear_probe(rows, hidden, *masks).mean <= 1


def test_clustering_accuracy_is_that_of_the_best_matching() -> None:
    clusters = np.array([2, 2, 2, 0, 0, 1])
    assert clustering_accuracy(clusters, np.array([0, 0, 0, 1, 1, 2])) == 1.0
    assert clustering_accuracy(clusters, np.array([0, 0, 1, 1, 1, 2])) == pytest.approx(5 / 6)
    assert clustering_accuracy(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])) == pytest.approx(0.5)


def test_kmeans_finds_blobs_and_is_repeatable() -> None:
    rows, labels = blobs()
    clusters = kmeans_clusters((10 * rows).numpy(), 3)
    assert clustering_accuracy(clusters, labels.numpy()) > 0.8
    np.testing.assert_array_equal(clusters, kmeans_clusters((10 * rows).numpy(), 3))
