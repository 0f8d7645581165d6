"""The origin of a graph, the repairs made to its input, and how its edges were read from tables.

All of it is stored with a model, so that new edges are read alike."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from h3gnn.errors import GraphError, check_choice
from h3gnn.storage.schema import SHA256, Integer, ListOf, Maybe, Number, OneOf, Record, Text

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


UNKNOWN = ("error", "drop", "add")
WEIGHTS = ("error", "drop", "absolute")
REPEATED = ("sum", "count", "mean", "max", "first", "last", "error")


@dataclass(frozen=True)
class EdgeRules:
    """How invalid and duplicate edges are handled.

    Attributes:
        unknown_nodes: an edge or label of a node without features is an "error", is left out ("drop"), or
            its node is added, with all features missing ("add").
        weights: a negative, zero or missing weight is an "error", the edge is left out ("drop"), or its
            absolute value is used ("absolute"; edges with zero and missing ones are then left out).
        repeated: duplicate edges become one with the "sum" of their weights (without weights it is one
            edge), their "count", "mean", "max", the "first" or "last" in the file, or are an "error".
        undirected: whether the opposite of every edge is added, before duplicates are merged.
        bipartite: whether the ends are two types of nodes, such as users and films, whose ids become `user:1`
            and `movie:1`; None to ask where columns of such names share ids.
    """

    unknown_nodes: str = "error"
    weights: str = "error"
    repeated: str = "sum"
    undirected: bool = False
    bipartite: bool | None = None

    def __post_init__(self) -> None:
        check_choice("unknown_nodes", self.unknown_nodes, UNKNOWN)
        check_choice("weights", self.weights, WEIGHTS)
        check_choice("repeated", self.repeated, REPEATED)


@dataclass(frozen=True)
class EdgeColumns:
    """One table of edges: its columns by name, and what its weights are divided by.

    Attributes:
        table: the file name without its ending; "edges" for a data frame.
        source, target, weight: names of the columns; `weight` is None without weights. Without a header,
            they are `column 1`, `column 2`, ….
        scale: the mean weight of the table, if several tables are one graph, else 1.
    """

    table: str
    source: str
    target: str
    weight: str | None = None
    scale: float = 1.0

    @property
    def ends(self) -> tuple[str, str]:
        """The columns of source and target."""
        return self.source, self.target

    @classmethod
    def of(cls, table: str, names: Sequence[str]) -> EdgeColumns:
        """Return the columns of a table: source, target and, if it has weights, the weight."""
        source, target, *weight = names
        return cls(table, source, target, weight[0] if weight else None)


@dataclass(frozen=True)
class EdgePlan:
    """How the edges of a graph were read: the rules, and one entry for each table."""

    rules: EdgeRules = field(default_factory=EdgeRules)
    tables: tuple[EdgeColumns, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"rules": asdict(self.rules), "tables": [asdict(one) for one in self.tables]}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> EdgePlan:
        """Read what `as_dict` returns."""
        rules = EdgeRules(**{"bipartite": False, **stored["rules"]})  # missing in old models
        return cls(rules, tuple(EdgeColumns(**one) for one in stored["tables"]))

    def table_of(self, names: Sequence[str], called: str, wanted: str | None = None) -> EdgeColumns:
        """Return the fitted table that new edges continue.

        Args:
            names: the columns of the new table.
            called: its file name without the ending; "" for a data frame.
            wanted: the fitted table that the user names; else the columns decide, then the file name.
        """
        known = [one.table for one in self.tables]
        if wanted is not None and wanted not in known:
            message = f"the model was fitted with no table of edges {wanted!r}; there are {', '.join(known)}"
            raise GraphError(message, code="edge-table-unknown")
        fits = [one for one in self.tables if {one.source, one.target, one.weight or one.source} <= {*names}]
        for found in (
            [one for one in self.tables if one.table == wanted],
            self.tables if len(self.tables) == 1 else (),
            fits if len(fits) == 1 else (),
            [one for one in fits if one.table == called],
        ):
            if len(found) == 1:
                return found[0]
        raise GraphError(
            f"new edges with the columns {', '.join(names)} could continue any of the fitted tables "
            f"{', '.join(known)}, whose weights have different scales; name one: --new-edges "
            f"{known[0]}={called or 'FILE'} (in Python, edges={{{known[0]!r}: table}})",
            code="edge-table-ambiguous",
        )


STORED_EDGES = Record(
    {
        "rules": Record(
            {
                **{"unknown_nodes": OneOf(UNKNOWN), "weights": OneOf(WEIGHTS), "repeated": OneOf(REPEATED)},
                "undirected": bool,
            },
            {"bipartite": Maybe(bool)},
        ),
        "tables": ListOf(
            Record(
                {
                    **{"table": Text(), "source": Text(), "target": Text(), "weight": Maybe(Text())},
                    "scale": Number(1e-300),
                }
            )
        ),
    }
)
"""Schema of a stored plan of edges."""
