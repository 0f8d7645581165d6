"""Link columns: what the rows of edge tables say about each node, as columns of the node.

Each table of edges is summarized for each node and direction: the number of its rows (`transfers.out.links`)
and of distinct nodes at their other ends (`transfers.out.partners`), and the values of its other columns
(`transfers.out.amount.mean`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from h3gnn.storage.schema import ListOf, Number, OneOf, Record, Text
from h3gnn.tables.encoders import NumberEncoder

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

COUNTS = ("links", "partners")
SUMMARIES = {
    "number": ("sum", "mean", "min", "max", "std"),
    "date": ("first", "last", "span", "rate"),
    "boolean": ("share",),
    "category": ("share",),
}
"""What is computed from the values of a column by its kind; of other kinds, nothing."""
OF_VALUES = frozenset({"mean", "min", "max", "share", "first", "last"})
"""Summaries that repeat values of the column; the others also depend on the number of links."""
OF_NUMBERS = frozenset({"count", "distinct", "sum", "std", "rate"})
"""Summaries of joined columns that depend on the number of linked rows, too."""
DIRECTIONS, BOTH = ("out", "in"), ("",)
MISSING, OTHER = -2, -1
"""Codes of a missing category, and of one that is not frequent."""
ROUNDING, EXACT = 1e-9, 1e-13
"""Deviations below these shares of the whole column's, and of the largest value, are rounding errors."""


@dataclass(frozen=True)
class LinkColumn:
    """A column of an edge table.

    Attributes:
        name, kind, form, reason, declared: see `h3gnn.tables.infer.InferredType`.
        kept: the frequent values of a category.
    """

    name: str
    kind: str
    form: str = ""
    reason: str = ""
    declared: bool = False
    kept: tuple[str, ...] = ()

    @property
    def summaries(self) -> list[tuple[str, str]]:
        """The name of each summary, and what it is: `amount.mean`, mean."""
        if self.kind == "category":
            return [(f"{self.name}={one}.share", "share") for one in self.kept]
        return [(f"{self.name}.{what}", what) for what in SUMMARIES.get(self.kind, ())]


@dataclass(frozen=True)
class LinkTable:
    """One table of edges: its name, its distinct directions, and its columns, unused ones too."""

    table: str
    directions: tuple[str, ...]
    columns: tuple[LinkColumn, ...]

    @property
    def used(self) -> tuple[LinkColumn, ...]:
        """The columns that are summarized."""
        return tuple(one for one in self.columns if one.summaries)

    @property
    def entries(self) -> Iterator[tuple[str, LinkColumn | None, str]]:
        """The name of each link column, the column of the table behind it (None for counts), what it is."""
        for direction in self.directions:
            prefix = f"{self.table}.{direction}." if direction else f"{self.table}."
            yield from ((prefix + what, None, what) for what in COUNTS)
            for column in self.used:
                yield from ((prefix + name, column, what) for name, what in column.summaries)

    def summarize(self, ends: Index, values: Mapping[str, npt.NDArray[Any]], nodes: int) -> Floats:
        """Return the summaries `[nodes, link columns]`, NaN where undefined.

        Args:
            ends: sources above targets, `[2, rows]`.
            values: of each used column: numbers or days, NaN where missing, or codes of categories.
            nodes: number of nodes.
        """
        parts = []
        for direction in self.directions:
            node, partner = ends if direction != "in" else ends[::-1]
            own = values
            if not direction:  # a self-loop is its own opposite
                between = np.flatnonzero(ends[0] != ends[1])
                node, partner = np.concatenate([ends, ends[::-1, between]], axis=1)
                own = {name: np.concatenate([one, one[between]]) for name, one in values.items()}
            parts.append(self.summarize_one(node, partner, own, nodes))
        return np.concatenate(parts, axis=1)

    def summarize_one(
        self, node: Index, partner: Index, values: Mapping[str, npt.NDArray[Any]], nodes: int
    ) -> Floats:
        """Return the summaries of one direction, of the rows at each `node`."""
        _, others = np.unique(partner, return_inverse=True)
        width = int(others.max(initial=0)) + 1
        pairs = np.unique(node * width + others) // width
        parts = [np.bincount(one, minlength=nodes).astype(np.float64) for one in (node, pairs)]
        for column in self.used:
            parts += _summaries(column, node, values[column.name], nodes)
        return np.stack(parts, axis=1)


