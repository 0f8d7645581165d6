"""Summaries of edge tables as columns of nodes: by hand, by pandas, and under changes of order and unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn import read_graph
from h3gnn.graphs.link_columns import MISSING, STORED_LINKS, LinkColumn, LinkColumns, LinkPlan, LinkTable
from h3gnn.storage.schema import check

COLUMNS = (
    LinkColumn("amount", "number"),
    LinkColumn("kind", "category", kept=("wire", "card")),
    LinkColumn("day", "date"),
    LinkColumn("paid", "boolean"),
)
ENDS = np.array([[0, 0, 1, 2, 0], [1, 2, 0, 0, 1]])
VALUES: dict[str, npt.NDArray[Any]] = {
    "amount": np.array([1.0, -3.0, 5.0, np.nan, 8.0]),
    "kind": np.array([0, 1, 0, MISSING, 0]),
    "day": np.array([10.0, 12.0, 13.0, 15.0, 20.0]),
    "paid": np.array([1.0, 0.0, np.nan, 1.0, 1.0]),
}
NAN = np.nan
BY_HAND = {  # of nodes 0, 1, 2 and 3, which has no edges
    "t.out.links": [3, 1, 1, 0],
    "t.out.partners": [2, 1, 1, 0],
    "t.out.amount.sum": [6, 5, 0, 0],
    "t.out.amount.mean": [2, 5, NAN, NAN],
    "t.out.amount.min": [-3, 5, NAN, NAN],
    "t.out.amount.max": [8, 5, NAN, NAN],
    "t.out.amount.std": [np.sqrt(62 / 3), 0, NAN, NAN],
    "t.out.kind=wire.share": [2 / 3, 1, NAN, NAN],
    "t.out.kind=card.share": [1 / 3, 0, NAN, NAN],
    "t.out.day.first": [10, 13, 15, NAN],
    "t.out.day.last": [20, 13, 15, NAN],
    "t.out.day.span": [10, 0, 0, NAN],
    "t.out.day.rate": [0.2, NAN, NAN, NAN],
    "t.out.paid.share": [2 / 3, NAN, 1, NAN],
    "t.in.links": [2, 2, 1, 0],
    "t.in.partners": [2, 1, 1, 0],
    "t.in.amount.sum": [5, 9, -3, 0],
    "t.in.amount.mean": [5, 4.5, -3, NAN],
    "t.in.amount.min": [5, 1, -3, NAN],
    "t.in.amount.max": [5, 8, -3, NAN],
    "t.in.amount.std": [0, 3.5, 0, NAN],
    "t.in.kind=wire.share": [1, 1, 0, NAN],
    "t.in.kind=card.share": [0, 0, 1, NAN],
    "t.in.day.first": [13, 10, 12, NAN],
    "t.in.day.last": [15, 20, 12, NAN],
    "t.in.day.span": [2, 10, 0, NAN],
    "t.in.day.rate": [0.5, 0.1, NAN, NAN],
    "t.in.paid.share": [1, 1, 0, NAN],
}


def test_five_edges_by_hand() -> None:
    table = LinkTable("t", ("out", "in"), COLUMNS)
    found = table.summarize(ENDS, VALUES, 4)
    assert [name for name, _, _ in table.entries] == list(BY_HAND)
    np.testing.assert_allclose(found, np.array([*BY_HAND.values()]).T, rtol=1e-12)


def test_undirected_tables_have_one_direction_and_count_a_self_loop_once() -> None:
    table = LinkTable("t", ("",), COLUMNS[:1])
    ends, values = np.array([[0, 1, 2], [1, 0, 2]]), {"amount": np.array([1.0, 2.0, 4.0])}
    found = dict(zip((name for name, _, _ in table.entries), table.summarize(ends, values, 3).T, strict=True))
    assert found["t.links"].tolist() == [2, 2, 1]
    assert found["t.partners"].tolist() == [1, 1, 1]
    assert found["t.amount.sum"].tolist() == [3, 3, 4]


def test_undefined_summaries_have_the_mean_and_columns_are_scaled() -> None:
    table = LinkTable("t", ("out", "in"), COLUMNS)
    links = LinkColumns.fit([table], [table.summarize(ENDS, VALUES, 4)])
    assert links.values.dtype == np.float32
    assert np.isfinite(links.values).all()
    by_name = dict(zip(links.names, links.values.T, strict=True))
    for name, raw in BY_HAND.items():
        known = ~np.isnan(np.array(raw, dtype=np.float64))
        assert np.allclose(by_name[name][~known], 0), name
        spread = np.std(np.array(raw)[known])
        assert by_name[name][known].std() == pytest.approx(1 if spread > 0 else 0, abs=1e-5), name
        assert by_name[name][known].mean() == pytest.approx(0, abs=1e-5), name


def test_heavy_tails_are_logarithms_that_keep_the_sign() -> None:
    column = np.concatenate([np.linspace(-1, 1, 200), [1e9, -1e9]])
    plan = LinkPlan.fit([], column[:, None])
    assert plan.scales[0].log
    encoded = plan.encode(column[:, None])[:, 0]
    assert (np.diff(encoded[np.argsort(column)]) >= 0).all()
    assert encoded[-1] == pytest.approx(-encoded[-2], rel=1e-3)
    huge = np.array([[1e300], [-1e300], [0.0], [np.inf]])
    assert np.isfinite(LinkPlan.fit([], huge).encode(huge)).all()


def test_the_plan_is_stored_as_plain_values() -> None:
    table = LinkTable("t", ("out", "in"), COLUMNS)
    plan = LinkColumns.fit([table], [table.summarize(ENDS, VALUES, 4)]).plan
    import json

    stored = json.loads(json.dumps(plan.as_dict()))
    check(STORED_LINKS, stored)
    assert LinkPlan.from_dict(stored) == plan


ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 5),
        st.one_of(st.none(), st.floats(-1e6, 1e6)),
        st.sampled_from(["x", "y", None]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_random_tables_as_pandas_computes_them(rows: list[Any]) -> None:
    frame = pd.DataFrame(rows, columns=["s", "t", "amount", "kind"]).astype({"amount": float})
    columns = (LinkColumn("amount", "number"), LinkColumn("kind", "category", kept=("x", "y")))
    codes = {"x": 0, "y": 1, None: MISSING}
    values = {"amount": frame.amount.to_numpy(), "kind": np.array([codes[one] for *_, one in rows])}
    table = LinkTable("e", ("out", "in"), columns)
    found = pd.DataFrame(
        table.summarize(frame[["s", "t"]].to_numpy().T, values, 6), columns=[n for n, _, _ in table.entries]
    )
    for way, own, other in (("out", "s", "t"), ("in", "t", "s")):
        groups = frame.groupby(own)
        wanted = pd.DataFrame(index=range(6))
        wanted["links"], wanted["partners"] = groups.size(), groups[other].nunique()
        for what in ("mean", "min", "max"):
            wanted[f"amount.{what}"] = groups.amount.agg(what)
        wanted["amount.sum"] = groups.amount.sum()
        wanted["amount.std"] = groups.amount.std(ddof=0)
        known = frame.dropna(subset="kind")
        for word in "xy":
            wanted[f"kind={word}.share"] = (known.kind == word).groupby(known[own]).mean()
        wanted = wanted.fillna({"links": 0, "partners": 0, "amount.sum": 0})
        for name in wanted:
            got = found[f"e.{way}.{name}"]
            np.testing.assert_allclose(got, wanted[name].astype(float), rtol=1e-7, atol=1e-3, err_msg=name)


def made_table(rows: int = 300) -> pd.DataFrame:
    """Return a table of edges between 40 nodes."""
    draw = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "source": draw.integers(0, 40, rows),
            "target": draw.integers(0, 40, rows),
            "amount": draw.normal(50, 20, rows).round(2),
            "kind": draw.choice(["wire", "card", "cash"], rows),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 90, rows), "D"),
        }
    )


def links_of(frame: pd.DataFrame, **options: Any) -> LinkColumns:
    """Return the link columns of a table of edges."""
    found = read_graph(frame, **options).link_columns
    assert found is not None
    return found


def test_the_order_of_rows_and_nodes_does_not_matter() -> None:
    table = made_table()
    plain, shuffled = links_of(table), links_of(table.sample(frac=1, random_state=2))
    assert plain.names == shuffled.names
    np.testing.assert_allclose(plain.values, shuffled.values, atol=1e-5)


def test_the_unit_of_a_number_does_not_matter() -> None:
    table = made_table()
    plain, cents = links_of(table), links_of(table.assign(amount=100 * table.amount))
    assert not any(one.log for one in plain.plan.scales)
    np.testing.assert_allclose(plain.values, cents.values, atol=1e-5)
