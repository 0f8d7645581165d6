"""Recommendation: which items a user will choose next, and which items are chosen together.

Some users' latest links are hidden. Scorers fitted without them are ranked and blended by how high they rank
hidden items of other users; those that are used are then fitted with every link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from h3gnn.answers.scorers import Known, Scorer
from h3gnn.errors import GraphError
from h3gnn.evaluation.ranking import Chooser, Rivals, measure_hidden, standardize

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Vectors = tuple[Any, Any]
"""Vectors of users and of items; either may be None."""

CUTOFF = 20
MOST_SCORED, LEAST_SCORED = 2_000, 10
"""Users whose links are hidden; with fewer than the least, nothing is chosen by hidden links."""
HIGHEST, RANDOM = 15, 100
"""Items with which hidden ones are compared to learn weights: the highest of each scorer, and random ones."""
REPEATED = 0.1
"""Repeated pairs are normal if at least this share of the latest links repeats an earlier one."""
CELLS = 1 << 23
"""Scores computed at a time."""
MOST_COLUMNS = 128
"""Vectors with more columns are reduced to principal components."""
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Interactions:
    """Which user chose which item, when, and how strongly.

    Attributes:
        users, items: int64 `[links]`, positions from 0.
        num_users, num_items: numbers of users and items, also of those without links.
        weight: positive strength of each link, or None.
        time: int64 `[links]`, any unit, or None.
        same: users and items are the same nodes; nobody is recommended to itself.
    """

    users: Integers
    items: Integers
    num_users: int
    num_items: int
    weight: npt.NDArray[Any] | None = None
    time: Integers | None = None
    same: bool = False

    def __post_init__(self) -> None:
        if not self.num_users or not self.num_items:
            message = "a recommendation needs users and items; one of the two tables has no rows"
            raise GraphError(message, code="too-few-nodes")
        for name, size in (("users", self.num_users), ("items", self.num_items)):
            ends = getattr(self, name)
            if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < size:
                message = f"{name} of the links must be in 0 to {size - 1}"
                raise GraphError(message, code="edge-out-of-range")
        for name in ("items", "weight", "time"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.users):
                message = f"{name} must have one value per link: {len(self.users)}, not {len(column)}"
                raise GraphError(message, code="edge-shape")
        weight = self.weight
        if weight is not None and not bool(np.all(np.isfinite(weight) & (weight > 0))):
            message = "weights of links must be positive and finite: leave out links that are no choice"
            raise GraphError(message, code="edge-weight-not-positive")

    @cached_property
    def pairs(self) -> Integers:
        """One number for each pair of user and item."""
        return np.asarray(self.users * self.num_items + self.items)

    def matrix(self, kept: Flags | slice = slice(None)) -> Any:
        """Return the links in a CSR matrix `[users, items]`: logarithms of the sums of their weights."""
        weight = np.ones(len(self.users)) if self.weight is None else self.weight.astype(np.float64)
        part = (weight[kept], (self.users[kept], self.items[kept]))
        found = sp.coo_array(part, shape=(self.num_users, self.num_items)).tocsr()
        if found.nnz:
            found.data = np.log1p(found.data / np.median(found.data))
        return found.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Hidden:
    """Hidden links of some users.

    Attributes:
        users: positions of the users, ascending.
        rows, items: each hidden item, and its user's position among `users`.
        kept: which links are not hidden.
    """

    users: Integers
    rows: Integers
    items: Integers
    kept: Flags


def repeats_share(data: Interactions) -> float:
    """Return the share of users' latest links, after earlier ones, that repeat an earlier pair."""
    if data.time is None or not len(data.users):
        return 0.0
    latest, earlier = _latest(data, data.time)
    _, place = np.unique(data.pairs, return_inverse=True)
    first = np.full(place.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, place, data.time)
    counted = latest & earlier
    return float((first[place] < data.time)[counted].mean()) if counted.any() else 0.0


