"""Rows in few columns, for classifiers that are fitted on few of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.probe import CONSTANT, span_of
from h3gnn.graphs.scaling import MomentSums

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
DIRECTIONS = 256
"""Where more labelled nodes than this meet a wider embedding, it is seen in so many principal directions."""
ROWS = 16_384
"""So many rows are worked on at a time."""


class Span:
    """An embedding's rows, standardised over all nodes, and turned into the span of the rows fitted on.

    An L2-regularised classifier lies in the span of its training rows: where these are fewer than the
    columns, nothing is lost by the turn, and the fit is as cheap as its nodes are few.

    Args:
        embedding: of all nodes, `[nodes, D]`; no label is needed to standardise it.
        chosen: positions of the labelled nodes.
    """

    def __init__(self, embedding: Floats, chosen: Whole) -> None:
        every = torch.from_numpy(np.ascontiguousarray(embedding))
        sums = MomentSums(every.shape[1])
        for piece in torch.split(every, ROWS):
            sums.add(piece)
        self.mean, spread = sums.mean, (sums.squares / sums.rows).sqrt()
        self.spread = torch.where(spread > CONSTANT, spread, float("inf"))
        self.directions: Tensor | None = None
        if min(len(chosen), every.shape[1]) > DIRECTIONS:
            self.directions = self._principal(every)
        self.labelled = self.standard(embedding[chosen])

    def standard(self, rows: Floats) -> Tensor:
        """Return rows of any nodes on the scale of the embedding, `[rows, columns]` in float64."""
        found = (torch.from_numpy(np.ascontiguousarray(rows)).double() - self.mean) / self.spread
        return found if self.directions is None else found @ self.directions

    def _principal(self, every: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        some = torch.randperm(len(every), generator=draw)[:ROWS].numpy()
        rows = self.standard(every.numpy()[some])
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        found: Tensor = vectors[:, values.argsort(descending=True)[:DIRECTIONS]]
        return found

    def of(self, seen: Whole) -> Callable[[Whole], Tensor]:
        """Return what gives labelled rows, by their place among the labelled, in the span of those seen."""
        turn = self.turn(seen)
        return lambda places: turn(self.labelled[torch.from_numpy(places)])

    def turn(self, seen: Whole) -> Callable[[Tensor], Tensor]:
        """Return what turns standard rows into the span of the labelled rows seen; the identity if wider."""
        rows = self.labelled[torch.from_numpy(seen)]
        if len(rows) >= rows.shape[1]:
            return lambda given: given.float()
        basis = rows.T @ span_of(rows @ rows.T)
        return lambda given: (given @ basis).float().contiguous()
