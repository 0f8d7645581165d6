"""Measures of rankings by hand, and scorers that are chosen by other users than those that measure them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from h3gnn.evaluation.ranking import Trials, measure_hidden, measure_names, standardize

NDCG = 2


def test_measures_worked_by_hand() -> None:
    scores = np.array([[5.0, 4, 3, 2, 1], [1, 5, -np.inf, 4, 3]])
    rows, items = np.array([0, 0, 1]), np.array([1, 3, 4])  # ranks 2 and 4; rank 3
    found = measure_hidden(scores, rows, items, cutoff=2)
    second, ideal = 1 / np.log2(3), 1 + 1 / np.log2(3)
    gained = second + 1 / np.log2(5)
    np.testing.assert_allclose(found, [[1 / 2, second / ideal, gained / ideal], [0, 0, 1 / 2]])
    assert measure_names(2) == ("recall@2", "ndcg@2", "ndcg")


def by_order(order: tuple[int, ...], cutoff: int) -> list[float]:
    """The measures of a ranking of five items with the hidden items 1 and 2."""
    places = [1 + order.index(item) for item in (1, 2)]
    gains = [1 / np.log2(1 + place) for place in places]
    ideal = [1, 1 / np.log2(3)]
    inside = [place <= cutoff for place in places]
    return [sum(inside) / 2, np.dot(gains, inside) / sum(ideal[:cutoff]), sum(gains) / sum(ideal)]


@pytest.mark.parametrize("cutoff", [1, 2, 3, 4, 5])
def test_measures_of_equal_scores_are_means_over_their_orders(cutoff: int) -> None:
    scores = np.array([[1.0, 1, 1, 1, 0]])
    expected = np.mean([by_order((*order, 4), cutoff) for order in permutations(range(4))], axis=0)
    found = measure_hidden(scores, np.zeros(2, int), np.array([1, 2]), cutoff)
    np.testing.assert_allclose(found, [expected])


def test_standardized_scores_have_equal_spread_among_valid_items() -> None:
    scores = np.array([[1.0, 2, 3, 900], [7, 7, 7, 7]])
    valid = np.array([[True, True, True, False], [True] * 4])
    found = standardize(scores, valid)
    np.testing.assert_allclose(found[0, :3], np.array([-1, 0, 1]) * np.sqrt(1.5), rtol=1e-6)
    np.testing.assert_array_equal(found[1], 0)


def trials(names: list[str], scores: list[Any], items: Any) -> Trials:
    """One hidden item of each user."""
    valid = np.ones(scores[0].shape, bool)
    parts = [standardize(one, valid) for one in scores]
    return Trials(names, lambda at: parts[at], valid, np.arange(len(items)), items, 2)


def random_trials() -> tuple[Trials, Any, Any]:
    """Three settings of one scorer, and another scorer, which are all noise."""
    random = np.random.default_rng(3)
    scores = [random.normal(size=(30, 8)) for _ in range(4)]
    items = random.integers(0, 8, 30)
    return trials(["a", "a", "a", "b"], scores, items), scores, items


def test_settings_are_measured_by_users_that_did_not_choose_them() -> None:
    found, scores, items = random_trials()
    rank = np.array(
        [[1 + (one > one[item]).sum() for one, item in zip(s, items, strict=True)] for s in scores]
    )
    ndcg = 1 / np.log2(1 + rank)  # [settings, users]
    expected = np.empty(30)
    for fold in range(5):
        inside = found.fold == fold
        expected[inside] = ndcg[ndcg[:3, ~inside].mean(axis=1).argmax(), inside]
    np.testing.assert_allclose(found.by_name()["a"][:, NDCG], expected)
    assert len({ndcg[:3, found.fold != fold].mean(axis=1).argmax() for fold in range(5)}) > 1


def test_no_user_decides_about_its_own_measure() -> None:
    before, scores, items = random_trials()
    changed = [one.copy() for one in scores]
    for one in changed:
        one[before.fold == 0] *= -1
    after = trials(["a", "a", "a", "b"], changed, items)
    assert before.without[0][0] == after.without[0][0]
    np.testing.assert_array_equal(before.without[0][1], after.without[0][1])


def test_scorers_that_complete_each_other_are_blended() -> None:
    random = np.random.default_rng(0)
    items = random.integers(0, 12, 60)
    truth = np.eye(12)[items] * 2.5
    one, other, noise = (truth * part + random.normal(size=(60, 12)) for part in (1, 1, 0))
    found = trials(["one", "other", "noise"], [one, other, noise], items)
    _, weights = found.choose()
    assert weights[0] > 0.2
    assert weights[1] > 0.2
    assert weights[2] < 0.2
    best = max(measures[:, NDCG].mean() for measures in found.by_name().values())
    assert found.chosen()[:, NDCG].mean() > best + 0.02


def test_a_scorer_stays_alone_if_nothing_is_clearly_better() -> None:
    random = np.random.default_rng(1)
    items = random.integers(0, 12, 40)
    good = np.eye(12)[items] * 3 + random.normal(size=(40, 12))
    found = trials(["simple", "same", "noise"], [good, good * 2, random.normal(size=(40, 12))], items)
    np.testing.assert_array_equal(found.choose()[1], [1, 0, 0])
