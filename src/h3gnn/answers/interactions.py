"""Interactions: which user chose which item, read from a table of links between two node types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp

from h3gnn.errors import GraphError, InputError, counted, shortened
from h3gnn.graphs.relational import Hop, RelationalGraph, Step, hops_from
from h3gnn.tables.infer import Cells

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_HOPS = 4
"""Hops from a row of the table to a user or an item."""
COLUMNS = ("users", "items", "strength", "time", "baskets")
"""What is known about each link."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Which user chose which item, when, and how strongly.

    Attributes:
        users, items: int64 `[links]`, positions from 0.
        user_ids, item_ids: of all users and items, also of those without links.
        strength: of each link, or None; a link with the strength 0 is known, but no choice.
        time: int64 `[links]`, any unit, or None.
        baskets: int64 `[links]`, which links belong together, such as those of one order; by default those
            of one user.
        user_type, item_type: names of the types; nobody is recommended to itself if they are the same.
        notes: what was decided or left out, in words.
    """

    users: Integers
    items: Integers
    user_ids: npt.NDArray[Any]
    item_ids: npt.NDArray[Any]
    strength: npt.NDArray[Any] | None = None
    time: Integers | None = None
    baskets: Integers | None = None
    user_type: str = "user"
    item_type: str = "item"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.user_ids) or not len(self.item_ids):
            message = "a recommendation needs users and items; one of the two tables has no rows"
            raise GraphError(message, code="too-few-nodes")
        for name, ids in (("users", self.user_ids), ("items", self.item_ids)):
            ends = getattr(self, name)
            if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < len(ids):
                message = f"{name} of the links must be in 0 to {len(ids) - 1}"
                raise GraphError(message, code="edge-out-of-range")
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.users):
                message = f"{name} must have one value per link: {len(self.users)}, not {len(column)}"
                raise GraphError(message, code="edge-shape")
        if self.strength is not None and not bool(np.all(np.isfinite(self.strength) & (self.strength >= 0))):
            message = "strengths of links must not be negative: say from which value on a link is a choice "
            raise GraphError(message + "(--at-least)", code="edge-weight-not-positive")
        if not self.chosen.any():
            message = f"no {self.user_type} has chosen any {self.item_type}: there are no links to learn from"
            raise GraphError(message, code="no-edges")

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of users and items."""
        return len(self.user_ids), len(self.item_ids)

    @property
    def chosen(self) -> Flags:
        """Which links are choices, bool `[links]`."""
        return np.ones(len(self.users), bool) if self.strength is None else np.asarray(self.strength > 0)

    @property
    def pairs(self) -> Integers:
        """One number for each pair of user and item, int64 `[links]`."""
        return np.asarray(self.users * len(self.item_ids) + self.items)

    def part(self, kept: Flags | Integers) -> Interactions:
        """Return some of the links, among all users and items."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        part: dict[str, Any] = {name: one if one is None else one[kept] for name, one in columns.items()}
        return replace(self, **part)

    def in_order(self) -> tuple[Interactions, Integers, Integers]:
        """Return the links with users, items and links sorted, and former positions of users and items."""
        first, second = (np.argsort(ids, kind="stable") for ids in (self.user_ids, self.item_ids))
        users, items = np.argsort(first)[self.users], np.argsort(second)[self.items]
        more = [one for one in (self.baskets, self.strength, self.time) if one is not None]
        found = replace(self, users=users, items=items, user_ids=self.user_ids[first])
        found = replace(found, item_ids=self.item_ids[second])
        return found.part(np.lexsort((*more, items, users))), first, second

    def matrix(self) -> Any:
        """Return the choices as a CSR matrix `[users, items]`: log(1 + strength / median strength)."""
        strength = np.ones(len(self.users)) if self.strength is None else self.strength.astype(np.float64)
        found = sp.coo_array((strength, (self.users, self.items)), shape=self.shape).tocsr()
        found.eliminate_zeros()
        if found.nnz:
            found.data = np.log1p(found.data / np.median(found.data))
        return found.astype(np.float32)

    def excluded(self, *, repeats: bool) -> Any:
        """Return the pairs that are not recommended as a CSR matrix `[users, items]`.

        These are a node with itself and all linked pairs; with `repeats`, only linked ones without a choice.
        """
        pairs = np.setdiff1d(self.pairs, self.pairs[self.chosen]) if repeats else np.unique(self.pairs)
        if self.user_type == self.item_type:
            pairs = np.union1d(pairs, np.arange(len(self.user_ids)) * (len(self.item_ids) + 1))
        ends = np.divmod(pairs, len(self.item_ids))
        return sp.coo_array((np.ones(len(pairs), np.float32), ends), shape=self.shape).tocsr()

    def in_baskets(self) -> Any:
        """Return which baskets hold which items as a CSR matrix `[baskets, items]`."""
        baskets = self.users if self.baskets is None else self.baskets
        chosen = self.chosen
        _, rows = np.unique(baskets[chosen], return_inverse=True)
        pairs = np.unique(rows * len(self.item_ids) + self.items[chosen])
        ends = np.divmod(pairs, len(self.item_ids))
        shape = (int(rows.max()) + 1, len(self.item_ids))
        return sp.coo_array((np.ones(len(pairs), np.float32), ends), shape=shape).tocsr()


@dataclass(frozen=True, eq=False)
class End:
    """A type that the rows of a table lead to: by a column to `start`, and from there on by `steps`."""

    column: str
    start: str
    steps: tuple[Step, ...] = ()
    titles: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The type at the end."""
        return self.steps[-1].end if self.steps else self.start

    @property
    def title(self) -> str:
        """The end for display, such as `orderID > customers`."""
        return " > ".join((self.column, *self.titles))

    def has_name(self, name: str) -> bool:
        """Whether a name means this end: its type, its title, or the column that leads to it."""
        last = self.steps[-1].relation.name if self.steps else self.column
        return name.lower() in {one.lower() for one in (self.type, self.title, last, last.rpartition(".")[2])}

    def then(self, hop: Hop) -> End:
        """Return the end one hop further."""
        return replace(self, steps=(*self.steps, *hop.steps), titles=(*self.titles, hop.title))


