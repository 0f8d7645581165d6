"""Running the step as a CUDA graph: one launch instead of hundreds."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from h3gnn.training.step import MaskStrategy, Step

EAGER_STEPS = 3
"""So many steps of each mask strategy run as usual first, so that every library has set itself up."""


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
