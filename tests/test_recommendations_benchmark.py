"""The benchmark of recommendations: which links are hidden, and what its tables print."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recommendations import CHOICE, hide_test, markdown
from h3gnn.answers.interactions import Interactions
from h3gnn.answers.recommend import fit_recommender, hide_latest


def links(rows: list[tuple[int, int, int]], user_type: str = "user") -> Interactions:
    """Links from rows of user, item and time."""
    users, items, time = (np.array(one) for one in zip(*rows, strict=True))
    ids = [np.arange(one.max() + 1) for one in (users, items)]
    return Interactions(users, items, ids[0], ids[1], time=time, user_type=user_type)


def test_the_latest_fifth_of_the_links_is_hidden() -> None:
    early = [
        (0, 0, 1),
        (0, 1, 2),
        (0, 2, 3),
        (1, 0, 3),
        (1, 1, 4),
        (1, 3, 5),
        (2, 2, 6),
        (2, 0, 7),
        (2, 1, 7),
    ]
    late = [(0, 3, 8), (3, 1, 9)]  # 0 has earlier links, 3 has none
    hidden = hide_test(links(early + late))
    assert hidden.kept.tolist() == [True] * 9 + [False] * 2
    assert (hidden.users.tolist(), hidden.items.tolist()) == ([0], [3])
    known = hide_test(links([*early, (0, 0, 8), (1, 2, 9)]))  # an item that 0 has is not new to it
    assert (known.users.tolist(), known.items.tolist()) == ([1], [2])


def test_repeats_are_hidden_where_they_are_normal() -> None:
    rows = [(user, day % 2, day) for user in range(3) for day in range(8)]
    hidden = hide_test(links(rows))
    assert not hidden.kept[[7, 15, 23]].any()
    assert hidden.items.tolist() == [1, 1, 1]


def test_a_product_of_each_order_is_hidden() -> None:
    data = links([(order, item, order) for order in range(30) for item in range(4)], user_type="orders")
    hidden = hide_test(data)
    assert hidden.users.tolist() == hidden.rows.tolist() == list(range(30))
    assert (~hidden.kept).sum() == 30
    other = hide_latest(data, repeats=False)  # the validation links are drawn again
    assert not np.array_equal(hidden.items, other.items)


def test_figures_are_percents_with_errors() -> None:
    score = {"recall@20": {"mean": 0.25, "error": 0.0125}, "ndcg@20": {"mean": 0.1, "error": 0.05}}
    users = {"val": 1200, "test": 900}
    cells = [{"task": "bitcoin-otc", "method": one, "users": users, "val": score} for one in (CHOICE, "SVD")]
    lines = markdown({"cells": cells}, "val").splitlines()
    assert lines[0] == "| recall@20 | bitcoin-otc |"
    assert "| SVD | 25.0 ± 1.2 |" in lines
    assert "| SVD | 10.0 ± 5.0 |" in lines
    assert lines.count("| EASE | – |") == 2
    assert lines[-1] == "| users | 1,200 |"


@pytest.mark.parametrize("seed", [0, 1])
def test_test_links_do_not_matter_for_the_choice(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [
        (user, int(item), day) for user in range(20) for day, item in enumerate(random.permutation(12)[:6])
    ]
    data = links(rows)
    hidden = hide_test(data)
    changed = np.where(hidden.kept, data.items, (data.items + 1) % 12)
    other = Interactions(data.users, changed, data.user_ids, data.item_ids, time=data.time)
    one, two = (fit_recommender(each.part(hide_test(each).kept)) for each in (data, other))
    assert one.scores == two.scores
