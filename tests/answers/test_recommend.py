"""Hidden links, measured scorers and rankings: by hand, by independent formulas, and in any order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn.answers.interactions import Interactions, interactions
from h3gnn.answers.recommend import (
    Hidden,
    described,
    fit_recommender,
    hide_latest,
    recommender_for,
    repeats_share,
    without,
)
from h3gnn.answers.recommender import Recommender
from h3gnn.errors import GraphError, ModelFolderError
from h3gnn.tables.database import read_database
from h3gnn.tables.schema import Link, Schema, TableSchema
from tests.rejects import rejects

Rows = list[tuple[Any, ...]]


def links_of(rows: Rows, users: Any = None, items: Any = None, **more: Any) -> Interactions:
    """Links from rows of user, item and, if there are three, time."""
    columns = list(zip(*rows, strict=True))
    user_ids, item_ids = (
        np.array(sorted(set(one)) if given is None else given)
        for one, given in zip(columns[:2], (users, items), strict=True)
    )
    first, second = (
        np.array([ids.tolist().index(value) for value in column])
        for ids, column in zip((user_ids, item_ids), columns[:2], strict=True)
    )
    time = np.array(columns[2]) if len(columns) > 2 else None
    return Interactions(first, second, user_ids, item_ids, **{"time": time, **more})


def taste(users: int = 60, items: int = 40, seed: int = 0) -> Rows:
    """Rows of users that like the items of one of four kinds, one more each day."""
    random, rows = np.random.default_rng(seed), []
    for user in range(users):
        likely = np.where(np.arange(items) % 4 == user % 4, 6.0, 1.0)
        chosen = random.choice(items, 8, replace=False, p=likely / likely.sum())
        rows += [(user, int(item), day) for day, item in enumerate(chosen)]
    return rows


TASTE = links_of(taste())


def hidden_pairs(data: Interactions, hidden: Hidden) -> list[tuple[Any, Any]]:
    return sorted(zip(data.user_ids[hidden.users[hidden.rows]], data.item_ids[hidden.items], strict=True))


EARLY: Rows = [(user, item, day) for user in range(10) for day, item in enumerate("abcd")]
"""Ten users with the same four items on four days."""


def test_the_latest_fifth_of_the_links_is_hidden() -> None:
    late = [
        *[(user, "e", 4) for user in range(10)],  # 10 of 54 links
        *[(0, "f", 4), (1, "a", 4)],  # 0 gets two at once, and 1 had a before
        (10, "e", 4),  # 10 has nothing else
        (2, "g", 4),  # which it rejected before
    ]
    rejected = [(2, "g", 1), (3, "f", 4)]
    strength = np.repeat([1.0, 0.0], [len(EARLY + late), 2])
    data = links_of(EARLY + late + rejected, strength=strength)
    new = sorted([(0, "e"), (0, "f"), *[(user, "e") for user in range(1, 10)]])
    hidden = hide_latest(data, repeats=False)
    assert hidden_pairs(data, hidden) == new
    assert hidden.by_time
    assert hidden.kept.tolist() == [True] * 40 + [False] * 14 + [True, False]  # nothing later is known
    assert hidden_pairs(data, hide_latest(data, repeats=True)) == sorted([*new, (1, "a"), (2, "g")])


@pytest.mark.parametrize(
    ("per_day", "days"), [((8, 1, 1), 2), ((2, 1, 1), 1), ((3, 3, 1), 1), ((1, 1), 1), ((1, 3), 0), ((4,), 0)]
)
def test_links_of_one_time_are_hidden_together(per_day: tuple[int, ...], days: int) -> None:
    day = np.repeat(np.arange(len(per_day)), per_day)
    data = links_of([(user, item, time) for user in range(10) for item, time in enumerate(day)])
    hidden = hide_latest(data, repeats=False)
    assert hidden.by_time == (days > 0)
    late = np.tile(day >= len(per_day) - days, 10)
    if days:  # those whose share is nearest to a fifth
        assert hidden.kept.tolist() == (~late).tolist()
        assert len(hidden.items) == late.sum()
    else:  # more than half: one item of each user
        assert hidden.users[hidden.rows].tolist() == list(range(10))


def test_links_that_are_no_choice_are_never_hidden() -> None:
    rows = [(user, item, time) for user in range(20) for time, item in enumerate("abc")]
    for part in (rows, [one[:2] for one in rows]):  # with and without times
        data = links_of(part, strength=np.tile([1.0, 1, 0], 20))
        hidden = hide_latest(data, repeats=False)
        assert len(hidden.items) == 20
        assert "c" not in data.item_ids[hidden.items]


def test_without_times_a_random_item_is_hidden() -> None:
    data = links_of([(user, item) for user in range(200) for item in "ab"])
    found = [item for _, item in hidden_pairs(data, hide_latest(data, repeats=False))]
    assert 60 < found.count("a") < 140
    assert len(found) == 200


def test_the_share_of_repeats_by_hand() -> None:
    rows = [*[("ann", "a", 1), ("ann", "a", 2), ("ann", "b", 2)], *[("bob", "a", 1), ("bob", "b", 2)]]
    assert repeats_share(links_of(rows)) == pytest.approx(1 / 3)
    assert repeats_share(links_of([one[:2] for one in rows])) == 0


def test_measures_of_popularity_by_an_independent_count() -> None:
    scores = fit_recommender(TASTE).scores["known_users"]
    links = pd.DataFrame(taste(), columns=["user", "item", "time"])
    late = links["time"] >= 6  # the last two of eight days are the share nearest to a fifth
    earlier, found = links[~late], []
    count = earlier["item"].value_counts().reindex(range(40), fill_value=0)
    for user, items in links[late].groupby("user")["item"]:
        others = count.drop(earlier.loc[earlier["user"] == user, "item"])
        above, equal = (
            np.array([compare(others, count[item]).sum() for item in items])
            for compare in (np.greater, np.equal)
        )
        found.append(np.clip((20 - above) / equal, 0, 1).mean())
    recall = scores["scorers"]["popularity"]["recall@20"]
    assert recall["mean"] == pytest.approx(np.mean(found))
    assert recall["error"] == pytest.approx(np.std(found, ddof=1) / np.sqrt(60))
    assert scores["measured"]
    assert (scores["hidden_users"], scores["hidden"]) == (60, 120)


def test_what_users_have_in_common_is_found() -> None:
    fitted = fit_recommender(links_of(taste(120)))
    scores = fitted.scores["known_users"]
    ndcg = {name: one["ndcg@20"]["mean"] for name, one in scores["scorers"].items()}
    assert {"popularity", "item-kNN", "EASE", "SVD"} == ndcg.keys()
    assert scores["chosen"]["ndcg@20"]["mean"] > 1.3 * ndcg["popularity"]
    assert sum(scores["weights"].values()) == pytest.approx(1, abs=1e-3)
    found = fitted.rank(range(120), 3)
    assert found["rank"].tolist() == [1, 2, 3] * 120
    assert set(found["basis"]) == {"links"}
    first = found[found["rank"] == 1]
    assert (first["item"] % 4 == first["user"] % 4).mean() > 0.85  # by chance fewer than 0.25


def test_chosen_items_are_not_recommended() -> None:
    found = fit_recommender(TASTE).rank(range(60), 100)
    assert len(found) == 60 * (40 - 8)
    chosen = {(user, item) for user, item, _ in taste()}
    assert not chosen & set(zip(found["user"], found["item"], strict=True))
    assert not found.duplicated(["user", "item"]).any()


def test_repeats_are_recommended_where_they_are_normal() -> None:
    rows = [(user, (user + step) % 6, day) for user in range(30) for day, step in enumerate((0, 1, 0, 1, 0))]
    fitted = fit_recommender(links_of(rows))
    assert fitted.scores["repeats"]
    assert fitted.scores["repeated"] == 1
    own = fitted.rank([0], 2)
    assert set(own["item"]) == {0, 1}
    once = fit_recommender(links_of(rows), repeats=False)
    assert not {0, 1} & set(once.rank([0])["item"])


def test_items_that_a_user_rejected_are_not_recommended() -> None:
    strength = np.ones(len(TASTE.users))
    strength[3] = 0
    data = replace(TASTE, strength=strength)
    rejected = data.item_ids[data.items[3]]
    for repeats in (False, True):
        assert rejected not in set(fit_recommender(data, repeats=repeats).rank([0], 40)["item"])


def test_nobody_is_recommended_to_itself() -> None:
    rows = [(user, (user + step) % 30, step) for user in range(30) for step in (1, 2, 3)]
    kinds = {"user_type": "member", "item_type": "member"}
    for repeats in (False, True):
        found = fit_recommender(links_of(rows, **kinds), repeats=repeats).rank(range(30), 30)
        assert not (found["user"] == found["item"]).any()
        assert len(found) == 30 * (29 if repeats else 26)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_rows_users_and_items_is_irrelevant(seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = [random.normal(size=(size, 5)).astype(np.float32) for size in TASTE.shape]
    data = replace(TASTE, strength=random.random(len(TASTE.users)) + 0.5)
    users, items, rows = (random.permutation(size) for size in (*data.shape, len(data.users)))
    other = replace(
        data,
        users=np.argsort(users)[data.users],
        items=np.argsort(items)[data.items],
        user_ids=data.user_ids[users],
        item_ids=data.item_ids[items],
    ).part(rows)
    one, two = fit_recommender(data, *vectors), fit_recommender(other, vectors[0][users], vectors[1][items])
    assert one.scores == two.scores
    pd.testing.assert_frame_equal(one.rank(range(60)), two.rank(range(60)))
    pd.testing.assert_frame_equal(one.together([3, 5]), two.together([3, 5]))


def test_too_few_users_are_not_measured() -> None:
    fitted = fit_recommender(links_of([("ann", "a"), ("ann", "b"), ("bob", "a"), ("bob", "c")]))
    known = fitted.scores["known_users"]
    assert not known["measured"]
    assert "chosen" not in known
    assert max(known["weights"], key=known["weights"].get).startswith("item-kNN")
    assert fitted.rank("ann")[["item", "rank"]].to_numpy().tolist() == [["c", 1]]


def test_users_without_links_get_popular_items() -> None:
    users = np.arange(61)
    fitted = fit_recommender(links_of(taste(), users))
    found = fitted.rank([60, 0], 3)
    assert found["basis"].tolist() == ["popularity"] * 3 + ["links"] * 3
    count = np.bincount(TASTE.items)
    assert count[found["item"][:3]].tolist() == sorted(count)[-3:][::-1]
    assert fitted.scores["new_users"]["users"] == 1
    assert not fitted.scores["new_users"]["measured"]


def test_users_without_links_get_what_suits_their_vectors() -> None:
    rows, users = taste(200), np.arange(204)
    vectors = np.eye(4)[users % 4]
    fitted = fit_recommender(links_of(rows, users), vectors)
    new = fitted.scores["new_users"]
    assert new["measured"]
    assert new["hidden_users"] == 40
    of = {name: one["ndcg"]["mean"] for name, one in new["scorers"].items()}
    assert of["user vectors"] > of["popularity"]
    found = fitted.rank(users[200:], 3)
    assert (found["item"] % 4 == found["user"] % 4).all()
    assert found["basis"].str.contains("user vectors").all()


def test_items_alone_among_themselves_fall_back_on_popularity() -> None:
    rows = [("ann", "a"), ("ann", "b"), ("bob", "a"), ("bob", "c"), ("dan", "z")]
    fitted = fit_recommender(links_of(rows))
    weights = np.array([[one.name == "item-kNN" for one in fitted.scorers]] * 2, np.float32)
    found = replace(fitted, weights=weights).rank("dan")
    assert found["item"].tolist() == ["a", "b", "c"]
    assert set(found["basis"]) == {"popularity"}


def test_items_together_by_hand() -> None:
    # baskets: {a, b}, {a, b, c}, {a}, {c}
    rows = [("x", "a"), ("x", "b"), ("x", "a"), ("x", "b"), ("y", "c"), ("y", "a"), ("y", "c")]
    data = replace(links_of(rows), baskets=np.array([1, 1, 2, 2, 2, 3, 4]))
    found = fit_recommender(data).together(["a", "c"])
    assert found[["item", "similar", "together", "rank"]].to_numpy().tolist() == [
        ["a", "b", 2, 1],
        ["a", "c", 1, 2],
        ["c", "b", 1, 1],
        ["c", "a", 1, 2],
    ]
    np.testing.assert_allclose(found["lift"], [2 * 4 / 6, 4 / 6, 4 / 4, 4 / 6], rtol=1e-6)
    scores = [2 / (6**0.5 + 10), 1 / (6**0.5 + 10), 1 / (4**0.5 + 10), 1 / (6**0.5 + 10)]
    np.testing.assert_allclose(found["score"], scores, rtol=1e-6)
    by_user = fit_recommender(replace(data, baskets=None)).together("b")
    assert by_user[["similar", "together"]].to_numpy().tolist() == [["a", 1]]
    assert len(fit_recommender(data).together("a", 1)) == 1


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recommender]:
    folder = tmp_path_factory.mktemp("saved") / "one"
    random = np.random.default_rng(0)
    fitted = fit_recommender(TASTE, random.normal(size=(60, 3)), random.normal(size=(40, 3)))
    fitted.save(folder)
    return folder, fitted


def test_a_saved_recommender_answers_the_same(saved: tuple[Path, Recommender], tmp_path: Path) -> None:
    folder, fitted = saved
    found = Recommender.load(folder)
    assert found.scores == json.loads(json.dumps(fitted.scores))
    pd.testing.assert_frame_equal(found.rank(range(60)), fitted.rank(range(60)))
    pd.testing.assert_frame_equal(found.together(range(40)), fitted.together(range(40)))
    other = fit_recommender(links_of([("é", "a"), ("é", "b"), ("b", "a")]))
    other.save(tmp_path)
    fitted.save(tmp_path)  # replaces it
    assert len(list(tmp_path.iterdir())) == 2
    assert Recommender.load(tmp_path).item_ids.tolist() == list(range(40))
    other.save(tmp_path)
    assert Recommender.load(tmp_path).rank("b")["item"].tolist() == ["b"]


@pytest.mark.parametrize("damage", ["indices", "users", "name", "weight", "file", "byte", "no file"])
def test_a_damaged_folder_is_rejected(saved: tuple[Path, Recommender], tmp_path: Path, damage: str) -> None:
    fitted = saved[1]
    if damage == "indices":
        fitted.known.links.indices[0], before = 99, int(fitted.known.links.indices[0])
    fitted.save(tmp_path)
    if damage == "indices":
        fitted.known.links.indices[0] = before
    path = tmp_path / "recommender.json"
    stored = json.loads(path.read_text())
    if damage == "users":
        stored["users"] += 1
    elif damage in ("name", "weight"):
        stored["scorers"][0][damage] = -1
    elif damage == "file":
        stored["file"] = "../other.safetensors"
    path.write_text(json.dumps(stored))
    tensors = next(tmp_path.glob("*.safetensors"))
    if damage == "byte":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif damage == "no file":
        tensors.unlink()
    with rejects("file-unreadable" if damage == "no file" else "file-damaged", ModelFolderError):
        Recommender.load(tmp_path)


def test_a_folder_without_a_recommender_is_rejected(tmp_path: Path) -> None:
    with rejects("model-missing", ModelFolderError):
        Recommender.load(tmp_path)
    (tmp_path / "file").write_text("")
    with rejects("not-a-folder", ModelFolderError):
        fit_recommender(TASTE).save(tmp_path / "file")


def test_unknown_users_and_unfit_vectors_are_rejected() -> None:
    fitted = fit_recommender(TASTE)
    for ask in (fitted.rank, fitted.together):
        with rejects("unknown-node"):
            ask([3, 99])
        with rejects("value-invalid"):
            ask([])
        with rejects("value-invalid"):
            ask([3], 0)
    for vectors in (np.ones((3, 2)), np.full((60, 2), np.nan)):
        with rejects("value-invalid", GraphError):
            fit_recommender(TASTE, vectors)


def films() -> dict[str, pd.DataFrame]:
    """Users with an age, films with a kind, and who has seen what on which day."""
    rows = taste(40, 24)
    seen = pd.DataFrame(rows, columns=["user", "film", "day"])
    return {
        "users": pd.DataFrame({"id": range(41), "age": [20 + one % 4 * 10 + one % 3 for one in range(41)]}),
        "films": pd.DataFrame({"id": range(24), "kind": [list("abcd")[one % 4] for one in range(24)]}),
        "seen": seen.assign(
            day=pd.Timestamp("2024-01-01") + pd.to_timedelta(seen["day"], unit="D"), stars=seen["film"] % 5
        ),
    }


def graph_of(frames: dict[str, pd.DataFrame]) -> Any:
    """The graph of users, films and what was seen."""
    links = (Link(("user",), "users"), Link(("film",), "films"))
    tables = {
        "users": TableSchema("users", ("id",)),
        "films": TableSchema("films", ("id",)),
        "seen": TableSchema("seen", (), links, "day"),
    }
    return read_database(frames, Schema(tables), label="seen.stars")


def test_from_tables_to_a_recommendation() -> None:
    graph, asked = graph_of(films()), []

    def vectors(rest: Any, kind: str) -> Any:
        asked.append((kind, sorted(rest.types), [one.name for one in rest.relations]))
        return described(rest, kind)

    fitted = recommender_for(graph, "seen", weight="stars", at_least=1, vectors=vectors)
    assert asked == [("users", ["films", "users"], []), ("films", ["films", "users"], [])]
    assert {"item vectors", "user vectors"} <= fitted.scores["known_users"]["scorers"].keys()
    assert fitted.scores["links"] == sum(film % 5 > 0 for _, film, _ in taste(40, 24))
    found = fitted.rank([0, 40], 24)
    seen = {film for user, film, _ in taste(40, 24) if user == 0}
    assert not seen & set(found.loc[found["user"] == 0, "item"])
    assert set(found.loc[found["user"] == 0, "basis"]) == {"links"}
    assert "links" not in set(found.loc[found["user"] == 40, "basis"])
    again = recommender_for(graph, "seen", weight="stars", at_least=1)
    pd.testing.assert_frame_equal(found, again.rank([0, 40], 24))


def test_vectors_do_not_know_the_links() -> None:
    frames, other = films(), films()
    other["seen"] = other["seen"].assign(film=other["seen"]["film"].to_numpy()[::-1])
    one, two = (described(without(graph_of(each), "seen")[0], "users") for each in (frames, other))
    assert one is not None
    np.testing.assert_array_equal(one, two)


def test_tables_without_rows_are_rejected() -> None:
    frames = films()
    graph = graph_of({**frames, "seen": frames["seen"][:0]})
    with rejects("no-edges", GraphError):
        recommender_for(graph, "seen")
    with rejects("too-few-nodes", GraphError):
        interactions(graph_of({**frames, "films": frames["films"][:0], "seen": frames["seen"][:0]}), "seen")


def test_events_do_not_describe_users() -> None:
    frames = {
        "users": pd.DataFrame({"id": [1, 2], "age": [20, 30]}),
        "films": pd.DataFrame({"id": [5, 6], "made": ["1999-01-01", "2000-01-01"]}),
        "cast": pd.DataFrame({"film": [5, 6], "actor": ["p", "q"]}),  # has the time of the film
        "orders": pd.DataFrame({"id": [8, 9], "user": [1, 2], "day": ["2024-01-01"] * 2, "price": [3, 4]}),
        "lines": pd.DataFrame({"order": [8, 9], "film": [5, 6]}),
    }
    links = {
        "cast": (Link(("film",), "films"),),
        "orders": (Link(("user",), "users"),),
        "lines": (Link(("order",), "orders"), Link(("film",), "films")),
    }
    tables = {
        name: TableSchema(name, ("id",) if "id" in one else (), links.get(name, ()), time)
        for (name, one), time in zip(frames.items(), [None, "made", None, "day", None], strict=True)
    }
    graph = read_database(frames, Schema(tables))
    rest, later = without(graph, "lines", ("users", "films"))
    assert later == ("orders",)
    assert sorted(rest.types) == ["cast", "films", "users"]
    assert [one.name for one in rest.relations] == ["cast.film"]
    notes = recommender_for(graph, "lines", users="users").scores["notes"]
    assert any("rows of orders" in note for note in notes)


def test_scorers_are_chosen_from_some_kinds() -> None:
    fitted = fit_recommender(TASTE, kinds=["SVD", "popularity"])
    scores = fitted.scores["known_users"]["scorers"]
    assert scores.keys() == {"SVD", "popularity"}
    rank, power = scores["SVD"]["setting"]
    assert rank in (4, 16)  # 40 items have no 64 directions
    assert power in (0, 0.5)
    for kinds in (["user vectors"], []):
        with rejects("value-invalid"):
            fit_recommender(TASTE, kinds=kinds)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("repeats", [False, True])
def test_recommendations_are_valid(seed: int, repeats: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    users, items = random.integers(2, 40, 2)
    links = int(random.integers(1, users * items))
    data = Interactions(
        random.integers(0, users, links),
        random.integers(0, items, links),
        np.array([f"u{one}" for one in range(users)]),
        np.array([f"i{one}" for one in range(items)]),
        strength=np.append(random.integers(0, 3, links - 1), 1.0),
        time=random.integers(0, 9, links) if seed % 2 else None,
    )
    vectors = random.normal(size=(users, 3)) if seed % 3 else None
    fitted = fit_recommender(data, vectors, repeats=repeats)
    found = fitted.rank(data.user_ids, items)
    linked = set(zip(data.users, data.items, strict=True))
    chosen = set(zip(data.users[data.chosen], data.items[data.chosen], strict=True))
    barred = linked - chosen if repeats else linked
    pairs = [(int(user[1:]), int(item[1:])) for user, item in zip(found["user"], found["item"], strict=True)]
    every = {(user, item) for user in range(users) for item in range(items)}
    assert len(pairs) == len(every - barred)
    assert set(pairs) == every - barred
    for _, own in found.groupby("user"):
        assert own["rank"].tolist() == list(range(1, len(own) + 1))
        assert own["score"].is_monotonic_decreasing
    has_links = {f"u{user}" for user, _ in chosen}
    new = found[~found["user"].isin(has_links)]
    assert "links" not in set(new["basis"])
    if vectors is None:
        assert set(new["basis"]) <= {"popularity"}
    fitted.save(tmp_path)
    pd.testing.assert_frame_equal(Recommender.load(tmp_path).rank(data.user_ids, items), found)