def _latest(data: Interactions, time: Integers) -> tuple[Flags, Flags]:
    """Return which links are the latest of their user, and which have a user with earlier ones."""
    last = np.full(data.num_users, np.iinfo(np.int64).min)
    np.maximum.at(last, data.users, time)
    latest = time == last[data.users]
    earlier = np.bincount(data.users, ~latest, minlength=data.num_users) > 0
    return latest, earlier[data.users]


def hide(data: Interactions, *, repeats: bool, seed: int = 0, most: int = MOST_SCORED) -> Hidden:
    """Hide the latest items of users with at least two: all of the same time, so that none reveals another.

    Where all items of a user have the same time, or no time, a random one is hidden.
    """
    rng = np.random.default_rng(seed)
    pairs, place = np.unique(data.pairs, return_inverse=True)
    time = np.zeros(len(data.users), np.int64) if data.time is None else data.time
    if not repeats:  # a pair has the time at which it was first chosen
        first = np.full(len(pairs), np.iinfo(np.int64).max)
        np.minimum.at(first, place, time)
        time = first[place]
    latest, earlier = _latest(data, time)
    owner = pairs // data.num_items
    drawn = rng.permutation(len(pairs))
    order = np.lexsort((drawn, owner))
    one = np.zeros(len(pairs), bool)
    one[order[np.unique(owner[order], return_index=True)[1]]] = True
    gone = np.where(earlier, latest, one[place])
    able = np.bincount(owner, minlength=data.num_users) > 1
    users = np.flatnonzero(able)
    users = np.sort(rng.permutation(users)[:most])
    chosen = np.isin(data.users, users)
    hidden = np.unique(data.pairs[gone & chosen])
    rows = np.searchsorted(users, hidden // data.num_items)
    return Hidden(users, rows, hidden % data.num_items, ~(gone & chosen))


class Ranked(NamedTuple):
    """The best items of users, `[users, top]`, -1 and -inf where there are no more.

    `cold` are the users without links, whose items follow from their vectors or from popularity alone.
    """

    items: Integers
    scores: Floats
    cold: Flags


class SimilarItems(NamedTuple):
    """Items chosen together with others, `[items, top]`, -1 where there are no more.

    `score` is the shrunk cosine of co-occurrence, `together` the number of users with both, `lift` how many
    times more often than by chance, `similarity` the cosine of the vectors (NaN without). Items that nobody
    has chosen together follow last, by similarity or popularity, with a score of 0.
    """

    items: Integers
    score: Floats
    together: Integers
    lift: Floats
    similarity: Floats


@dataclass(frozen=True, eq=False)
class _Order:
    """An order of users and items that follows from their links, not from the order of rows."""

    users: Integers
    items: Integers

    @classmethod
    def of(cls, data: Interactions, vectors: Vectors) -> _Order:
        """Hash each user and item with its links, a few rounds; equal ones keep their order."""
        hashed = [
            _hash_rows(rows, size)
            for rows, size in zip(vectors, (data.num_users, data.num_items), strict=True)
        ]
        row = np.full(len(data.users), 1, np.uint64)
        for column in (data.weight, data.time):
            if column is not None:
                row = _mix(row + np.ascontiguousarray(column, np.float64).view(np.uint64))
        for _ in range(ROUNDS):
            seen = [key.copy() for key in hashed]
            np.add.at(seen[0], data.users, _mix(hashed[1][data.items] + row))
            np.add.at(seen[1], data.items, _mix(hashed[0][data.users] * np.uint64(3) + row))
            hashed = [_mix(key) for key in seen]
        return cls(*(np.argsort(key, kind="stable") for key in hashed))

    def apply(self, data: Interactions) -> Interactions:
        """Return the links with users and items numbered in this order."""
        users, items = np.argsort(self.users)[data.users], np.argsort(self.items)[data.items]
        return replace(data, users=users, items=items)


def _mix(keys: Any) -> Any:
    """Return well distributed 64-bit hashes (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(31))


def _hash_rows(rows: Any, size: int) -> Any:
    if rows is None or not rows.shape[1]:
        return np.ones(size, np.uint64)
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32).astype(np.uint64)
    salt = _mix(np.arange(1, bits.shape[1] + 1).astype(np.uint64))
    return _mix(_mix(bits + salt).sum(axis=1, dtype=np.uint64))


@dataclass(frozen=True, eq=False)
class _View:
    """What is known about users and items, in canonical order, and which items may be recommended.

    Attributes:
        known: about the users.
        item_vectors: `[items, columns]`, or None.
        own: for each user the item that it is itself, or None.
    """

    known: Known
    item_vectors: Floats | None
    own: Integers | None

    def blocks(self, users: Integers) -> Iterator[tuple[slice, Known]]:
        """Yield users in blocks, and what is known about them."""
        step = max(1, CELLS // self.known.links.shape[1])
        for first in range(0, len(users), step):
            block = slice(first, min(first + step, len(users)))
            yield block, self.known.of(users[block])

    def valid(self, users: Integers, known: Known, *, chosen_too: bool) -> Flags:
        """Return which items may be recommended to users, `[users, items]`."""
        found = np.ones(known.links.shape, bool)
        if not chosen_too:
            found[known.links.nonzero()] = False
        if self.own is not None:
            found[np.arange(len(users)), self.own[users]] = False
        return found


def _measure(
    view: _View, scorers: Sequence[Scorer], hidden: Hidden, cutoff: int, *, repeats: bool, seed: int
) -> Chooser:
    """Measure every scorer by the hidden items, and learn to choose and to blend."""
    users, items = len(hidden.users), view.known.links.shape[1]
    random = np.random.default_rng(seed).integers(0, items, (users, RANDOM))
    top = min(HIGHEST, items)
    measured = np.empty((users, len(scorers), 3))
    of_hidden = np.empty((len(hidden.rows), len(scorers)), np.float32)
    of_others = np.empty((users, RANDOM + top * len(scorers), len(scorers)), np.float32)
    usable = np.empty(of_others.shape[:2], bool)
    for block, known in view.blocks(hidden.users):
        valid = view.valid(hidden.users[block], known, chosen_too=repeats)
        inside = (hidden.rows >= block.start) & (hidden.rows < block.stop)
        rows, wanted = hidden.rows[inside] - block.start, hidden.items[inside]
        scores, others = [], [random[block]]
        for at, scorer in enumerate(scorers):
            scores.append(standardize(scorer(known), valid))
            ranked = np.where(valid, scores[-1], -np.inf)
            measured[block, at] = measure_hidden(ranked, rows, wanted, cutoff)
            others.append(np.argpartition(-ranked, top - 1, axis=1)[:, :top])
        pool, every = np.sort(np.concatenate(others, axis=1), axis=1), np.arange(len(valid))[:, None]
        valid[rows, wanted] = False
        usable[block] = valid[every, pool] & (np.diff(pool, axis=1, prepend=-1) > 0)
        for at, one in enumerate(scores):
            of_hidden[inside, at], of_others[block, :, at] = one[rows, wanted], one[every, pool]
    rivals = Rivals(hidden.rows, of_hidden, of_others, usable)
    return Chooser([one.name for one in scorers], measured, rivals)


def _measure_blend(
    view: _View, scorers: Sequence[Scorer], hidden: Hidden, chooser: Chooser, cutoff: int, *, repeats: bool
) -> Any:
    """Return the measures of each user, `[users, 3]`, by the weights that the other folds chose."""
    weights = np.array([chooser.without[fold].weights for fold in chooser.fold])
    found = np.empty((len(weights), 3))
    for block, known in view.blocks(hidden.users):
        valid = view.valid(hidden.users[block], known, chosen_too=repeats)
        inside = (hidden.rows >= block.start) & (hidden.rows < block.stop)
        blend = np.zeros(valid.shape, np.float32)
        for at in np.flatnonzero(weights[block].any(axis=0)):
            blend += weights[block, at, None] * standardize(scorers[at](known), valid)
        rows = hidden.rows[inside] - block.start
        found[block] = measure_hidden(np.where(valid, blend, -np.inf), rows, hidden.items[inside], cutoff)
    return found
