"""The training loop, its step as a CUDA graph, and callbacks: progress bar and snapshots."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.encoder.encode import concat_models, embed_models
from h3gnn.errors import LossError, TrainingStopped
from h3gnn.resources import progress
from h3gnn.training.batches import WholeGraph
from h3gnn.training.history import History, Recorder, difficulty_quantiles, effective_rank, sample_rows
from h3gnn.training.step import MaskStrategy, Step

EAGER_STEPS = 3
"""Steps of each mask strategy before its capture, so that every library is initialized."""
MEASUREMENTS, STRIDE = 20, 3
"""Most measurements of rank, teacher distance and quantiles of the difficulty, and epochs between two."""
REFRESH_SECONDS = 0.2
"""Time between two updates of the progress bar: on a GPU, each of them waits for the device."""
AfterEpoch = Callable[[int, Recorder], None]
"""Called after each epoch with its number and the records so far."""
AfterEpochOf = Callable[[int], AfterEpoch]
"""From the number of a group's first model to the callback of that group."""


class CaptureWarning(UserWarning):
    """The step could not be captured; training continues without a CUDA graph."""


class CapturedStep:
    """A `Step` that captures itself once for each mask strategy and then replays the CUDA graph.

    All shapes are static and nothing is read back, so mask, both encodings, backward, Adam and moving average
    are one graph. The first steps run eagerly, on the captured stream; if capture fails, all do, with a
    warning.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._steps: dict[int, int] = {}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._failed = False

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Run the step and return the loss and the size of the mask, `[2, models]`."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            recorded = self._run(mask_strategy)
        torch.cuda.current_stream().wait_stream(self._stream)
        return recorded

    def _run(self, mask_strategy: MaskStrategy) -> Tensor:
        key = id(mask_strategy)
        steps = self._steps.get(key, 0)
        self._steps[key] = steps + 1
        if steps == EAGER_STEPS and not self._failed:
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
            self._failed = True
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"the step cannot be captured as a CUDA graph and runs eagerly: {reason}",
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
    """Train the student(s) of a step in place and return the history, with the signal that ended it, if any.

    `mask_of` and `learning_rate_of` map an epoch to its mask strategy, the same object for the same strategy
    since on CUDA a graph is stored for each, and to the factor of the learning rate. `recorder` has the
    epochs before a checkpoint.
    """
    recorder = Recorder() if recorder is None else recorder
    run = make_runner(step)
    every = max(STRIDE, -(-epochs // MEASUREMENTS))
    at_start: dict[str, Tensor] = {} if len(recorder) else measure(step)
    step.student.train()
    stopped: TrainingStopped | None = None
    for epoch in range(len(recorder), epochs):
        step.optimizer.set_learning_rate(learning_rate_of(epoch))
        loss, masked = run(mask_of(epoch))
        measured = at_start if epoch == 0 else {}
        if epoch > 0 and (epoch % every == 0 or epoch == epochs - 1):
            measured = measure(step)
        if measured:
            measured |= difficulty_quantiles(step.difficulty)
        recorder.add(loss=loss, masked=masked, **measured)
        if measured or loss.device.type == "cpu" or epoch == epochs - 1:  # avoids a GPU sync in each epoch
            check_loss(recorder)
        if after_epoch is not None:
            try:
                after_epoch(epoch, recorder)
            except TrainingStopped as stop:  # between two epochs: the state is complete
                stopped = stop
                break
    step.student.eval()
    history = recorder.history(step.difficulty)
    history.stopped = stopped
    return history


def check_loss(recorder: Recorder) -> None:
    """End a training whose loss is not finite: all further epochs would be NaN too."""
    found = recorder.first_nonfinite()
    if found is not None:
        epoch, model = found
        raise LossError(
            f"the loss of model {model} is not finite after epoch {epoch + 1}: scale the features "
            "(scale_features=auto) or use a smaller learning_rate"
        )


def make_runner(step: Step) -> Callable[[MaskStrategy], Tensor]:
    """Return the step, or its CUDA graph if the device and its batches allow one."""
    return CapturedStep(step) if step.source.device.type == "cuda" and step.source.whole else step


@torch.no_grad()
def measure(step: Step) -> dict[str, Tensor]:
    """Measure the rank of the student's embedding and the teacher's distance from it, each `[models]`."""
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
    """Epochs after which `callback` receives the embedding; the training is not affected.

    Attributes:
        epochs: numbers of completed epochs; 0 is before the first.
        callback: gets that number, the models of the embedding, and the embedding, float32 `[nodes,
            len(models) · D]` on the device of the training. Models that do not fit into memory together are
            trained in groups, one after another, with one call per group: concatenate by `models`.
        with_tokens: append the tokens to the embedding.
    """

    epochs: Collection[int]
    callback: Callable[[int, range, Tensor], None]
    with_tokens: bool = False

    def transformed(self, change: Callable[[range, Tensor], Tensor], *, with_tokens: bool) -> Snapshots:
        """Return snapshots whose embeddings pass through `change` first, which also gets their models."""

        def callback(epoch: int, models: range, rows: Tensor) -> None:
            self.callback(epoch, models, change(models, rows))

        return Snapshots(self.epochs, callback, with_tokens)

    def begin(self, step: Step, models: range) -> AfterEpoch:
        """Pass on the untrained embedding, if requested; return the callback for the end of each epoch."""

        def take(epoch: int, recorder: Recorder | None = None) -> None:
            if epoch + 1 in self.epochs:
                assert isinstance(step.source, WholeGraph)
                found = embed_models(step.student, step.source.rows(), with_tokens=self.with_tokens)
                self.callback(epoch + 1, models, concat_models(found))

        take(-1)
        return take


def call_all(*callbacks: AfterEpoch | None) -> AfterEpoch | None:
    """Return a callback that calls all of these in turn; None without any."""
    given = [callback for callback in callbacks if callback is not None]
    if not given:
        return None

    def call(epoch: int, recorder: Recorder) -> None:
        for callback in given:
            callback(epoch, recorder)

    return call


@contextmanager
def progress_bar(epochs: int, title: str, *, show: bool) -> Iterator[AfterEpoch | None]:
    """Show a bar on standard error while the block runs, if that is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield None
        return
    with progress(counted=True) as add_bar:
        bar, shown = add_bar(title, epochs), 0.0

        def update(epoch: int, recorder: Recorder) -> None:
            nonlocal shown
            if time.monotonic() - shown > REFRESH_SECONDS or epoch == epochs - 1:
                shown = time.monotonic()
                loss, rank = recorder.latest("loss"), recorder.latest("effective_rank")
                bar(completed=epoch + 1, note=f"loss {loss:.4g}  rank {rank:.1f}")

        yield update