class LinkRows:
    """The rows of a table, or the links of a relation, and the types that they lead to.

    Args:
        graph: the graph.
        name: of the table or relation.
    """

    def __init__(self, graph: RelationalGraph, name: str) -> None:
        self.graph, self.name = graph, name
        relation = next((one for one in graph.relations if one.name == name), None)
        self.first: dict[str, Any] = {}  # the matrix [rows, nodes] of each column
        if relation is not None and name not in graph.types:
            self.time, self.count = relation.time, relation.ends.shape[1]
            kinds = {f"{name}.source": relation.source, f"{name}.target": relation.target}
            for (column, kind), ends in zip(kinds.items(), relation.ends, strict=True):
                part = (np.ones(self.count), (np.arange(self.count), ends))
                self.first[column] = sp.csr_array(part, shape=(self.count, graph.type(kind).nodes))
        else:
            self.time, self.count = graph.type(name).time, graph.type(name).nodes
            steps = [step for step in graph.steps[name] if step.forward]
            self.first = {step.relation.name.removeprefix(f"{name}."): graph.matrix(step) for step in steps}
            kinds = {column: step.end for column, step in zip(self.first, steps, strict=True)}
        self.direct = [End(column, kind) for column, kind in kinds.items()]

    def ends(self) -> list[End]:
        """Return the types that rows lead to by references and through link tables, near ones first."""
        current, found = self.direct, list[End]()
        for _ in range(MOST_HOPS):
            found += current
            current = [end.then(hop) for end in current for hop in self._onward(end)]
        return found

    def _onward(self, end: End) -> list[Hop]:
        passed = {end.start, *(step.end for step in end.steps), self.name}
        hops = [hop for hop in hops_from(self.graph, end.type) if not passed & {one.end for one in hop.steps}]
        return [hop for hop in hops if hop.steps[-1].forward]  # the first step into a link table is backward

    def nodes(self, end: End) -> pd.DataFrame:
        """Return the nodes at an end of each row that has any: `row`, `node`."""
        matrix = self.first[end.column]
        for step in end.steps:
            matrix = matrix @ self.graph.matrix(step)
        pairs = matrix.tocoo()
        return pd.DataFrame({"row": pairs.row.astype(np.int64), "node": pairs.col.astype(np.int64)})

    def chooser(self, end: End) -> End:
        """Follow an event, such as an order, to whom it belongs."""
        while self._is_event(end):
            owners = [hop for hop in self._onward(end) if len(hop.steps) == 1]
            if len(owners) > 1:
                message = f"{end.type} has several references"
                raise self.unclear(message, [end.then(one) for one in owners], "--users")
            if not owners:
                break
            end = end.then(owners[0])
        return end

    def _is_event(self, end: End) -> bool:
        """Whether some nodes at an end have several rows, and all of these have the same time."""
        if self.time is None or len(np.unique(self.time)) < 2:
            return False
        rows = self.nodes(end)
        found = rows.assign(time=self.time[rows["row"]]).groupby("node")["time"].agg(["nunique", "size"])
        return bool((found["size"] > 1).any() and (found["nunique"] == 1).all())

    def find(self, name: str) -> End:
        """Return the nearest end with a name."""
        found = [end for end in self.ends() if end.has_name(name)]
        nearest = [end for end in found if len(end.titles) == min(len(one.titles) for one in found)]
        if len(nearest) != 1:
            raise self.unclear(f"{len(nearest) or 'no'} ways lead to {name!r}", nearest)
        return nearest[0]

    def pick(self, users: str | None, items: str | None) -> tuple[End, End]:
        """Return the ends of users and items; the table's own references are the default."""
        given = {role: self.find(name) for role, name in (("users", users), ("items", items)) if name}
        taken = {end.column for end in given.values()}
        left = [end for end in self.direct if end.column not in taken]
        if len(given) < 2:
            if len(given) + len(left) != 2:
                raise self.unclear(f"{self.name} has {len(self.direct)} references")
            left = sorted(map(self.chooser, left), key=lambda end: not end.steps)
        free = iter(left)
        return given.get("users") or next(free), given.get("items") or next(free)

    def basket(self, items: str | None) -> str | None:
        """Return the name of what holds several items: the reference that is not to them, if there is one."""
        item = None if items is None else self.find(items).column
        left = [end for end in self.direct if (self._is_event(end) if item is None else end.column != item)]
        return left[0].title if len(left) == 1 else None

    def unclear(self, problem: str, ends: Sequence[End] = (), flag: str = "") -> InputError:
        """Return an error that lists the ends to choose from, as options if it is clear which."""
        names = list(dict.fromkeys(map(self._name, ends or self.ends())))
        if not names:
            message = (
                f"no row of {self.name!r} refers to another table: name a table whose rows link users and "
            )
            raise InputError(f"{message}items, such as ratings", code="ends-missing")
        message = f"who chooses what in {self.name!r}: {problem}"
        shown = [f"{flag} {quote(one)}".strip() for one in names]
        if flag:
            return InputError(f"{message}; add {shortened(shown, 12, ' or ')}", code="ends-ambiguous")
        message += f"; name users and items (--users NAME, --items NAME) among {shortened(shown, 12)}"
        return InputError(message, code="ends-ambiguous")

    def _name(self, end: End) -> str:
        """Return the shortest name by which an end is found: its type, its last column, or its title."""
        last = (end.titles or (end.column,))[-1]
        for name in (end.type, last):
            found = [one for one in self.ends() if one.has_name(name)]
            nearest = min((len(one.titles) for one in found), default=0)
            if [one.title for one in found if len(one.titles) == nearest] == [end.title]:
                return name
        return end.title


