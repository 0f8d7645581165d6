"""What comes from outside as JSON, against a declared shape: types, signs, ranges, names, depth.

A stored file may have been written by anybody. Each format declares its shape once, beside its code, with the
few kinds below; the same declaration checks what is read, before anything is built from it, and what is
written. A fault is one sentence with the file and the field: `run/model.json is damaged: params.channels must
be a whole number of at least 1, not -1`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from h3gnn.errors import InputError
from h3gnn.resources import check_memory

DEEPEST = 32
"""Values nested deeper than this are refused, whatever they are."""
LARGEST = 2**63 - 1
PARSED = 20
"""Bytes of Python objects that a byte of JSON may become."""


class FieldError(Exception):
    """A value is not what its field declares; the message says what it should be, `field` which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Kind(Protocol):
    """What a field may hold."""

    def check(self, value: Any, where: str) -> None:
        """Raise a `FieldError` with the place where the value is something else."""


def _refuse(where: str, wanted: str, value: Any) -> None:
    shown = f"{{… {len(value)} names}}" if isinstance(value, dict) else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    raise FieldError(where, f"must be {wanted}, not {shown}")


@dataclass(frozen=True)
class Text:
    """A text that can be written as UTF-8, perhaps of a given form."""

    form: str | None = None
    wanted: str = "a text"

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, str) or (self.form is not None and not re.fullmatch(self.form, value)):
            _refuse(where, self.wanted, value)
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(where, "a text of whole characters", value)


@dataclass(frozen=True)
class Word:
    """One of some words."""

    words: tuple[str, ...]

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, str) or value not in self.words:
            _refuse(where, f"one of {', '.join(map(repr, self.words))}", value)


@dataclass(frozen=True)
class Whole:
    """A whole number of 64 bits in a range."""

    least: int = -(2**63)
    most: int = LARGEST

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            span = f"at least {self.least}" if self.most == LARGEST else f"{self.least} to {self.most}"
            _refuse(
                where, f"a whole number of {span}", value if not _endless(value) else "one beyond 64 bits"
            )


@dataclass(frozen=True)
class Number:
    """A number in a closed range; finite unless `any_float`."""

    least: float = -math.inf
    most: float = math.inf
    any_float: bool = False

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        plain = isinstance(value, int | float) and not isinstance(value, bool) and not _endless(value)
        if plain and self.any_float:
            return
        if not plain or not math.isfinite(value) or not self.least <= value <= self.most:
            bounds = f" in [{self.least:g}, {self.most:g}]" if (self.least, self.most) != _EVERY else ""
            _refuse(where, f"a finite number{bounds}", value if not _endless(value) else "one beyond 64 bits")


_EVERY = (-math.inf, math.inf)


def _endless(value: Any) -> bool:
    """Whether a whole number has more digits than Python is willing to print."""
    return isinstance(value, int) and value.bit_length() > 1024


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, bool):
            _refuse(where, "true or false", value)


@dataclass(frozen=True)
class Maybe:
    """Something, or null."""

    kind: Kind

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if value is not None:
            self.kind.check(value, where)


@dataclass(frozen=True)
class Listed:
    """A list of one kind, perhaps of a given length."""

    kind: Kind
    least: int = 0
    most: int | None = None

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, list | tuple):
            _refuse(where, "a list", value)
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            count = f"{self.least} value(s)" if self.most == self.least else f"at least {self.least} value(s)"
            raise FieldError(where, f"must have {count}, not {len(value)}")
        for place, one in enumerate(value):
            self.kind.check(one, f"{where}[{place}]")


@dataclass(frozen=True)
class Grid:
    """A list of rows of one length, none of them empty."""

    kind: Kind

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        Listed(Listed(self.kind, least=1)).check(value, where)
        for place, row in enumerate(value):
            if len(row) != len(value[0]):
                raise FieldError(f"{where}[{place}]", f"must have {len(value[0])} value(s), not {len(row)}")


