"""Validation of untrusted JSON against declared types, with msgspec.

Each format declares its type once, beside its code, as a `Record` or any other type of msgspec. The same
declaration validates files that are read, before anything is built from them, and files that are written.
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
MAX_INT, MAX_FLOAT = 2**63 - 1, sys.float_info.max
PARSED = 20
"""Maximum number of bytes of Python objects for a byte of JSON."""
Kind = Any
"""A type of msgspec, or a `Record`."""


class FieldError(Exception):
    """A value does not match its declaration; the message continues a sentence that begins with `field`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def Text(form: str | None = None) -> Kind:
    """A string that can be written as UTF-8 and that matches a regular expression, if one is given."""
    return str if form is None else Annotated[str, Meta(pattern=rf"\A(?:{form})\Z")]


def OneOf(choices: tuple[str, ...]) -> Kind:
    """One of some strings."""
    return Literal[choices]


def Integer(least: int = -MAX_INT - 1, most: int = MAX_INT) -> Kind:
    """A 64-bit integer in a closed range."""
    return Annotated[int, Meta(ge=least, le=most)]


def Number(least: float = -MAX_FLOAT, most: float = MAX_FLOAT, *, any_float: bool = False) -> Kind:
    """A number in a closed range; finite unless `any_float`."""
    return float if any_float else Annotated[float, Meta(ge=least, le=most)]


def Maybe(kind: Kind) -> Kind:
    """A value, or null."""
    return Optional[_resolved(kind)]


def ListOf(kind: Kind, least: int = 0, most: int | None = None) -> Kind:
    """A list of one type, with bounds on its length."""
    return Annotated[list[_resolved(kind)], Meta(min_length=least, max_length=most)]  # type: ignore[misc]


def DictOf(kind: Kind, form: str | None = None) -> Kind:
    """An object with values of one type, whose names may have to match a regular expression."""
    return dict[Text(form), _resolved(kind)]  # type: ignore[misc]


def Checked(function: Callable[[str, Any], object]) -> Kind:
    """A value that a function accepts; it gets a name and the value, and raises an `InputError`."""
    return type("Checked", (_Custom,), {"check": staticmethod(lambda value: function("", value))})


def Grid(kind: Kind) -> Kind:
    """A list of non-empty rows of equal length."""

    def check(value: Any) -> None:
        try:
            rows = msgspec.convert(value, list[ListOf(kind, least=1)])  # type: ignore[misc]
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace(" - at `$", " in its row `")) from None
        if len({len(row) for row in rows}) > 1:
            raise ValueError("must have rows of equal length")

    return type("Grid", (_Custom,), {"check": staticmethod(check)})


class _Custom:
    """A type whose values a function checks."""

    check: Callable[[Any], object]


class Record:
    """An object with declared fields; `others` accepts further fields with any JSON value."""

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


VERSIONS = DictOf(Text())
ORIGIN = Record({"commit": Text()}, {"code": DictOf(Text())})
SHA256 = Text("[0-9a-f]{64}")


def header_of(kind: str) -> dict[str, Kind]:
    """Return the schema of the first fields of every description."""
    return {"format": OneOf((kind,)), "format_version": Integer(0), "versions": VERSIONS}


def parse_json(content: bytes | str, path: Path | str, error_class: type[InputError], words: str = "") -> Any:
    """Parse JSON, or raise an error that names the file and that it `words` ("is damaged")."""
    check_memory(PARSED * len(content), f"reading {path}", error_class)
    try:
        return json.loads(content)
    except RecursionError:
        reason = "its values are nested too deeply"
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
    raise error_class(f"{path} {words or 'is damaged'}: {reason}", code="file-damaged")


def check_values(
    kind: Kind, value: Any, path: Path | str, error_class: type[InputError] = InputError, words: str = ""
) -> None:
    """Validate values; an error names the file and the field."""
    with naming(path, error_class, words):
        check(kind, value)


def check(kind: Kind, value: Any, where: str = "") -> None:
    """Validate a value; a `FieldError` names the field below `where`."""
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
"""The end of a sentence that begins with the field, and msgspec's wording."""


def _check_custom(kind: type, value: Any) -> Any:
    if issubclass(kind, _Custom):
        kind.check(value)
    return kind()


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Reject values nested too deeply, strings that are not valid Unicode, and huge integers."""
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
def naming(path: Path | str, error_class: type[InputError] = InputError, words: str = "") -> Iterator[None]:
    """Convert a `FieldError` in the block to an error that names the file."""
    try:
        yield
    except FieldError as error:
        message = f"{path} {words or 'is damaged'}: {error.field or 'it'} {error}"
        raise error_class(message, code="file-damaged") from None
