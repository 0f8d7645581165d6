"""Embeddings on the way: what the students say after chosen epochs, handed over while they train."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.training.history import Recorder
from h3gnn.training.loop import Watch
from h3gnn.training.step import Step

CHUNK = 4096
"""So many nodes are fused at a time."""


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
    """

    epochs: Collection[int]
    callback: Callable[[int, range, Tensor], None]

    def through(self, change: Callable[[Tensor], Tensor]) -> Snapshots:
        """Return the same, with every embedding changed before it is handed over."""
        return Snapshots(self.epochs, lambda epoch, models, rows: self.callback(epoch, models, change(rows)))

    def begin(self, step: Step, models: range) -> None:
        """Hand over the untrained embedding, if it is wanted."""
        if 0 in self.epochs:
            self.callback(0, models, embed(step))

    def watching(self, step: Step, models: range, watch: Watch | None) -> Watch:
        """Return what the loop has to call after each epoch, beside what it called already."""

        def after_epoch(epoch: int, recorder: Recorder) -> None:
            if watch is not None:
                watch(epoch, recorder)
            if epoch + 1 in self.epochs:
                self.callback(epoch + 1, models, embed(step))

        return after_epoch


@torch.no_grad()
def embed(step: Step) -> Tensor:
    """Return the students' embeddings side by side, `[nodes, models · D]`, in evaluation mode and in full."""
    student = step.student
    training, rough = student.training, student.fuse_in_bfloat16
    student.eval()
    student.fuse_in_bfloat16 = False
    tokens = student.tokens(student.project(step.features), step.support)
    pieces = [student.fuse(piece) for piece in torch.split(tokens, CHUNK, dim=1)]
    student.fuse_in_bfloat16 = rough
    student.train(training)
    return torch.cat(pieces, dim=1).transpose(0, 1).flatten(1)
