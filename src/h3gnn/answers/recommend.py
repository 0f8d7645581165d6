"""Recommendation: which items a user will choose next, and which items are chosen together.

The latest items of some users are hidden. Scorers that are fitted without them are chosen and blended by how
high they rank hidden items; those that are used are then fitted to every link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.interactions import Flags, Integers, Interactions, interactions
from h3gnn.answers.recommender import (
    CELLS,
    CUTOFF,
    NEIGHBOURS,
    SHRINKAGE,
    TITLES,
    Known,
    Recommender,
    Scorers,
    Setting,
    co_occurrences,
)
from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.evaluation.ranking import FOLDS, Trials, measure_names, standardize
from h3gnn.graphs.relational import UNKNOWN_TIME, PathFeatures, Relation, RelationalGraph, reduced
from h3gnn.graphs.type_view import path_columns

Floats = npt.NDArray[np.float32]
Weights = dict[tuple[str, Setting], float]
"""Weights of scorers by name and setting."""
Vectors = Callable[[RelationalGraph, str], Any]

LATEST = 0.2
"""Share of the links that are hidden, the latest ones."""
LEAST_SCORED = 10
"""With fewer users whose links can be hidden, nothing is measured."""
DEFAULT: Weights = {("item-kNN", (NEIGHBOURS[1], SHRINKAGE[1])): 0.9, ("popularity", ()): 0.1}
NEW: Weights = {("popularity", ()): 1.0}
"""What is used if it cannot be measured, for users with and without links."""
REPEATED = 0.1
"""Repeated choices are normal if at least this share of the latest links repeats an earlier one."""
MOST_COLUMNS = 128
"""Vectors with more columns are reduced to principal components."""


@dataclass(frozen=True, eq=False)
class Hidden:
    """Hidden links of some users.

    Attributes:
        users: positions of the users, ascending.
        rows, items: each hidden item, and its user's position among `users`.
        kept: which links are not hidden; with `by_time`, those before all hidden ones.
    """

    users: Integers
    rows: Integers
    items: Integers
    kept: Flags
    by_time: bool = False

    @classmethod
    def of(cls, data: Interactions, gone: Flags, share: float, seed: int) -> Self:
        """Hide some links, but only of a random share of their users, and of as few as `CELLS` asks for."""
        size = len(data.item_ids)
        users, count = np.unique(np.unique(data.pairs[gone]) // size, return_counts=True)
        drawn = np.random.default_rng(seed).permutation(len(users))[: int(share * len(users))]
        cost = np.cumsum(1 + count[drawn]) * size
        users = np.sort(users[drawn[: max(LEAST_SCORED, int((cost <= CELLS).sum()))]])
        gone = gone & np.isin(data.users, users)
        own, items = np.divmod(np.unique(data.pairs[gone]), size)
        return cls(users, np.searchsorted(users, own), items, ~gone)


def hide_latest(data: Interactions, *, repeats: bool, seed: int = 0) -> Hidden:
    """Hide the latest fifth of the links: of users with earlier ones, the items that are new to them.

    With `repeats`, old ones too. Links of one time stay together: the share is the one nearest to a fifth.
    Without times, if it is more than half, or for fewer than `LEAST_SCORED` users, a random item of each user
    with at least two is hidden instead.
    """
    chosen = data.chosen
    if data.time is not None:
        times, links = np.unique(data.time[chosen], return_counts=True)
        share = links[::-1].cumsum()[::-1] / links.sum()  # of the links from each time on
        first = int(np.argmin(np.abs(share - LATEST)))
        early = data.time < times[first]
        gone = ~early & chosen & np.isin(data.users, data.users[early & chosen])
        gone &= repeats | ~np.isin(data.pairs, data.pairs[early])
        if share[first] <= 0.5 and len(np.unique(data.users[gone])) >= LEAST_SCORED:
            return replace(Hidden.of(data, gone, 1.0, seed), kept=early, by_time=True)
    pairs = np.random.default_rng(seed).permutation(np.unique(data.pairs[chosen]))
    _, one, count = np.unique(pairs // len(data.item_ids), return_index=True, return_counts=True)
    return Hidden.of(data, np.isin(data.pairs, pairs[one[count > 1]]), 1.0, seed)


def repeats_share(data: Interactions) -> float:
    """Return the share of users' latest links, after earlier ones, that repeat an earlier pair."""
    if data.time is None:
        return 0.0
    links = pd.DataFrame({"user": data.users, "pair": data.pairs, "time": data.time})[data.chosen]
    of_user, first = links.groupby("user")["time"], links.groupby("pair")["time"].transform("min")
    counted = links["time"] == of_user.transform("max")
    counted &= of_user.transform("min") < links["time"]
    return float((first < links["time"])[counted].mean()) if counted.any() else 0.0


