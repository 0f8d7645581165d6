"""Changes of sound files: of a JSON value, of a tensor, of bytes; drawn by Hypothesis."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 10**6, 10**12, 2**63, -(2**63) - 1, 10**400, 1.5, -0.1, 1e300),
    *(math.nan, math.inf, "", "x", "cpu", "auto", "/etc/passwd", "..\x00", "[/red]", "\ud800", "9" * 5000),
    *([], {}, [1], [[1, 2], [3]], [None], {"a": 1}, nested(100), {"deep": nested(40)}),
]
"""Replacements of a field: other types, signs, sizes, depths and untrusted texts."""


@st.composite
def json_changes(draw: st.DrawFn) -> Callable[[Any], Any]:
    """Return a function that changes one to three places of a JSON value."""
    steps = [
        (draw(st.sampled_from(["replace", "drop", "add", "again"])), draw(st.randoms(use_true_random=False)))
        for _ in range(draw(st.integers(1, 3)))
    ]

    def change(value: Any) -> Any:
        value = copy.deepcopy(value)
        for kind, chance in steps:
            value = _change(value, kind, chance)
        return value

    return change


def _change(value: Any, kind: str, chance: Any) -> Any:
    holders = [one for one in _holders(value) if one]
    if not holders:
        return chance.choice(ODD)
    holder = chance.choice(holders)
    place = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if kind == "replace":
        holder[place] = copy.deepcopy(chance.choice(ODD))
    elif kind == "drop":
        del holder[place]
    elif isinstance(holder, dict):
        holder[chance.choice(["new", "", "__class__", "x" * 300]) if kind == "add" else place] = holder[place]
    else:
        holder.insert(place, copy.deepcopy(chance.choice(ODD) if kind == "add" else holder[place]))
    return value


def _holders(value: Any, depth: int = 8) -> list[Any]:
    if not isinstance(value, dict | list) or not depth:
        return []
    inner = value.values() if isinstance(value, dict) else value[:6]
    return [value, *(one for part in inner for one in _holders(part, depth - 1))]


TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
NUMBERS = [-1.0, 0.0, 1.0, 3.0, 1e12, -(2.0**63), math.nan, math.inf]


@st.composite
def tensor_changes(draw: st.DrawFn) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return a function that changes the type, shape or content of a tensor, or which tensors there are."""
    kinds = ["type", "one value", "all values", "drop", "add", "swap", "flatten", "cut", "double", "empty"]
    steps = [
        (draw(st.sampled_from([*kinds, "axis", "random"])), draw(st.randoms(use_true_random=False)))
        for _ in range(draw(st.integers(1, 2)))
    ]

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        changed = dict(tensors)
        for kind, chance in steps:
            if changed:
                _change_tensors(changed, kind, chance)
        return changed

    return change


def _change_tensors(tensors: dict[str, Tensor], kind: str, chance: Any) -> None:
    name, other = chance.choice(sorted(tensors)), chance.choice(sorted(tensors))
    one = tensors[name].clone().contiguous()
    if kind == "drop":
        del tensors[name]
    elif kind == "add":
        tensors[chance.choice(["new", "encoder.new", "products/new", "features.crow", f"{name}.x"])] = one
    elif kind == "swap":
        tensors[name], tensors[other] = tensors[other], tensors[name]
    else:
        tensors[name] = _changed(one, kind, chance)


def _changed(one: Tensor, kind: str, chance: Any) -> Tensor:
    shapes = {"flatten": one.flatten(), "axis": one[None], "type": one.to(chance.choice(TYPES))}
    number = chance.choice(NUMBERS)
    if kind in shapes:
        return shapes[kind]
    if kind == "one value" and one.numel():
        one.view(-1)[chance.randrange(one.numel())] = _fitting(number, one)
    elif kind == "all values":
        one.fill_(_fitting(number, one))
    elif kind == "random" and one.numel():
        raw = one.view(-1).view(torch.uint8)
        drawn = torch.tensor([chance.randrange(256) for _ in range(min(len(raw), 64))])
        raw.copy_(drawn.repeat(len(raw))[: len(raw)])
    elif kind == "empty":
        return one.new_empty(0, *one.shape[1:])
    elif kind == "cut" and one.dim() and len(one):
        return one[:-1].contiguous()
    elif kind == "double" and one.dim():
        return torch.cat([one, one])
    return one


def _fitting(number: float, like: Tensor) -> Any:
    if like.dtype.is_floating_point:
        return number
    if not math.isfinite(number):
        number = -7.0
    if like.dtype == torch.bool:
        return bool(number)
    return int(number) % 256 if like.dtype == torch.uint8 else int(max(min(number, 2.0**31), -(2.0**31)))


@st.composite
def byte_changes(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Return a function that flips, cuts, doubles, drops or inserts bytes."""
    kinds = draw(
        st.lists(st.sampled_from(["flip", "cut", "double", "insert", "drop"]), min_size=1, max_size=3)
    )
    places = [draw(st.floats(0, 1, exclude_max=True)) for _ in kinds]
    bits = draw(st.integers(1, 255))
    short = [b"\xff\xfe", b"nan", b'"', b"\0", b",", b"\n", b"\r", b"-", b"<", b"["]
    word = draw(st.sampled_from([*short, b"9" * 20, b"9" * 5000, b"a" * 200_000]))

    def change(content: bytes) -> bytes:
        for kind, place in zip(kinds, places, strict=True):
            at = int(place * len(content))
            if kind == "flip" and content:
                content = content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
            elif kind == "cut":
                content = content[:at]
            elif kind == "double":
                content = content[:at] + content[at : at + 12] + content[at:]
            elif kind == "insert":
                content = content[:at] + word + content[at:]
            else:
                content = content[:at] + content[at + 5 :]
        return content

    return change
