"""Numbers as people write them: read as a careful analyst reads them, or the user is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from h3gnn.tables.notations import find_notation, parse_number
from h3gnn.tables.reader import _finite_numbers
from tests.inputs.tables import FORMATS, outcome

ASKS_SEPARATOR = "number-ambiguous"
ASKS_UNIT = "units-mixed"

READ = [
    (["1", "2", "30"], [1, 2, 30]),
    (["1.5", "2.25", "30"], [1.5, 2.25, 30]),
    (["1.5", "2.125", "30"], [1.5, 2.125, 30]),
    (["0.125", "0.250", "0.500"], [0.125, 0.25, 0.5]),
    (["-1.5", "+2", "3e2"], [-1.5, 2, 300]),
    (["1,200.5", "900", "12"], [1200.5, 900, 12]),
    (["1,200,000", "2,500", "3"], [1_200_000, 2500, 3]),
    (["3,14", "2,7", "10"], [3.14, 2.7, 10]),
    (["3,14", "0,125", "10,0"], [3.14, 0.125, 10]),
    (["1.234,5", "2.000", "7,5"], [1234.5, 2000, 7.5]),
    (["1.234.600", "2.000", "12"], [1_234_600, 2000, 12]),
    (["1.200.300,00", "900", "12"], [1_200_300.0, 900, 12]),
    (["-3,5", "2,25", "0"], [-3.5, 2.25, 0]),
    (["$5.00", "$1,200.50", "$3"], [5, 1200.5, 3]),
    (["5 €", "1.200,50 €", "3,25 €"], [5, 1200.5, 3.25]),
    (["5 EUR", "7.5 EUR", "9 EUR"], [5, 7.5, 9]),
    (["EUR 5", "EUR 7.5", "EUR 9"], [5, 7.5, 9]),
    (["12 %", "7.5 %", "30 %"], [12, 7.5, 30]),
    (["12%", "7.5%", "30%"], [12, 7.5, 30]),
    (["12,5 %", "7 %", "30 %"], [12.5, 7, 30]),
    (["5 kg", "7.5 kg", "9 kg"], [5, 7.5, 9]),
    (["5kg", "7.5kg", "9kg"], [5, 7.5, 9]),
    (["£5", "£7.5", "£9"], [5, 7.5, 9]),
    (["$0", "0", "$9"], [0, 0, 9]),
    (["1.5", "", "30"], [1.5, None, 30]),
    (["1.5", "NA", "30"], [1.5, None, 30]),
    (["1.5", "n/a", "30"], [1.5, None, 30]),
    (["1.5", "#N/A", "30"], [1.5, None, 30]),
    (["1.5", "\\N", "30"], [1.5, None, 30]),
    (["1.5", "null", "30"], [1.5, None, 30]),
    (["3,14", "NaN", "10,5"], [3.14, None, 10.5]),
    (["$5", "-", "$9"], [5, None, 9]),
]

ASKED = [
    (["2.000", "7,5", "10"], ASKS_SEPARATOR),
    (["0,125", "0,250", "0,500"], ASKS_SEPARATOR),
    (["1,200", "2,500", "3,750"], ASKS_SEPARATOR),
    (["1,200", "950", "3,750"], ASKS_SEPARATOR),
    (["1.200", "950", "3.750"], ASKS_SEPARATOR),
    (["-1,200", "2,500", "10"], ASKS_SEPARATOR),
    (["$1,200", "$2,500", "$10"], ASKS_SEPARATOR),
    (["1,200 EUR", "2,500 EUR", "10 EUR"], ASKS_SEPARATOR),
    (["1.5", "2,5", "3"], ASKS_SEPARATOR),
    (["1,234.5", "1.234,5", "3"], ASKS_SEPARATOR),
    (["$5", "€7", "$9"], ASKS_UNIT),
    (["5 USD", "7 EUR", "9 USD"], ASKS_UNIT),
    (["12 %", "0.12", "30 %"], ASKS_UNIT),
    (["12%", "7", "30%"], ASKS_UNIT),
    (["$5", "7", "9"], ASKS_UNIT),
    (["5 kg", "500 g", "9 kg"], ASKS_UNIT),
    (["5 kg", "9 lb", "7 kg"], ASKS_UNIT),
    (["5 kg", "7", "9 kg"], ASKS_UNIT),
    (["5 m", "3 ft", "2 m"], ASKS_UNIT),
    (["20 °C", "68 °F", "21 °C"], ASKS_UNIT),
]

RIGHT_OR_ASKED = [
    (["1'200.50", "900", "12"], [1200.5, 900, 12]),
    (["1 200,50", "900", "12,5"], [1200.5, 900, 12.5]),
    (["1\u00a0200,50", "900", "12,5"], [1200.5, 900, 12.5]),
    (["(1,200.50)", "900.25", "12"], [-1200.5, 900.25, 12]),
    (["\u22121.5", "2.5", "3"], [-1.5, 2.5, 3]),
    (["5-", "7", "9"], [-5, 7, 9]),
    (["1_000", "2_500", "7"], []),
    (["1/2", "3/4", "7"], []),
    (["5k", "700", "9"], []),
    (["1.2M", "3.5M", "700"], []),
    (["0x1F", "12", "7"], []),
    (["1e400", "12", "7"], []),
    (["12..5", "12", "7"], []),
    (["1,2,3", "12", "7"], []),
    (["1,20,000", "12", "7"], []),
]
"""Rare notations: never another number than the one meant."""


def same(found: list[float | None] | str, expected: Sequence[float | None]) -> bool:
    """Whether a column has the expected numbers, up to the rounding of standardized float32."""
    if isinstance(found, str) or len(found) != len(expected):
        return False
    left, right = ([np.nan if one is None else one for one in column] for column in (found, expected))
    return bool(np.allclose(left, right, rtol=1e-4, atol=1e-6 * np.nanmax(np.abs(right)), equal_nan=True))


def cells(three: list[str]) -> list[str]:
    """Return a longer column, so that nothing hinges on how few rows there are."""
    return three * 4


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("three", "expected"), READ)
def test_numbers_are_read_as_written(
    tmp_path: Path, three: list[str], expected: list[float | None], form: str
) -> None:
    assert same(outcome(tmp_path, cells(three), form), expected * 4)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("three", "code"), ASKED)
def test_the_user_is_asked_where_two_readings_fit(
    tmp_path: Path, three: list[str], code: str, form: str
) -> None:
    assert outcome(tmp_path, cells(three), form) == code


@pytest.mark.parametrize(("three", "expected"), RIGHT_OR_ASKED)
def test_rare_notations_never_become_another_number(
    tmp_path: Path, three: list[str], expected: list[float]
) -> None:
    found = outcome(tmp_path, cells(three))
    assert isinstance(found, str) or found == [] or same(found, expected * 4)


@pytest.mark.parametrize(
    ("three", "declared", "expected"),
    [
        (["2.000", "7,5", "10"], "number:comma", [2000, 7.5, 10]),
        (["0,125", "0,250", "0,500"], "number:comma", [0.125, 0.25, 0.5]),
        (["1,200", "950", "3,750"], "number:grouped", [1200, 950, 3750]),
        (["1,200", "950", "3,750"], "number:comma", [1.2, 950, 3.75]),
        (["1.200", "950", "3.750"], "number:plain", [1.2, 950, 3.75]),
        (["1.200", "950", "3.750"], "number:comma", [1200, 950, 3750]),
    ],
)
def test_a_declared_notation_answers_the_question(
    tmp_path: Path, three: list[str], declared: str, expected: list[float]
) -> None:
    assert same(outcome(tmp_path, cells(three), columns={"amount": declared}), expected * 4)


def test_one_cell_of_thousands_decides_the_separator_for_the_column(tmp_path: Path) -> None:
    column = ["1,200"] * 50 + ["3,75"]
    assert same(outcome(tmp_path, column), [1.2] * 50 + [3.75])
    column = ["1,200"] * 50 + ["1,200,300"]
    assert same(outcome(tmp_path, column), [1200.0] * 50 + [1_200_300.0])


def test_the_separator_is_decided_from_all_chunks_of_a_column() -> None:
    column = pa.chunked_array([["1.200", "950"], ["1.5", "2"]])
    numbers = _finite_numbers(column, parse=True)
    assert numbers is not None
    assert numbers[:, 0].tolist() == [1.2, 950, 1.5, 2]
    assert _finite_numbers(column.slice(0, 2), parse=True) is None


@pytest.mark.parametrize("unit", ["m²", "m2", "m³", "sqm", "km/h", "µm", "ft²", "ha", "GHz", "kcal"])
def test_areas_speeds_and_other_units_are_numbers(unit: str) -> None:
    cells = [f"{one} {unit}" for one in (40, 89, 120.5)]
    found = find_notation(cells)
    assert found is not None
    assert found.form == f"plain {unit}"
    assert [parse_number(one, found.form) for one in cells] == [40, 89, 120.5]


@pytest.mark.parametrize("cells", [["12A", "14A"], ["3V", "4V"], ["120 foo", "40 foo"]])
def test_letters_that_are_no_unit_make_no_number(cells: list[str]) -> None:
    assert find_notation(cells) is None