@dataclass(frozen=True, eq=False)
class _Fit:
    """Links in canonical order, with vectors of users and items."""

    data: Interactions
    users: Floats | None
    items: Floats | None
    repeats: bool
    seed: int

    def scorers(self, kept: Flags | None = None) -> Scorers:
        """Return what is fitted to some of the links."""
        part = self.data if kept is None else self.data.part(kept)
        links, one_type = part.matrix(), part.user_type == part.item_type
        back = (links.T > 0).astype(np.float32).tocsr() if one_type else None
        return Scorers(Known(links, part.excluded(repeats=self.repeats), self.users, back), self.items)

    def choose(
        self, hidden: Hidden, names: Sequence[str], default: Weights
    ) -> tuple[Weights, dict[str, Any]]:
        """Return the weights of scorers, and how well they rank hidden items."""
        if len(hidden.users) < LEAST_SCORED:
            how = f"not measured, but the default: {len(hidden.users)} users have items to hide, "
            how += f"and {LEAST_SCORED} are needed"
            return default, {"measured": False, "how": how, "weights": _titles(default)}
        fitted = self.scorers(hidden.kept)
        keys = [key for key in fitted.settings(repeats=self.repeats) if key[0] in names]
        if not keys:
            message = (
                f"nothing is known for the scorers {shortened(names, 12)}: choose from {', '.join(TITLES)}"
            )
            raise InputError(message, code="value-invalid")
        scorers, known = [fitted.fit(*key) for key in keys], fitted.known.of(hidden.users)
        valid = known.valid()
        valid[hidden.rows, hidden.items] = True
        trials = Trials(
            [name for name, _ in keys],
            lambda at: standardize(scorers[at](known), valid),
            valid,
            hidden.rows,
            hidden.items,
            CUTOFF,
        )
        best, weights = trials.choose()
        chosen = {keys[at]: float(weights[at]) for at in np.flatnonzero(weights)}
        how = f"{len(hidden.items):,} items of {len(hidden.users):,} users were hidden from the scorers"
        how += f" (the latest {(~hidden.kept).mean():.0%} of the links); " if hidden.by_time else "; "
        how += "scorer, settings and blend for each fifth of the users were chosen by the others; used: "
        how += " and ".join(f"{share:.0%} {title}" for title, share in _titles(chosen).items())
        return chosen, {
            **{"measured": True, "how": how, "hidden_users": len(hidden.users), "hidden": len(hidden.items)},
            "weights": _titles(chosen),
            "scorers": {
                name: {"setting": list(keys[best[name]][1]), **summary(one)}
                for name, one in trials.by_name().items()
            },
            "chosen": summary(trials.chosen()),
        }


def _titles(weights: Weights) -> dict[str, float]:
    found = {TITLES[name].format(*setting): round(value, 4) for (name, setting), value in weights.items()}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def summary(measures: Any) -> dict[str, dict[str, float]]:
    """Return the mean of each measure over users, and its standard error."""
    mean = measures.mean(axis=0)
    error = measures.std(axis=0, ddof=1) / len(measures) ** 0.5
    names = measure_names(CUTOFF)
    return {name: {"mean": float(mean[at]), "error": float(error[at])} for at, name in enumerate(names)}


def fit_recommender(
    interactions: Interactions,
    user_vectors: Any = None,
    item_vectors: Any = None,
    *,
    repeats: bool | None = None,
    kinds: Sequence[str] = tuple(TITLES),
    seed: int = 0,
) -> Recommender:
    """Choose scorers by hidden links, and fit them to all links.

    Args:
        interactions: who has chosen what.
        user_vectors, item_vectors: `[users, columns]`, `[items, columns]`; they must not have been computed
            from the links, since they would know the hidden ones.
        repeats: whether an item may be chosen again; by default if users do so.
        kinds: of scorers to choose from.
        seed: of the users and items that are drawn.
    """
    data, first, second = interactions.in_order()
    users, items = _columns(user_vectors, first), _columns(item_vectors, second)
    if users is not None:
        users = np.column_stack([users, np.ones(len(users), np.float32)])
    share = repeats_share(data)
    how = f"{share:.0%} of the latest links repeat an earlier one" if repeats is None else "as asked"
    repeats = share >= REPEATED if repeats is None else repeats
    fit = _Fit(data, users, items, repeats, seed)
    weights, measured = fit.choose(hide_latest(data, repeats=repeats, seed=seed), kinds, DEFAULT)
    new, measured_new = NEW, {"measured": False, "how": "popularity: users have no vectors"}
    if users is not None:
        new, measured_new = fit.choose(
            Hidden.of(data, data.chosen, 1 / FOLDS, seed), ("popularity", "user vectors"), NEW
        )
    fitted = fit.scorers()
    keys = list(dict.fromkeys([*weights, *new]))
    baskets = data.in_baskets()
    scores = {
        **{"user": data.user_type, "item": data.item_type, "users": data.shape[0], "items": data.shape[1]},
        **{"links": fitted.links.nnz, "repeats": repeats, "repeated": share, "cutoff": CUTOFF},
        "known_users": {"users": int((~fitted.known.cold).sum()), **measured},
        "new_users": {"users": int(fitted.known.cold.sum()), **measured_new},
        "notes": [
            *data.notes,
            f"items of a user are {'also' if repeats else 'not'} recommended again: {how}",
        ],
    }
    return Recommender(
        data.user_type,
        data.item_type,
        data.user_ids,
        data.item_ids,
        fitted.known,
        tuple(fitted.fit(*key) for key in keys),
        np.array([[one.get(key, 0) for key in keys] for one in (weights, new)], np.float32),
        co_occurrences(baskets),
        np.asarray(baskets.sum(axis=0), np.float32),
        baskets.shape[0],
        scores,
    )


