from __future__ import annotations

import json
from typing import Any

import pytest

from h3gnn.errors import InputError
from h3gnn.settings import STORED
from h3gnn.storage.schema import (
    Checked,
    Flag,
    Grid,
    Kind,
    Listed,
    Maybe,
    Named,
    Number,
    Plain,
    Record,
    Text,
    Whole,
    Word,
    check_values,
    parse_json,
)

ODD: dict[str, tuple[Kind, Any, str]] = {
    "type": (Record({"a": Whole()}), {"a": "1"}, "f.json is damaged: a must be a whole number"),
    "truth is no number": (Record({"a": Whole()}), {"a": True}, "a must be a whole number"),
    "sign": (Record({"a": Whole(1)}), {"a": -1}, "a must be an integer of at least 1, not -1"),
    "size": (
        Record({"a": Whole(0, 9)}),
        {"a": 10**400},
        "a must be a whole number of 0 to 9, not 'one beyond",
    ),
    "nan": (Record({"a": Number()}), {"a": float("nan")}, "a must be a finite number, not nan"),
    "range": (Number(0, 1), 2, "it must be a finite number in \\[0, 1\\], not 2"),
    "missing": (Record({"a": Record({"b": Flag()})}), {"a": {}}, r"a\.b is missing"),
    "unknown": (Record({}), {"b": 1}, "b is not a field that h3gnn knows"),
    "word": (Word(("x", "y")), "z", "it must be one of 'x', 'y', not 'z'"),
    "place": (Record({"a": Listed(Text())}), {"a": ["x", 3]}, r"a\[1\] must be a text, not 3"),
    "ragged": (Record({"a": Grid(Whole())}), {"a": [[1, 2], [3]]}, r"a\[1\] must have 2 value\(s\), not 1"),
    "half a character": (Named(Text()), {"a": "\ud800"}, "a must be a text of whole characters"),
    "depth": (Record({"a": Plain()}), {"a": json.loads("[" * 60 + "]" * 60)}, "is nested too deeply"),
    "setting": (STORED, {"channels": -1}, "channels must be an integer of at least 1, not -1"),
    "unknown setting": (STORED, {"no_such": 1}, "no_such is not a field"),
    "long": (Record({"a": Whole()}), {"a": "x" * 10**6}, "a must be a whole number .*…"),
    "not null": (Record({"a": Maybe(Whole())}), {"a": []}, "a must be a whole number"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_value_that_is_not_what_it_declares_is_named(case: str) -> None:
    kind, value, words = ODD[case]
    with pytest.raises(InputError, match=words) as fault:
        check_values(kind, value, "f.json")
    assert len(str(fault.value)) < 300


def test_what_is_declared_passes() -> None:
    kind = Record({"a": Maybe(Whole(1)), "b": Grid(Number())}, {"c": Flag()}, others=Text())
    check_values(kind, {"a": None, "b": [[1, 2.5]], "c": True, "d": "more"}, "f.json")
    check_values(STORED, {"objective": ["teacher", "edges"], "memory": "8GB", "undirected": False}, "f.json")


def test_a_check_of_a_setting_is_said_with_its_place() -> None:
    def refuse(name: str, value: Any) -> None:
        raise InputError(f"{name} must be even, not {value}")

    with pytest.raises(InputError, match=r"^f is damaged: p\.x must be even, not 3$"):
        check_values(Record({"p": Record({"x": Checked(refuse)})}), {"p": {"x": 3}}, "f")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, "\x00", '{"a": "\x01"}', "{'a': 1}"])
def test_a_text_that_is_no_json_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"^f\.json is damaged: ") as fault:
        parse_json(text, "f.json", InputError)
    assert "\n" not in str(fault.value)
