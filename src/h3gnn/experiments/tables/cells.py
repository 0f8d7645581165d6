"""A cell: the smallest piece of work that is done, kept and never done twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

FORMAT = 2
"""Grows when the content of a kept cell changes its meaning, so that older ones are done again."""


@dataclass(frozen=True)
class Cell:
    """One piece of work on one graph.

    Attributes:
        kind: what is done: "fit", "method", "efficiency", "convergence" or "statistics".
        graph: name of the benchmark graph.
        params: the full configuration.
        seeds: of the training runs.
        splits: the first few splits only, or None for all.
        wants: what is measured beside the scores: "clusters", "map".
        alone: nothing else may run beside it, since it measures time or memory.
    """

    kind: str
    graph: str
    params: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    splits: int | None = None
    wants: tuple[str, ...] = ()
    alone: bool = False

    def key(self, sha256: str) -> str:
        """Return a name that is the same only if everything is that the outcome depends on.

        Args:
            sha256: of the graph's content.
        """
        about = {**self.as_dict(), "sha256": sha256, "format": FORMAT}
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kind": self.kind,
            "graph": self.graph,
            "params": self.params,
            "seeds": list(self.seeds),
            "splits": self.splits,
            "wants": list(self.wants),
        }

    @property
    def name(self) -> str:
        """A few words for the person who waits."""
        told = [self.kind, self.graph]
        told += [str(self.params[one]) for one in ("method", "mask", "objective") if one in self.params]
        return " ".join([*told, *(f"seed {seed}" for seed in self.seeds[:1] if len(self.seeds) == 1)])

    def size(self, nodes: int) -> float:
        """Return about how long it takes, in no unit: the largest cells are begun first."""
        params = self.params
        if self.kind == "fit":
            wide = float(params["channels"] * (2 + params["hops"]))
            return nodes * wide * float(params["n_models"] * (params["epochs"] + 20))
        return float(nodes) * 30_000 * max(1, len(self.seeds))
