"""Columns joined from linked tables: by hand, by loops over rows, and under changes of order and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.joins import STORED_JOINS, JoinedColumns, JoinPlan, joined_columns
from h3gnn.graphs.link_columns import STORED_LINKS, JoinedColumn, LinkPlan
from h3gnn.graphs.relational import UNKNOWN_TIME, NodeTable, Relation, RelationalGraph
from h3gnn.graphs.structural import build_graph
from h3gnn.storage.schema import check
from h3gnn.tables.leaks import Target, check_leaks
from h3gnn.tables.plan import encode_table
from tests.rejects import rejects

NAN = np.nan
Integers = npt.NDArray[np.int64]


def days(*given: float | None) -> Integers:
    """Return days of January 2024 as nanoseconds, None as unknown."""
    start = pd.Timestamp("2023-12-31").value
    return np.array(
        [UNKNOWN_TIME if one is None else start + int(one * 86_400) * 10**9 for one in given], dtype=np.int64
    )


def table(name: str, rows: int, time: Integers | None = None, /, **columns: Any) -> NodeTable:
    """Return a type whose columns are encoded like those of a table."""
    if not columns:
        return NodeTable(name, np.arange(rows), np.zeros((rows, 0), np.float32), time=time)
    frame = pd.DataFrame({one: values for one, (_, values) in columns.items()})
    kinds = {one: kind for one, (kind, _) in columns.items()}
    values, plan, _ = encode_table(frame, columns=kinds)
    found = values.astype(np.float32)
    return NodeTable(name, np.arange(rows), found, feature_names=plan.names, plan=plan, time=time)


def link(name: str, target: str, rows: Sequence[int | None], time: Integers | None = None) -> Relation:
    """Return the links of a column `table.column` that holds row numbers of another type."""
    known = [(at, row) for at, row in enumerate(rows) if row is not None]
    ends = np.array(known, dtype=np.int64).reshape(-1, 2).T
    return Relation(
        name, name.split(".", maxsplit=1)[0], target, ends, None if time is None else time[ends[0]]
    )


def graph(types: Sequence[NodeTable], relations: Sequence[Relation], *links: str) -> RelationalGraph:
    return RelationalGraph({one.name: one for one in types}, tuple(relations), frozenset(links))


ORDERED = days(2, 8, 10, 1, 6, None, 3, 4)
OPENED = days(9, 4, 1, 2, 7)
DECIDED = days(10, 10, 5, 20, 8)
"""Times at which the accounts are looked at."""


def bank() -> RelationalGraph:
    """Return clients, their accounts, and orders of accounts; the fourth account has no client."""
    clients = table(
        *("clients", 3),
        age=("number", [40.0, 30.0, None]),
        town=("category", ["Brno", "Praha", "Brno"]),
        born=("date", ["1984-01-10", "1994-01-05", "1990-01-01"]),
    )
    accounts = table("accounts", 5, OPENED, limit=("number", [100.0, 200.0, 300.0, 400.0, 500.0]))
    orders = table(
        *("orders", 8, ORDERED),
        amount=("number", [10.0, 20.0, 60.0, 5.0, 7.0, 100.0, None, 1.0]),
        paid=("boolean", [True, False, True, True, False, True, False, True]),
        kind=("category", ["rent", "rent", "food", "rent", "food", "food", "food", "rent"]),
    )
    return graph(
        [clients, accounts, orders],
        [
            link("accounts.client_id", "clients", [0, 0, 1, None, 1], OPENED),
            link("orders.account_id", "accounts", [0, 0, 0, 1, 2, 0, 1, None], ORDERED),
        ],
    )


def column(
    given: RelationalGraph, name: str, wanted: str, times: Integers | None = None, links: int = 2
) -> list[float]:
    """Return one joined column, which need not vary."""
    plan = JoinPlan((JoinedColumn(wanted, "", "", ""),))
    found = joined_columns(given, name, row_times=times, links=links, plan=plan).values[:, 0]
    return [float(one) for one in found]


BEFORE = {  # of the accounts, from rows before DECIDED
    # orders before: 10, 20 and 100 (of unknown time), not 60 of the very day | 5, a missing one | 7 is later
    "orders.count": [3, 2, 0, 0, 0],
    "orders.amount.sum": [130, 5, 0, 0, 0],
    "orders.amount.mean": [130 / 3, 5, NAN, NAN, NAN],
    "orders.amount.min": [10, 5, NAN, NAN, NAN],
    "orders.amount.max": [100, 5, NAN, NAN, NAN],
    "orders.amount.std": [np.std([10, 20, 100]), 0, NAN, NAN, NAN],
    "orders.amount.mean of last 1": [20, NAN, NAN, NAN, NAN],
    "orders.amount.mean of last 3": [130 / 3, 5, NAN, NAN, NAN],
    "orders.paid.share": [2 / 3, 0.5, NAN, NAN, NAN],
    "orders.paid.mean of last 1": [0, 0, NAN, NAN, NAN],
    "orders.kind=rent.share": [2 / 3, 0.5, NAN, NAN, NAN],
    "orders.time.since first": [8, 9, NAN, NAN, NAN],
    "orders.time.since last": [2, 7, NAN, NAN, NAN],
    "orders.time.rate": [1 / 6, 1 / 2, NAN, NAN, NAN],
    "clients.age": [40, 40, 30, NAN, 30],
    "clients.town=Brno": [1, 1, 0, NAN, 0],
    "clients.born.since": [40 * 365.25, 40 * 365.25, 30 * 365.25 - 0.5, NAN, 30 * 365.25 + 2.5],
    # other accounts of the client: opened on days 4 | 9 | 7, too late | no client | 1
    "clients > accounts.count": [1, 1, 0, NAN, 1],
    "clients > accounts.limit.mean": [200, 100, NAN, NAN, 300],
    "clients > accounts.time.since last": [6, 1, NAN, NAN, 7],
}
ALL = {  # without times
    "orders.count": [4, 2, 1, 0, 0],
    "orders.amount.sum": [190, 5, 7, 0, 0],
    "orders.amount.mean": [47.5, 5, 7, NAN, NAN],
    "orders.amount.max": [100, 5, 7, NAN, NAN],
    "orders.amount.mean of last 1": [60, NAN, 7, NAN, NAN],
    "orders.kind=food.share": [0.5, 0.5, 1, NAN, NAN],
    "clients > accounts.count": [1, 1, 1, NAN, 1],
    "clients > accounts.limit.mean": [200, 100, 500, NAN, 300],
    "clients > accounts.limit.mean of last 1": [200, 100, 500, NAN, 300],
}


@pytest.mark.parametrize("wanted", BEFORE)
def test_columns_of_earlier_rows_are_those_worked_out_by_hand(wanted: str) -> None:
    assert column(bank(), "accounts", wanted, DECIDED) == pytest.approx(BEFORE[wanted], nan_ok=True)


@pytest.mark.parametrize("wanted", ALL)
def test_without_times_all_rows_count_but_the_row_itself(wanted: str) -> None:
    assert column(bank(), "accounts", wanted) == pytest.approx(ALL[wanted], nan_ok=True)


def test_dates_without_times_of_rows_are_days_since_1970() -> None:
    first, last = (column(bank(), "accounts", f"orders.time.{one}") for one in ("first", "last"))
    january = (pd.Timestamp("2023-12-31") - pd.Timestamp("1970-01-01")).days
    assert first == pytest.approx([january + 2, january + 1, january + 6, NAN, NAN], nan_ok=True)
    assert last == pytest.approx([january + 10, january + 3, january + 6, NAN, NAN], nan_ok=True)


def test_rows_two_links_away_count_from_both_ends() -> None:
    clients = days(9, 7, 9)  # the first account of client 0 was opened on day 9: not earlier
    assert column(bank(), "clients", "accounts > orders.count", clients) == [2, 1, 0]
    assert column(bank(), "clients", "accounts > orders.amount.mean", clients) == pytest.approx(
        [5, 7, NAN], nan_ok=True
    )
    assert column(bank(), "clients", "accounts > orders.count") == [6, 1, 0]


def test_a_row_of_unknown_time_takes_all_rows() -> None:
    assert column(bank(), "accounts", "orders.count", days(None, 1, None, None, None)) == [4, 0, 1, 0, 0]


def films() -> RelationalGraph:
    """Return users who rate films of a genre; ratings are a link table."""
    rated = [0, 0, 0, 1, 1]
    times = days(1, 2, 3, 4, 5)
    return graph(
        [
            table("users", 3),
            table("films", 3, year=("number", [1990.0, 2000.0, 2020.0])),
            table("genres", 2),
            table("ratings", 5, times, stars=("number", [1.0, 2.0, 3.0, 4.0, 5.0])),
        ],
        [
            link("ratings.user", "users", rated, times),
            link("ratings.film", "films", [0, 1, 0, 2, None], times),
            link("films.genre", "genres", [0, 1, 1]),
        ],
        "ratings",
    )


def test_rows_on_the_other_side_of_a_link_table() -> None:
    assert column(films(), "users", "ratings > films.year.mean") == pytest.approx(
        [(1990 + 2000 + 1990) / 3, 2020, NAN], nan_ok=True
    )
    assert column(films(), "users", "ratings > films.distinct") == [2, 1, 0]
    assert column(films(), "users", "ratings > films.distinct", days(2, 9, 9)) == [1, 1, 0]
    assert column(films(), "users", "ratings > films.year.mean of last 1", days(3, 9, 9)) == pytest.approx(
        [2000, NAN, NAN], nan_ok=True
    )


def test_a_small_type_is_a_category() -> None:
    assert column(films(), "films", "genres.genres=1") == [0, 1, 1]
    found = column(films(), "users", "ratings > films > genres.genres=1.share", links=1)
    assert found == pytest.approx([1 / 3, 1, NAN], nan_ok=True)


def test_a_link_table_counts_as_one_link() -> None:
    short = {one.path for one in joined_columns(films(), "users", links=1).plan.columns}
    assert short == {"ratings", "ratings > films", "ratings > films > genres"}


def test_several_links_between_two_types_have_names() -> None:
    games = graph(
        [table("teams", 3, strength=("number", [1.0, 2.0, 4.0])), table("games", 2)],
        [link("games.home", "teams", [0, 1]), link("games.away", "teams", [1, 2])],
    )
    assert column(games, "games", "teams by home.strength") == [1, 2]
    assert column(games, "teams", "games by away.count") == [0, 1, 1]
    assert column(games, "teams", "games by home > teams by away.strength.mean") == pytest.approx(
        [2, 4, NAN], nan_ok=True
    )
    staff = graph([table("staff", 3)], [link("staff.boss", "staff", [None, 0, 0])])
    assert column(staff, "staff", "staff by boss (reverse).count") == [2, 0, 0]
    assert column(staff, "staff", "staff by boss > staff by boss (reverse).count") == pytest.approx(
        [NAN, 1, 1], nan_ok=True
    )


@pytest.mark.parametrize(
    ("given", "name", "paths"),
    [
        (bank(), "accounts", {"clients", "orders", "clients > accounts"}),
        (bank(), "clients", {"accounts", "accounts > orders"}),
        (bank(), "orders", {"accounts", "accounts > clients", "accounts > orders"}),
        (films(), "users", {"ratings", "ratings > films", "ratings > films > genres"}),
    ],
)
def test_no_path_returns_to_the_row_itself(given: RelationalGraph, name: str, paths: set[str]) -> None:
    assert {one.path for one in joined_columns(given, name).plan.columns} == paths


# against loops over rows


def random_bank(rng: np.random.Generator, orders: int = 120) -> tuple[RelationalGraph, Integers]:
    """Return clients, accounts and orders with missing links, values and times, and many equal times."""
    clients, accounts = 8, 30
    opened = days(*[None if one == 0 else int(one) for one in rng.integers(0, 12, accounts)])
    ordered = days(*[None if one == 0 else int(one) for one in rng.integers(0, 12, orders)])
    amounts = np.where(rng.random(orders) < 0.2, np.nan, rng.integers(-50, 50, orders).astype(float))
    kinds = rng.choice(["a", "b", "c"], orders)
    limits = rng.integers(1, 9, accounts).astype(float)

    def rows(number: int, of: int) -> list[int | None]:
        return [None if one == of else int(one) for one in rng.integers(0, of + 1, number)]

    given = graph(
        [
            table("clients", clients, age=("number", rng.integers(20, 70, clients).astype(float))),
            table("accounts", accounts, opened, limit=("number", limits)),
            table("orders", orders, ordered, amount=("number", amounts), kind=("category", kinds)),
        ],
        [
            link("accounts.client_id", "clients", rows(accounts, clients), opened),
            link("orders.account_id", "accounts", rows(orders, accounts), ordered),
        ],
    )
    return given, days(*rng.integers(0, 13, accounts))


def latest(found: list[tuple[int, float]], number: int) -> list[float]:
    """Return the values of the latest entries (time, value), with all of the time of the earliest one."""
    ordered = sorted(time for time, _ in found)[-number:]
    return [one for time, one in found if time >= ordered[0]]


def known_mean(values: Sequence[float]) -> float:
    return float(np.mean([one for one in values if not np.isnan(one)] or [NAN]))


LOOPS: Mapping[str, tuple[str, Callable[[list[tuple[int, float]]], float]]] = {
    "orders.count": ("orders", len),
    "orders.amount.sum": ("orders", lambda found: _sum([one for _, one in found])),
    "orders.amount.mean": ("orders", lambda found: known_mean([one for _, one in found])),
    "orders.amount.min": ("orders", lambda found: float(pd.Series([v for _, v in found], dtype=float).min())),
    "orders.amount.max": ("orders", lambda found: float(pd.Series([v for _, v in found], dtype=float).max())),
    "orders.amount.std": (
        "orders",
        lambda found: float(pd.Series([v for _, v in found], dtype=float).std(ddof=0)),
    ),
    "orders.amount.mean of last 1": ("orders", lambda found: known_mean(latest(found, 1) if found else [])),
    "orders.amount.mean of last 3": ("orders", lambda found: known_mean(latest(found, 3) if found else [])),
    "clients > accounts.count": ("siblings", len),
    "clients > accounts.limit.mean": ("siblings", lambda found: known_mean([one for _, one in found])),
    "clients > accounts.limit.mean of last 3": (
        "siblings",
        lambda found: known_mean(latest(found, 3) if found else []),
    ),
}


def _sum(values: list[float]) -> float:
    known = [one for one in values if not np.isnan(one)]
    return NAN if values and not known else float(sum(known))


def raw(given: RelationalGraph, kind: str, at: int) -> npt.NDArray[np.float64]:
    """Return a column of numbers as it was before encoding; a missing one is marked by the last feature."""
    one = given.type(kind)
    assert one.plan is not None
    encoder: Any = one.plan.columns[at].fitted
    position = sum(len(column.names) for column in one.plan.columns[:at])
    if encoder is None:
        return np.asarray(one.features[:, position], dtype=np.float64)
    values = one.features[:, position].astype(float) * encoder.scale + encoder.mean
    missing = one.features[:, position + 1] > 0.5 if encoder.gaps else np.zeros(len(values), bool)
    return np.where(missing, np.nan, np.round(values, 3))


@pytest.mark.parametrize("wanted", LOOPS)
@pytest.mark.parametrize("timed", [True, False])
def test_columns_equal_those_of_a_loop_over_rows(wanted: str, timed: bool) -> None:
    given, times = random_bank(np.random.default_rng(3))
    of, summary = LOOPS[wanted]
    owner, account = (dict(one.ends.T.tolist()) for one in given.relations)
    amounts, limits = raw(given, "orders", 0), raw(given, "accounts", 0)
    ordered, opened = given.type("orders").time, given.type("accounts").time
    assert ordered is not None
    assert opened is not None
    expected = []
    for row in range(given.type("accounts").nodes):
        if of == "orders":
            found = [(int(ordered[o]), float(amounts[o])) for o, a in account.items() if a == row]
        else:
            others = (a for a, c in owner.items() if a != row and c == owner.get(row))
            found = [(int(opened[a]), float(limits[a])) for a in others]
        found = [one for one in found if not timed or one[0] < times[row]]
        defined = of == "orders" or row in owner
        expected.append(float(summary(found)) if defined else NAN)
    computed = column(given, "accounts", wanted, times if timed else None)
    assert computed == pytest.approx(expected, nan_ok=True, abs=1e-6)
    assert len({round(one, 6) for one in expected if not np.isnan(one)}) > 2


# metamorphic


def by_name(found: JoinedColumns) -> dict[str, npt.NDArray[np.float64]]:
    return dict(zip(found.plan.names, found.values.T, strict=True))


@pytest.mark.parametrize("name", ["accounts", "clients", "orders"])
def test_the_order_of_rows_does_not_matter(name: str) -> None:
    rng = np.random.default_rng(5)
    given, _ = random_bank(rng)
    times = days(*rng.integers(0, 13, given.type(name).nodes))
    order = {kind: rng.permutation(one.nodes) for kind, one in given.types.items()}  # new row -> old row
    place = {kind: np.argsort(one) for kind, one in order.items()}
    types = {}
    for kind, one in given.types.items():
        at = order[kind]
        moved = None if one.time is None else one.time[at]
        types[kind] = replace(one, ids=one.ids[at], features=one.features[at], time=moved)
    relations = []
    for links in given.relations:
        mixed = rng.permutation(links.ends.shape[1])
        ends = np.stack([place[links.source][links.ends[0]], place[links.target][links.ends[1]]])
        assert links.time is not None
        relations.append(replace(links, ends=ends[:, mixed], time=links.time[mixed]))
    first = joined_columns(given, name, row_times=times)
    other = RelationalGraph(types, tuple(relations))
    second = joined_columns(other, name, row_times=times[order[name]], plan=first.plan)
    np.testing.assert_allclose(first.values[order[name]], second.values, atol=1e-9)
    assert len(first.plan.names) > 8


def changed_from(given: RelationalGraph, start: int, rng: np.random.Generator) -> RelationalGraph:
    """Return a graph in which the rows from a time on have other values and, if they are orders, links."""
    types, relations = dict(given.types), []
    for kind in ("accounts", "orders"):
        one = types[kind]
        assert one.time is not None
        late = (one.time >= start)[:, None]
        assert late.sum() > 3
        types[kind] = replace(one, features=np.where(late, rng.permutation(one.features), one.features))
    for links in given.relations:
        assert links.time is not None
        late, ends = links.time >= start, links.ends.copy()
        if links.source == "orders":
            ends[1, late] = rng.permutation(ends[1, late])
        relations.append(replace(links, ends=ends))
    return RelationalGraph(types, tuple(relations))


@pytest.mark.parametrize("name", ["accounts", "clients"])
def test_later_rows_change_nothing(name: str) -> None:
    rng = np.random.default_rng(7)
    given, _ = random_bank(rng)
    times = days(*rng.integers(3, 8, given.type(name).nodes))
    changed = changed_from(given, int(times.max()), rng)
    first = joined_columns(given, name, row_times=times)
    again = joined_columns(changed, name, row_times=times, plan=first.plan)
    np.testing.assert_allclose(first.values, again.values, atol=1e-9)
    every = joined_columns(given, name)
    assert not np.allclose(
        every.values, joined_columns(changed, name, plan=every.plan).values, equal_nan=True
    )


# the choice of columns, and the plan


def test_copies_and_constant_columns_are_left_out() -> None:
    found = joined_columns(bank(), "accounts", row_times=DECIDED)
    values = found.values.astype(np.float32)
    for at, name in enumerate(found.plan.names):
        known = values[~np.isnan(values[:, at]), at]
        assert known.min() < known.max(), name
    assert len({one.tobytes() for one in values.T}) == len(found.plan.names) == values.shape[1]
    assert "clients.age" in found.plan.names


def test_at_most_as_many_columns_as_asked_for_in_the_same_order() -> None:
    every = joined_columns(bank(), "accounts", row_times=DECIDED)
    few = joined_columns(bank(), "accounts", row_times=DECIDED, most=4)
    assert few.plan.columns == every.plan.columns[:4]
    assert every.plan.left_out == 0
    assert few.plan.left_out == len(every.plan.columns) - 4
    assert [one.code for one in few.repairs] == ["joined-columns-left-out"]
    assert not every.repairs
    assert "orders.count" in few.plan.names


def test_a_stored_plan_computes_the_same_columns() -> None:
    first = joined_columns(bank(), "accounts", row_times=DECIDED)
    stored = first.plan.as_dict()
    check(STORED_JOINS, stored)
    again = joined_columns(bank(), "accounts", row_times=DECIDED, plan=JoinPlan.from_dict(stored))
    assert again.plan == first.plan
    np.testing.assert_array_equal(first.values, again.values)


def test_a_plan_of_other_tables_is_rejected() -> None:
    plan = joined_columns(bank(), "accounts", row_times=DECIDED).plan
    with rejects("plan-differs", GraphError):
        joined_columns(films(), "users", plan=plan)


def test_times_of_other_rows_are_rejected() -> None:
    with rejects("shape-invalid", InputError):
        joined_columns(bank(), "accounts", row_times=DECIDED[:2])


def test_link_columns_are_scaled_and_stored() -> None:
    found = joined_columns(bank(), "accounts", row_times=DECIDED)
    links = found.as_link_columns()
    stored = links.plan.as_dict()
    check(STORED_LINKS, stored)
    assert LinkPlan.from_dict(stored) == links.plan
    assert links.names == found.plan.names
    assert links.plan.sources == found.plan.sources
    assert links.plan.lines() == found.plan.lines()
    assert ("orders.amount", "orders", "mean, sum, min, max, std") in found.plan.lines()
    assert links.values.dtype == np.float32
    at = links.names.index("orders.count")
    count = np.array([3, 2, 0, 0, 0])
    np.testing.assert_allclose(links.values[:, at], (count - 1) / count.std(), rtol=1e-6)
    at = links.names.index("clients.age")
    assert links.values[3, at] == 0
    again = found.as_link_columns(links.plan)
    np.testing.assert_array_equal(links.values, again.values)


def shops(rows: int = 60) -> tuple[RelationalGraph, Target]:
    """Return shops whose owner's rating, and number of closures, are what is to be predicted."""
    rng = np.random.default_rng(0)
    closed = rng.random(rows) < 0.4
    rating = np.where(closed, 1.0, 5.0) + rng.random(rows)
    closures: list[int | None] = [int(one) for one in np.flatnonzero(closed)]
    given = graph(
        [
            table("shops", rows),
            table("owners", rows, rating=("number", rating), age=("number", rng.random(rows))),
            table("closures", len(closures)),
        ],
        [link("shops.owner", "owners", list(range(rows))), link("closures.shop", "shops", closures)],
    )
    return given, Target("closed", closed.astype(np.int64))


def test_columns_that_determine_the_class_are_left_out_and_reported() -> None:
    given, target = shops()
    assert joined_columns(given, "shops").plan.names == ("owners.rating", "owners.age", "closures.count")
    found = joined_columns(given, "shops", target=target)
    assert found.plan.names == ("owners.age",)
    assert found.values.shape[1] == 1
    assert [(one.code, one.fields) for one in found.repairs] == [
        ("label-leak", ("owners.rating",)),
        ("label-leak", ("closures.count",)),
    ]


def test_a_class_that_joined_columns_of_a_fit_contain_is_an_error() -> None:
    given, target = shops()
    built = build_graph(np.ones((60, 1), np.float32), np.zeros((2, 0), np.int64), nodes=60, source="shops")
    columns = joined_columns(given, "shops").as_link_columns()
    with rejects("label-leak", GraphError) as caught:
        check_leaks(replace(built, link_columns=columns), target.classes, "closed")
    assert "owners.rating" in caught.message
    check_leaks(replace(built, link_columns=columns), np.random.default_rng(1).integers(0, 2, 60), "closed")
