"""Joined columns: what the rows that are linked to a node say about it, as columns of the node.

A path begins at a type and follows links. The columns of the single row that a link references are joined as
they are, `account > district.A11`; those of the rows that reference a node are summarized, `order.count`,
`order.amount.mean`. The node itself is never among them, and with times only earlier rows count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs.join_values import WINDOWS, Linked, Values, as_days, taken, values_of
from h3gnn.graphs.link_columns import JOINED, JoinedColumn, LinkColumns, LinkPlan, fit_scale, joined_lines
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.relational import UNKNOWN_TIME, Integers, Relation, RelationalGraph, Step
from h3gnn.storage.schema import Integer, ListOf, Record
from h3gnn.tables.leaks import Target, describe, joined_leaks

Floats = npt.NDArray[np.float64]

SMALL = 64
"""Types of at most this many nodes are categories of the rows that link to them."""
FREQUENT = 8
"""Number of values of a category whose shares are computed."""
LONGEST = 3
"""Most links from row to referenced row."""
MOST_ENTRIES = 2 * 10**7
"""Paths with more linked rows than this are left out."""
RANKS = {
    **{"value": 0, "count": 0, "mean": 1, "share": 1, "mean of last 3": 2, "since last": 2, "since first": 3},
    **{"sum": 3, "mean of last 1": 3, "mean of last 10": 3, "last": 3, "distinct": 3, "since": 3, "first": 3},
    **{"category": 4, "max": 4, "min": 4, "rate": 4, "std": 5, "component": 6},
}
"""Order in which summaries are kept if there are too many; two ranks weigh as much as a link."""


@dataclass(frozen=True)
class JoinPlan:
    """The joined columns of a type, in order, and how many others there were.

    Attributes:
        columns: the columns.
        left_out: columns beyond the number that was asked for; constant ones and copies are not counted.
    """

    columns: tuple[JoinedColumn, ...]
    left_out: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column."""
        return tuple(one.name for one in self.columns)

    @property
    def sources(self) -> list[str]:
        """The column behind each joined column, such as `order.amount`; the type for counts and keys."""
        return [one.source for one in self.columns]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (source, path, what is computed) for display."""
        return joined_lines(self.columns)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"columns": [asdict(one) for one in self.columns], "left_out": self.left_out}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> JoinPlan:
        """Read what `as_dict` returns."""
        return cls(tuple(JoinedColumn(**one) for one in stored["columns"]), stored["left_out"])


STORED_JOINS = Record({"columns": ListOf(JOINED), "left_out": Integer(0)})
"""Schema of a stored plan of joined columns."""


@dataclass(frozen=True, eq=False)
class JoinedColumns:
    """The joined columns of the nodes of a type.

    Attributes:
        values: float64 `[nodes, columns]`, NaN where undefined.
        plan: what the columns are.
        repairs: which columns were left out.
    """

    values: Floats
    plan: JoinPlan
    repairs: tuple[Repair, ...] = ()

    def as_link_columns(self, fitted: LinkPlan | None = None) -> LinkColumns:
        """Return the columns scaled, with undefined values at the mean; by a fitted plan, if given."""
        plan = fitted or LinkPlan((), tuple(map(fit_scale, self.values.T)), self.plan.columns)
        return LinkColumns(plan.encode(self.values), plan)


class JoinPath(NamedTuple):
    """Steps from a type: first to single rows, then to several rows, then from each to a single one.

    Attributes:
        steps: the steps.
        singles: how many of them at the beginning lead to single rows.
        several: how many after them lead to several rows.
        links: the length that counts.
        title: the types on the way.
        siblings: whether the several rows include the row itself.
    """

    steps: tuple[Step, ...] = ()
    singles: int = 0
    several: int = 0
    links: int = 0
    title: str = ""
    siblings: bool = False

    @property
    def rest(self) -> tuple[Step, ...]:
        """The steps after those to several rows."""
        return self.steps[self.singles + self.several :]


def joined_columns(
    graph: RelationalGraph,
    name: str,
    *,
    row_times: Integers | None = None,
    links: int = 2,
    most: int = 512,
    plan: JoinPlan | None = None,
    target: Target | None = None,
) -> JoinedColumns:
    """Return columns of the nodes of a type that are computed from linked rows.

    Which columns are kept if there are more than `most` does not depend on labels: short paths first, then
    counts and means before extremes, then columns with few gaps. Constant columns and copies are left out.

    Args:
        graph: the types and relations.
        name: of the type.
        row_times: of each node of the type, int64 nanoseconds: only linked rows that are earlier count, and
            those of unknown time. Referenced rows always count, and for a node of unknown time all rows do.
        links: length of the paths. Free are a link table, a link to a type of at most 64 nodes at the end,
            and a link that at most one row has to each other row.
        most: number of columns.
        plan: compute its columns, instead of choosing.
        target: what is to be predicted, if it is known; chosen columns that determine it are left out.
    """
    joins = _Joins(graph, name, row_times, None if plan is None else frozenset(plan.names))
    if row_times is not None and row_times.shape != (graph.type(name).nodes,):
        message = f"row_times must have one time for each of the {graph.type(name).nodes:,} nodes of {name!r}"
        raise InputError(f"{message}, not the shape {row_times.shape}", code="shape-invalid")
    found = joins.candidates(joins.paths(links))
    if plan is not None:
        columns = {column.name: values for column, _, values in found}
        if missing := [one for one in plan.names if one not in columns]:
            message = f"the tables do not yield the joined columns {shortened(missing, 4)} of the fit"
            raise GraphError(f"{message}: read them by the same schema", code="plan-differs")
        values = [columns[one] for one in plan.names]
    else:
        plan, values = _chosen(found, most)
        chosen = _without_leaks(_stacked(values, joins.nodes), plan, target)
        undated = () if row_times is None else joins.undated(chosen.plan, links)
        return replace(chosen, repairs=(*chosen.repairs, *undated))
    return JoinedColumns(_stacked(values, joins.nodes), plan)


def _stacked(columns: Sequence[Floats], rows: int) -> Floats:
    return np.column_stack(columns) if columns else np.empty((rows, 0))


def _without_leaks(values: Floats, plan: JoinPlan, target: Target | None) -> JoinedColumns:
    """Return chosen columns without those that determine what is to be predicted; report what is left out."""
    found = {} if target is None else joined_leaks(plan.columns, values, target)
    repairs = []
    if plan.left_out:
        kept_of = f"{len(plan.names):,} of {plan.left_out + len(plan.names):,}"
        message = f"{kept_of} columns joined from other tables are kept, those over short paths first"
        repairs.append(Repair("joined-columns-left-out", message, plan.left_out))
    for one, share in found.items():
        message = f"the joined column {one.name} is left out, since it {describe(share)}"
        repairs.append(Repair("label-leak", message, fields=(one.name,), warn=True))
    kept = [at for at, one in enumerate(plan.columns) if one not in found]
    plan = JoinPlan(tuple(plan.columns[at] for at in kept), plan.left_out)
    return JoinedColumns(values[:, kept], plan, tuple(repairs))


Candidate = tuple[JoinedColumn, tuple[float, ...], Floats]


def _chosen(found: Iterator[Candidate], most: int) -> tuple[JoinPlan, list[Floats]]:
    """Return the plan and the values of the best columns, without constant ones and copies."""
    kept, seen, total = list[Candidate](), set[bytes](), 0
    for one in found:
        values = one[2].astype(np.float32)
        known = values[~np.isnan(values)]
        if not known.size or known.min() == known.max() or (digest := values.tobytes()) in seen:
            continue
        seen.add(digest)
        total += 1
        kept.append(one)
        if len(kept) > 2 * most:
            kept = sorted(kept, key=lambda column: column[1])[:most]
    kept = sorted(kept, key=lambda column: column[1])[:most]
    plan = JoinPlan(tuple(column for column, _, _ in kept), total - len(kept))
    return plan, [values for _, _, values in kept]


class _Joins:
    """Computes the columns along the paths from a type."""

    def __init__(
        self, graph: RelationalGraph, name: str, times: Integers | None, wanted: frozenset[str] | None
    ) -> None:
        self.graph, self.name, self.times, self.wanted = graph, name, times, wanted
        self.nodes = graph.type(name).nodes
        self.days = None if times is None else as_days(times)
        self.most_linked = cache(self._most_linked)
        self.values_of = cache(lambda kind: values_of(graph.type(kind)))

    def _most_linked(self, relation: Relation) -> tuple[int, int]:
        """Return the largest number of links of a source, and of a target."""
        first, second = (int(np.bincount(one).max(initial=0)) for one in relation.ends)
        return first, second

    def paths(self, links: int) -> list[JoinPath]:
        """Return the paths of a length, short ones first."""
        found = [JoinPath()]
        for path in found:  # grows
            start = path.steps[-1].end if path.steps else self.name
            longer = [self._extended(path, step) for step in self.graph.steps[start]]
            found += [one for one in longer if one is not None and (one.links <= links or not one.several)]
        return sorted(found[1:], key=lambda path: (path.links, len(path.steps)))

    def undated(self, plan: JoinPlan, links: int) -> Iterator[Repair]:
        """Report tables whose rows count without a time of their own; they may have been written later."""
        used = {one.path for one in plan.columns}
        steps = [step for path in self.paths(links) if path.title in used for step in path.steps]
        found = {step.end: self.graph.type(step.end).dated_by for step in steps if not step.forward}
        names = sorted(name for name, dated_by in found.items() if dated_by)
        if names:
            dates = dict.fromkeys(one for name in names for one in found[name])
            message = (
                f"{', '.join(names)}: rows without a time of their own count from the date of the rows that "
                f"they refer to ({shortened(dates, 4)}). If they were written later, they are of the future: "
                "in a schema file (`h3gnn inspect SOURCE --write graph.toml`) name their time or remove "
                "their tables, and predict in a new folder with --tables graph.toml"
            )
            yield Repair("rows-without-own-time", message, fields=tuple(names))

    def _extended(self, path: JoinPath, step: Step) -> JoinPath | None:
        """Return a path with one more step, or None if it would lead back or be too long."""
        last = path.steps[-1] if path.steps else None
        back = last is not None and last.relation is step.relation and last.forward != step.forward
        of_source, of_target = self.most_linked(step.relation)
        title = " > ".join(filter(None, [path.title, self._title(step)]))
        steps = (*path.steps, step)
        if step.forward and of_source <= 1:  # to a single row
            if back or len(path.rest) >= 2 or (not path.several and path.singles >= LONGEST):
                return None
            is_link = last is not None and not last.forward and step.start in self.graph.link_types
            is_category = path.several > 0 and self.graph.type(step.end).nodes <= SMALL
            links = path.links + (not (is_link or is_category or of_target <= 1))
            return path._replace(
                steps=steps, singles=path.singles + (not path.several), links=links, title=title
            )
        single = last is not None and not path.several
        alone = back and single and of_target <= 1 and self.wanted is None
        if path.several == 2 or path.rest or path.siblings or alone:
            return None
        several, links = path.several + 1, path.links + 1
        return path._replace(steps=steps, several=several, links=links, title=title, siblings=back)

    def _title(self, step: Step) -> str:
        """Return the type at the end of a step, with the column if several steps lead there."""
        others = [one for one in self.graph.steps[step.start] if one.end == step.end]
        if len(others) == 1:
            return step.end
        reverse = step.relation.source == step.relation.target and not step.forward
        column = step.relation.name.removeprefix(f"{step.relation.source}.")
        return f"{step.end} by {column}{' (reverse)' if reverse else ''}"

    def candidates(self, paths: Sequence[JoinPath]) -> Iterator[Candidate]:
        """Yield the columns of some paths, with the rank of each."""
        for path in paths:
            for source, name, what, values in self._of_path(path):
                if self.wanted is None or name in self.wanted:
                    gaps = float(np.isnan(values).mean()) if len(values) else 0.0
                    rank = (path.links + RANKS[what] / 2, len(path.steps), round(gaps, 2))
                    yield JoinedColumn(name, source, what, path.title), rank, values

    def _of_path(self, path: JoinPath) -> Iterator[tuple[str, str, str, Floats]]:
        """Yield source, name, kind of summary and values of the columns of a path."""
        row, before = np.arange(self.nodes), np.arange(self.nodes)
        for step in path.steps[: path.singles]:
            row, before = self._single(step)[row], row
        if not path.several:
            yield from self._referenced(path, row)
            return
        several = path.steps[path.singles : path.singles + path.several]
        entries = self._entries(several)
        if entries is None:
            return
        linked = Linked.sort(entries, row, self.times)
        if path.siblings and path.singles and path.several == 1:
            at = np.full(self.graph.type(several[0].end).nodes + 1, -1)
            at[linked.node] = np.arange(len(linked.node))
            linked.own[:] = at[before]
        elif path.siblings:  # back along links of which a row has several
            kept = linked.owner != linked.node
            linked = Linked.sort(tuple(one[kept] for one in entries), row, self.times)
        node = linked.node
        for step in path.rest:
            node = self._single(step)[node]
        yield from self._summarized(path, linked, node)

    def _single(self, step: Step) -> Integers:
        """Return the row that each row references, -1 without one; the last position represents no row."""
        found = np.full(self.graph.type(step.start).nodes + 1, -1)
        found[step.relation.ends[0]] = step.relation.ends[1]
        return found

    def _entries(self, steps: Sequence[Step]) -> tuple[Integers, Integers, Integers] | None:
        """Return owner, node and time of the rows at the end of one or two steps; None for too many."""
        owner, node, time = _links_of(steps[0])
        for step in steps[1:]:
            start, end, when = _links_of(step)
            order = np.argsort(start, kind="stable")
            start, end, when = start[order], end[order], when[order]
            first, last = (np.searchsorted(start, node, side=side) for side in ("left", "right"))
            count = last - first
            total = int(count.sum())
            if total > MOST_ENTRIES:
                return None
            entry = np.repeat(np.arange(len(node)), count)
            at = np.arange(total) - np.repeat(np.cumsum(count) - count, count) + first[entry]
            owner, node, time = owner[entry], end[at], np.maximum(time[entry], when[at])
        return owner, node, time

    def _referenced(self, path: JoinPath, row: Integers) -> Iterator[tuple[str, str, str, Floats]]:
        """Yield the columns of the single rows at the end of a path."""
        kind = path.steps[-1].end
        for one in [*self.values_of(kind), *self._identity(kind, path.title, row)]:
            values = taken(one.values, row)
            source, name = _source(kind, one), f"{path.title}.{one.name}"
            yield source, name, one.kind if one.kind in ("category", "component") else "value", values
            if one.kind == "date" and self.days is not None:
                yield source, f"{name}.since", "since", self.days - values

    def _identity(self, kind: str, title: str, node: Integers) -> list[Values]:
        """Return which of the nodes of a small type a node is, for frequent ones that several rows share."""
        table, prefix = self.graph.type(kind), f"{title}.{kind}="
        ids = {str(one): at for at, one in enumerate(table.ids.tolist())}
        if self.wanted is not None:  # also those that have no row now
            given = (one.removeprefix(prefix) for one in self.wanted if one.startswith(prefix))
            chosen = sorted({one.removesuffix(".share") for one in given})
        elif table.nodes > SMALL or not table.has_ids or kind == self.name:
            return []
        else:
            counts = np.bincount(node[node >= 0], minlength=table.nodes)
            frequent = np.argsort(-counts, kind="stable")[:FREQUENT]
            chosen = [str(table.ids[at]) for at in frequent if counts[at] > 1]
        of_rows = np.arange(table.nodes)
        return [
            Values("", f"{kind}={one}", "category", (of_rows == ids.get(one, -1)).astype(np.float64))
            for one in chosen
        ]

    def _summarized(
        self, path: JoinPath, linked: Linked, node: Integers
    ) -> Iterator[tuple[str, str, str, Floats]]:
        """Yield the summaries of the several rows at the end of a path."""
        kind, title = path.steps[-1].end, path.title
        full = path.several == 1 and not path.siblings and not path.rest
        if not path.rest:
            yield kind, f"{title}.count", "count", linked.count
            if linked.is_timed:
                time = Values("time", "time", "date", as_days(linked.time))
                for what, values in self._of_dates(linked, time.values, full=full):
                    yield kind, f"{title}.time.{what}", what, values
        if path.several == 2 or path.rest:
            yield kind, f"{title}.distinct", "distinct", linked.distinct(node)
        known = [*self.values_of(kind), *self._identity(kind, title, node)]
        for one in self._frequent(known, node, title):
            values = taken(one.values, node)
            summaries = self._of_values(one.kind, linked, values, path, full=full)
            for what, summary in summaries:
                yield _source(kind, one), f"{title}.{one.name}.{what}", what, summary

    def _frequent(self, values: Sequence[Values], node: Integers, title: str) -> list[Values]:
        """Return the features without the rare values of categories, which have many."""
        if self.wanted is not None:
            return [*values]
        kept = [one for one in values if one.kind not in ("category", "component")]
        shares = pd.DataFrame(
            [
                (one.column, at, np.nansum(taken(one.values, node)))
                for at, one in enumerate(values)
                if one.kind == "category"
            ],
            columns=["column", "at", "count"],
        )
        chosen = shares.sort_values(["count", "at"], ascending=[False, True]).groupby("column").head(FREQUENT)
        return kept + [values[at] for at in sorted(chosen["at"])]

    def _of_values(
        self, kind: str, linked: Linked, values: Floats, path: JoinPath, *, full: bool
    ) -> Iterator[tuple[str, Floats]]:
        """Yield the summaries of one feature by its kind."""
        if kind in ("category", "boolean"):
            yield "share", linked.mean(values)
        elif kind == "date":
            yield from self._of_dates(linked, values, full=full)
        elif kind == "number":
            yield "mean", linked.mean(values)
            if full:
                yield "sum", linked.sum(values)
                yield "min", linked.extreme(values, "min")
                yield "max", linked.extreme(values, "max")
                yield "std", linked.deviation(values)
        if kind in ("number", "boolean") and path.several == 1 and linked.is_timed:
            for number in WINDOWS:
                yield f"mean of last {number}", linked.latest(values, number)

    def _of_dates(self, linked: Linked, days: Floats, *, full: bool) -> Iterator[tuple[str, Floats]]:
        """Yield the first and last date before a row, as days before the row if it has a time."""
        first, last = linked.extreme(days, "min"), linked.extreme(days, "max")
        if self.days is None:
            yield "first", first
            yield "last", last
        else:
            yield "since first", self.days - first
            yield "since last", self.days - last
        if full:
            known = linked.total((~np.isnan(days)).astype(np.float64))
            yield (
                "rate",
                np.divide(known - 1, last - first, out=np.full(len(known), np.nan), where=last > first),
            )


def _source(kind: str, values: Values) -> str:
    return f"{kind}.{values.column}" if values.column else kind


def _links_of(step: Step) -> tuple[Integers, Integers, Integers]:
    """Return the nodes at the start and end of a step, and the times of its links."""
    start, end = step.relation.ends if step.forward else step.relation.ends[::-1]
    time = step.relation.time
    return start, end, np.full(len(start), UNKNOWN_TIME) if time is None else time
