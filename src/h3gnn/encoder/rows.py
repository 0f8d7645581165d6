"""The support as plain arrays, which may be longer than memory: read by entry or by range of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.support import START_BOUNDS, Support

ENTRIES_AT_A_TIME = 1 << 22


@dataclass(frozen=True, eq=False)
class SupportRows:
    """Compressed sparse rows of Ã, with the start value and the fixed factor of any entry on demand.

    Attributes:
        crow, cols: rows receive, columns send.
        weight: the data's own weights, or None for ones.
        receives, sends: degree of each node, for the normalisation.
        start: `"normalized"`, or the one start value of all.
        normalize: whether the fixed factor is the entry of Ã.
    """

    crow: npt.NDArray[Any]
    cols: npt.NDArray[Any]
    weight: npt.NDArray[Any] | None
    receives: npt.NDArray[np.float32]
    sends: npt.NDArray[np.float32]
    start: float | str
    normalize: bool

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.crow) - 1

    @property
    def entries(self) -> int:
        """Number of entries."""
        return len(self.cols)

    def factor(self, entries: npt.NDArray[np.int64]) -> Tensor:
        """Return the fixed factor of some entries, in ascending order."""
        return self._normalized(entries) if self.normalize else torch.ones(len(entries))

    def starts(self, first: int, last: int) -> Tensor:
        """Return the start values of a range of entries."""
        if not isinstance(self.start, str):
            return torch.full((last - first,), float(self.start)).clamp(*START_BOUNDS)
        return self._normalized(np.arange(first, last)).clamp(*START_BOUNDS)

    def fill_logit(self, logit: Tensor) -> None:
        """Put every model's edge logits `[models, entries]` at their start, some at a time."""
        with torch.no_grad():
            for first in range(0, self.entries, ENTRIES_AT_A_TIME):
                last = min(first + ENTRIES_AT_A_TIME, self.entries)
                logit[:, first:last] = torch.logit(self.starts(first, last)).to(logit.device)

    def _normalized(self, entries: npt.NDArray[np.int64]) -> Tensor:
        rows = np.searchsorted(self.crow, entries, side="right") - 1
        cols = self.cols[entries]
        own = np.float32(1) if self.weight is None else self.weight[entries]
        return torch.from_numpy((own / np.sqrt(self.receives[rows] * self.sends[cols])).astype(np.float32))


def rows_of(support: Support, start: float | str, normalize: bool) -> SupportRows:
    """Return a support in memory as plain arrays; its factors and starts are known already."""
    return _KnownRows(
        support.pattern.crow.numpy(),
        support.pattern.cols.numpy(),
        None,
        np.empty(0, np.float32),
        np.empty(0, np.float32),
        start,
        normalize,
        support,
    )


@dataclass(frozen=True, eq=False)
class _KnownRows(SupportRows):
    support: Support

    def factor(self, entries: npt.NDArray[np.int64]) -> Tensor:
        return self.support.factor[torch.from_numpy(entries)]

    def starts(self, first: int, last: int) -> Tensor:
        return self.support.start[first:last]


def mapped_rows(
    crow: npt.NDArray[Any],
    cols: npt.NDArray[Any],
    weight: npt.NDArray[Any] | None,
    *,
    start: float | str,
    normalize: bool,
) -> SupportRows:
    """Return rows over arrays in files, with the degrees summed a range at a time."""
    nodes = len(crow) - 1
    receives, sends = np.zeros(nodes), np.zeros(nodes)
    for first in range(0, len(cols), ENTRIES_AT_A_TIME):
        span = slice(first, min(first + ENTRIES_AT_A_TIME, len(cols)))
        own = None if weight is None else np.asarray(weight[span], dtype=np.float64)
        sends += np.bincount(cols[span], weights=own, minlength=nodes)
        rows = np.searchsorted(crow, np.arange(span.start, span.stop), side="right") - 1
        receives += np.bincount(rows, weights=own, minlength=nodes)
    return SupportRows(
        crow, cols, weight, receives.astype(np.float32), sends.astype(np.float32), start, normalize
    )