def _summaries(column: LinkColumn, node: Index, values: npt.NDArray[Any], nodes: int) -> list[Floats]:
    """Return the summaries of one column; `node` is the node of each row."""
    known = values != MISSING if column.kind == "category" else ~np.isnan(values)
    node, values = node[known], values[known]
    count = np.bincount(node, minlength=nodes).astype(np.float64)

    def mean(of: npt.NDArray[Any]) -> Floats:
        return _divided(np.bincount(node, of.astype(np.float64), minlength=nodes), count)

    if column.kind == "category":
        return [mean(values == code) for code in range(len(column.kept))]
    if column.kind == "boolean":
        return [mean(values)]
    low, high = np.full(nodes, np.inf), np.full(nodes, -np.inf)
    np.minimum.at(low, node, values)
    np.maximum.at(high, node, values)
    low, high = np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)
    if column.kind == "date":
        return [low, high, high - low, _divided(count - 1, high - low)]
    centre, spread = (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)
    centred = values - centre
    deviation = np.sqrt(mean((centred - mean(centred)[node]) ** 2))
    rounding = max(ROUNDING * spread, EXACT * float(np.abs(values).max(initial=0)))
    deviation = np.where(deviation < rounding, 0.0, deviation)
    return [np.bincount(node, values, minlength=nodes), mean(centred) + centre, low, high, deviation]


def _divided(total: npt.NDArray[Any], count: Floats) -> Floats:
    quotient = np.full(len(count), np.nan)
    np.divide(total, count, out=quotient, where=count > 0)
    return quotient


@dataclass(frozen=True)
class JoinedColumn:
    """A column computed from linked rows of other types, see `h3gnn.graphs.joins`.

    Attributes:
        name: such as `account > order.amount.mean`.
        source: the column behind it, `order.amount`; the type for counts, and for which row is linked.
        what: what is computed, `mean`.
        path: the types on the way, `account > order`.
    """

    name: str
    source: str
    what: str
    path: str