@dataclass(frozen=True)
class Named:
    """Values of one kind by names that the file chooses, perhaps of a given form."""

    kind: Kind
    form: str | None = None

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, Mapping):
            _refuse(where, "values by name", value)
        for name, one in value.items():
            Text(self.form, "a name").check(name, f"{where}, a name in it,")
            self.kind.check(one, _below(where, name))


@dataclass(frozen=True)
class Record:
    """Values by declared names; any other name is refused, unless `others` says what it holds."""

    fields: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)
    others: Kind | None = None

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        if not isinstance(value, Mapping):
            _refuse(where, "values by name", value)
        missing = next((name for name in self.fields if name not in value), None)
        if missing is not None:
            raise FieldError(_below(where, missing), "is missing")
        for name, one in value.items():
            kind = self.fields.get(name) or self.optional.get(name) or self.others
            if kind is None:
                raise FieldError(_below(where, str(name)[:60]), "is not a field that h3gnn knows")
            kind.check(one, _below(where, str(name)))


@dataclass(frozen=True)
class Plain:
    """Anything that JSON can hold: numbers that are no more than numbers, whole texts, no endless depth."""

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        self._check(value, where, DEEPEST)

    def _check(self, value: Any, where: str, depth: int) -> None:
        if not depth:
            raise FieldError(where, "is nested too deeply")
        if isinstance(value, Mapping):
            for name, one in value.items():
                Text().check(name, f"{where}, a name in it,")
                self._check(one, _below(where, name), depth - 1)
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                self._check(one, f"{where}[{place}]", depth - 1)
        elif isinstance(value, str):
            Text().check(value, where)
        elif value is not None and not isinstance(value, bool):
            Number(any_float=True).check(value, where)


@dataclass(frozen=True)
class Checked:
    """What a function takes that raises an `InputError` beginning with the name, as settings have them."""

    function: Callable[[str, Any], object]

    def check(self, value: Any, where: str) -> None:
        """See `Kind`."""
        Plain().check(value, where)
        try:
            self.function(where, value)
        except InputError as error:
            raise FieldError(where, str(error).removeprefix(where).strip()) from None


VERSIONS = Named(Text())
ORIGIN = Record({"commit": Text()}, {"code": Named(Text())})
SHA256 = Text("[0-9a-f]{64}", "a SHA-256")


def heading_of(kind: str) -> dict[str, Kind]:
    """Return the fields with which every description begins; their values are looked at before the others."""
    return {"format": Word((kind,)), "format_version": Whole(0), "versions": VERSIONS}


def _below(where: str, name: str) -> str:
    name = name if len(name) <= 60 else f"{name[:57]}…"
    return f"{where}.{name}" if where else name


def parse_json(content: bytes | str, path: Path | str, fault: type[InputError], words: str = "") -> Any:
    """Return the values of a JSON text; one that is none, or too large or deep, is a `fault` naming the file.

    Args:
        content: the text.
        path: the file that it stands in.
        fault: what to raise.
        words: what to say of the file; "is damaged" by default.
    """
    check_memory(PARSED * len(content), f"reading {path}", fault)
    try:
        return json.loads(content)
    except RecursionError:
        reason = "its values are nested too deeply"
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
    raise fault(f"{path} {words or 'is damaged'}: {reason}")


def check_values(
    kind: Kind, value: Any, path: Path | str, fault: type[InputError] = InputError, words: str = ""
) -> None:
    """Compare values with their declared shape; the `fault` names the file and the field."""
    with naming(path, fault, words):
        kind.check(value, "")


@contextmanager
def naming(path: Path | str, fault: type[InputError] = InputError, words: str = "") -> Iterator[None]:
    """Turn a `FieldError` of the block into a `fault` that names the file."""
    try:
        yield
    except FieldError as error:
        raise fault(f"{path} {words or 'is damaged'}: {error.field or 'it'} {error}") from None