def interactions(
    graph: RelationalGraph,
    table: str,
    *,
    users: str | None = None,
    items: str | None = None,
    weight: str | None = None,
    at_least: float | None = None,
) -> Interactions:
    """Return which users chose which items, from a table whose rows lead to both, or from a relation.

    Rows lead to a type by a reference, by a chain of references (from lines of orders to customers), or
    through a link table. By default the ends are the two references of the table; a reference to an event,
    such as an order, whose rows have one time, leads on to whom the event belongs.

    Args:
        graph: the graph.
        table: a table or a relation.
        users, items: type, column or path of either end.
        weight: column of the table with the strength of each link, one of its `labels`.
        at_least: weaker links are no choice; such items are not recommended either.

    Raises:
        InputError: if it is not clear who chooses what; the message lists the ends.
    """
    if at_least is not None and weight is None:
        message = "the least strength of a choice needs the column of the strengths (--weight)"
        raise InputError(message, code="value-invalid")
    rows = LinkRows(graph, table)
    left, right = rows.pick(users, items)
    links = rows.nodes(left).rename(columns={"node": "user"}).merge(rows.nodes(right), on="row")
    if left.type == right.type:
        links = links[links["user"] != links["node"]]
    row = links["row"].to_numpy()
    notes = [f"users: {left.title}, items: {right.title}"]
    if missing := rows.count - links["row"].nunique():
        notes.append(f"{missing:,} of {rows.count:,} rows of {table} link no user to an item")
    strength = None if weight is None else _strength(graph, table, weight, at_least, notes)[row]
    baskets = None
    if left.steps:  # the order between its lines and the customer
        event = rows.nodes(End(left.column, left.start)).drop_duplicates("row").set_index("row")["node"]
        baskets = event.loc[row].to_numpy()
        notes.append(f"{right.type} are together if they are linked to the same row of {left.start}")
    return Interactions(
        links["user"].to_numpy(),
        links["node"].to_numpy(),
        graph.type(left.type).ids,
        graph.type(right.type).ids,
        strength,
        None if rows.time is None else rows.time[row],
        baskets,
        left.type,
        right.type,
        tuple(notes),
    )


def _strength(
    graph: RelationalGraph, table: str, column: str, at_least: float | None, notes: list[str]
) -> npt.NDArray[Any]:
    """Return the strength of each row, 0 where it is missing or too low to be a choice."""
    cells = graph.type(table).labels.get(column)
    if cells is None:
        message = f"the values of {column!r} were not read with the table {table!r}: name it as the label"
        raise InputError(message, code="column-missing")
    numbers, unreadable = Cells(cells).decode("number", "plain")
    if unreadable.size:
        message = f"{table}.{column}, row {unreadable[0] + 1}, is not a number"
        raise GraphError(message, code="number-unreadable")
    chosen = ~np.isnan(numbers) & (numbers != 0) if at_least is None else numbers >= at_least
    if not chosen.all():
        what = f"{column} below {at_least:g}" if at_least is not None else f"no {column}, or 0"
        notes.append(f"ignored: {counted(int((~chosen).sum()), 'row')} of {table} with {what}")
    return np.where(chosen, numbers, 0.0)