def _columns(vectors: Any, order: Integers) -> Floats | None:
    """Return vectors in another order, centred, with few columns and a mean squared length of 1."""
    if vectors is None:
        return None
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(order) or not np.isfinite(rows).all():
        message = f"vectors must be {len(order)} rows of finite numbers, not of shape {rows.shape}"
        raise GraphError(message, code="value-invalid")
    rows = reduced(rows[order], MOST_COLUMNS)
    length = float(np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1).mean()))
    return (rows / length).astype(np.float32) if length > 0 else None


def recommender_for(
    graph: RelationalGraph,
    table: str,
    *,
    users: str | None = None,
    items: str | None = None,
    weight: str | None = None,
    at_least: float | None = None,
    repeats: bool | None = None,
    vectors: Vectors | None = None,
    seed: int = 0,
    check: Callable[[Interactions], object] = lambda data: None,
) -> Recommender:
    """Fit a recommender to the rows of a table, or to a relation, of a graph.

    Args:
        graph: the graph.
        table, users, items, weight, at_least: as of `interactions`.
        repeats, seed: as of `fit_recommender`.
        vectors: returns the vectors of a type in a graph without the table; by default `described`.
        check: called with the links before the work.
    """
    data = interactions(graph, table, users=users, items=items, weight=weight, at_least=at_least)
    check(data)
    rest, later = without(graph, table, (data.user_type, data.item_type))
    if later:
        message = (
            f"users and items are described without rows of {', '.join(later)}, which may be later than "
        )
        message += "the links to predict"
        data = replace(data, notes=(*data.notes, message))
    describe = described if vectors is None else vectors
    found = {kind: describe(rest, kind) for kind in (data.user_type, data.item_type) if kind in rest.types}
    return fit_recommender(
        data, found.get(data.user_type), found.get(data.item_type), repeats=repeats, seed=seed
    )


def without(
    graph: RelationalGraph, name: str, kept: Sequence[str] = ()
) -> tuple[RelationalGraph, tuple[str, ...]]:
    """Return a graph without a table or relation and without events, and the names of the events.

    Events are types, not among those to be kept, with rows that are later than a row to which they refer.
    """
    later = {one.source for one in graph.relations if _is_later(graph, one)} - {name, *kept}
    gone = {name, *later}
    types = {kind: one for kind, one in graph.types.items() if kind not in gone}
    relations = [one for one in graph.relations if not gone & {one.name, one.source, one.target}]
    links = graph.link_types - gone
    return replace(graph, types=types, relations=tuple(relations), link_types=links), tuple(sorted(later))


def _is_later(graph: RelationalGraph, relation: Relation) -> bool:
    """Whether some rows at the source of a relation are later than the row to which they refer."""
    time, other = graph.type(relation.source).time, graph.type(relation.target).time
    if time is None:
        return False
    before = UNKNOWN_TIME if other is None else other[relation.ends[1]]
    return bool((time[relation.ends[0]] > before).any())


def described(graph: RelationalGraph, kind: str) -> Floats | None:
    """Return a type's own columns and the means of features along paths; None if there are neither."""
    features = PathFeatures(graph, kind)
    along = path_columns(features, features.select())
    parts = [] if along is None else [along.values]
    if graph.type(kind).features.shape[1]:
        own = features.features(kind)
        length = float(np.sqrt((own.astype(np.float64) ** 2).sum(axis=1).mean()))
        parts.append((own / (length or 1)).astype(np.float32))
    return np.hstack(parts) if parts else None
