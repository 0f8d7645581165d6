"""A fitted recommender: ranks items for users, finds items that are chosen together, is kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.answers.scorers import SHRINKAGE, TITLES, Known, Scorer, shrunk_cosines
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
