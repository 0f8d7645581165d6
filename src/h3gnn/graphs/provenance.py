"""The origin of a graph and the repairs made to its input, as data and as text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from h3gnn.storage.schema import SHA256, Integer, ListOf, OneOf, Record, Text

Kind = Literal["table", "arrays", "object", "files", "dataset", "generated"]
"""What a graph is built from: a table without edges, arrays, an object, files, a benchmark or a generator."""

REPAIR = Record(
    {"code": Text(), "message": Text()}, {"count": Integer(0), "fields": ListOf(Text()), "warn": bool}
)
PROVENANCE: dict[str, Any] = {
    "kind": OneOf(get_args(Kind)),
    "structural": bool,
    "repairs": ListOf(REPAIR),
    "mended": ListOf(Text()),  # written before repairs had codes
}
"""Optional stored fields of a provenance."""
STORED_PROVENANCE = Record({"source": Text(), "sha256": SHA256}, PROVENANCE)


@dataclass(frozen=True)
class Repair:
    """A change made to the input, or a part of the input that is not used.

    Attributes:
        code: stable identifier, such as "duplicate-edges".
        message: the same for people.
        count: number of affected edges, nodes or rows, if known.
        fields: affected columns or attributes.
        warn: whether Python users are warned, because the result may surprise them.
    """

    code: str
    message: str
    count: int | None = None
    fields: tuple[str, ...] = ()
    warn: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {**vars(self), "fields": list(self.fields) or None, "warn": self.warn or None}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Repair:
        """Read what `as_dict` returns."""
        return cls(**{**stored, "fields": tuple(stored.get("fields", ()))})


@dataclass(frozen=True)
class Provenance:
    """Origin of a graph; it is stored with every saved model and every result.

    Attributes:
        source: name of the input, for people.
        sha256: hash of the graph's arrays.
        kind: what the graph is built from.
        structural: whether the features are built from the edges, because the input has none.
        repairs: changes made to the input.
    """

    source: str
    sha256: str
    kind: Kind = "arrays"
    structural: bool = False
    repairs: tuple[Repair, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        repairs = [repair.as_dict() for repair in self.repairs]
        return {**vars(self), "repairs": repairs}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Provenance:
        """Read what `as_dict` returns, or the notes that earlier versions stored."""
        source, sha256 = stored["source"], stored["sha256"]
        if "mended" in stored:
            notes = stored["mended"]
            repairs = tuple(Repair("note", note) for note in notes)
            return cls(source, sha256, _old_kind(source), OLD_STRUCTURAL in notes, repairs)
        repairs = tuple(Repair.from_dict(repair) for repair in stored.get("repairs", ()))
        return cls(source, sha256, stored.get("kind", "arrays"), stored.get("structural", False), repairs)


OLD_STRUCTURAL = "no features in the data: structural features were built from the edges"
"""Note by which earlier versions recorded structural features."""


def _old_kind(source: str) -> Kind:
    """Return the kind of a graph stored by an earlier version, which recorded its source only."""
    if source == "table":
        return "table"
    return "files" if all(Path(name).suffix for name in source.split(", ")) else "arrays"


def warn_about_repairs(repairs: Iterable[Repair]) -> None:
    """Warn about the repairs that Python users should know, since they see no report of the others."""
    for repair in repairs:
        if repair.warn:
            warnings.warn(repair.message, stacklevel=3)
