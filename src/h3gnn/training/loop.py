"""The one training loop, its step as a CUDA graph, and who looks on: a bar, a log, embeddings on the way."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.encoder.encode import embed_models, joined
from h3gnn.errors import LossError, TrainingStopped
from h3gnn.resources import progress
from h3gnn.training.batches import WholeGraph
from h3gnn.training.history import History, Recorder, difficulty_quantiles, effective_rank, sample_rows
from h3gnn.training.step import MaskStrategy, Step

EAGER_STEPS = 3
"""So many steps of each mask strategy run as usual first, so that every library has set itself up."""

MEASUREMENTS = 20
"""How many times the rank, the teacher's distance and the quantiles of the difficulty are measured."""

OFTEN = 0.2
"""Seconds between two looks at the newest loss: on a GPU, each of them waits for the device."""

AfterEpoch = Callable[[int, Recorder], None]
"""Called after each epoch with its number and the records so far."""
AfterEpochOf = Callable[[int], AfterEpoch]
"""From the number of a group's first model to what is called after each epoch of that group."""


class CaptureWarning(UserWarning):
    """The step could not be captured; training goes on without."""


class CapturedStep:
    """A `Step` that records itself once for each mask strategy and then replays the recording.

    All shapes are static and nothing is read back, so mask, both encodings, backward, Adam and moving average
    are one graph. The first steps run as usual, on the stream that is captured; they are ordinary epochs.
    Where capture is refused, a warning says so and every step runs as usual.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._steps: dict[int, int] = {}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._refused = False

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Make the step and return the loss and the size of the mask, `[2, models]`."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            recorded = self._run(mask_strategy)
        torch.cuda.current_stream().wait_stream(self._stream)
        return recorded

    def _run(self, mask_strategy: MaskStrategy) -> Tensor:
        key = id(mask_strategy)
        made = self._steps.get(key, 0)
        self._steps[key] = made + 1
        if made == EAGER_STEPS and not self._refused:
            self._capture(mask_strategy)
        if key not in self._graphs:
            return self.step(mask_strategy)
        graph, recorded = self._graphs[key]
        graph.replay()
        return recorded.clone()  # the next replay writes there again

    def _capture(self, mask_strategy: MaskStrategy) -> None:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None
        try:
            for generator in (*self.step.generators, self.step.order):
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                recorded = self.step(mask_strategy)
        except RuntimeError as error:
            self._refused = True
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"the step cannot be captured as a CUDA graph and is launched piece by piece: {reason}",
                CaptureWarning,
                stacklevel=2,
            )
            return
        self._graphs[id(mask_strategy)] = (graph, recorded)


def train(
    step: Step,
    *,
    epochs: int,
    mask_of: Callable[[int], MaskStrategy],
    learning_rate_of: Callable[[int], float],
    after_epoch: AfterEpoch | None = None,
    recorder: Recorder | None = None,
) -> History:
    """Train the student(s) of a step in place and return the history.

    A signal that ends the training early is kept in the history, for the caller to raise.

    Args:
        step: one epoch.
        epochs: how many.
        mask_of: from epoch to the mask strategy of that epoch; the same object for the same strategy, since
            on CUDA a recording is kept for each.
        learning_rate_of: from epoch to the factor of the learning rate.
        after_epoch: called after each epoch.
        recorder: the epochs that the step has already made, if it goes on from a checkpoint.
    """
    recorder = Recorder() if recorder is None else recorder
    run = runner(step)
    every = max(1, epochs // MEASUREMENTS)
    at_start: dict[str, Tensor] = {} if len(recorder) else measure(step)
    step.student.train()
    stopped: TrainingStopped | None = None
    for epoch in range(len(recorder), epochs):
        step.set_learning_rate(learning_rate_of(epoch))
        loss, masked = run(mask_of(epoch))
        measured = at_start if epoch == 0 else {}
        if epoch > 0 and (epoch % every == 0 or epoch == epochs - 1):
            measured = measure(step)
        if measured:
            measured |= difficulty_quantiles(step.difficulty)
        recorder.add(loss=loss, masked=masked, **measured)
        if measured or loss.device.type == "cpu" or epoch == epochs - 1:  # a GPU is not waited for each time
            refuse_lost(recorder)
        if after_epoch is not None:
            try:
                after_epoch(epoch, recorder)
            except TrainingStopped as stop:  # between two epochs: what was learned so far is whole
                stopped = stop
                break
    step.student.eval()
    history = recorder.history(step.difficulty)
    history.stopped = stopped
    return history


def refuse_lost(recorder: Recorder) -> None:
    """End a training whose loss is no longer a number: all that follows would be NaN too.

    Raises:
        LossError: with the model and the first epoch.
    """
    lost = recorder.first_lost()
    if lost is not None:
        epoch, model = lost
        raise LossError(
            f"the loss of model {model} is not finite after epoch {epoch + 1}, so that nothing more is "
            "learned: let the features be scaled (scale_features=auto), or give a smaller learning_rate"
        )


def runner(step: Step) -> Callable[[MaskStrategy], Tensor]:
    """Return what runs a step: a recording of it, where the device and its batches allow one."""
    return CapturedStep(step) if step.source.device.type == "cuda" and step.source.whole else step


@torch.no_grad()
def measure(step: Step) -> dict[str, Tensor]:
    """Measure the rank of the student's embedding, and how far the teacher is from it, each `[models]`."""
    student = step.student
    training = student.training
    student.eval()
    rows = sample_rows(step.source.nodes).to(step.source.device)
    batch = step.source.batch_of(rows)
    tokens = student.tokens(student.project(batch.part), batch.part, student.edges(batch.factor, batch.start))
    measured = {
        "effective_rank": effective_rank(student.fuse(tokens[:, rows] if batch.part.whole else tokens))
    }
    distance = step.teacher_distance()
    if distance is not None:
        measured["teacher_distance"] = distance
    student.train(training)
    return measured


