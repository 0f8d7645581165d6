"""The benchmark of recommendations: which links are hidden, and what its tables print."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recommendations import CHOICE, hide, markdown
from h3gnn.answers.interactions import Interactions
from h3gnn.answers.recommend import fit_recommender


def links(rows: list[tuple[int, int, int]], user_type: str = "user") -> Interactions:
    """Links from rows of user, item and time."""
    users, items, time = (np.array(one) for one in zip(*rows, strict=True))
    ids = [np.arange(one.max() + 1) for one in (users, items)]
    return Interactions(users, items, ids[0], ids[1], time=time, user_type=user_type)


def test_the_latest_fifth_of_the_links_is_hidden() -> None:
    early = [(user, item, item) for user in range(10) for item in range(4)]
    late = [(user, 4, 4) for user in range(10)]
    hidden = hide(links([*early, *late, (0, 0, 4), (10, 5, 4)]), seed=1)  # 0 had 0 before, 10 had nothing
    assert hidden.kept.tolist() == [True] * 40 + [False] * 12
    assert (hidden.users.tolist(), hidden.items.tolist()) == (list(range(10)), [4] * 10)


def test_repeats_are_hidden_where_they_are_normal() -> None:
    rows = [(user, day % 2, day) for user in range(10) for day in range(5)]
    hidden = hide(links(rows), seed=1)
    assert hidden.kept.tolist() == [True, True, True, True, False] * 10
    assert hidden.items.tolist() == [0] * 10


def test_a_product_of_each_order_is_hidden() -> None:
    data = links([(order, item, order) for order in range(30) for item in range(4)], user_type="orders")
    hidden = hide(data, seed=1)
    assert hidden.users.tolist() == hidden.rows.tolist() == list(range(30))
    assert (~hidden.kept).sum() == 30
    validation = hide(data.part(hidden.kept), seed=0)  # drawn from the others
    drawn = [set(zip(one.users[one.rows], one.items, strict=True)) for one in (hidden, validation)]
    assert not drawn[0] & drawn[1]
    assert len(drawn[1]) == 30


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
    hidden = hide(data, seed=1)
    changed = np.where(hidden.kept, data.items, (data.items + 1) % 12)
    other = Interactions(data.users, changed, data.user_ids, data.item_ids, time=data.time)
    one, two = (fit_recommender(each.part(hide(each, seed=1).kept)) for each in (data, other))
    assert one.scores == two.scores
