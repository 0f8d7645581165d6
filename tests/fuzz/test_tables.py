"""Tables and later versions of them, whose meaning is known: read as they are meant, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h3gnn.errors import InputError
from h3gnn.tables.read import read_graph
from tests.fuzz.hunting import COUNTS, store
from tests.fuzz.later import Pair, read_pair
from tests.fuzz.made_tables import MAKERS, UNCERTAIN, Classes, Made, MadeTable, write_all
from tests.fuzz.readings import wrong_reading
from tests.fuzz.tables import PAIRS, RUNS, TABLES, examine, read_table

ROOT = Path(__file__).parents[2]
STYLE = {
    **{"suffix": ".csv", "delimiter": ",", "encoding": "utf-8", "header": True, "quoting": 0},
    **{"end": "\n", "comment": "", "native": False, "padded": False},
}


def table(made: Made) -> MadeTable:
    ids = [f"n{row}" for row in range(len(made.cells))]
    ends = [*zip(ids, [*ids[1:], ids[0]], strict=True)]
    return MadeTable(ids, [replace(made, name="c")], "id", 0, ends, None, None, "file", STYLE, STYLE)


@pytest.mark.parametrize(("name", "count"), [(TABLES, 200), (PAIRS, 100)])
def test_none_is_misread(name: str, count: int) -> None:
    found = examine(*RUNS[name], count, 29)
    assert not found.wrong, found.wrong[0]
    assert found.ended["read"] >= 0.3 * count, found.codes


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(TABLES, 10_000), (PAIRS, 5_000)])
def test_none_of_many_is_misread(name: str, count: int) -> None:
    found = examine(*RUNS[name], count, 29)
    store(name, {**found.ended, "seed": 29})
    assert not found.wrong, found.wrong[0]


def test_the_page_quotes_the_stored_counts() -> None:
    page = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    known = json.loads(COUNTS.read_text(encoding="utf-8"))
    for name, what in ((TABLES, "tables"), (PAIRS, "pairs")):
        ended = known[name]
        assert ended["misread"] == 0
        read = "Of {attempts:,} %s, {read:,} were read as they are meant, {asked:,} raised a question, "
        left = "{rejected:,} were rejected, and none was misread"
        assert (read + left).format(**ended) % what in page
    signals = known["signal rounds"]
    assert signals["failures"] == 0
    assert f"{signals['attempts']:,} signals in {signals['rounds']:,} rounds" in page


@pytest.mark.parametrize("kind", [one for one in MAKERS if one not in UNCERTAIN])
def test_a_table_of_one_clear_column_is_read(kind: str) -> None:
    outcomes = []
    for number in range(12):
        made = MAKERS[kind](np.random.default_rng(number), 24)
        try:
            assert not read_table(table(made))
            outcomes.append("read")
        except InputError as error:
            outcomes.append(error.code)
    useless = ("no-usable-column", "column-ambiguous", "number-ambiguous")
    assert {*outcomes} <= {"read", *useless}, outcomes
    assert "read" in outcomes or kind in ("sentences", "old dates")


@pytest.mark.parametrize("kind", UNCERTAIN)
def test_a_column_with_two_readings_is_never_read(kind: str) -> None:
    for number in range(12):
        with pytest.raises(InputError):
            read_table(table(MAKERS[kind](np.random.default_rng(number), 24)))


def test_a_misreading_is_noticed(tmp_path: Path) -> None:
    """The oracle is no formality: other values, words, ids, edges or gaps than the written ones are found."""
    numbers, words = (table(MAKERS[kind](np.random.default_rng(1), 24)) for kind in ("wholes", "words"))
    (good,) = numbers.columns
    graph = read_graph(**write_all(tmp_path, numbers))
    assert not wrong_reading(graph, numbers)
    for other in ([one * 1000 for one in good.values], [None, *good.values[1:]]):
        assert "read as" in wrong_reading(graph, replace(numbers, columns=[replace(good, values=other)]))
    assert "ids" in wrong_reading(graph, replace(numbers, ids=numbers.ids[::-1]))
    assert "edges" in wrong_reading(graph, replace(numbers, ends=numbers.ends[1:]))
    assert "class" in wrong_reading(graph, replace(numbers, classes=Classes(["a"] * 24, ["a"] * 24, "words")))
    graph = read_graph(**write_all(tmp_path, words))
    assert not wrong_reading(graph, words)
    (good,) = words.columns
    assert "groups" in wrong_reading(graph, replace(words, columns=[replace(good, values=["one"] * 24)]))
    assert "read as" in wrong_reading(graph, replace(words, columns=[replace(good, kind="number")]))


def test_a_misreading_of_a_later_table_is_noticed() -> None:
    made = MAKERS["wholes"](np.random.default_rng(1), 24)
    later = replace(table(made), ids=[f"m{row}" for row in range(24)])
    later = replace(later, ends=[("m0", "n0")])
    assert not read_pair(Pair(table(made), later, {"c": "same"}))
    moved = replace(made, name="c", values=[one + 1 for one in made.values])
    assert "read as" in read_pair(Pair(table(made), replace(later, columns=[moved]), {"c": "same"}))
