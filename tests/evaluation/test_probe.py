from __future__ import annotations

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from h3gnn.evaluation.probe import (
    TOGETHER,
    SharedEmbedding,
    fit_logistic,
    gradient_candidates,
    inner_products,
    linear_probe,
    predict_logistic,
    principal_components,
    probe_candidates,
    project_onto,
    scaled_candidates,
    standardise,
)
from h3gnn.evaluation.protocols import INVERSE_TEMPERATURES, VALIDATION, tempered_loss


def blobs(seed: int = 0, nodes: int = 90, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % 3
    centres = 2 * torch.randn(3, width, generator=generator)
    return centres[labels] + torch.randn(nodes, width, generator=generator), labels


def thirds(splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random thirds for training, validation and test."""
    generator = torch.Generator().manual_seed(4)
    order = torch.stack([torch.randperm(90, generator=generator) for _ in range(splits)], dim=1)
    return (order % 3) == 0, (order % 3) == 1, (order % 3) == 2


@pytest.mark.parametrize("strength", [0.001, 0.1, 3.0])
def test_solution_equals_scikit_learn(strength: float) -> None:
    rows, labels = blobs()
    used = torch.stack([torch.arange(90) < 60, torch.arange(90) >= 20])
    targets = torch.nn.functional.one_hot(labels).double()
    weights = fit_logistic(rows.double(), targets, used, [strength], tolerance=1e-13)[:, 0]
    for problem in range(2):
        chosen = used[problem].numpy()
        model = LogisticRegression(C=1 / (strength * chosen.sum()), solver="newton-cg", tol=1e-10)
        model.fit(rows.double().numpy()[chosen], labels.numpy()[chosen])
        theirs = model.predict_proba(rows.double().numpy())
        ours = predict_logistic(rows.double(), weights)[problem].exp()
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_wide_embeddings_give_exact_predictions() -> None:
    rows, labels = blobs(width=200)  # wider than the 30 training nodes
    masks = thirds(1)
    result = linear_probe(rows, labels, *masks, strengths=(0.1,))
    scaled = standardise(rows.double()).numpy()
    train, _, test = (mask[:, 0].numpy() for mask in masks)
    model = LogisticRegression(C=1 / (0.1 * 30), tol=1e-8, max_iter=5000)
    model.fit(scaled[train], labels.numpy()[train])
    assert result.test[0] == pytest.approx(model.score(scaled[test], labels.numpy()[test]))


def test_only_the_final_score_depends_on_test_labels() -> None:
    rows, labels = blobs(seed=3)
    masks = thirds(1)
    labels = labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    first = linear_probe(rows, labels, *masks)
    changed = torch.where(masks[2][:, 0], (labels + 1) % 3, labels)
    second = linear_probe(rows, changed, *masks)
    assert first.strength.tolist() == second.strength.tolist()
    assert first.validation.tolist() == second.validation.tolist()
    assert first.test.tolist() != second.test.tolist()


def test_unlabelled_nodes_are_ignored() -> None:
    rows, labels = blobs()
    masks = thirds(1)
    hidden = labels.clone()
    hidden[:9] = -1
    found = linear_probe(rows, hidden, *masks)
    alone = linear_probe(rows, labels, *(mask & (hidden >= 0)[:, None] for mask in masks))
    for name in ("test", "validation", "strength"):
        assert getattr(found, name).tolist() == getattr(alone, name).tolist()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_every_loss_along_the_path_is_minimal(precision: torch.dtype) -> None:
    rows, labels = blobs(seed=5, nodes=60, width=20)  # separable: small penalties have far to go
    strengths = (0.01, 1e-4, 100.0, 1.0, 0.03)  # not sorted
    used, targets = torch.ones(1, 60, dtype=torch.bool), torch.nn.functional.one_hot(labels)
    found = fit_logistic(rows.to(precision), targets.to(precision), used, strengths)[0].double()
    for strength, weights in zip(strengths, found, strict=True):
        model = LogisticRegression(C=1 / (strength * 60), solver="newton-cg", tol=1e-12, max_iter=1000)
        model.fit(rows.double().numpy(), labels.numpy())
        theirs = np.vstack([model.coef_.T, model.intercept_])
        least, ours = (loss_of(rows, labels, torch.as_tensor(one), strength) for one in (theirs, weights))
        assert -1e-9 < ours - least < 1e-6


def loss_of(rows: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, strength: float) -> float:
    logits = rows.double() @ weights[:-1] + weights[-1]
    loss = torch.nn.functional.cross_entropy(logits, labels) + 0.5 * strength * weights[:-1].square().sum()
    return float(loss)


def test_a_split_without_a_class_never_predicts_it() -> None:
    rows, labels = blobs()
    used = (labels != 2)[None]
    targets = torch.nn.functional.one_hot(labels, 3).double()
    weights = fit_logistic(rows.double(), targets, used, [1e-4, 1.0])
    assert weights.isfinite().all()
    assert (predict_logistic(rows.double(), weights[0]).argmax(dim=-1) != 2).all()


@pytest.mark.parametrize("strength", [0.0001, 0.1])
def test_projection_onto_the_training_rows_gives_the_same_classifier(strength: float) -> None:
    rows, labels = blobs(width=100)
    rows[7] = rows[3]  # a singular matrix of inner products
    scaled, train = standardise(rows.double()), torch.arange(60)
    few = project_onto(inner_products(rows, train), train)
    assert few.shape == (90, 59)
    torch.testing.assert_close(few @ few[:60].mT, scaled @ scaled[:60].mT, rtol=0, atol=1e-6)
    used = torch.stack([train < 40, train >= 20])
    targets = torch.nn.functional.one_hot(labels[:60]).double()
    wanted, found = (
        predict_logistic(one, fit_logistic(one[:60], targets, used, [strength], tolerance=1e-12)[:, 0])
        for one in (scaled, few)
    )
    torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("width", "products"), [(5, 10**6), (200, 10**6), (200, 0)])
def test_splits_solved_alone_equal_splits_solved_together(
    width: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = blobs(width=width)
    masks = thirds(3)
    together = probe_candidates(rows, labels, *masks)
    monkeypatch.setitem(TOGETHER, "cpu", 0)
    monkeypatch.setattr("h3gnn.evaluation.probe.MAX_PRODUCTS", products)
    apart = probe_candidates(rows, labels, *masks)
    np.testing.assert_allclose(apart.val_loss, together.val_loss, atol=5e-3)  # magnified by temperatures
    for one, other in zip(apart.predicted, together.predicted, strict=True):
        assert (one == other).mean() > 0.99


def test_splits_share_the_principal_components(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = MagicMock(wraps=principal_components)
    monkeypatch.setattr("h3gnn.evaluation.probe.principal_components", counted)
    rows, labels = blobs()
    masks = thirds(3)
    together, shared = probe_candidates(rows, labels, *masks), SharedEmbedding(rows)
    assert counted.call_count == 1
    for split in range(3):
        train, val, test = (mask[:, [split]] for mask in masks)
        alone = probe_candidates(shared, labels, train, val, test)
        np.testing.assert_allclose(alone.val_loss[0], together.val_loss[split], atol=2e-3)
    assert counted.call_count == 2  # for all three
    scaled_candidates(shared, labels, *masks)
    assert counted.call_count == 3  # for the other scale


def test_principal_components_are_an_uncorrelated_rotation() -> None:
    rows, _ = blobs()
    found = principal_components(rows.double())
    products = found.T @ found
    torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-9)
    torch.testing.assert_close(found @ found.T, rows.double() @ rows.double().T)


def test_the_gradient_probe_equals_adam_on_a_linear_layer() -> None:
    rows, labels = blobs()
    masks = thirds(2)
    found = gradient_candidates(
        rows, labels, *masks, learning_rates=(0.01, 0.001), weight_decays=(0.0, 5e-4), steps=25
    )
    assert [setting["step"] for setting in found.settings] == [10] * 4 + [20] * 4 + [25] * 4
    scaled = standardise(rows)
    for split in range(2):
        layer = torch.nn.Linear(6, 3)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        adam = torch.optim.Adam(layer.parameters(), lr=0.001, weight_decay=5e-4)
        train, val, test = (mask[:, split] for mask in masks)
        for _ in range(25):
            adam.zero_grad()
            loss = torch.nn.functional.cross_entropy(layer(scaled[train]), labels[train])
            torch.autograd.backward(loss)
            adam.step()
        logits = layer(scaled[val])
        loss = min(torch.nn.functional.cross_entropy(b * logits, labels[val]) for b in INVERSE_TEMPERATURES)
        assert found.settings[11] == {"learning_rate": 0.001, "weight_decay": 5e-4, "step": 25}
        assert found.val_loss[split, 11] == pytest.approx(loss.item(), rel=2e-3)  # float32, magnified
        assert found.predicted[split][11].tolist() == layer(scaled[test]).argmax(1).tolist()


def test_loss_at_the_best_temperature() -> None:
    # three of four are correct with equal confidence: the best probability is 3/4
    answers, sign = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 1.0, -1.0, 1.0])
    odds = torch.stack([sign * np.log(3), sign * np.log(3) / 8, 4 * sign * np.log(3)])
    log_p = torch.stack([torch.sigmoid(odds).log(), torch.sigmoid(-odds).log()], dim=2)
    best = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert tempered_loss(log_p, answers).tolist() == pytest.approx([best] * 3)
    assert tempered_loss(log_p[:, :0], answers[:0]).tolist() == [0, 0, 0]


def test_the_scale_is_chosen_like_the_penalty() -> None:
    # column 0 determines the class and has a large scale; the other columns are noise
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    rows = torch.randn(90, 80, generator=generator)
    rows[:, 0] = 40.0 * (labels - 1) + 4 * torch.randn(90, generator=generator)
    masks = thirds(2)
    found = scaled_candidates(rows, labels, *masks, strengths=(0.1, 1.0))
    assert [dict(one) for one in found.settings] == [
        {"strength": strength, "scale": scale} for scale in ("columns", "common") for strength in (0.1, 1.0)
    ]
    for at, by_column in ((0, True), (2, False)):
        alone = probe_candidates(rows, labels, *masks, strengths=(0.1, 1.0), by_column=by_column)
        assert found.val_accuracy[:, at : at + 2].tolist() == alone.val_accuracy.tolist()
        assert found.val_loss[:, at : at + 2].tolist() == alone.val_loss.tolist()
        for split in range(2):
            assert found.predicted[split][at : at + 2].tolist() == alone.predicted[split].tolist()
            assert found.odds[split][at : at + 2].tolist() == alone.odds[split].tolist()
    assert [choice.setting["scale"] for choice in VALIDATION.choose({0: found})] == ["common"] * 2
    rows[:, 0] /= 4000  # now its scale is small
    again = VALIDATION.choose({0: scaled_candidates(rows, labels, *masks)})
    assert [choice.setting["scale"] for choice in again] == ["columns"] * 2
