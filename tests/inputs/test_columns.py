"""Gaps, units, dates, words and lists: what their cells are taken to mean."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3gnn import Graph
from tests.inputs.tables import FORMATS, column_values, outcome, read_column, repairs
from tests.rejects import rejects

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kind(graph: Graph, name: str = "amount") -> str:
    assert graph.plan is not None
    return next(one.kind for one in graph.plan.columns if one.name == name)


def days(graph: Graph) -> list[float]:
    """Return the dates of a column in days since 1970."""
    assert graph.plan is not None
    encoder: Any = next(one for one in graph.plan.columns if one.name == "amount").fitted
    values = graph.dense_features().double().numpy()[:, graph.plan.names.index("amount")]
    return [float(one) for one in values * encoder.scale + encoder.mean]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("word", ["-", "--", "?", "unknown", "Missing", "NA", "", "  "])
def test_words_for_missing_numbers(tmp_path: Path, word: str, form: str) -> None:
    assert outcome(tmp_path, ["1.5", word, "2.5", "7"] * 3, form) == pytest.approx(
        [1.5, None, 2.5, 7] * 3, nan_ok=True
    )


@pytest.mark.parametrize("word", ["-", "?", "unknown"])
def test_among_words_they_are_words(tmp_path: Path, word: str) -> None:
    plan = read_column(tmp_path, ["red", word, "blue"] * 4).plan
    assert plan is not None
    assert f"amount={word}" in plan.names


@pytest.mark.parametrize("word", ["nil", "n.v.", "#DIV/0!", "none given", "."])
def test_other_words_among_numbers_are_a_question(tmp_path: Path, word: str) -> None:
    assert outcome(tmp_path, ["1.5", word, "2.5", "7"] * 3) == "cell-unreadable"


@pytest.mark.parametrize("number", ["-999", "0", "99", "-1"])
def test_no_number_of_a_feature_means_missing(tmp_path: Path, number: str) -> None:
    assert outcome(tmp_path, [number, "1.5", "2.5"] * 4) == pytest.approx(
        [float(number), 1.5, 2.5] * 4, rel=1e-5
    )


def test_gaps_become_the_median_and_are_marked(tmp_path: Path) -> None:
    graph = read_column(tmp_path, ["1", "", "3", "11"] * 3)
    values = graph.dense_features().double().numpy()
    assert graph.plan is not None
    at, marked = graph.plan.names.index("amount"), graph.plan.names.index("amount is missing")
    known = np.array([1, 3, 11] * 3)
    assert values[1, at] == pytest.approx((3 - known.mean()) / known.std(), abs=1e-6)
    assert values[:4, marked].tolist() == [0, 1, 0, 0]


def test_a_column_without_values_is_left_out_and_reported(tmp_path: Path) -> None:
    graph = read_column(tmp_path, ["", "NA", "?"] * 4)
    assert kind(graph) == "constant"
    assert repairs(graph)["column-unused"].fields == ("amount",)


@pytest.mark.parametrize(
    ("cell", "meant"), [("-5", -5), ("\u22125", -5), ("(5)", -5), ("+5", 5), ("5e1", 50)]
)
def test_signs_and_exponents(tmp_path: Path, cell: str, meant: float) -> None:
    assert outcome(tmp_path, [cell, "1.5", "2.5"] * 4) == pytest.approx([meant, 1.5, 2.5] * 4, rel=1e-5)


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999"])
def test_infinity_is_rejected(tmp_path: Path, cell: str) -> None:
    assert outcome(tmp_path, [cell, "1.5", "2.5"] * 4) in ("feature-not-finite", "cell-unreadable")


def test_points_before_three_digits_are_decimals_if_no_cell_speaks_against(tmp_path: Path) -> None:
    assert outcome(tmp_path, ["1.234", "2.345", "9.500"] * 4) == pytest.approx([1.234, 2.345, 9.5] * 4)
    assert outcome(tmp_path, ["1.234", "2.345", "950"] * 4) == "number-ambiguous"


def test_zero_needs_no_unit(tmp_path: Path) -> None:
    assert outcome(tmp_path, ["$5", "0", "$7.50"] * 4) == pytest.approx([5, 0, 7.5] * 4, abs=1e-5)


@pytest.mark.parametrize("words", [("yes", "no"), ("T", "f"), ("TRUE", "False"), ("Y", "N")])
def test_two_words_for_yes_and_no(tmp_path: Path, words: tuple[str, str]) -> None:
    assert kind(read_column(tmp_path, [*words, words[0]] * 4)) == "boolean"


@pytest.mark.parametrize("words", [("ja", "nein"), ("on", "off"), ("m", "f"), ("yes", "maybe"), ("0", "2")])
def test_other_pairs_are_categories_or_numbers(tmp_path: Path, words: tuple[str, str]) -> None:
    assert kind(read_column(tmp_path, [*words, words[0]] * 4)) in ("category", "number")


@pytest.mark.parametrize(
    ("cells", "meant"),
    [
        (["2024-03-25", "2024-03-01"], [25, 1]),
        (["2024/3/25", "2024/03/01"], [25, 1]),
        (["25.03.2024", "01.03.2024"], [25, 1]),
        (["25/3/2024", "1/3/2024"], [25, 1]),
        (["3/25/2024", "3/1/2024"], [25, 1]),
        (["25-03-2024", "1-3-2024"], [25, 1]),
        (["Mar 25, 2024", "March 1, 2024"], [25, 1]),
        (["25 Mar 2024", "1 March 2024"], [25, 1]),
        (["2024-03-25T12:00:00Z", "2024-03-01T00:00:00Z"], [25.5, 1]),
        (["2024-03-25T12:00:00+06:00", "2024-03-01T00:00:00Z"], [25.25, 1]),
        (["2024-03-25 12:00", "2024-03-01 00:00"], [25.5, 1]),
        (["20240325", "20240301"], [25, 1]),
    ],
)
def test_dates_are_read_as_written(tmp_path: Path, cells: list[str], meant: list[float]) -> None:
    more = [cells[1].replace("01", f"0{row}").replace("/1/", f"/{row}/") for row in range(2, 6)]
    graph = read_column(tmp_path, [*cells, *more, *cells])
    first = (datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC) - EPOCH).days
    assert days(graph)[:2] == pytest.approx([first + one for one in meant], abs=1e-3)


@pytest.mark.parametrize("mark", ["/", "-"])
def test_day_or_month_is_a_question_with_an_answer(tmp_path: Path, mark: str) -> None:
    cells = [f"3{mark}4{mark}2024", f"5{mark}6{mark}2024", f"7{mark}8{mark}2024"] * 4
    with rejects("column-ambiguous") as caught:
        read_column(tmp_path, cells)
    assert "amount=date:dmy" in caught.message
    first, second = (
        days(read_column(tmp_path, cells, columns={"amount": f"date:{one}"}))[0] for one in ("dmy", "mdy")
    )
    assert first - second == pytest.approx(30)  # 3 April is 30 days after 4 March


@pytest.mark.parametrize("cells", [["31.12.99", "1.1.98"], ["12:30", "8:15"], ["2020W13", "2020W14"]])
def test_other_ways_to_write_a_time_are_words(tmp_path: Path, cells: list[str]) -> None:
    assert kind(read_column(tmp_path, [*cells, cells[0]] * 4)) == "category"


@pytest.mark.parametrize("cells", [["2019", "2020", "2021"], ["1719705600", "1719705700", "1719709600"]])
def test_years_and_seconds_are_numbers(tmp_path: Path, cells: list[str]) -> None:
    assert outcome(tmp_path, cells * 4) == pytest.approx([float(one) for one in cells * 4], rel=1e-6)


def test_capitals_make_another_category(tmp_path: Path) -> None:
    plan = read_column(tmp_path, ["Rome", "rome", "Ulm "] * 4).plan
    assert plan is not None
    assert {"amount=Rome", "amount=rome", "amount=Ulm"} <= {*plan.names}


@pytest.mark.parametrize("cells", [["a|b", "b", "a"], ["a;b", "b", "a"], ['["a", "b"]', '["b"]', '["a"]']])
def test_lists_are_items(tmp_path: Path, cells: list[str]) -> None:
    graph = read_column(tmp_path, cells * 4)
    assert graph.plan is not None
    at = [graph.plan.names.index(f"amount: {one}") for one in "ab"]
    assert graph.dense_features()[:3, at].tolist() == [[1, 1], [0, 1], [1, 0]]


def test_a_word_for_each_row_is_an_identifier_and_one_for_all_is_left_out(tmp_path: Path) -> None:
    graph = read_column(tmp_path, [f"k{row}x" for row in range(12)])
    assert (kind(graph), repairs(graph)["column-unused"].fields) == ("identifier", ("amount",))
    graph = read_column(tmp_path, ["same"] * 12)
    assert (kind(graph), repairs(graph)["column-unused"].fields) == ("constant", ("amount",))


def test_integers_of_ids_are_no_measurements(tmp_path: Path) -> None:
    graph = read_column(tmp_path, [str(row % 4 + 10) for row in range(12)], name="shop_id")
    assert kind(graph, "shop_id") == "category"
    graph = read_column(tmp_path, [str(row + 10) for row in range(12)], name="shop_id")
    assert kind(graph, "shop_id") == "identifier"


def test_a_number_far_off_makes_the_column_logarithmic(tmp_path: Path) -> None:
    cells = ["1.5", "2", ""] * 100 + ["1e9"]
    graph = read_column(tmp_path, cells)
    assert column_values(graph, "amount")[-1] == pytest.approx(1e9, rel=1e-3)
    assert graph.plan is not None
    assert "logarithm" in next(one.description for one in graph.plan.columns if one.name == "amount")
