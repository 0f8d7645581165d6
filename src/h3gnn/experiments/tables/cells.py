"""A cell: the smallest piece of work that is done, kept and never done twice; and how many there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments.store import fingerprint
from h3gnn.experiments.tables.specifications import CITATION
from h3gnn.settings import BEFORE, kept_for, tuned_presets

FORMAT = 2
"""Grows when the content of a kept cell changes its meaning, so that older ones are done again."""
SEEDS, VARIANT_SEEDS = dict.fromkeys(CITATION, 10), dict.fromkeys(CITATION, 3)
"""Training runs of a preset, and of one with something changed, on graphs with one split; with ten, one."""
QUICK_SPLITS = 2
QUICK_EPOCHS = 2
QUICK = {"channels": 16, "heads": 2, "hidden_channels": None, "n_models": 1, "hops": 2, "mask_warmup": 1}
"""What a quick look changes; its numbers mean nothing."""


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
        params = {
            name: value for name, value in self.params.items() if name not in BEFORE or value != BEFORE[name]
        }
        if params.get("objective") == "features":  # the name under which it was first kept
            params["objective"] = "decoder"
        return fingerprint({**self.as_dict(), "params": params, "sha256": sha256, "format": FORMAT})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: all that the outcome depends on, beside the graph's content."""
        return {name: value for name, value in asdict(self).items() if name != "alone"}

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


@dataclass(frozen=True)
class Scope:
    """How much of the tables to run: everything, or a quick look at whether it runs.

    Attributes:
        quick: one seed, two splits and tiny settings.
        seeds: at most so many seeds per row; None for the table's own number.
        device: the kind of device, "cpu" or "cuda", for what is measured in seconds and bytes.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"

    @property
    def splits(self) -> int | None:
        """The first few splits, or None for all."""
        return QUICK_SPLITS if self.quick else None

    def seeds_of(self, graph: str, *, variant: bool = False) -> tuple[int, ...]:
        """Return the seeds of a row: of a graph's preset as it is shipped, or of a variant of it."""
        return self.seeds_up_to((VARIANT_SEEDS if variant else SEEDS).get(graph, 1))

    def seeds_up_to(self, usual: int) -> tuple[int, ...]:
        """Return the usual number of seeds, or fewer where fewer were asked for."""
        return tuple(range(1 if self.quick else min(usual, self.seeds or usual)))

    def settings_of(self, graph: str, *, purpose: str | None = None, **changes: Any) -> dict[str, Any]:
        """Return the shipped preset of a graph with some changes, all arguments that shape a result.

        Args:
            graph: name of the graph.
            purpose: "clustering" for the preset that was made for k-means.
            changes: arguments of `H3GNN`.

        Raises:
            InputError: without a preset, unless the look is quick, which then takes the defaults.
        """
        name = graph if purpose is None else f"{graph}-{purpose}"
        if name in tuned_presets():
            params = H3GNN.from_preset(name, **changes).get_params()
        elif self.quick:
            params = H3GNN(**changes).get_params()
        else:
            raise InputError(f"there is no shipped preset {name}: make one with `h3gnn tune {graph}`")
        if self.quick:
            params |= QUICK | {"epochs": min(QUICK_EPOCHS, params["epochs"])}
        return kept_for("preset", params)
