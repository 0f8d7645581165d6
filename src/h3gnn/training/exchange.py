"""What a batch needs of arrays that several processes have divided: asked for, answered, and given back.

A message of numbers of places goes to their owners, the answers come in the order in which they were asked
for, and what belongs to the places (gradients) goes the same way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

Swap = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]
"""From rows, how many of them go to each process, and how many come from each, to the rows that came."""


class Asked:
    """Places of a divided array that a process asks for, beside those that are asked of it.

    Attributes:
        places: what is asked of this process, each once, counted from the beginning of its part.
    """

    def __init__(self, places: Tensor) -> None:
        self.places = places

    def fetch(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Answer with values `[n, places]`, and return what was asked for, `[n, asked]`; several at once."""
        return list(values)

    def give(self, values: Tensor) -> Tensor:
        """Return the sums over processes `[n, places]` of values `[n, asked]` of what they asked for."""
        return values


class AskedOfOthers(Asked):
    """Places of an array that is divided among processes.

    Args:
        swap: how rows go to and come from the others.
        parts: which places each process holds.
        places: what this process asks for.

    Attributes:
        order: the places ascending, as the owners are asked for them.
        back: where each place stands in that order.
        wanted: what the processes ask of this one, one asker after the other.
        to: how many of these each asks for.
        of: how many places this process asks each for.
    """

    def __init__(self, swap: Swap, parts: Sequence[range], places: Tensor) -> None:
        self.swap = swap
        places, self.order = places.sort()
        self.back = torch.empty_like(self.order).scatter_(0, self.order, torch.arange(len(places)).to(places))
        starts = torch.tensor([part.start for part in parts], device=places.device)
        ends = torch.tensor([part.stop for part in parts], device=places.device)
        counts = torch.searchsorted(places, ends) - torch.searchsorted(places, starts)
        self.of: list[int] = counts.tolist()
        once = [1] * len(parts)
        self.to: list[int] = swap(counts, once, once).tolist()
        short = torch.int32 if max(map(len, parts)) < 2**31 else torch.int64
        there = (places - torch.repeat_interleave(starts, counts)).to(short)
        self.wanted = swap(there, self.of, self.to).long()

    @cached_property
    def _once(self) -> tuple[Tensor, Tensor]:
        places, which = torch.unique(self.wanted, return_inverse=True)
        return places, which

    @property
    def places(self) -> Tensor:  # type: ignore[override]
        """What is asked of this process, each once."""
        return self._once[0]

    def answer(self, rows: Tensor) -> Tensor:
        """Answer with rows, one for each of `wanted`; return those that this one asked for, ascending."""
        return self.swap(rows, self.to, self.of)

    def fetch(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Exchange all values in one message."""
        rows = torch.cat(list(values)).t().to(self.wanted.device)
        got = self.answer(rows[self._once[1]])[self.back].t()
        return list(torch.split(got, [len(one) for one in values]))

    def give(self, values: Tensor) -> Tensor:
        """Send values back to the owners, and add what several processes asked for."""
        got = self.swap(values.t()[self.order], self.of, self.to)
        places, which = self._once
        return got.new_zeros(len(places), got.shape[1]).index_add_(0, which, got).t()
