"""How much of an experiment to run: everything, or a quick look at whether it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.settings import kept_for, tuned_presets

WEBKB = ("cornell", "texas", "wisconsin")
HETEROPHILIC = (*WEBKB, "actor")
CITATION = ("cora", "citeseer", "pubmed")
FILTERED = ("chameleon-filtered", "squirrel-filtered")

SEEDS, VARIANT_SEEDS = dict.fromkeys(CITATION, 10), dict.fromkeys(CITATION, 3)
"""Training runs of a preset, and of one with something changed, on graphs with one split; with ten, one."""
SNAPSHOTS = 10
"""At so many epochs a run is looked at, for the protocol that picks the best on test nodes."""
QUICK_SPLITS = 2
QUICK_EPOCHS = 2
QUICK = {"channels": 16, "heads": 2, "hidden_channels": None, "n_models": 1, "hops": 2, "mask_warmup": 1}
"""What a quick look changes; its numbers mean nothing."""


@dataclass(frozen=True)
class Scope:
    """What of the experiments to run.

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


def look_epochs(epochs: int, count: int = SNAPSHOTS) -> list[int]:
    """Return growing epochs, close together at the start, the last included: `epochs · (i / count)²`."""
    if epochs == 0:
        return [0]
    return sorted({max(1, round(epochs * (i / count) ** 2)) for i in range(1, count + 1)})
