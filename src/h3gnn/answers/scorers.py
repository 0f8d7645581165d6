"""Scorers of items for users: popularity, item-kNN, EASE, truncated SVD, and vectors of items or users.

Each is linear in what is known about a user, so that one fit answers for any user, also a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

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


@dataclass(frozen=True, eq=False)
class Known:
    """What is known about users: rows of links to items, and vectors.

    Attributes:
        links: `[users, items]`, with how strong each link is.
        vectors: `[users, columns]`, standardized, or None.
    """

    links: Any
    vectors: Floats | None = None

    @property
    def linked(self) -> Any:
        """The links with the value 1."""
        ones = np.ones(self.links.nnz, np.float32)
        return sp.csr_array((ones, self.links.indices, self.links.indptr), shape=self.links.shape)

    def of(self, users: Integers) -> Known:
        """Return some users."""
        return Known(self.links[users], None if self.vectors is None else self.vectors[users])


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores of all items: `input @ left @ right`.

    Attributes:
        name: the kind of scorer.
        setting: its settings in words.
        source: the input: "links", "strength" of links, "vectors" of users, or "none".
        left, right: array or CSR matrix; without `right`, `left` leads to the items.
    """

    name: str
    setting: str
    source: str
    left: Any
    right: Any = None

    def __call__(self, known: Known) -> Floats:
        """Return the scores of all items for users, `[users, items]`."""
        users = known.links.shape[0]
        if self.source == "none":
            return np.broadcast_to(self.left, (users, self.left.shape[1]))
        given = {"links": known.linked, "strength": known.links, "vectors": known.vectors}[self.source]
        found = given @ self.left
        found = found if self.right is None else found @ self.right
        return np.asarray(found.toarray() if sp.issparse(found) else found, dtype=np.float32)


def fit_scorers(known: Known, item_vectors: Floats | None, *, repeats: bool) -> Iterator[Scorer]:
    """Yield every scorer with every setting; `repeats` adds the user's own history."""
    links, count = known.linked, np.asarray(known.linked.sum(axis=0), dtype=np.float32)
    items = links.shape[1]
    yield Scorer("popularity", "", "none", np.log1p(count)[None])
    if repeats:
        for source in ("links", "strength"):
            yield Scorer("history", source, source, sp.eye_array(items, dtype=np.float32, format="csr"))
    together = co_occurrences(links)
    for shrinkage in SHRINKAGE:
        near = nearest_items(together, count, max(NEIGHBOURS), shrinkage)
        for most in NEIGHBOURS:
            setting = f"{most} neighbours, shrinkage {shrinkage:g}"
            yield Scorer("item-kNN", setting, "links", largest(near, most))
    yield from _factors(links, count)
    if item_vectors is not None:
        for name, rows in (("cosine", unit(item_vectors)), ("standardized", unit(scaled(item_vectors)))):
            yield Scorer("content", name, "links", rows, np.ascontiguousarray(rows.T))
    if known.vectors is not None:
        yield from _from_users(known.vectors, links, count)


def _factors(links: Any, count: Floats) -> Iterator[Scorer]:
    """Yield EASE, for few enough items, and truncated SVD."""
    items = links.shape[1]
    dense = items <= MOST_DENSE
    gram = (links.T @ links).toarray().astype(np.float64) if dense else None
    if gram is not None:
        for penalty in RIDGE:
            ridge = penalty * max(float(count.mean()), 1e-6)
            inverse = np.linalg.inv(gram + ridge * np.eye(items))
            weights = -inverse / np.diag(inverse)
            np.fill_diagonal(weights, 0)
            yield Scorer("EASE", f"penalty {penalty:g}", "links", weights.astype(np.float32))
    most = min(max(RANKS), min(links.shape) - 1, int((count > 0).sum()))
    for power in SCALING if most > 0 else ():
        scale = np.maximum(count, 1).astype(np.float64) ** -power
        if gram is not None:
            vectors = np.linalg.eigh(gram * scale[:, None] * scale)[1][:, ::-1][:, :most]
        else:
            scaled = links.astype(np.float64) @ sp.diags_array(scale)
            start = np.ones(min(links.shape))
            vectors = sp.linalg.svds(scaled, most, v0=start, return_singular_vectors="vh")[2][::-1].T
        for rank in RANKS:
            left = (vectors[:, :rank] * scale[:, None]).astype(np.float32)
            right = np.ascontiguousarray(vectors[:, :rank].T, dtype=np.float32)
            yield Scorer("SVD", f"rank {rank}, scaling {power:g}", "links", left, right)


