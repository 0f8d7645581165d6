"""Searching for good settings on validation nodes, or without labels, many configurations at a time.

Optuna proposes; the batched engine trains a whole stack of proposals as one program. The models of a stack
share their shape, so the first proposal of a stack is free and the others are proposals within its shape. All
train with a constant learning rate and are scored at a few epochs on the way: a configuration's score is its
best one, and its number of epochs the one at which it came. At each of these looks every strength of
smoothing is tried, since that costs no training. Configurations that fall behind leave the stack.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.readout import Smoother
from h3gnn.experiments.spaces import OWN, ConfigurationStack, Space, scaled_features, with_objectives
from h3gnn.experiments.studies import Stack, finished
from h3gnn.graphs.graph import Graph
from h3gnn.intake import steps_of

if TYPE_CHECKING:
    import optuna

Objective = Callable[[Tensor], Sequence[float]]
"""From embeddings `[configurations, nodes, D]` to a score for each, larger is better."""

FIXED = {"schedule": "constant"}
"""With a constant rate, a run of fewer epochs is the beginning of a longer one."""


@dataclass(frozen=True)
class Budget:
    """How much a search may do.

    Attributes:
        trials: configurations in all.
        at_once: models in a stack.
        joined: models of a configuration, whose embeddings are scored side by side.
        rungs: the epochs at which a stack is scored; the last is the end.
        seconds: ask for no more after so long, or None.
    """

    trials: int = 100
    at_once: int = 16
    joined: int = 1
    rungs: tuple[int, ...] = (10, 20, 40, 80, 160, 300)
    seconds: float | None = None


@dataclass
class Tried:
    """A configuration with the scores that it had along the way.

    Attributes:
        params: arguments of `H3GNN` that were proposed for it.
        seed: of its first model.
        looks: the score after so many epochs with such a smoothing.
    """

    params: dict[str, Any]
    seed: int
    looks: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The best score along the way."""
        return max(self.looks.values(), default=float("-inf"))

    @property
    def best(self) -> tuple[int, float]:
        """The epochs and the smoothing with which the best score came first."""
        return next((look for look, score in self.looks.items() if score == self.score), (0, 0.0))

    @property
    def curve(self) -> dict[int, float]:
        """The best score at each epoch."""
        return {epoch: max(s for (e, _), s in self.looks.items() if e == epoch) for epoch, _ in self.looks}

    def as_result(self) -> dict[str, Any]:
        """Return what a study keeps of it, as plain values."""
        epochs, smoothing = self.best
        found = {"epochs": epochs, "smoothing": smoothing, "best": self.score, "seed": self.seed}
        return {**found, "curve": [list(one) for one in self.curve.items()]}

    @classmethod
    def mean(cls, repeats: Sequence[Tried]) -> Tried:
        """Return one configuration with the mean scores of its repeats."""
        looks = {look: sum(one.looks[look] for one in repeats) / len(repeats) for look in repeats[0].looks}
        return cls(repeats[0].params, repeats[0].seed, looks)


