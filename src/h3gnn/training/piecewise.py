"""The embedding of a graph that memory does not hold: worked out and read out a piece at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.encode import Allocate
from h3gnn.encoder.readout import Columns, Smoother
from h3gnn.training.models import files_in

Array = npt.NDArray[np.float32]
CHUNK = 16_384
"""So many nodes are embedded at a time, where memory is bounded."""


@dataclass(frozen=True)
class PiecewiseEmbedding:
    """What it takes to embed a graph piece by piece.

    Attributes:
        encode: yields the models' embeddings side by side, `[some nodes, D]`, in the nodes' order; arrays
            over all nodes lie where it is told.
        nodes, width: N and D.
        budget: bytes of memory; past half of it, arrays over all nodes lie in temporary files.
        scale: brings columns of the embedding, from a first to a last, to one scale; None leaves them.
        smoother: carries them along the edges.
    """

    encode: Callable[[Allocate | None], Iterator[Tensor]]
    nodes: int
    width: int
    budget: int
    scale: Callable[[Tensor, slice], Tensor] | None
    smoother: Smoother

    def chunks(self) -> Iterator[Array]:
        """Yield the embedding read out, some nodes at a time."""
        if self.scale is None and not self.smoother.strength:
            with self._beside() as allocate:
                yield from (piece.cpu().contiguous().numpy() for piece in self.encode(allocate))
            return
        with self.rows() as rows:
            yield from (rows[first : first + CHUNK] for first in range(0, self.nodes, CHUNK))

    @contextmanager
    def rows(self) -> Iterator[Array]:
        """Give the embedding read out as one array, in memory or in a temporary file."""
        with self._beside() as allocate:
            make = allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
            rows, first = make("embedding", (self.nodes, self.width), torch.float32), 0
            for piece in self.encode(allocate):
                rows[first : first + len(piece)] = piece
                first += len(piece)
            some = max(1, self.budget // (32 * self.nodes))
            for first in range(0, self.width, some):
                part = rows[:, first : first + some]
                scaled = part.clone() if self.scale is None else self.scale(part, slice(first, first + some))
                part.copy_(self.smoother(scaled))
            yield rows.numpy()

    @contextmanager
    def _beside(self) -> Iterator[Allocate | None]:
        with tempfile.TemporaryDirectory(prefix="h3gnn-") as folder:
            yield files_in(Path(folder)) if 4 * self.nodes * self.width > self.budget // 2 else None


def own_scale(rows: Tensor, columns: slice) -> Tensor:
    """Bring columns to mean 0 and variance 1 over the nodes of this very embedding."""
    return Columns.of(rows)(rows)