def _from_users(vectors: Floats, links: Any, count: Floats) -> Iterator[Scorer]:
    """Yield a ridge regression of the links on the vectors of users, which needs no links of the user."""
    rows = vectors.astype(np.float64)
    gram, target = rows.T @ rows, (links.T @ rows).T
    for penalty in RIDGE:
        ridge = penalty * max(float(count.mean()), 1.0) * np.eye(len(gram))
        left = np.linalg.solve(gram + ridge, target).astype(np.float32)
        yield Scorer("user vectors", f"penalty {penalty:g}", "vectors", left)


def co_occurrences(links: Any) -> Any:
    """Return how many users have both of two items, without the diagonal, as a CSR matrix.

    Computed in blocks of items, each of which keeps the `max(NEIGHBOURS)` largest cosines of a row. Where it
    would take more than `MOST_PRODUCTS` products, the users with the most items do not count.
    """
    per_user = np.diff(links.indptr).astype(np.int64)
    order = np.argsort(per_user, kind="stable")
    counted = np.zeros(len(per_user), bool)
    counted[order[np.cumsum(per_user[order] ** 2) <= MOST_PRODUCTS]] = True
    links = links if counted.all() else links[counted]
    by_item, per_user = links.T.tocsr(), per_user[counted]
    count = np.diff(by_item.indptr)
    work = np.cumsum(np.asarray(by_item @ per_user))
    limits = np.unique(np.searchsorted(work, np.arange(0, work[-1] + BLOCK, BLOCK)).clip(max=len(work)))
    blocks = []
    for first, last in zip(limits[:-1], [*limits[1:-1], len(work)], strict=True):
        found = (by_item[first:last] @ links).tocoo()
        off = found.row + first != found.col
        part = (found.data[off], (found.row[off], found.col[off]))
        block = sp.coo_array(part, shape=found.shape).tocsr()
        blocks.append(nearest_items(block, count, max(NEIGHBOURS), 0.0, first, keep=True))
    return (
        sp.vstack(blocks, format="csr") if blocks else sp.csr_array((links.shape[1],) * 2, dtype=np.float32)
    )


def nearest_items(
    together: Any, count: Any, most: int, shrinkage: float, first: int = 0, *, keep: bool = False
) -> Any:
    """Return the `most` largest cosines of each row of co-occurrences, n(a, b) / (√(n(a) n(b)) + shrinkage).

    `first` is the item of the first row; with `keep`, the values are the co-occurrences.
    """
    rows = np.repeat(np.arange(together.shape[0]), np.diff(together.indptr))
    size = np.sqrt(count[first + rows].astype(np.float64) * count[together.indices])
    cosine = (together.data / (size + shrinkage)).astype(np.float32)
    matrix = sp.csr_array((cosine, together.indices, together.indptr), shape=together.shape)
    return largest(matrix, most, together.data if keep else None)


def largest(matrix: Any, most: int, values: Any = None) -> Any:
    """Return a CSR matrix with the `most` largest values of each row; ties keep the lower column."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    kept = np.sort(order[np.arange(len(order)) - matrix.indptr[rows[order]] < most])
    data = (matrix.data if values is None else values)[kept].astype(np.float32)
    return sp.coo_array((data, (rows[kept], matrix.indices[kept])), shape=matrix.shape).tocsr()


def scaled(rows: Floats) -> Floats:
    """Return columns with mean 0 and standard deviation 1."""
    apart, spread = rows - rows.mean(axis=0), rows.std(axis=0)
    return np.asarray(apart / np.where(spread > 1e-6, spread, np.inf), dtype=np.float32)


def unit(rows: Floats) -> Floats:
    """Return centred rows of length 1."""
    centred = rows - rows.mean(axis=0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(length, 1e-12), dtype=np.float32)
