r"""Edge weights that are stepped where a batch touches them, so that a step costs what the batch costs.

**Student.** Every entry of the support runs its own Adam, whose steps are the batches that touch it: moments
and bias correction count those alone. Where every batch touches every entry this is Adam itself.

**Teacher.** Between two touches the student's weight :math:`w` stands still, so k steps of the moving average
have a closed form, :math:`t \leftarrow w + \alpha^k (t - w)`: it is taken when the entry is next needed, and
equals the average that is moved at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Allocate = Callable[[str, tuple[int, ...], torch.dtype], Tensor]
"""Where the state lives: from name, shape and type to a tensor of zeros."""

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
MOST_COUNTED = 32_767
"""Touches are counted in 16 bits; by then the bias correction is 1 to 14 digits."""


@dataclass
class EdgeSteps:
    """How fast edge weights move, one value per model."""

    learning_rates: Sequence[float]
    weight_decays: Sequence[float]
    momentum: Sequence[float]


class SparseEdges:
    """The students' and teachers' edge logits `[models, entries]`, read and stepped by entry.

    22 bytes per entry for one model: two logits and two moments in float32, the touches in 16 bits, and the
    step up to which the teacher has followed in 32.

    Args:
        logit: the students', stepped in place.
        teacher_logit: the teachers', moved in place; None without teachers.
        steps: learning rate, weight decay and momentum of each model.
        allocate: where the rest of the state lives; memory by default.
    """

    def __init__(
        self, logit: Tensor, teacher_logit: Tensor | None, steps: EdgeSteps, allocate: Allocate | None = None
    ) -> None:
        self.logit, self.teacher_logit = logit.detach(), teacher_logit
        make = allocate or (lambda _, shape, dtype: torch.zeros(shape, dtype=dtype, device=logit.device))
        models, entries = logit.shape
        self.first = make("first-moment", (models, entries), logit.dtype)
        self.second = make("second-moment", (models, entries), logit.dtype)
        self.touched = make("touched", (entries,), torch.int16)
        self.followed = make("followed", (entries,), torch.int32)
        self.rate = self._column(steps.learning_rates)
        self.decay = self._column(steps.weight_decays)
        self.momentum = self._column(steps.momentum)
        self.factor = 1.0
        self.taken = torch.zeros((), dtype=torch.int64, device=logit.device)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.logit.device)[:, None]

    def student(self, entries: Tensor) -> Tensor:
        """Return the students' logits of some entries `[models, entries]`."""
        return self.logit.index_select(1, entries.to(self.logit.device))

    def teacher(self, entries: Tensor) -> Tensor:
        """Return the teachers' logits of some entries, moved up to this step."""
        assert self.teacher_logit is not None
        entries = entries.to(self.logit.device)
        self._follow(entries)
        return self.teacher_logit.index_select(1, entries)

    def step(self, entries: Tensor, gradient: Tensor) -> None:
        """Step the students at some entries, which must differ.

        Args:
            entries: which, `[touched]`.
            gradient: of the loss by their logits, `[models, touched]`.
        """
        if self.teacher_logit is not None:
            self._follow(entries)
        here = self.logit.index_select(1, entries)
        gradient = gradient + self.decay.to(gradient.dtype) * here
        first = self.first.index_select(1, entries).lerp_(gradient, 1 - FIRST_DECAY)
        second = self.second.index_select(1, entries).mul_(SECOND_DECAY)
        second.addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
        count = self.touched[entries].to(torch.int32).add_(1).clamp_max_(MOST_COUNTED)
        size = 1 - FIRST_DECAY ** count.to(torch.float64)
        spread = (1 - SECOND_DECAY ** count.to(torch.float64)).sqrt()
        rate = (self.factor * self.rate / size).to(here.dtype)
        here -= rate * first / (second.sqrt() / spread.to(here.dtype) + EPSILON)
        self.logit.index_copy_(1, entries, here)
        self.first.index_copy_(1, entries, first)
        self.second.index_copy_(1, entries, second)
        self.touched[entries] = count.to(torch.int16)
        self.taken += 1

    def settle(self, chunk: int = 1 << 20) -> None:
        """Move all of the teachers' logits up to this step."""
        if self.teacher_logit is None:
            return
        for start in range(0, self.logit.shape[1], chunk):
            end = min(start + chunk, self.logit.shape[1])
            self._follow(torch.arange(start, end, device=self.logit.device))

    def _follow(self, entries: Tensor) -> None:
        assert self.teacher_logit is not None
        behind = self.taken - self.followed[entries]
        share = 1 - self.momentum ** behind.to(torch.float64)
        mine = self.teacher_logit.index_select(1, entries)
        mine.lerp_(self.logit.index_select(1, entries), share.to(mine.dtype))
        self.teacher_logit.index_copy_(1, entries, mine)
        self.followed[entries] = self.taken.to(torch.int32)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to keep beside the logits, to go on later; they keep their place in memory."""
        return {
            "edges.first": self.first,
            "edges.second": self.second,
            "edges.touched": self.touched,
            "edges.followed": self.followed,
            "edges.taken": self.taken,
        }
