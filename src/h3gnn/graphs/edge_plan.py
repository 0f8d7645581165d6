"""How the edges of a graph were read from tables; stored with a model, so that new edges are read alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from h3gnn.errors import GraphError, check_choice
from h3gnn.storage.schema import ListOf, Maybe, Number, OneOf, Record, Text

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
