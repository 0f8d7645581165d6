"""Values of linked rows, and their running summaries in the order of time.

The features of a node type are turned back into the numbers of its table, since sums of scaled values mean
nothing. Linked rows are kept in lists, one for each node that they are linked to, sorted by time. A summary
of the rows before a time is then a running sum, minimum or maximum at one position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.graphs.relational import UNKNOWN_TIME, Integers, NodeTable
from h3gnn.tables.encoders import COMPONENT, MISSING, CategoryEncoder, DateEncoder, NumberEncoder

Floats = npt.NDArray[np.float64]
DAY = 86_400 * 10**9
WIDEST = 16
"""Texts and vectors of more components than this are not joined."""
WINDOWS = (1, 3, 10)
"""Numbers of latest rows whose mean is computed."""
ROUNDING = 1e-6
"""Deviations below this share of the whole column's are rounding errors."""


class Values(NamedTuple):
    """One feature of a type: column of the table, own name, kind, and the number of each node or NaN."""

    column: str
    name: str
    kind: str
    values: Floats


def values_of(table: NodeTable) -> list[Values]:
    """Return the features of a type as numbers of its table; wide texts and vectors are left out."""
    features, plan = table.features, table.plan
    if plan is None or len(plan.names) != features.shape[1]:
        if features.shape[1] > WIDEST * 4:
            return []
        dense = np.asarray(features.toarray() if hasattr(features, "toarray") else features, np.float64)
        names = table.feature_names or [f"feature {at + 1}" for at in range(dense.shape[1])]
        return [Values(name, name, "number", dense[:, at]) for at, name in enumerate(names)]
    found, missing = list[Values](), dict[str, Any]()
    dense = features.tocsc() if hasattr(features, "tocsc") else features
    for at, feature in enumerate(plan.features):
        if feature.role == MISSING:
            missing[feature.column.name] = _column(dense, at) > 0.5
    for at, feature in enumerate(plan.features):
        column = feature.column
        kind = _kind(column.kind, column.fitted, feature.role, len(column.names))
        if kind:
            values = _undone(_column(dense, at), column.fitted)
            values[missing.get(column.name, slice(0, 0))] = np.nan
            found.append(Values(column.name, feature.name, kind, values))
    return found


def _column(features: Any, at: int) -> Floats:
    column = features[:, [at]]
    return np.array(column.toarray() if hasattr(column, "toarray") else column, dtype=np.float64).ravel()


def _kind(kind: str, encoder: Any, role: str, width: int) -> str:
    """Return how a feature is summarized; "" for one that is not."""
    if isinstance(encoder, CategoryEncoder):
        return "" if role in (MISSING, COMPONENT) else "category"
    if isinstance(encoder, NumberEncoder):
        return "" if role in (MISSING, COMPONENT) else kind
    if role == MISSING or width > WIDEST:
        return ""
    return "component" if role == COMPONENT else "boolean" if kind == "boolean" else "number"


def _undone(scaled: Floats, encoder: Any) -> Floats:
    """Return the numbers that an encoder scaled, rounded to the precision of float32."""
    if not isinstance(encoder, NumberEncoder) or not len(scaled):
        return scaled
    values = encoder.decode(scaled)
    error = float(np.abs(scaled).max()) * encoder.scale * 2.0**-22
    if isinstance(encoder, DateEncoder) or error == 0:
        return values
    step = 10.0 ** np.ceil(np.log10(error * (1 + np.abs(values) if encoder.log else np.ones(1))))
    return np.asarray(np.round(values / step) * step)


def as_days(time: Integers) -> Floats:
    """Return times as days since 1970, NaN where unknown."""
    return np.where(time == UNKNOWN_TIME, np.nan, time / DAY)