@dataclass(frozen=True)
class LinkPlan:
    """How tables of edges become link columns: the tables, and the scale of each link column.

    The columns that are computed from linked rows, `joined`, follow those of the tables.
    """

    tables: tuple[LinkTable, ...]
    scales: tuple[NumberEncoder, ...]
    joined: tuple[JoinedColumn, ...] = ()

    @classmethod
    def fit(cls, tables: Sequence[LinkTable], summaries: Floats) -> LinkPlan:
        """Learn the scales from summaries `[nodes, link columns]`."""
        return cls(tuple(tables), tuple(map(fit_scale, summaries.T)))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each link column."""
        names = [name for table in self.tables for name, _, _ in table.entries]
        return (*names, *(one.name for one in self.joined))

    def table(self, name: str) -> LinkTable:
        """Return the table of this name."""
        return next(one for one in self.tables if one.table == name)

    @property
    def sources(self) -> list[str]:
        """The edge table's column behind each link column, `transfers.amount`; the table for counts."""
        sources = [
            one.table if column is None else f"{one.table}.{column.name}"
            for one in self.tables
            for _, column, _ in one.entries
        ]
        return sources + [one.source for one in self.joined]

    def encode(self, summaries: Floats) -> npt.NDArray[np.float32]:
        """Return scaled summaries; an undefined one, such as the mean of no links, is the column's mean."""
        found = np.empty(summaries.shape, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for at, scale in enumerate(self.scales):
                found[:, at] = scale.encode(_defined(summaries[:, at]))
        return np.nan_to_num(found)

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (column, kind and reason, link columns) for display."""
        lines = []
        for table in self.tables:
            ways = " and ".join(filter(None, table.directions))
            lines.append((table.table, f"rows of each node{f', {ways}' if ways else ''}", ", ".join(COUNTS)))
            for one in table.columns:
                made = ", ".join(dict.fromkeys(what for _, what in one.summaries))
                made += f" of {', '.join(one.kept)}" if one.kept else ""
                kind = f"{one.kind}: {one.reason}" if one.reason else one.kind
                lines.append((f"{table.table}.{one.name}", kind, made or "left out"))
        return lines + joined_lines(self.joined)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        scales = [{name: getattr(one, name) for name in ("mean", "scale", "log")} for one in self.scales]
        joined = {"joined": [asdict(one) for one in self.joined]} if self.joined else {}
        return {"tables": [asdict(one) for one in self.tables], "scales": scales, **joined}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> LinkPlan:
        """Read what `as_dict` returns."""
        tables = tuple(
            LinkTable(
                one["table"],
                tuple(one["directions"]),
                tuple(LinkColumn(**{**column, "kept": tuple(column["kept"])}) for column in one["columns"]),
            )
            for one in stored["tables"]
        )
        scales = tuple(NumberEncoder(one["mean"], gaps=False, **one) for one in stored["scales"])
        return cls(tables, scales, tuple(JoinedColumn(**one) for one in stored.get("joined", ())))


def joined_lines(columns: Iterable[JoinedColumn]) -> list[tuple[str, str, str]]:
    """Return (source, path, what is computed) of joined columns for display."""
    found = dict[tuple[str, str], dict[str, None]]()
    for one in columns:
        found.setdefault((one.source, one.path), {})[one.what] = None
    return [(source, path, ", ".join(made)) for (source, path), made in found.items()]


def fit_scale(column: Floats) -> NumberEncoder:
    """Return the scale of one link column: of its logarithm if its tail is heavy."""
    known = _defined(column)
    if np.isnan(known).all():
        return NumberEncoder(0.0, 0.0, 1.0, log=False, gaps=False)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = NumberEncoder.fit(known)
        scale = scale if np.isfinite(scale.scale) else NumberEncoder._fit(known, log=True)
    return replace(scale, fill=scale.mean, gaps=False)


def _defined(column: Floats) -> Floats:
    return np.where(np.isfinite(column), column, np.nan)


@dataclass(frozen=True, eq=False)
class LinkColumns:
    """The link columns of a graph's nodes.

    Attributes:
        values: float32 `[nodes, link columns]`, finite: by logarithm where the tail is heavy, and scaled.
        plan: what the columns are, and how those of further nodes are computed.
    """

    values: npt.NDArray[np.float32]
    plan: LinkPlan

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column."""
        return self.plan.names

    @classmethod
    def fit(cls, tables: Sequence[LinkTable], summaries: Sequence[Floats]) -> Self:
        """Scale the summaries of each table."""
        both = np.concatenate(summaries, axis=1)
        plan = LinkPlan.fit(tables, both)
        return cls(plan.encode(both), plan)

    def with_rows(self, summaries: Floats) -> LinkColumns:
        """Return the columns with further nodes, whose summaries are given, after the fitted ones."""
        return replace(self, values=np.concatenate([self.values, self.plan.encode(summaries)]))


JOINED = Record({"name": Text(), "source": Text(), "what": Text(), "path": Text()})
"""Schema of a stored joined column."""
STORED_LINKS = Record(
    {
        "tables": ListOf(
            Record(
                {
                    "table": Text(),
                    "directions": ListOf(OneOf((*DIRECTIONS, *BOTH)), least=1, most=2),
                    "columns": ListOf(
                        Record(
                            {
                                **{"name": Text(), "kind": Text(), "form": Text(), "reason": Text()},
                                **{"declared": bool, "kept": ListOf(Text())},
                            }
                        )
                    ),
                }
            )
        ),
        "scales": ListOf(Record({"mean": Number(), "scale": Number(1e-300), "log": bool})),
    },
    {"joined": ListOf(JOINED)},
)
"""Schema of a stored plan of link columns."""
