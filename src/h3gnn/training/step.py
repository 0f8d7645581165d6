"""One epoch of the method, in the order in which the paper tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support
from h3gnn.encoder.layers import Dropout
from h3gnn.training.objective import Objective, backward_by_chunks
from h3gnn.training.optimizer import StackedAdam

MaskStrategy = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From difficulty `[models, nodes]` and one generator per model to a mask, bool `[models, nodes]`."""


class Step:
    """Mask, encode with the student, look with the teacher, compare, step, move the teacher.

    Args:
        student: a stack of one or more models.
        objective: what the student is asked for; it holds the teacher.
        optimizer: over the student's parameters (and the decoder's, without a teacher).
        features: of all nodes.
        support: where messages may flow.
        generators: one per model, on the features' device.
        chunk: how many nodes the fusion block sees at a time.

    Attributes:
        difficulty: `[models, nodes]`, from the step before; the next mask is drawn from it.
    """

    def __init__(
        self,
        student: JointEncoder,
        objective: Objective,
        optimizer: StackedAdam,
        features: FeatureMatrix,
        support: Support,
        generators: Sequence[torch.Generator],
        chunk: int,
    ) -> None:
        self.student, self.objective, self.optimizer = student, objective, optimizer
        self.features, self.support = features, support
        self.generators, self.chunk = generators, chunk
        self.difficulty = torch.zeros(student.models, features.shape[0], device=features.device)

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Make the step and return the loss and the size of the mask, `[2, models]`."""
        student, dropout = self.student, Dropout(self.generators)
        mask = mask_strategy(self.difficulty, self.generators)
        projected = student.project(self.features)
        tokens = student.tokens(projected, self.support, mask, dropout=dropout)
        kept = student.attention_keep(tokens.shape[1], dropout)
        distance = self.objective.distance(projected, self.support, dropout)
        difficulty = backward_by_chunks(student.fuse, distance, tokens, kept, self.chunk)
        spent = student.input.weight.grad
        self.optimizer.step()
        self.features.recycle(spent)
        self.objective.update(student)
        self.difficulty.copy_(difficulty)
        return torch.stack([difficulty.mean(dim=1), mask.sum(dim=1).to(difficulty.dtype)])
