"""What a method is given to find its settings with: how many of them, for how long, from which ranges.

The settings are drawn before anything is trained, so that no label of any split can have shaped the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import GRIDS, Predictions
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.judge import Joining
from h3gnn.evaluation.protocols import TEST_EPOCH
from h3gnn.experiments.methods import Method, Task
from h3gnn.experiments.run import settings_of
from h3gnn.experiments.spaces import with_objectives
from h3gnn.graphs.graph import Graph

Changes = dict[str, Any]
"""What a setting changes in a method's own."""


@dataclass(frozen=True)
class Allowance:
    """What each method of a table is given, so that none is tuned more than another.

    Attributes:
        trials: how many settings are drawn and tried.
        seconds: after so long no further one is begun; None is no limit. The first is always tried.
        looks: after how many epochs H3GNN's training is looked at, each a setting of its own; () for its end
            alone. Only where the learning rate is constant is a shorter run the beginning of a longer one.
        seed: of the drawn settings, and of the dealt nodes.
    """

    trials: int
    seconds: float | None = None
    looks: tuple[int, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Allowance:
        """Return one from plain values; nothing told is one trial, the method's own settings."""
        return cls(**{"trials": 1, **told, "looks": tuple(told.get("looks", ()))})

    def is_over(self, began: float) -> bool:
        """Whether no further setting may be begun, of a search that began then."""
        return self.seconds is not None and time.perf_counter() - began > self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"trials": self.trials, "seconds": self.seconds, "looks": list(self.looks), "seed": self.seed}


def ranges_of(method: Method) -> dict[str, Sequence[Any]]:
    """Return what a search of a method may choose from; a classifier's grid is part of it."""
    ranges = dict(method.ranges) or (dict(method.system.ranges) if method.system else {})
    if method.supervised:
        ranges |= {
            one.name: sorted({getattr(point, one.name) for point in GRIDS["full"]})
            for one in fields(GridPoint)
        }
    return ranges


def holding(method: Method, fixed: Collection[str], trials: int) -> Method:
    """Return a method whose search leaves alone what a user fixed.

    Where the method has a usual value of its own for it, the user's takes its place.

    Args:
        method: any; only one that takes the settings of H3GNN has anything that a user fixes.
        fixed: names of settings of H3GNN.
        trials: how many settings are asked for: of several, something must be left to vary.
    """
    if not method.takes_settings:
        return method
    held = {name for name in method.ranges if name in fixed}
    check_varied({**method.ranges, **dict.fromkeys(held, ())}, trials, method.title)
    ranges = {name: values for name, values in method.ranges.items() if name not in held}
    settings = {name: value for name, value in method.settings.items() if name not in held}
    return replace(method, ranges=ranges, settings=settings)


def check_varied(ranges: Mapping[str, Sequence[Any]], trials: int, title: str) -> None:
    """Refuse to try several settings where there is one alone: no range has a second value."""
    if trials > 1 and ranges and all(len(values) < 2 for values in ranges.values()):
        raise InputError(
            f"{title}: all that a search varies is fixed ({', '.join(ranges)}): leave one of them free, or "
            "give --trials 1"
        )


def draw_settings(ranges: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[Changes]:
    """Return different settings: nothing changed; the first setting alone; then values drawn for all.

    So the setting that matters most stands first in a method's ranges; its first value is the usual one.
    """
    generator = np.random.default_rng(seed)
    found: list[Changes] = [{}]
    first = next(iter(ranges), "")
    found += [{first: value} for value in ranges.get(first, ())[1:]] if len(ranges) > 1 else []
    del found[trials:]
    most = int(np.prod([float(len(values)) for values in ranges.values()])) if ranges else 0
    while len(found) < min(trials, most + 1):
        one = {name: values[int(generator.integers(len(values)))] for name, values in ranges.items()}
        if one not in found:
            found.append(one)
    return found


class _Shown(Joining):
    """Stands in a judge's place and hands every embedding on."""

    def __init__(self, hand_on: Callable[[int, Tensor], None], parts: int, *, looks: bool) -> None:
        super().__init__(parts)
        self.epoch_rule = TEST_EPOCH if looks else "last"
        self.add = hand_on  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class Training:
    """A method on a graph, trained with one setting after another.

    Attributes:
        method: which.
        graph: to learn from.
        model: the settings of H3GNN, for the methods that take them.
        device: where to train.
    """

    method: Method
    graph: Graph
    model: H3GNN | None
    device: torch.device

    @property
    def settings(self) -> Changes:
        """The method's own settings."""
        return dict(settings_of(self.method, self.model))

    def task(self, seed: int, changes: Mapping[str, Any], **more: Any) -> Task:
        """Return what the method is given to do."""
        settings = with_objectives({**self.settings, **changes})
        return Task(self.graph, [seed], self.device, settings, **more)

    def show(
        self,
        seed: int,
        changes: Mapping[str, Any],
        hand_on: Callable[[int, Tensor], None],
        looks: Sequence[int] = (),
    ) -> None:
        """Train once, and hand on the embedding after each of some epochs, or at the end."""
        task = self.task(seed, changes, snapshots=looks) if looks else self.task(seed, changes)
        shown = _Shown(hand_on, task.settings.get("n_models", 1), looks=bool(looks))
        (outcome,) = self.method.train(task)
        if isinstance(outcome, Predictions):
            raise InputError(f"{self.method.title} gives no embedding")
        outcome(shown)  # type: ignore[arg-type]

    def rows(self, seed: int, changes: Mapping[str, Any]) -> Tensor:
        """Train once and return the embedding at the end, `[nodes, D]`."""
        kept: list[Tensor] = []
        self.show(seed, changes, lambda epoch, rows: kept.append(rows))
        return kept[-1]

    def explore(
        self,
        ranges: Mapping[str, Sequence[Any]],
        allowance: Allowance,
        seed: int,
        look: Callable[[int, Changes, int, Tensor], None],
        *,
        held: Mapping[str, Any] | None = None,
        watch: Progress = unwatched,
    ) -> list[Changes]:
        """Train with one drawn setting after another, as long as the allowance lasts.

        Args:
            ranges: what the settings are drawn from.
            allowance: how many, how long, and after which epochs each is looked at.
            seed: of the trainings.
            look: handed the number of the setting, what it changes, the epoch and the embedding.
            held: changes of every training that are no part of a setting.
            watch: told the share of the work that is done.

        Returns:
            The settings that were tried.
        """
        drawn, began = draw_settings(ranges, allowance.trials, allowance.seed), time.perf_counter()
        for trial, changes in enumerate(drawn):
            if trial and allowance.is_over(began):
                return drawn[:trial]
            self.show(seed, {**changes, **(held or {})}, partial(look, trial, changes), allowance.looks)
            watch((trial + 1) / len(drawn))
        return drawn
