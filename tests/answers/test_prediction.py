from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.answers.prediction import (
    Basis,
    NodePredictor,
    Rule,
    _best_threshold,
    _fit_temperature,
    _learn_cuts,
    calibration_error,
    check_labels,
    cross_validate,
)
from tests.rejects import rejects


def two_groups(nodes: int = 120, apart: float = 3.0, rare: float = 0.5) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    labels = (np.arange(nodes) < rare * nodes).astype(np.int64)
    rows = random.normal(size=(nodes, 6)).astype(np.float32)
    rows[:, 0] += apart * labels
    return rows, labels


def test_unlabelled_nodes_get_the_class_of_their_group() -> None:
    rows, labels = two_groups()
    chosen = np.arange(0, 120, 3)
    decision = NodePredictor(rows, chosen, labels[chosen], 2, Rule())(rows)
    assert (decision.classes == labels).mean() > 0.9
    np.testing.assert_allclose(decision.probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(decision.probability, decision.probabilities[np.arange(120), decision.classes])
    confident = ~decision.cannot_tell
    assert (decision.classes == labels)[confident].mean() >= (decision.classes == labels).mean()


def test_random_labels_score_as_chance() -> None:
    random = np.random.default_rng(1)
    rows, labels = random.normal(size=(90, 40)).astype(np.float32), random.integers(0, 2, 90)
    scores = cross_validate(Basis(rows, np.arange(90)), labels, 2, Rule())
    assert abs(scores.mean["balanced_accuracy"] - 0.5) < 0.12
    assert scores.mean["log_loss"] < 0.8  # a temperature keeps the probabilities modest
    assert scores.folds == 15


def test_held_out_predictions_do_not_use_the_label_of_the_node() -> None:
    rows, labels = two_groups(60)
    wrong = labels.copy()
    wrong[5] = 1 - wrong[5]
    held = cross_validate(Basis(rows, np.arange(60)), wrong, 2, Rule()).held_out
    assert held.classes[5] == labels[5]


def test_probabilities_are_calibrated() -> None:
    rows, labels = two_groups(600, apart=1.5)
    chosen = np.arange(0, 600, 2)
    decision = NodePredictor(rows, chosen, labels[chosen], 2, Rule())(rows[1::2])
    assert calibration_error(decision.probabilities, labels[1::2]) < 0.08


def test_balanced_weights_and_thresholds_find_more_of_a_rare_class() -> None:
    rows, labels = two_groups(400, apart=1.5, rare=0.1)
    every = np.arange(400)

    def found(rule: Rule) -> Any:
        return NodePredictor(rows, every, labels, 2, rule)(rows)

    plain, balanced, low = found(Rule()), found(Rule("balanced")), found(Rule(threshold=0.1))
    np.testing.assert_allclose(plain.probabilities, balanced.probabilities)  # only the decision moves
    assert plain.classes.sum() < balanced.classes.sum()
    np.testing.assert_array_equal(low.classes, (low.probabilities[:, 1] >= 0.1).astype(int))
    auto = NodePredictor(rows, every, labels, 2, Rule(threshold="auto"))
    assert auto.model.threshold is not None
    assert 0 < auto.model.threshold < 0.9


def test_a_given_cut_marks_lower_probabilities() -> None:
    rows, labels = two_groups()
    decision = NodePredictor(rows, np.arange(120), labels, 2, Rule(cannot_tell_below=0.9))(rows)
    np.testing.assert_array_equal(decision.cannot_tell, decision.probability < 0.9)


def test_a_learned_cut_worked_by_hand() -> None:
    probability = np.linspace(0.99, 0.6, 20)
    labels = np.zeros(20, dtype=np.int64)
    labels[[12, 14, 16, 18]] = 1  # all decided 0: 80 % right, so 90 % are wanted above the cut
    cuts = _learn_cuts(probability, np.zeros(20, dtype=np.int64), labels, 2, None)
    assert cuts[0] == probability[13]  # 13 of the first 14 are right; of the first 15 or more, fewer
    assert cuts[1] == cuts[0]  # never predicted here, so it has the cut of all
    assert _learn_cuts(probability[:9], np.zeros(9, dtype=np.int64), labels[:9], 2, None)[0] == np.inf


def test_the_best_threshold_worked_by_hand() -> None:
    probability = np.array([0.9, 0.6, 0.4, 0.3, 0.2])
    truth = np.array([True, True, True, False, False])
    assert _best_threshold(probability, truth, "auto") == 0.4
    assert _best_threshold(probability, truth, 0.25) == 0.25


@settings(deadline=None, max_examples=20)
@given(st.floats(0.3, 3.0))
def test_temperature_undoes_a_scale(scale: float) -> None:
    random = np.random.default_rng(0)
    truth = random.uniform(0.05, 0.95, 4000)
    labels = (random.uniform(size=4000) < truth).astype(np.int64)
    log_p = np.log(np.stack([1 - truth, truth], axis=1)) * scale
    assert _fit_temperature(log_p, labels) == pytest.approx(scale, rel=0.15)


def test_the_projection_of_a_wide_embedding_keeps_inner_products() -> None:
    rows, _ = two_groups(40)
    wide = np.concatenate([rows, np.random.default_rng(3).normal(size=(40, 90)).astype(np.float32)], axis=1)
    basis = Basis(wide, np.arange(20))
    project = basis.projection(np.arange(20))
    full, small = basis.labelled, project(basis.labelled).double()
    np.testing.assert_allclose(small @ small.T, full @ full.T, atol=1e-2)
    assert small.shape == (20, 20)


@pytest.mark.parametrize("labels", [[-1, -1], [0] * 9 + [-1], [0] * 9 + [1, 1]])
def test_too_few_labels_are_rejected(labels: list[int]) -> None:
    with rejects("too-few-labels"):
        check_labels(np.array(labels), ("red", "blue"))


def test_rare_and_tiny_classes_are_noted() -> None:
    notes = check_labels(np.array([0] * 90 + [1] * 5 + [2] * 2), ("licit", "fraud", "odd"))
    assert "fewer than 4 labelled nodes: odd" in notes[0]
    assert "fraud is rare (5.2 %" in notes[1]


@pytest.mark.parametrize(
    ("rule", "classes", "code"),
    [
        (Rule("heavy"), 2, "value-invalid"),
        (Rule(threshold=0.5), 3, "threshold-needs-two-classes"),
        (Rule("balanced", 0.5), 2, "threshold-and-class-weight"),
        (Rule(threshold=1.5), 2, "value-invalid"),
        (Rule(cannot_tell_below=-1), 2, "value-invalid"),
    ],
)
def test_invalid_rules_are_rejected(rule: Rule, classes: int, code: str) -> None:
    with rejects(code):
        rule.check(classes)
