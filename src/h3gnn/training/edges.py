r"""The edge weights in training: all of them parameters among others, or stepped where a batch touches them.

**Student.** Every entry of the support runs its own Adam, whose steps are the batches that touch it: moments
and bias correction count those alone. Where every batch touches every entry this is Adam itself.

**Teacher.** Between two touches the student's weight :math:`w` stands still, so k steps of the moving average
have a closed form, :math:`t \leftarrow w + \alpha^k (t - w)`: it is taken when the entry is next needed, and
equals the average that is moved at every step.

**Several processes.** Each holds a range of the entries. It hands the weights that a batch needs to whoever
asks, gets their gradients back, and steps and follows them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from h3gnn.encoder.encode import Allocate
from h3gnn.encoder.stack import EncoderStack
from h3gnn.training.batches import Batch
from h3gnn.training.distributed import Ranks
from h3gnn.training.exchange import Asked
from h3gnn.training.optimizer import EPSILON, FIRST_DECAY, SECOND_DECAY

MOST_COUNTED = 32_767
"""Touches are counted in 16 bits; by then the bias correction is 1 to 14 digits."""
ENTRIES_AT_A_TIME = 1 << 20


class Edges(Protocol):
    """The edge weights of students and teachers."""

    @property
    def entries(self) -> int | None:
        """How many entries of the support have a state here, over all processes; None: there is none."""

    def student(self, batch: Batch) -> Tensor:
        """Return the students' weights of a batch's edges `[models, weights]`, to be differentiated."""

    def teacher(self, batch: Batch) -> Tensor:
        """Return the teachers' weights of a batch's edges."""

    def step(self) -> None:
        """Step the students' weights of the last batch, once the backward pass is done."""

    def set_learning_rate(self, factor: float) -> None:
        """Set every learning rate to this share of its own."""

    def distance(self) -> tuple[Tensor, Tensor] | None:
        """Return ‖Φ − Ψ‖² and ‖Φ‖² of the weights that are kept here, if any."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to keep beside the logits, to go on later; they keep their place in memory."""

    def whole(self, name: str, mine: Tensor) -> Tensor:
        """Return all entries of a tensor in the first process; the others help, and keep what is theirs."""


class ParameterEdges:
    """Edge weights with no state of their own here.

    The optimiser steps those of the whole graph and the teacher follows, as with all other parameters; fixed
    ones stay, and computed ones are the encoders' own business.
    """

    entries = None

    def __init__(self, student: EncoderStack, teacher: EncoderStack | None) -> None:
        self._student, self._teacher = student, teacher

    def student(self, batch: Batch) -> Tensor:
        """Return the students' weights."""
        weights: Tensor = self._student.edges(batch.factor, batch.start)
        return weights

    def teacher(self, batch: Batch) -> Tensor:
        """Return the teachers' weights."""
        assert self._teacher is not None
        weights: Tensor = self._teacher.edges(batch.factor, batch.start)
        return weights

    def step(self) -> None:
        """Nothing is left to do."""

    def set_learning_rate(self, factor: float) -> None:
        """Nothing is left to do."""

    def distance(self) -> tuple[Tensor, Tensor] | None:
        """The teacher measures these among all others."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Everything is kept with the encoders."""
        return {}

    def whole(self, name: str, mine: Tensor) -> Tensor:
        """Nothing is divided."""
        return mine


@dataclass
class EdgeSteps:
    """How fast edge weights move, one value per model."""

    learning_rates: Sequence[float]
    weight_decays: Sequence[float]
    momentum: Sequence[float]