@dataclass(frozen=True)
class Snapshots:
    """After which epochs to hand over the embedding, and to whom.

    The training is not disturbed: with or without, its result is the same, bit for bit on CPU.

    Attributes:
        epochs: how many epochs have been made; 0 is before the first.
        callback: gets that number, the models that the embedding is of, and the embedding, float32
            `[nodes, len(models) · D]` on the device of the training. Models that do not fit into memory
            together are trained in groups one after another, and each group hands over its own: join them by
            `models`.
        with_tokens: put the tokens beside the embedding.
    """

    epochs: Collection[int]
    callback: Callable[[int, range, Tensor], None]
    with_tokens: bool = False

    def through(self, change: Callable[[Tensor], Tensor], *, with_tokens: bool) -> Snapshots:
        """Return the same, with every embedding read out as a fitted one is before it is handed over."""
        return Snapshots(
            self.epochs, lambda epoch, models, rows: self.callback(epoch, models, change(rows)), with_tokens
        )

    def begin(self, step: Step, models: range) -> None:
        """Hand over the untrained embedding, if it is wanted."""
        if 0 in self.epochs:
            self._hand_over(step, models, 0)

    def after_epoch(self, step: Step, models: range) -> AfterEpoch:
        """Return what the loop has to call after each epoch."""

        def hand_over(epoch: int, recorder: Recorder) -> None:
            if epoch + 1 in self.epochs:
                self._hand_over(step, models, epoch + 1)

        return hand_over

    def _hand_over(self, step: Step, models: range, epochs: int) -> None:
        assert isinstance(step.source, WholeGraph)
        found = embed_models(step.student, step.source.rows(), with_tokens=self.with_tokens)
        self.callback(epochs, models, joined(found))


def each(*watchers: AfterEpoch | None) -> AfterEpoch | None:
    """Return what calls all of these, in turn."""
    those = [one for one in watchers if one is not None]
    if not those:
        return None

    def call(epoch: int, recorder: Recorder) -> None:
        for one in those:
            one(epoch, recorder)

    return call


@contextmanager
def progress_bar(epochs: int, title: str, *, show: bool) -> Iterator[AfterEpoch | None]:
    """Show a bar on standard error while the block runs; nothing where that is not a terminal."""
    if not (show and sys.stderr.isatty()):
        yield None
        return
    with progress(counted=True) as add_bar:
        bar, shown = add_bar(title, epochs), 0.0

        def update(epoch: int, recorder: Recorder) -> None:
            nonlocal shown
            if time.monotonic() - shown > OFTEN or epoch == epochs - 1:
                shown = time.monotonic()
                loss, rank = recorder.latest("loss"), recorder.latest("effective_rank")
                bar(completed=epoch + 1, note=f"loss {loss:.4g}  rank {rank:.1f}")

        yield update
