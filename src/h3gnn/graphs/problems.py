"""All that is wrong with a file, gathered and said at once, each with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from h3gnn.errors import GraphError

SHOWN = 20
"""So many problems are spelled out; the others are counted."""


class Problems:
    """Gathers what is wrong; `check` raises one error that tells it all.

    Args:
        what: the file, or what else the problems are of.
    """

    def __init__(self, what: object) -> None:
        self.what = what
        self.count = 0
        self._told: list[tuple[str, str]] = []

    def add(self, place: str | Callable[[], str], what: str, remedy: str = "") -> None:
        """Note where something is wrong, what, and the remedy; a place that costs time is a function."""
        self.count += 1
        if len(self._told) < SHOWN:
            self._told.append((f"{place if isinstance(place, str) else place()}: {what}", remedy))

    def check(self) -> None:
        """Raise if there is any."""
        if self.count:
            self.fail()

    def fail(self) -> NoReturn:
        """Raise: a sentence for one problem; a list for several, each remedy below those it is for."""
        if self.count == 1:
            raise GraphError("; ".join(filter(None, self._told[0])))
        first = f", the first {SHOWN} of which are" if self.count > SHOWN else ""
        lines = [f"{self.what}: {self.count:,} problems{first}:"]
        for at, (problem, remedy) in enumerate(self._told):
            lines.append(f"  {problem}")
            last = at + 1 == len(self._told) or self._told[at + 1][1] != remedy
            if remedy and last:
                lines.append(f"    what to do: {remedy}")
        raise GraphError("\n".join(lines))