@dataclass(frozen=True, eq=False)
class Linked:
    """Linked nodes in lists by time, and for each row of a type the part of a list that is earlier than it.

    Attributes:
        owner, node, time: of each entry: the node that it is linked to, its own number, and its time.
        first, end: of each row, the range of its entries; equal if it has none.
        own: of each row, the entry that is the row itself, or -1.
        defined: whether a row has a list, even if an empty one.
        same: of each entry, the first one with its owner and time.
    """

    owner: Integers
    node: Integers
    time: Integers
    first: Integers
    end: Integers
    own: Integers
    defined: npt.NDArray[np.bool_]
    same: Integers

    @classmethod
    def sort(
        cls, entries: tuple[Integers, Integers, Integers], hub: Integers, row_times: Integers | None
    ) -> Linked:
        """Sort entries (owner, node, time); `hub` is the owner of each row's list, -1 without one."""
        owner, node, time = entries
        times, rank = np.unique(time, return_inverse=True)
        width = len(times) + 1
        key = owner * width + rank.ravel()
        order = np.argsort(key, kind="stable")
        key = key[order]
        last = np.full(len(hub), len(times))
        if row_times is not None:
            last = np.where(row_times == UNKNOWN_TIME, last, np.searchsorted(times, row_times))
        begin, end = (np.searchsorted(key, hub * width + one) for one in (np.zeros_like(last), last))
        begin, end = (np.where(hub < 0, 0, one) for one in (begin, end))
        change = np.concatenate([[True], key[1:] != key[:-1]])[: len(key)]
        same = np.maximum.accumulate(np.where(change, np.arange(len(key)), 0)) if len(key) else key
        own = np.full(len(hub), -1)
        return cls(owner[order], node[order], time[order], begin, end, own, hub >= 0, same)

    @cached_property
    def excluded(self) -> npt.NDArray[np.bool_]:
        """Whether the row itself is in the range, and does not count."""
        return (self.own >= self.first) & (self.own < self.end)

    @cached_property
    def count(self) -> Floats:
        """Number of entries of each row, NaN without a list."""
        return np.where(self.defined, self.end - self.first - self.excluded, np.nan)

    @property
    def is_timed(self) -> bool:
        """Whether any entry has a time."""
        return bool((self.time != UNKNOWN_TIME).any())

    def _running(self, values: Floats, how: str) -> Floats:
        groups = pd.Series(values).groupby(self.owner, sort=False)
        return np.asarray(getattr(groups, how)(), dtype=np.float64)

    def _at_end(self, running: Floats) -> Floats:
        """Return running values after the last entry of each row, NaN without entries."""
        return taken(running, np.where(self.end > self.first, self.end - 1, -1))

    def total(self, values: Floats, start: Integers | None = None) -> Floats:
        """Return the sum of the entries of each row, those from `start` on, without the row itself."""
        running = self._running(values, "cumsum")
        found = np.nan_to_num(self._at_end(running))
        begin = self.first if start is None else start
        found -= np.nan_to_num(taken(running, np.where(begin > self.first, begin - 1, -1)))
        inside = self.excluded & (self.own >= begin)
        return found - np.where(inside, np.nan_to_num(taken(values, np.where(inside, self.own, -1))), 0)

    def known(self, values: Floats, start: Integers | None = None) -> Floats:
        """Return the number of known values of each row."""
        return self.total((~np.isnan(values)).astype(np.float64), start)

    def sum(self, values: Floats) -> Floats:
        """Return the sum of each row: 0 without entries, NaN if no value is known."""
        found = self.total(np.where(np.isnan(values), 0.0, values))
        return np.where((self.count == 0) | (self.known(values) > 0), found, np.nan)

    def mean(self, values: Floats, start: Integers | None = None) -> Floats:
        """Return the mean of known values of each row, NaN without any."""
        known = ~np.isnan(values)
        centre = float(values[known].mean()) if known.any() else 0.0
        total = self.total(np.where(known, values - centre, 0.0), start)
        return divided(total, self.known(values, start)) + centre

    def start_of_last(self, number: int) -> Integers:
        """Return the first of the latest entries of each row; entries of the same time stay together."""
        start = self.end - number
        start -= self.excluded & (self.own >= start)
        start = np.maximum(start, self.first)
        inside = start < self.end
        start[inside] = self.same[start[inside]]
        return start

    def latest(self, values: Floats, number: int) -> Floats:
        """Return the mean of the values of the latest entries of each row."""
        return self.mean(values, self.start_of_last(number))

    def extreme(self, values: Floats, how: str) -> Floats:
        """Return the smallest (`min`) or largest (`max`) known value of each row, without the row itself."""
        sign = 1.0 if how == "min" else -1.0
        filled = np.where(np.isnan(values), np.inf, sign * values)
        running = self._running(filled, "cummin")
        found = self._at_end(running)
        if self.excluded.any():  # of a prefix, the second smallest is the smallest value that is displaced
            before = np.concatenate([[np.inf], running[:-1]])
            before[np.concatenate([[True], self.owner[1:] != self.owner[:-1]])] = np.inf
            second = self._at_end(self._running(np.maximum(filled, before), "cummin"))
            own = taken(filled, np.where(self.excluded, self.own, -1))
            found = np.where(self.excluded & (own == found), second, found)
        return np.where(np.isinf(found), np.nan, sign * found)

    def deviation(self, values: Floats) -> Floats:
        """Return the standard deviation of the known values of each row."""
        known = ~np.isnan(values)
        centred = np.where(known, values - (values[known].mean() if known.any() else 0.0), 0.0)
        count = self.known(values)
        mean, squares = (divided(self.total(one), count) for one in (centred, centred**2))
        found = np.sqrt(np.maximum(squares - mean**2, 0.0))
        return np.where(found < ROUNDING * (centred.std() if len(centred) else 0.0), 0.0, found)

    def distinct(self, codes: Integers) -> Floats:
        """Return the number of distinct codes of each row, NaN with the row itself; -1 does not count."""
        first = ~pd.DataFrame({"owner": self.owner, "code": codes}).duplicated().to_numpy()
        found = self.total((first & (codes >= 0)).astype(np.float64))
        return np.where(self.defined & ~self.excluded, found, np.nan)


def taken(values: Floats, at: Integers) -> Floats:
    """Return values by position, NaN for -1."""
    return np.asarray(np.concatenate([values, [np.nan]])[at])


def divided(total: Floats, count: Floats) -> Floats:
    """Return quotients, NaN for a count of 0."""
    quotient = np.full(len(count), np.nan)
    np.divide(total, count, out=quotient, where=count > 0.5)
    return quotient