class Searcher:
    """Trains stacks of configurations on one graph and scores them.

    Args:
        graph: what to learn from; its labels are not looked at here.
        base: arguments of `H3GNN` that a search does not vary.
        objective: the score of a configuration.
        budget: sizes and epochs.
        device: where to train.
        smoothings: strengths to try at each look.
        looked: called with the epoch after each look, for a progress bar.
    """

    def __init__(
        self,
        graph: Graph,
        base: Mapping[str, Any],
        objective: Objective,
        budget: Budget,
        device: torch.device,
        smoothings: Sequence[float] = (0.0,),
        looked: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self.graph, self.base = graph, {**base, **FIXED}
        self.objective, self.budget, self.device, self.looked = objective, budget, device, looked
        walk = steps_of(graph, "walks", device)
        self.smoothers = [Smoother(walk, strength) for strength in smoothings]
        self._scaled: dict[str, FeatureMatrix] = {}

    def search(
        self,
        study: optuna.Study,
        space: Space,
        *,
        seed: int,
        told: Callable[[optuna.Study], None] | None = None,
    ) -> None:
        """Run trials of a study until the budget is spent; a study that has trials already goes on.

        Args:
            study: of Optuna, which keeps the trials; several processes may share it.
            space: what to choose from.
            seed: of the models' starts.
            told: called after each stack, for a progress bar.
        """
        began, taken = time.monotonic(), True
        while (left := self.budget.trials - finished(study)) > 0:
            if self.budget.seconds is not None and time.monotonic() - began > self.budget.seconds:
                return
            stack = Stack.left_behind(study, space, seed) if taken else None
            taken = stack is not None  # of this run's own nothing is left behind
            if stack is None:
                at_once = (
                    1 if self._is_committee(space) else max(1, self.budget.at_once // self.budget.joined)
                )
                stack = Stack.reserve(study, space, min(left, at_once), seed)
            self._run_stack(stack, seed)
            if told is not None:
                told(study)

    def score(
        self,
        tried: Sequence[Tried],
        joined: int,
        rungs: Sequence[int],
        fell_behind: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Train configurations of one shape, each with `joined` models, and write down their scores.

        Args:
            tried: what to train; their curves are filled.
            joined: models of each configuration.
            rungs: the epochs at which to score.
            fell_behind: from a position in `tried` and an epoch to whether to give it up.
        """
        shape = with_objectives(
            self.base | {name: value for name, value in tried[0].params.items() if name not in OWN}
        )
        own = [{name: one.params[name] for name in OWN if name in one.params} for one in tried]
        stack = ConfigurationStack(
            self.graph,
            shape,
            [one for one in own for _ in range(joined)],
            [one.seed + model for one in tried for model in range(joined)],
            self.device,
            self._features(shape),
        )
        going_on = list(range(len(tried)))
        for rung in rungs:
            stack.train(rung)
            self._look([tried[place] for place in going_on], rung, _side_by_side(stack, joined))
            self.looked(rung)
            if fell_behind is not None:
                going_on = [place for place in going_on if not fell_behind(place, rung)]
            if not going_on:
                break
            stack.keep([joined * place + model for place in going_on for model in range(joined)])

    def _is_committee(self, space: Space) -> bool:
        """Whether a trial's models have different objectives: they are then a stack of their own."""
        return not isinstance(self.base["objective"], str) or "objective" in space.choices

    def _look(self, tried: Sequence[Tried], epoch: int, embeddings: Tensor) -> None:
        """Score the embeddings `[configurations, nodes, D]` with every smoothing."""
        for smoother in self.smoothers:
            smoothed = torch.stack([smoother(one) for one in embeddings])
            for one, score in zip(tried, self.objective(smoothed), strict=True):
                one.looks[epoch, smoother.strength] = score

    def _run_stack(self, stack: Stack, seed: int) -> None:
        """Train the trials of a stack, if that has not been done, and tell the study."""
        if stack.results is None:
            joined, rungs = self.budget.joined, self.budget.rungs
            tried = [Tried(dict(trial.params), seed + 1000 * trial.number) for trial in stack.trials]
            behind: set[int] = set()

            def fell_behind(place: int, rung: int) -> bool:
                if rung != rungs[-1] and stack.fell_behind(tried[place].curve):
                    behind.add(place)
                return place in behind

            try:
                self.score(tried, joined, rungs, fell_behind)
            except torch.OutOfMemoryError:
                stack.fail("out of memory")
                return
            finally:
                _forget(self.device)
            stack.keep([one.as_result() | {"behind": place in behind} for place, one in enumerate(tried)])
        stack.tell()

    def _features(self, params: Mapping[str, Any]) -> FeatureMatrix:
        scaling = params["scale_features"]
        if scaling not in self._scaled:
            self._scaled[scaling] = scaled_features(self.graph, params, self.device)
        return self._scaled[scaling]


def best_trials(study: optuna.Study, count: int, of_one_shape: int = 2) -> list[Tried]:
    """Return the best trials, not more than a few of the same shape, so that finalists differ."""
    finished_ones = (trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    scored = [trial for trial in finished_ones if "best" in trial.user_attrs]
    chosen: list[Tried] = []
    shapes: list[dict[str, Any]] = []
    for trial in sorted(scored, key=lambda trial: -trial.user_attrs["best"]):
        shape = {name: value for name, value in trial.params.items() if name not in OWN}
        if shapes.count(shape) < of_one_shape:
            shapes.append(shape)
            found = {(epoch, 0.0): score for epoch, score in trial.intermediate_values.items()}
            chosen.append(Tried(dict(trial.params), trial.user_attrs["seed"], found))
        if len(chosen) == count:
            break
    return chosen


def _side_by_side(stack: ConfigurationStack, joined: int) -> Tensor:
    """Return each configuration's embedding, `[configurations, nodes, joined · D]`."""
    single = stack.embeddings()
    _, nodes, width = single.shape
    return single.view(-1, joined, nodes, width).transpose(1, 2).reshape(-1, nodes, joined * width)


def _forget(device: torch.device) -> None:
    """Give memory back between stacks: their shapes differ, and other processes may share the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
