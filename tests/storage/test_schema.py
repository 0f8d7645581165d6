from __future__ import annotations

import json
from typing import Any

import pytest

from h3gnn.errors import InputError
from h3gnn.settings import STORED
from h3gnn.storage.schema import (
    Checked,
    DictOf,
    Grid,
    Integer,
    Kind,
    ListOf,
    Maybe,
    Number,
    OneOf,
    Record,
    Text,
    check_values,
    parse_json,
)
from tests.rejects import rejects

ODD: dict[str, tuple[Kind, Any, str]] = {
    "type": (Record({"a": Integer()}), {"a": "1"}, "a"),
    "a boolean is no number": (Record({"a": Integer()}), {"a": True}, "a"),
    "sign": (Record({"a": Integer(1)}), {"a": -1}, "a"),
    "size": (Record({"a": Integer(0, 9)}), {"a": 10**400}, "a"),
    "beyond 64 bits": (Record({"a": Integer()}), {"a": 2**63}, "a"),
    "nan": (Record({"a": Number()}), {"a": float("nan")}, "a"),
    "infinite": (Record({"a": Number()}), {"a": float("inf")}, "a"),
    "range": (Number(0, 1), 2, "it"),
    "missing": (Record({"a": Record({"b": bool})}), {"a": {}}, "a"),
    "unknown": (Record({}), {"b": 1}, "it has the unknown field `b`"),
    "word": (OneOf(("x", "y")), "z", "it"),
    "pattern": (Record({"a": Text("x+")}), {"a": "xxy"}, "a"),
    "place": (Record({"a": ListOf(Text())}), {"a": ["x", 3]}, "a[1]"),
    "length": (Record({"a": ListOf(Text(), 2)}), {"a": ["x"]}, "a"),
    "ragged": (Record({"a": Grid(Integer())}), {"a": [[1, 2], [3]]}, "a"),
    "value in a grid": (Record({"a": Grid(Integer())}), {"a": [[1, "x"]]}, "a"),
    "half a character": (DictOf(Text()), {"a": "\ud800"}, "a"),
    "depth": (Record({"a": Any}), {"a": json.loads("[" * 60 + "]" * 60)}, "a["),
    "setting": (STORED, {"channels": -1}, "channels"),
    "unknown setting": (STORED, {"no_such": 1}, "it has the unknown field `no_such`"),
    "long": (Record({"a": Integer()}), {"a": "x" * 10**6}, "a"),
    "not null": (Record({"a": Maybe(Integer())}), {"a": []}, "a"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_value_that_does_not_match_is_rejected_with_its_field(case: str) -> None:
    kind, value, field = ODD[case]
    with rejects("file-damaged") as caught:
        check_values(kind, value, "f.json")
    assert caught.message.startswith(f"f.json is damaged: {field}")
    assert len(caught.message) < 300


def test_values_that_match_pass() -> None:
    kind = Record({"a": Maybe(Integer(1)), "b": Grid(Number())}, {"c": bool}, others=Text())
    check_values(kind, {"a": None, "b": [[1, 2.5]], "c": True, "d": "more"}, "f.json")
    check_values(Record({"a": Number(any_float=True)}), {"a": float("nan")}, "f.json")
    check_values(STORED, {"objective": ["teacher", "edges"], "memory": "8GB", "undirected": False}, "f.json")


def test_the_message_of_a_setting_names_its_field() -> None:
    def reject(name: str, value: Any) -> None:
        raise InputError(f"{name} must be even, not {value}")

    with pytest.raises(InputError, match=r"^f is damaged: p\.x must be even, not 3$"):
        check_values(Record({"p": Record({"x": Checked(reject)})}), {"p": {"x": 3}}, "f")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, "\x00", '{"a": "\x01"}', "{'a': 1}"])
def test_text_that_is_not_json_is_rejected_in_one_sentence(text: str) -> None:
    with rejects("file-damaged") as caught:
        parse_json(text, "f.json", InputError)
    assert caught.message.startswith("f.json is damaged: ")
    assert "\n" not in caught.message
