"""Sorting more edges than memory holds: into buckets of target nodes first, then bucket by bucket.

Edges arrive in any order, some at a time, and are appended to one file per range of target nodes. Each file
is then read, sorted, freed of duplicates and appended to the compressed sparse rows. Memory holds one bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from h3gnn.ondisk.prepare import Unfinished

BUCKET_NODES = 1 << 16
MOST_BUCKETS = 256
"""Buckets are open files; a graph of more nodes gets wider buckets, not more of them."""


class EdgeBuckets:
    """Collects weighted edges and writes them as compressed sparse rows, sorted by target and source.

    Args:
        folder: for the buckets, which are removed, and the result, which stays.
        nodes: how many nodes there are.
        weighted: whether edges come with weights.
        work: where both go on, if they were begun before.
    """

    def __init__(self, folder: Path, nodes: int, *, weighted: bool, work: Unfinished | None = None) -> None:
        self.folder, self.nodes, self.weighted = folder, nodes, weighted
        self.width = max(BUCKET_NODES, -(-nodes // MOST_BUCKETS))
        fields = [("target", np.int64), ("source", np.int64)]
        self.record = np.dtype([*fields, ("weight", np.float64)] if weighted else fields)
        count = max(1, -(-nodes // self.width))
        self.paths = [folder / f"bucket-{number}.bin" for number in range(count)]
        self.merged, self.work = 0, work
        self.files: list[BinaryIO] = [] if self._sorting else [self._open(path) for path in self.paths]

    @property
    def _sorting(self) -> bool:
        """Whether all edges are there, and some buckets perhaps gone."""
        return self.work is not None and "sorted" in self.work.done

    def _open(self, path: Path) -> BinaryIO:
        return path.open("wb") if self.work is None else self.work.open(path.name)

    def add(
        self,
        source: npt.NDArray[np.int64],
        target: npt.NDArray[np.int64],
        weight: npt.NDArray[Any] | None = None,
    ) -> None:
        """Take some edges."""
        records = np.empty(len(source), dtype=self.record)
        records["source"], records["target"] = source, target
        if self.weighted:
            records["weight"] = 1.0 if weight is None else weight
        bucket = target // self.width
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(1, len(self.paths)))
        for file, piece in zip(self.files, np.split(order, ends), strict=True):
            if len(piece):
                file.write(records[piece].tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def write_rows(self, *, strongest: bool = False) -> int:
        """Write `crow.bin`, `cols.bin` and perhaps `weight.bin`, and return the number of edges.

        Weights of duplicate edges are added, or with `strongest` the largest is kept.
        """
        for file in self.files:
            file.close()
        column_type = index_type(self.nodes)
        before: dict[str, int] = {} if self.work is None else self.work.done.get("sorted", {})
        done, edges, self.merged = (before.get(name, 0) for name in ("buckets", "edges", "merged"))
        names = ("crow.bin", "cols.bin", *(("weight.bin",) if self.weighted else ()))
        with ExitStack() as opened:
            files = [opened.enter_context(self._open(self.folder / name)) for name in names]
            if not done:
                files[0].write(np.zeros(1, np.int64).tobytes())
            for number, (counts, sources, weight) in self._sorted(strongest, done):
                files[0].write((edges + np.cumsum(counts)).astype(np.int64).tobytes())
                files[1].write(sources.astype(column_type).tobytes())
                if weight is not None:
                    files[2].write(weight.astype(np.float32).tobytes())
                edges += len(sources)
                if self.work is None:
                    self.paths[number].unlink()
                else:
                    now = {"buckets": number + 1, "edges": edges, "merged": self.merged}
                    self.work.keep("sorted", now, files, gone=[self.paths[number]])
        return edges

    def _sorted(self, strongest: bool, first: int) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
        for number in range(first, len(self.paths)):
            records = np.fromfile(self.paths[number], dtype=self.record)
            begin = number * self.width
            end = min(begin + self.width, self.nodes)
            keys = (records["target"] - begin) * self.nodes + records["source"]
            weight = None
            if self.weighted:
                unique, group = np.unique(keys, return_inverse=True)
                reduce = np.maximum if strongest else np.add
                weight = np.zeros(len(unique))
                reduce.at(weight, group, records["weight"])
            else:
                unique = np.unique(keys)
            self.merged += len(keys) - len(unique)
            counts = np.bincount(unique // self.nodes, minlength=end - begin)
            yield number, (counts, unique % self.nodes, weight)


def index_type(nodes: int) -> npt.DTypeLike:
    """Return the smallest type that numbers all nodes."""
    return np.int32 if nodes <= np.iinfo(np.int32).max else np.int64
