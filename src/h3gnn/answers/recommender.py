"""Rank items for users, and find items chosen together: scorers, and the recommender that blends them.

Scorers are popularity, item-kNN, EASE, truncated SVD, and vectors of items or users. Each is linear in what
is known about a user, so that one fit answers for any user, also a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
import torch

from h3gnn.errors import InputError, ModelFolderError, check_whole, shortened
from h3gnn.evaluation.ranking import standardize
from h3gnn.graphs.ids import find_ids
from h3gnn.storage import schema
from h3gnn.storage.atomic import check_header, header, write_atomically
from h3gnn.storage.schema import DictOf, FieldError, Integer, ListOf, Number, OneOf, Record, Text
from h3gnn.storage.tensors import ids_of, matrix_of, matrix_tensors, read_tensors, write_tensor_file

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


CUTOFF = 20
"""Items that are recommended, and among which hidden ones are counted."""
CELLS = 1 << 23
"""Scores computed at a time, and scores that a measurement computes and compares."""
FORMAT, FORMAT_VERSION = "h3gnn-recommender", 1
DESCRIPTION = "recommender.json"
SOURCES = ("none", "links", "strength", "vectors", "back")
RECOMMENDER = Record(
    {
        **schema.header_of(FORMAT),
        **{"file": Text(r"recommender-[0-9a-f]{16}\.safetensors"), "scores": DictOf(Any)},
        **{"user_type": Text(), "item_type": Text(), "users": Integer(1), "items": Integer(1)},
        "baskets": Integer(1),
        "scorers": ListOf(
            Record(
                {
                    **{"name": OneOf(tuple(TITLES)), "setting": ListOf(Any), "source": OneOf(SOURCES)},
                    **{"factors": bool, "weight": Number(0, 1), "weight_new": Number(0, 1)},
                }
            )
        ),
    }
)
"""Schema of `recommender.json`."""


@dataclass(frozen=True, eq=False)
class Recommender:
    """Ranks items for users by their links, and for users without links by their vectors or popularity.

    Attributes:
        user_type, item_type: names of the types.
        user_ids, item_ids: sorted ids.
        known: what is known about the users.
        scorers: the scorers that are used.
        weights: of the scorers, `[2, scorers]`, for users with and without links.
        pairs: how many baskets hold both of two items, CSR `[items, items]`.
        count: how many baskets hold each item.
        baskets: number of baskets.
        scores: how well hidden items were ranked, for JSON.
    """

    user_type: str
    item_type: str
    user_ids: npt.NDArray[Any]
    item_ids: npt.NDArray[Any]
    known: Known
    scorers: tuple[Scorer, ...]
    weights: Floats
    pairs: Any
    count: Floats
    baskets: int
    scores: dict[str, Any]

    def rank(self, users: Any, top: int = CUTOFF) -> pd.DataFrame:
        """Return the best items of each user: `user`, `item`, `score`, `rank`, and `basis`.

        The score is the blend of standardized scores; among equal ones the more popular item is better. The
        basis is "links", "popularity" if nothing follows from the links, or for users without links the
        scorers that are used instead.
        """
        rows = _find(users, self.user_ids, self.user_type)
        top, parts = check_whole("top", top, 1), []
        names = np.array([one.name for one in self.scorers])
        new, popular = " and ".join(names[self.weights[1] > 0]), self._by_popularity()
        for block, known in _blocks(self.known, rows):
            scores = blended(self.scorers, self.weights[known.cold.astype(int)], known, known.valid())
            order = popular[np.argsort(-scores[:, popular], axis=1, kind="stable")[:, :top]]
            best = np.take_along_axis(scores, order, axis=1)
            row, place = np.nonzero(np.isfinite(best))
            equal = (best <= 0).all(axis=1)  # nothing follows from the links
            basis = np.where(known.cold, new, np.where(equal, "popularity", "links"))
            found = {
                "user": self.user_ids[rows[block][row]],
                "item": self.item_ids[order[row, place]],
                "score": best[row, place],
                "rank": place + 1,
                "basis": basis[row].astype(object),
            }
            parts.append(pd.DataFrame(found))
        return pd.concat(parts, ignore_index=True)

    def _by_popularity(self) -> Integers:
        """Return the items, those with more users first."""
        return np.argsort(-np.bincount(self.known.links.indices, minlength=len(self.item_ids)), kind="stable")

    def together(self, items: Any, top: int = CUTOFF) -> pd.DataFrame:
        """Return the items that most belong to the same users or baskets as each of some items.

        Columns: `item`, `similar`, `score` (shrunk cosine), `together` (number of baskets with both), `lift`
        (how many times more often than by chance), `rank`.
        """
        rows, top = _find(items, self.item_ids, self.item_type), check_whole("top", top, 1)
        cosines, parts = shrunk_cosines(self.pairs, self.count, SHRINKAGE[-1]), []
        for row in rows:
            part = slice(cosines.indptr[row], cosines.indptr[row + 1])
            order = np.lexsort((cosines.indices[part], -cosines.data[part]))[:top]
            others, both = cosines.indices[part][order], self.pairs.data[part][order]
            found = {
                "item": self.item_ids[np.full(len(others), row)],
                "similar": self.item_ids[others],
                "score": cosines.data[part][order],
                "together": both.astype(np.int64),
                "lift": both * float(self.baskets) / (self.count[row] * self.count[others]),
                "rank": np.arange(1, len(others) + 1),
            }
            parts.append(pd.DataFrame(found))
        return pd.concat(parts, ignore_index=True)

    def save(self, folder: str | Path) -> None:
        """Write the recommender into a folder, replacing the one that may be there."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ModelFolderError(f"{folder} is a file; a recommender is a folder", code="not-a-folder")
        folder.mkdir(parents=True, exist_ok=True)
        tensors = matrix_tensors(self._matrices())
        for name, ids in (("user_ids", self.user_ids), ("item_ids", self.item_ids)):
            encoded = np.frombuffer(json.dumps(ids.tolist()).encode(), np.uint8)
            tensors[name] = torch.from_numpy(encoded.copy())
        scorers = [
            {
                **{"name": one.name, "setting": list(one.setting), "source": one.source},
                **{"factors": one.right is not None, "weight": float(weight), "weight_new": float(new)},
            }
            for one, weight, new in zip(self.scorers, *self.weights, strict=True)
        ]
        description = {
            **header(FORMAT, FORMAT_VERSION),
            **{name: getattr(self, name) for name in ("user_type", "item_type", "baskets", "scores")},
            **{"users": len(self.user_ids), "items": len(self.item_ids), "scorers": scorers},
            "file": write_tensor_file(folder, "recommender", tensors).name,
        }
        schema.check_values(RECOMMENDER, description, folder / DESCRIPTION, words="cannot be written")
        content = json.dumps(description, indent=1, ensure_ascii=False)
        write_atomically(folder / DESCRIPTION, content.encode())
        for stale in folder.glob("recommender-*.safetensors"):
            if stale.name != description["file"]:
                stale.unlink()

    def _matrices(self) -> dict[str, Any]:
        found = {"links": self.known.links, "excluded": self.known.excluded, "pairs": self.pairs}
        found |= {"count": self.count, "vectors": self.known.vectors, "back": self.known.back}
        for at, one in enumerate(self.scorers):
            found |= {f"{at}.left": one.left, f"{at}.right": one.right}
        return {name: one for name, one in found.items() if one is not None}

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the recommender in a folder."""
        path = Path(folder) / DESCRIPTION
        if not path.is_file():
            message = f"{folder} holds no recommender: {DESCRIPTION} is missing"
            raise ModelFolderError(message, code="model-missing")
        parsed = schema.parse_json(path.read_bytes(), path, ModelFolderError)
        stored = check_header(path, parsed, FORMAT, FORMAT_VERSION, ModelFolderError)
        schema.check_values(RECOMMENDER, stored, path, ModelFolderError)
        tensors, _ = read_tensors(path.parent / stored["file"], ModelFolderError)
        with schema.naming(path.parent / stored["file"], ModelFolderError):
            return cls._restored(stored, tensors)

    @classmethod
    def _restored(cls, stored: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Self:
        sizes = {"users": stored["users"], "items": stored["items"]}
        ids: dict[str, Any] = {}
        for name, size in (("user_ids", sizes["users"]), ("item_ids", sizes["items"])):
            if name not in tensors:
                raise FieldError(name, "is missing")
            ids[name] = ids_of(name, tensors.pop(name), size)

        def read(name: str, *axes: str | int) -> Any:
            return matrix_of(tensors, name, axes, sizes)

        vectors = read("vectors", "users", "columns") if "vectors" in tensors else None
        back = read("back", "users", "items") if "back.indptr" in tensors else None
        known = Known(read("links", "users", "items"), read("excluded", "users", "items"), vectors, back)
        starts: dict[str, str | int] = {**dict.fromkeys(SOURCES, "items"), "none": 1, "vectors": "columns"}
        scorers = []
        for at, one in enumerate(stored["scorers"]):
            inner = f"{at}.rank" if one["factors"] else "items"
            left = read(f"{at}.left", starts[one["source"]], inner)
            right = read(f"{at}.right", inner, "items") if one["factors"] else None
            scorers.append(Scorer(one["name"], tuple(one["setting"]), one["source"], left, right))
        weights = np.array([[one[key] for one in stored["scorers"]] for key in ("weight", "weight_new")])
        return cls(
            **{name: stored[name] for name in ("user_type", "item_type", "baskets", "scores")},
            **ids,
            known=known,
            scorers=tuple(scorers),
            weights=weights.astype(np.float32),
            pairs=read("pairs", "items", "items"),
            count=read("count", "items"),
        )


def blended(scorers: Sequence[Scorer], weights: Any, known: Known, valid: Flags) -> Floats:
    """Return weighted standardized scores, -inf for items that are not valid; weights `[users, scorers]`."""
    found = np.zeros(valid.shape, np.float32)
    for at in np.flatnonzero(weights.any(axis=0)).tolist():
        found += weights[:, at, None] * standardize(scorers[at](known), valid)
    return np.where(valid, found, np.float32(-np.inf))


def _blocks(known: Known, users: Integers) -> Iterator[tuple[slice, Known]]:
    step = max(1, CELLS // known.links.shape[1])
    for first in range(0, len(users), step):
        block = slice(first, min(first + step, len(users)))
        yield block, known.of(users[block])


def _find(wanted: Any, ids: npt.NDArray[Any], kind: str) -> Integers:
    """Return the positions of some ids, or of a single one."""
    given = [wanted] if isinstance(wanted, str) or np.ndim(wanted) == 0 else list(wanted)
    if not given:
        raise InputError(f"name at least one {kind}", code="value-invalid")
    rows = find_ids(np.array(given, dtype=object if isinstance(given[0], str) else None), ids)
    if (rows < 0).any():
        unknown = given[int(np.flatnonzero(rows < 0)[0])]
        message = f"there is no {kind} {unknown!r}; there are {shortened(ids[:3], 3)}"
        raise InputError(message, code="unknown-node")
    return rows