class SparseEdges:
    """The students' and teachers' learned numbers `[models, entries]`, read and stepped by entry.

    22 bytes per entry for one model: two logits and two moments in float32, the touches in 16 bits, and the
    step up to which the teacher has followed in 32.

    Args:
        logit: the students', stepped in place.
        teacher_logit: of the first models' teachers, moved in place; None without teachers.
        steps: learning rate and weight decay of each model, momentum of each teacher.
        strength: from the numbers to the weights that they stand for.
        allocate: where the rest of the state lives; memory by default.
        ranks: the processes that the entries are divided among; all tensors are of this one's part.
        entries: how many there are over all processes; as many as there are numbers by default.
    """

    def __init__(
        self,
        logit: Tensor,
        teacher_logit: Tensor | None,
        steps: EdgeSteps,
        strength: Callable[[Tensor], Tensor] = torch.sigmoid,
        allocate: Allocate | None = None,
        ranks: Ranks | None = None,
        entries: int | None = None,
    ) -> None:
        self.ranks, self.entries = ranks or Ranks(), entries or logit.shape[1]
        self.allocate = allocate
        self.logit, self.teacher_logit, self.strength = logit.detach(), teacher_logit, strength
        make = allocate or (lambda _, shape, dtype: torch.zeros(shape, dtype=dtype, device=logit.device))
        models, held = logit.shape
        self.first = make("first-moment", (models, held), logit.dtype)
        self.second = make("second-moment", (models, held), logit.dtype)
        self.touched = make("touched", (held,), torch.int16)
        self.followed = make("followed", (held,), torch.int32)
        self.rate = self._column(steps.learning_rates)
        self.decay = self._column(steps.weight_decays)
        self.momentum = self._column(steps.momentum)
        self.factor = 1.0
        self.taken = torch.zeros((), dtype=torch.int64, device=logit.device)
        self._leaf: Tensor | None = None
        self._heard: Tensor | None = None
        self._asked = Asked(torch.empty(0, dtype=torch.int64))

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.logit.device)[:, None]

    def student(self, batch: Batch) -> Tensor:
        """Return the students' weights; their gradient is kept for `step`.

        The teachers' come with them, moved up to this step.
        """
        assert batch.entries is not None
        self._asked = self.ranks.ask(batch.entries, self.entries)
        places = self._asked.places.to(self.logit.device)
        held = [self.logit.index_select(1, places)]
        if self.teacher_logit is not None:
            self._follow(places)
            held.append(self.teacher_logit.index_select(1, places))
        here, *heard = [one.to(batch.factor.device) for one in self._asked.fetch(held)]
        self._leaf, self._heard = here.requires_grad_(torch.is_grad_enabled()), heard[0] if heard else None
        return self.strength(self._leaf) * batch.factor

    def teacher(self, batch: Batch) -> Tensor:
        """Return the teachers' weights of the batch that `student` was last asked for."""
        assert self._heard is not None
        return self.strength(self._heard) * batch.factor

    def step(self) -> None:
        """Step the students at the entries that any process touched."""
        assert self._leaf is not None
        leaf, self._leaf = self._leaf, None
        gradient = self._asked.give(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
        device = self.logit.device
        self.step_entries(self._asked.places.to(device), gradient.to(device))

    def step_entries(self, entries: Tensor, gradient: Tensor) -> None:
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

    def set_learning_rate(self, factor: float) -> None:
        """Set every learning rate to this share of its own."""
        self.factor = factor

    def settle(self) -> None:
        """Move all of the teachers' logits up to this step."""
        if self.teacher_logit is None:
            return
        for start in range(0, self.logit.shape[1], ENTRIES_AT_A_TIME):
            end = min(start + ENTRIES_AT_A_TIME, self.logit.shape[1])
            self._follow(torch.arange(start, end, device=self.logit.device))

    def distance(self) -> tuple[Tensor, Tensor] | None:
        """Return ‖w − t‖² and ‖w‖² over all logits, for each model with a teacher."""
        if self.teacher_logit is None:
            return None
        self.settle()
        models = self.teacher_logit.shape[0]
        apart, size = torch.zeros(2, models, dtype=torch.float64)
        for theirs, mine in zip(
            torch.split(self.logit[:models], ENTRIES_AT_A_TIME, dim=1),
            torch.split(self.teacher_logit, ENTRIES_AT_A_TIME, dim=1),
            strict=True,
        ):
            apart += (theirs - mine).square().sum(dim=1).double().cpu()
            size += theirs.square().sum(dim=1).double().cpu()
        self.ranks.add([apart, size])
        return apart, size

    def _follow(self, entries: Tensor) -> None:
        assert self.teacher_logit is not None
        behind = self.taken - self.followed[entries]
        share = 1 - self.momentum ** behind.to(torch.float64)
        mine = self.teacher_logit.index_select(1, entries)
        mine.lerp_(self.logit[: len(mine)].index_select(1, entries), share.to(mine.dtype))
        self.teacher_logit.index_copy_(1, entries, mine)
        self.followed[entries] = self.taken.to(torch.int32)

    def state(self) -> dict[str, Tensor]:
        """Return the moments, the counts, and how far the teacher has followed."""
        return {
            "first": self.first,
            "second": self.second,
            "touched": self.touched,
            "followed": self.followed,
            "taken": self.taken,
        }

    def whole(self, name: str, mine: Tensor) -> Tensor:
        """Bring the parts of a tensor together, in a tensor of the host or in a file."""
        make = self.allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
        shape = (*mine.shape[:-1], self.entries)
        whole = make(f"whole-{name}", shape, mine.dtype) if self.ranks.rank == 0 else None
        self.ranks.collect(mine, whole, self.entries)
        return mine if whole is None else whole
