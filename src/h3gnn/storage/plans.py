"""The plan of a table in a file: what each encoder learned, declared, and how many numbers come out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from h3gnn.graphs.encoders import MOST_ITEMS
from h3gnn.graphs.kinds import FORMS, KINDS
from h3gnn.graphs.plan import ENCODERS, STARTED
from h3gnn.graphs.texts import BUCKETS
from h3gnn.schema import FieldError, Flag, Kind, Listed, Maybe, Named, Number, Plain, Record, Text, Word
from h3gnn.storage.tensors import Spec, check_range, check_tensors

LEFT_OUT, AS_IT_IS, VECTOR = "", "plain", "vector"
COLUMN = Record(
    {
        "name": Text(),
        "kind": Word(KINDS),
        "form": Text(),
        "why": Text(),
        "encoder": Word((LEFT_OUT, AS_IT_IS, *ENCODERS)),
        "how": Text(),
        "names": Listed(Text()),
        "said": Flag(),
        "plain": Named(Plain()),
    }
)
PLAN = Record({"columns": Listed(COLUMN)})
"""What a description says of a plan; `check_plan` looks at each column more closely."""

MEASURED = Number(any_float=True)  # the spread of huge numbers is infinite
NUMBERS: dict[str, Kind] = {
    "fill": MEASURED,
    "mean": MEASURED,
    "scale": MEASURED,
    "log": Flag(),
    "gaps": Flag(),
}
WORDS: dict[str, Kind] = {"rare": Flag(), "gaps": Flag()}


@dataclass(frozen=True)
class Encoded:
    """What an encoder keeps of a column.

    Attributes:
        kinds: of the columns that it may encode.
        plain: its values.
        width: how many numbers come out, from the values and the sizes of the arrays.
        arrays: its arrays, with named axes.
    """

    kinds: tuple[str, ...]
    plain: Record
    width: Callable[[Mapping[str, Any], Mapping[str, int]], int]
    arrays: Mapping[str, Spec] = field(default_factory=dict)


def _width_of_numbers(of: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    return 1 + int(of["gaps"])


def _width_of_list(of: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    items = MOST_ITEMS if of["kept"] is None else len(of["kept"]) + int(of["rare"])
    return items + int(of["gaps"])


KEPT: dict[str, Encoded] = {
    "number": Encoded(("number",), Record(NUMBERS), _width_of_numbers),
    "boolean": Encoded(("boolean",), Record(NUMBERS), _width_of_numbers),
    "category": Encoded(("category",), Record({**WORDS, "kept": Listed(Text())}), _width_of_list),
    "date": Encoded(
        ("date",),
        Record({**NUMBERS, "cycles": Listed(Word(("year", "week", "day")), most=3)}),
        lambda of, sizes: 1 + 2 * len(of["cycles"]) + int(of["gaps"]),
    ),
    "list": Encoded(("list",), Record({**WORDS, "kept": Maybe(Listed(Text()))}), _width_of_list),
    "vector": Encoded(
        ("list",),
        Record({"scale": MEASURED, "gaps": Flag()}),
        lambda of, sizes: sizes["width"] + int(of["gaps"]),
        {"mean": Spec(torch.float64, ("width",))},
    ),
    "text": Encoded(
        ("text",),
        Record({"form": Word(FORMS["text"]), "gaps": Flag(), "scale": MEASURED}),
        lambda of, sizes: sizes["width"] + int(of["gaps"]),
        {
            "used": Spec(torch.int64, ("words",)),
            "weight": Spec(torch.float32, ("words",)),
            "directions": Spec(torch.float32, ("width", "words")),
        },
    ),
    "sentences": Encoded(
        ("text",),
        Record({"folder": Text("[^\0]+", "a path"), "scale": MEASURED}),
        lambda of, sizes: sizes["width"],
        {"mean": Spec(torch.float64, ("width",))},
    ),
}
"""By the name of the encoder."""


def check_plan(told: Mapping[str, Any], tensors: Mapping[str, Tensor], features: int) -> None:
    """Compare a plan, which is of the shape `PLAN`, with its arrays and with the features that it made.

    Args:
        told: what the description says of it.
        tensors: its arrays, under the names of `TablePlan.tensors`.
        features: how many there are.

    Raises:
        FieldError: with the column that is not what it must be.
    """
    left = dict(tensors)
    for at, column in enumerate(told["columns"]):
        start = f"{STARTED}{at}."
        own = {name: left.pop(name) for name in tensors if name.startswith(start)}
        _check_column(column, own, start, f"plan.columns[{at}]")
    check_tensors({}, left)
    made = sum(len(column["names"]) for column in told["columns"])
    if made != features:
        raise FieldError("plan", f"makes {made} features, but there are {features}")


def _check_column(column: Mapping[str, Any], own: Mapping[str, Tensor], start: str, where: str) -> None:
    encoder, names = column["encoder"], column["names"]
    if encoder in (LEFT_OUT, AS_IT_IS):
        check_tensors({}, own)
        if bool(names) != (encoder == AS_IT_IS):
            raise FieldError(f"{where}.names", "must be there for a column that is used, and only for one")
        return
    kept, of = KEPT[encoder], column["plain"]
    is_vector = column["kind"] == "list" and column["form"] == VECTOR
    if column["kind"] not in kept.kinds or is_vector != (encoder == VECTOR):
        raise FieldError(f"{where}.encoder", f"is {encoder!r}, which does not fit the kind of the column")
    kept.plain.check(of, f"{where}.plain")
    if "scale" in of and not of["scale"] > 0:
        raise FieldError(f"{where}.plain.scale", f"must be positive, not {of['scale']}")
    sizes: dict[str, int] = {}
    check_tensors({start + name: spec for name, spec in kept.arrays.items()}, own, sizes)
    if "used" in kept.arrays:
        check_range(f"{start}used", own[f"{start}used"], 0, BUCKETS)
    if len(names) != kept.width(of, sizes):
        raise FieldError(f"{where}.names", f"must have {kept.width(of, sizes)} value(s), not {len(names)}")
