"""How long a training will take, from its first epochs; and how long in mini-batches, from two of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.distributed import Ranks
from h3gnn.training.history import Recorder
from h3gnn.training.loop import AfterEpoch
from h3gnn.training.models import Training, derive_seeds, stack_step
from h3gnn.training.resources import pick_device

LONG = 30.0
"""A training with fewer seconds to go is over before anybody wants to know."""
VERY_LONG = 120.0
"""From so many seconds on it is worth a moment to find out what mini-batches would take."""
SLOW = 60.0
"""A first epoch that takes so long tells alone, though it sets things up as well."""
BATCH_SIZE = 1024
MEASURED = 2
"""So many mini-batches are measured."""


class Outlook:
    """Says once, as soon as the first epochs tell, what a training does and how long it will take.

    Args:
        model: that is trained; its graph is known by the time of its first epoch.
        tell: gets the sentence.
        clock: seconds, from any start.
    """

    def __init__(
        self, model: H3GNN, tell: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model, self.tell, self.clock = model, tell, clock
        self.began, self.told = clock(), False

    def of(self, first: int) -> AfterEpoch:
        """Return what is called after each epoch of the group of models that starts with a given one."""
        at = self.clock()
        seen: list[tuple[int, float]] = []

        def after(epoch: int, recorder: Recorder) -> None:
            if self.told:
                return
            now = self.clock()
            seen.append((epoch, now))
            epochs, warm = epoch - seen[0][0], now - seen[0][1]
            if epochs >= 3 or warm >= 1.0:  # the first epoch sets things up, and does not count
                self._say(epoch, recorder, first, warm / epochs)
            elif now - at >= SLOW:
                self._say(epoch, recorder, first, (now - at) / (epochs + 1))

        return after

    def _say(self, epoch: int, recorder: Recorder, first: int, seconds: float) -> None:
        """Tell how long it takes, given the seconds of an epoch of the models that train now."""
        self.told = True
        model, group = self.model, len(recorder.newest()["loss"])
        later = (model.n_models - first - group) / group  # groups of models that train after this one
        left = seconds * (model.epochs - 1 - epoch + later * model.epochs)
        whole = self.clock() - self.began + left
        if left < LONG:
            return
        models = "1 model" if model.n_models == 1 else f"{model.n_models} models"
        words = f"{model.graph_.num_nodes:,} nodes, {models}, {model.epochs} epochs: about {duration(whole)}"
        other = self._in_batches() if left >= VERY_LONG else None
        if other is not None and other < 0.8 * whole:
            words += f"; with `--batch-size {BATCH_SIZE}` about {duration(other)}"
        self.tell(words)

    def _in_batches(self) -> float | None:
        """Return the seconds of a whole training in mini-batches; None where that is no choice."""
        model = self.model
        if model.batch_size is not None or not isinstance(model.graph_, Graph):
            return None
        if model.graph_.num_nodes < 4 * BATCH_SIZE:
            return None
        return model.epochs * batched_epoch(model, BATCH_SIZE)


def batched_epoch(model: H3GNN, batch_size: int) -> float:
    """Return how long an epoch of a model's training would take in mini-batches, measured on two of them.

    The model is left as it is; a copy of its settings meets the same graph.
    """
    params = {**model.get_params(), "batch_size": batch_size, "verbose": False}
    other, device = H3GNN(**params), pick_device(model.device)
    other._take_in(model.graph_)
    source, models = other._source(device), range(other.n_models)
    training = Training.of(params)
    seeds = derive_seeds(0, other.n_models)
    step = stack_step(other._stack(len(models)), source, seeds, training)
    mask = training.mask_of(len(models))(0)(step.difficulty, step.generators)
    batches = source.epoch(step.order, Ranks())
    step._train_on(next(batches), mask)  # sets things up
    began, nodes = time.perf_counter(), 0
    for batch in islice(batches, MEASURED):
        nodes += batch.own
        step._train_on(batch, mask)
    return (time.perf_counter() - began) * source.nodes / max(1, nodes)


def duration(seconds: float) -> str:
    """Return a time as a person would say it."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
