"""The user's own columns on a page, and another run beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from h3gnn import H3GNN, Graph
from h3gnn.database import Database
from h3gnn.experiments.report_columns import MOST_VALUES, arrange_columns, read_columns, table_columns
from h3gnn.experiments.report_data import collect_findings, compare_run, graph_title
from h3gnn.graphs.checks import check_graph
from h3gnn.tables.database import OpenedTables
from h3gnn.tables.schema import Link, Schema, TableSchema
from tests.known import known
from tests.rejects import rejects

IDS = np.array(["a", "b", "c", "d"], dtype=object)
QUICK: dict[str, Any] = {"epochs": 1, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


def test_a_table_is_matched_by_id_and_its_columns_are_typed(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "amount;account;country;opened;vip\n5;c;DE;2020-03-01;True\n7.5;a;FR;2021-01-05;False\n;b;DE;;\n9;x;IT;;True\n"
    )
    own = read_columns(tmp_path / "own.csv", IDS)
    assert own.notes == (f"{tmp_path}/own.csv has no row for 1 of 4 nodes; they are grey",)
    (amount,) = own.measures
    assert amount.key == "own_amount"
    np.testing.assert_array_equal(amount.values, [7.5, np.nan, 5, np.nan])
    country, opened, vip = own.categories
    assert [country.names[at] if at >= 0 else None for at in country.values] == ["FR", "DE", "DE", None]
    assert opened.names == ("2020-03-01", "2021-01-05")  # few enough to be days, in their order
    assert opened.values.tolist() == [1, -1, 0, -1]
    assert [vip.names[at] if at >= 0 else None for at in vip.values] == ["False", None, "True", None]
    assert own.texts == ()


def test_integer_ids_with_missing_values_are_matched(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("id,x\n2,20\n,5\n0,1\n")
    own = read_columns(tmp_path / "own.csv", np.array([0, 1, 2]))
    np.testing.assert_array_equal(own.measures[0].values, [1, np.nan, 20])
    pd.DataFrame({"x": [1, 2]}, index=pd.Index(["b", "a"], name="who")).to_parquet(tmp_path / "own.parquet")
    np.testing.assert_array_equal(
        read_columns(tmp_path / "own.parquet", IDS).measures[0].values, [2, 1, np.nan, np.nan]
    )


def test_invalid_text_is_rejected(tmp_path: Path) -> None:
    broken = pa.array([b"red", b"\xff\xfe"], type=pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ["a", "b"], "colour": broken}), tmp_path / "own.parquet")
    with rejects("file-damaged"):
        read_columns(tmp_path / "own.parquet", IDS)


def test_a_letter_is_no_delimiter_and_too_many_columns_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"who,x{'a' * 5_000}\na,1\nb,2\n")
    assert len(read_columns(path, IDS).measures) == 1
    path.write_text("who" + "," * 10_000 + "\na\n")
    with rejects("too-many-columns"):
        read_columns(path, IDS)


def test_distinct_words_are_texts_and_many_dates_are_years() -> None:
    table = pd.DataFrame(
        {
            "title": [f"product {i}" for i in range(100)],
            "day": pd.date_range("2019-06-01", periods=100, freq="11D"),
            "colour": ["red", "blue"] * 50,
        }
    )
    own = arrange_columns(table.assign(shop=[f"s{min(i, 8)}" for i in range(100)]))
    assert [name for name, _ in own.texts] == ["title"]
    assert [one.title for one in own.categories] == ["day", "colour", "shop"]
    assert own.categories[0].names == ("2019", "2020", "2021", "2022")
    assert own.categories[2].names[0] == "s8"  # the most frequent first


@given(
    st.lists(st.one_of(st.none(), st.sampled_from("abcdefghijklmnopqrstuvwxyz")), min_size=1, max_size=400)
)
def test_a_category_has_the_word_of_each_node_or_other(words: list[str | None]) -> None:
    own = arrange_columns(pd.DataFrame({"w": pd.Series(words, dtype=object)}))
    if not any(words):
        assert own.categories == ()
        return
    if own.texts:
        assert own.texts[0][1] == tuple(one or "" for one in words)
        return
    (found,) = own.categories
    assert len(found.names) <= MOST_VALUES
    for word, at in zip(words, found.values, strict=True):
        assert (at < 0) == (word is None)
        assert word is None or found.names[at] == word or found.names[at].startswith("other (")


def test_a_table_that_cannot_be_matched_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("account,x\n1,2\n")
    with rejects("no-id-column"):
        read_columns(tmp_path / "own.csv", IDS)
    with rejects("unknown-column"):
        read_columns(tmp_path / "own.csv", IDS, "id")
    with rejects("file-missing"):
        read_columns(tmp_path / "none.csv", IDS)


def small(ids: list[str], names: tuple[str, ...] = ("a", "b")) -> Graph:
    nodes = len(ids)
    ends = np.array([[i, (i + 1) % nodes] for i in range(nodes)]).T
    features = np.random.default_rng(0).normal(size=(nodes, 3))
    labels = np.arange(nodes) % len(names)
    both = np.concatenate([ends, ends[::-1]], axis=1)
    return check_graph(features, both, labels=labels, class_names=names, node_ids=np.array(ids, dtype=object))


def test_another_run_is_matched_by_id_and_compared() -> None:
    ids = [f"n{i}" for i in range(20)]
    one = H3GNN.from_preset("single", **QUICK).fit(small(ids))
    other = H3GNN.from_preset("single", **{**QUICK, "epochs": 2}).fit(small([*ids[::-1], "new", "newer"]))
    difference, embedding = compare_run(one, one.graph_, other, "b")
    assert difference.different == {"epochs": (1, 2)}
    assert difference.notes == ("the graph: 22 nodes, 44 edges there",)
    np.testing.assert_array_equal(embedding, other.embedding_[:20][::-1])
    with rejects("runs-not-comparable"):
        compare_run(other, other.graph_, one, "b")
    found = collect_findings(one, other=("b", other))
    assert [row.representation for row in known(found.scores).rows][-1] == "other run: b"
    assert found.other == difference


def test_the_title_describes_the_graph() -> None:
    graph = small([f"n{i}" for i in range(1200)], ("fraud", "honest"))

    def named(source: str) -> str:
        from dataclasses import replace

        return graph_title(replace(graph, provenance=replace(graph.provenance, source=source)))

    assert named("edges.csv, features.csv, labels.csv") == "1,200 nodes, fraud or honest"
    assert named("edges.csv, accounts.parquet") == "accounts: 1,200 nodes, fraud or honest"
    assert named("texas (geom-gcn, npz)") == "texas: 1,200 nodes, fraud or honest"
    assert named("mixed_graph(nodes=1000, seed=0)") == "mixed graph: 1,200 nodes, fraud or honest"


def bank() -> tuple[dict[str, pd.DataFrame], Schema]:
    """Districts with names, accounts there, and loans of the accounts with days such as 930705."""
    loans, accounts = np.arange(12), np.arange(6)
    frames = {
        "district": pd.DataFrame({"id": [1, 2], "name": ["Prague", "Brno"], "people": [1200, 300]}),
        "account": pd.DataFrame({"id": accounts, "district": 1 + accounts % 2, "size": accounts * 1.5}),
        "loan": pd.DataFrame(
            {
                "id": 100 + loans,
                "account": loans % 6,
                "amount": [f"{one}.5" for one in loans],
                "date": [930705 + one for one in loans],
                "note": ["x" * 200] * 6 + [None] * 6,
                "price": loans,
            }
        ),
    }
    links = {"account": (Link(("district",), "district"),), "loan": (Link(("account",), "account"),)}
    return frames, Schema({one: TableSchema(one, ("id",), links.get(one, ())) for one in frames})


def test_rows_of_a_table_have_its_columns_and_the_names_of_linked_rows() -> None:
    frames, schema = bank()
    source = OpenedTables.open(frames)
    own = table_columns(source, schema, "account", np.array([3, 99, 0]))
    (district,) = own.categories
    assert [district.names[at] if at >= 0 else None for at in district.values] == ["Brno", None, "Prague"]
    np.testing.assert_array_equal(own.measures[0].values, [4.5, np.nan, 0])
    own = table_columns(source, schema, "loan", np.array(["101", "111"], dtype=object), "price")
    assert {one.title: one.values.tolist() for one in own.measures} == {"amount": [1.5, 11.5]}
    assert {one.title: one.names for one in own.categories}["date"] == ("1993-07-06", "1993-07-16")
    assert max(len(name) for one in own.categories for name in one.names) == 80
    assert table_columns(source, schema, "someone", np.array([1])).measures == ()


def test_tokens_end_at_types_and_their_attention_is_complete() -> None:
    frames, schema = bank()
    database = Database(frames, schema=schema, model=H3GNN.from_settings(QUICK))
    found = collect_findings(database.model("account"), names=database.rows("account").names)
    tables, attention = found.tables, found.attention
    assert tables is not None
    assert attention is not None
    assert tables.type == "account"
    assert dict(zip(found.tokens, tables.ends, strict=True)) == {
        "own features, linear": "account",
        "own features, MLP": "account",
        "same district": "account",
        "district": "district",
        "loan": "loan",
        "district > account": "account",
        "district > account > loan": "loan",
    }
    assert tables.relations == (("same district", 12),)  # two districts of three accounts, in both directions
    np.testing.assert_allclose(attention.sum(axis=1), 1, atol=1e-5)
    assert {one.key for one in found.measures} >= {"attention", "attention_path1"}


def test_without_links_there_is_no_attention_to_neighbours() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    alone = check_graph(rows, np.zeros((2, 0), dtype=np.int64))
    found = collect_findings(H3GNN.from_settings(QUICK).fit(alone))
    assert found.attention is None
    assert not any(one.key.startswith("attention") for one in found.measures)


def test_values_that_a_category_does_not_show_are_texts() -> None:
    makers = [f"maker {at % 20}" for at in range(400)]
    own = arrange_columns(pd.DataFrame({"maker": makers, "tyre": ["soft", "hard"] * 200}))
    assert [(one.title, one.names[-1]) for one in own.categories] == [
        ("maker", "other (5)"),
        ("tyre", "hard"),
    ]
    assert own.texts == (("maker", tuple(makers)),)
