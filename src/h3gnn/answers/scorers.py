"""Scorers of items for users: popularity, item-kNN, EASE, truncated SVD, and vectors of items or users.

Each is linear in what is known about a user, so that one fit answers for any user, also a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEIGHBOURS, SHRINKAGE = (10, 50, 200), (0.0, 10.0)
"""Settings of item-kNN: neighbours of an item, and the constant that shrinks the cosines of rare items."""
RIDGE = (1.0, 5.0, 25.0)
"""Penalties of EASE and of user vectors, in units of the mean number of links of an item."""
RANKS, SCALING = (4, 16, 64), (0.0, 0.5)
"""Settings of SVD: its rank, and the power of an item's number of links that divides its column."""
MOST_DENSE = 3_000
"""Items up to which matrices of items by items are dense; EASE needs one."""
MOST_PRODUCTS, BLOCK = 2 * 10**9, 2 * 10**7
"""Products of one co-occurrence matrix, and of a block of it."""
TITLES = {
    "popularity": "popularity",
    "history": "earlier choices, {}",
    "reciprocity": "who has chosen the user",
    "item-kNN": "item-kNN, {:g} neighbours, shrinkage {:g}",
    "EASE": "EASE, penalty {:g}",
    "SVD": "SVD, rank {:g}, scaling {:g}",
    "item vectors": "item vectors",
    "user vectors": "user vectors, penalty {:g}",
}
"""Kinds of scorers, and a scorer with its settings in words."""
Setting = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known about users.

    Attributes:
        links: CSR `[users, items]`, how strong each link is.
        excluded: CSR `[users, items]`, the items that are not recommended.
        vectors: `[users, columns]`, or None.
        back: CSR `[users, items]`, which items have chosen a user, if users and items are of one type.
    """

    links: Any
    excluded: Any
    vectors: Floats | None = None
    back: Any = None

    @cached_property
    def linked(self) -> Any:
        """The links with the value 1."""
        ones = np.ones(self.links.nnz, np.float32)
        return sp.csr_array((ones, self.links.indices, self.links.indptr), shape=self.links.shape)

    @property
    def cold(self) -> Flags:
        """Which users have no links, bool `[users]`."""
        return np.asarray(np.diff(self.links.indptr) == 0)

    def of(self, users: Integers) -> Known:
        """Return some users."""
        parts = (self.links, self.excluded, self.vectors, self.back)
        return Known(*(None if one is None else one[users] for one in parts))

    def valid(self) -> Flags:
        """Return which items may be recommended, bool `[users, items]`."""
        found = np.ones(self.links.shape, bool)
        found[self.excluded.nonzero()] = False
        return found


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores of all items: `input @ left @ right`.

    Attributes:
        name, setting: the kind of scorer, and its settings.
        source: the input: "links", "strength" of links, "vectors" of users, links "back", or "none".
        left, right: array or CSR matrix; without `right`, `left` leads to the items.
    """

    name: str
    setting: Setting
    source: str
    left: Any
    right: Any = None

    @property
    def title(self) -> str:
        """The scorer with its settings in words."""
        return TITLES[self.name].format(*self.setting)

    def __call__(self, known: Known) -> Floats:
        """Return the scores of all items for users, `[users, items]`."""
        users = known.links.shape[0]
        if self.source == "none":
            return np.broadcast_to(self.left, (users, self.left.shape[1]))
        given: Any = {
            "links": known.linked,
            "strength": known.links,
            "vectors": known.vectors,
            "back": known.back,
        }
        found = given[self.source] @ self.left
        found = found if self.right is None else found @ self.right
        return np.asarray(found if isinstance(found, np.ndarray) else found.toarray(), dtype=np.float32)


