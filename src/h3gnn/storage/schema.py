"""Validation of untrusted JSON against declared types, with msgspec.

Anybody may have written a stored file. Each format declares its type once, beside its code, as a `Record` of
the types below or as any other type of msgspec; the same declaration checks what is read, before anything is
built from it, and what is written. An error is one sentence that names the file and the field.
"""
# ruff: noqa: N802, UP045 (types are named like types; `X | None` is no operator on all of them)

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import msgspec
from msgspec import Meta

from h3gnn.errors import InputError
from h3gnn.resources import check_memory

MAX_DEPTH = 32
"""Deeper values are rejected."""
MAX_INT = 2**63 - 1
MAX_FLOAT = sys.float_info.max
PARSED = 20
"""Bytes of Python objects that a byte of JSON may become."""
Kind = Any
"""A type of msgspec, or a `Record`."""


class FieldError(Exception):
    """A value does not match its declaration; `field` names it, the message continues the sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def Text(form: str | None = None) -> Kind:
    """A string that can be written as UTF-8 and that matches a regular expression, if one is given."""
    return str if form is None else Annotated[str, Meta(pattern=rf"\A(?:{form})\Z")]


def Word(words: tuple[str, ...]) -> Kind:
    """One of some strings."""
    return Literal[words]


def Whole(least: int = -MAX_INT - 1, most: int = MAX_INT) -> Kind:
    """A 64-bit integer in a closed range."""
    return Annotated[int, Meta(ge=least, le=most)]


def Number(least: float = -MAX_FLOAT, most: float = MAX_FLOAT, *, any_float: bool = False) -> Kind:
    """A number in a closed range; finite unless `any_float`."""
    return float if any_float else Annotated[float, Meta(ge=least, le=most)]


def Flag() -> Kind:
    """True or false."""
    return bool


def Plain() -> Kind:
    """Any JSON value."""
    return Any


def Maybe(kind: Kind) -> Kind:
    """A value, or null."""
    return Optional[_resolved(kind)]


def Listed(kind: Kind, least: int = 0, most: int | None = None) -> Kind:
    """A list of one type, with bounds on its length."""
    return Annotated[list[_resolved(kind)], Meta(min_length=least, max_length=most)]  # type: ignore[misc]


def Named(kind: Kind, form: str | None = None) -> Kind:
    """An object with values of one type; its names may have to match a regular expression."""
    return dict[Text(form), _resolved(kind)]  # type: ignore[misc]


def Checked(function: Callable[[str, Any], object]) -> Kind:
    """A value that a function accepts; it gets a name and the value, and raises an `InputError`."""
    return type("Checked", (_Custom,), {"check": staticmethod(lambda value: function("", value))})


def Grid(kind: Kind) -> Kind:
    """A list of non-empty rows of equal length."""

    def check(value: Any) -> None:
        try:
            rows = msgspec.convert(value, list[Listed(kind, least=1)])  # type: ignore[misc]
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace(" - at `$", " in its row `")) from None
        if len({len(row) for row in rows}) > 1:
            raise ValueError("must have rows of equal length")

    return type("Grid", (_Custom,), {"check": staticmethod(check)})


class _Custom:
    """A type whose values a function checks."""

    check: Callable[[Any], object]


class Record:
    """An object with declared fields.

    Args:
        fields: required fields.
        optional: fields that may be missing.
        others: accept further fields with any JSON value.
    """

    def __init__(
        self, fields: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None, others: Kind = None
    ) -> None:
        self.fields, self.optional, self.others = dict(fields), dict(optional or {}), others

    @cached_property
    def type(self) -> type[msgspec.Struct]:
        """The declaration as a struct of msgspec."""
        declared: list[Any] = [(name, _resolved(kind)) for name, kind in self.fields.items()]
        for name, kind in self.optional.items():
            declared.append((name, _resolved(kind) | msgspec.UnsetType, msgspec.UNSET))
        return msgspec.defstruct(
            "Record", declared, forbid_unknown_fields=self.others is None, kw_only=True, frozen=True
        )


def _resolved(kind: Kind) -> Any:
    return kind.type if isinstance(kind, Record) else kind


VERSIONS = Named(Text())
ORIGIN = Record({"commit": Text()}, {"code": Named(Text())})
SHA256 = Text("[0-9a-f]{64}")


def heading_of(kind: str) -> dict[str, Kind]:
    """Return the fields with which every description begins."""
    return {"format": Word((kind,)), "format_version": Whole(0), "versions": VERSIONS}


def parse_json(content: bytes | str, path: Path | str, fault: type[InputError], words: str = "") -> Any:
    """Return the values of a JSON text, or raise a `fault` that names the file.

    Args:
        content: the text.
        path: its file.
        fault: the error to raise where it is not JSON, or too large or deep.
        words: what the error says of the file; "is damaged" by default.
    """
    check_memory(PARSED * len(content), f"reading {path}", fault)
    try:
        return json.loads(content)
    except RecursionError:
        reason = "its values are nested too deeply"
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
    raise fault(f"{path} {words or 'is damaged'}: {reason}", code="file-damaged")


def check_values(
    kind: Kind, value: Any, path: Path | str, fault: type[InputError] = InputError, words: str = ""
) -> None:
    """Compare values with their declaration; the `fault` names the file and the field."""
    with naming(path, fault, words):
        check(kind, value)


def check(kind: Kind, value: Any, where: str = "") -> None:
    """Compare a value with its declaration; a `FieldError` names the field below `where`."""
    _check_plain(value, where, MAX_DEPTH)
    try:
        msgspec.convert(value, _resolved(kind), dec_hook=_check_custom)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        for ours, theirs in _WORDS.items():
            message = message.replace(theirs, ours)
        field = f"{where}{place.rstrip('`').removeprefix('$')}".removeprefix(".")
        raise FieldError(field, message.strip()[:200]) from None


_WORDS = {
    "must be ": "Expected ",
    ", not ": ", got ",
    "is missing the field": "Object missing required field",
    "has the unknown field": "Object contains unknown field",
    "has the unknown value": "Invalid enum value",
}
"""How a sentence that begins with the field goes on, and how msgspec puts it."""


def _check_custom(kind: type, value: Any) -> Any:
    if issubclass(kind, _Custom):
        kind.check(value)
    return kind()


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Reject values nested too deeply, strings that are not valid Unicode, and endless integers."""
    if not depth:
        raise FieldError(where, "is nested too deeply")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FieldError(where, "must be valid Unicode") from None
    if isinstance(value, int) and value.bit_length() > 1024:
        raise FieldError(where, "must be a number of at most 64 bits")
    if isinstance(value, Mapping):
        for name, item in value.items():
            below = f"{where}.{str(name)[:60]}".removeprefix(".")
            _check_plain(name, below, depth - 1)
            _check_plain(item, below, depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]", depth - 1)


@contextmanager
def naming(path: Path | str, fault: type[InputError] = InputError, words: str = "") -> Iterator[None]:
    """Turn a `FieldError` of the block into a `fault` that names the file."""
    try:
        yield
    except FieldError as error:
        message = f"{path} {words or 'is damaged'}: {error.field or 'it'} {error}"
        raise fault(message, code="file-damaged") from None