class Scorers:
    """The scorers that can be fitted to what is known about users.

    Args:
        known: about all users.
        item_vectors: `[items, columns]`, or None.
    """

    def __init__(self, known: Known, item_vectors: Floats | None = None) -> None:
        self.known, self.item_vectors, self.links = known, item_vectors, known.linked
        self.count = np.asarray(self.links.sum(axis=0), dtype=np.float32)

    def settings(self, *, repeats: bool) -> list[tuple[str, Setting]]:
        """Return every kind of scorer with every setting; `repeats` adds the user's own history."""
        most = min(*self.links.shape, max(RANKS) + 1) - 1
        grid: dict[str, Iterable[Setting]] = {
            "popularity": [()],
            "history": [("links",), ("strength",)] if repeats else [],
            "reciprocity": [()] if self.known.back is not None else [],
            "item-kNN": product(NEIGHBOURS, SHRINKAGE),
            "EASE": product(RIDGE) if self.links.shape[1] <= MOST_DENSE else [],
            "SVD": product([one for one in RANKS if one <= most], SCALING),
            "item vectors": [()] if self.item_vectors is not None else [],
            "user vectors": product(RIDGE) if self.known.vectors is not None else [],
        }
        return [(name, setting) for name, settings in grid.items() for setting in settings]

    def fit(self, name: str, setting: Setting) -> Scorer:
        """Return one scorer."""
        same = sp.eye_array(len(self.count), dtype=np.float32, format="csr")
        make: dict[str, Callable[..., tuple[Any, ...]]] = {
            "popularity": lambda: ("none", np.log1p(self.count)[None]),
            "history": lambda source: (source, same),
            "reciprocity": lambda: ("back", same),
            "item-kNN": self._nearest,
            "EASE": self._ease,
            "SVD": self._svd,
            "item vectors": self._alike,
            "user vectors": self._from_users,
        }
        return Scorer(name, setting, *make[name](*setting))

    @cached_property
    def together(self) -> Any:
        """How many users have both of two items."""
        return co_occurrences(self.links)

    def _nearest(self, most: int, shrinkage: float) -> tuple[Any, ...]:
        cosines = shrunk_cosines(self.together, self.count, shrinkage)
        return "links", largest(cosines, most, cosines.data)

    @cached_property
    def _gram(self) -> Any:
        return (self.links.T @ self.links).toarray().astype(np.float64)

    def _ease(self, penalty: float) -> tuple[Any, ...]:
        """Return the ridge regression of each item on all others (Steck, 2019)."""
        ridge = penalty * max(float(self.count.mean()), 1e-6)
        inverse = np.linalg.inv(self._gram + ridge * np.eye(len(self.count)))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0)
        return "links", weights.astype(np.float32)

    def _svd(self, rank: int, power: float) -> tuple[Any, ...]:
        vectors, scale = self._directions(power)
        left = (vectors[:, :rank] * scale[:, None]).astype(np.float32)
        return "links", left, np.ascontiguousarray(vectors[:, :rank].T, dtype=np.float32)

    @cache  # noqa: B019 (dropped together with the scorers)
    def _directions(self, power: float) -> tuple[Any, Any]:
        """Return the leading right singular vectors of the links, with scaled columns, and the scales."""
        scale = np.maximum(self.count, 1).astype(np.float64) ** -power
        most = min(*self.links.shape, max(RANKS) + 1) - 1
        if len(scale) <= MOST_DENSE:
            gram = self._gram * scale[:, None] * scale
            return np.linalg.eigh(gram)[1][:, ::-1][:, :most], scale
        scaled: Any = self.links.astype(np.float64) @ sp.diags_array(scale)
        start = np.ones(min(scaled.shape))
        found: Any = sp.linalg.svds(scaled, most, v0=start)
        return found[2][::-1].T, scale

    def _alike(self) -> tuple[Any, ...]:
        """Return the cosines of item vectors."""
        assert self.item_vectors is not None
        centred = self.item_vectors - self.item_vectors.mean(axis=0)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        rows = np.asarray(centred / np.maximum(length, 1e-12), dtype=np.float32)
        return "links", rows, np.ascontiguousarray(rows.T)

    def _from_users(self, penalty: float) -> tuple[Any, ...]:
        """Return the ridge regression of links on user vectors and a constant, their last column."""
        assert self.known.vectors is not None
        warm = ~self.known.cold
        rows, links = self.known.vectors[warm, :-1].astype(np.float64), self.links[warm]
        mean = rows.mean(axis=0)
        rows = rows - mean
        gram = rows.T @ rows
        ridge = penalty * max(np.trace(gram) / max(len(gram), 1), 1e-6) * np.eye(len(gram))
        found = np.linalg.solve(gram + ridge, (links.T @ rows).T)
        share = self.count / max(int(warm.sum()), 1)
        return "vectors", np.vstack([found, share - mean @ found]).astype(np.float32)


def co_occurrences(links: Any) -> Any:
    """Return how many users have both of two items, without the diagonal, as a CSR matrix.

    Computed in blocks of items; each item keeps the `max(NEIGHBOURS)` others with the largest cosines. Where
    it would take more than `MOST_PRODUCTS` products, the users with the most items do not count.
    """
    per_user = np.diff(links.indptr).astype(np.int64)
    order = np.argsort(per_user, kind="stable")
    products = np.cumsum(per_user[order] ** 2)
    counted = np.sort(order[products <= MOST_PRODUCTS])
    links = links[counted]
    by_item, size = links.T.tocsr(), np.sqrt(np.asarray(links.sum(axis=0), dtype=np.float64))
    blocks = []
    for items in np.array_split(np.arange(len(size)), 1 + min(products[-1], MOST_PRODUCTS) // BLOCK):
        found = (by_item[items] @ links).tocsr()
        row = items[np.repeat(np.arange(len(items)), np.diff(found.indptr))]
        found.data[row == found.indices] = 0
        blocks.append(largest(found, max(NEIGHBOURS), found.data / (size[row] * size[found.indices])))
    return sp.vstack(blocks, format="csr")


def shrunk_cosines(together: Any, count: Floats, shrinkage: float) -> Any:
    """Return the cosines of co-occurring items, n(a, b) / (√(n(a) n(b)) + shrinkage), as a CSR matrix."""
    rows = np.repeat(np.arange(together.shape[0]), np.diff(together.indptr))
    size = np.sqrt(count[rows].astype(np.float64) * count[together.indices])
    cosine = (together.data / (size + shrinkage)).astype(np.float32)
    return sp.csr_array((cosine, together.indices, together.indptr), shape=together.shape)


def largest(matrix: Any, most: int, values: Any) -> Any:
    """Return a CSR matrix with the entries of the `most` largest positive values of each row.

    Ties keep the lower column.
    """
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -values, rows))
    kept = np.sort(order[(np.arange(len(order)) - matrix.indptr[rows[order]] < most) & (values[order] > 0)])
    part = (matrix.data[kept].astype(np.float32), (rows[kept], matrix.indices[kept]))
    return sp.coo_array(part, shape=matrix.shape).tocsr()
