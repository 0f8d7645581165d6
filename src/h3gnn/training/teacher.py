"""The teacher: a moving average of the student that is never trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from h3gnn.encoder import JointEncoder, Projected, Support
from h3gnn.encoder.layers import Dropout


class Teacher(nn.Module):
    r"""The exponential moving average of the student, parameters and buffers alike.

    .. math:: \Psi_i = \alpha \Psi_{i-1} + (1 - \alpha) \Phi_i, \qquad \Psi_0 = \Phi_0

    It guards itself: its parameters take no gradient, and it stays in evaluation mode whatever `.train()`
    says (`live=True` keeps it in training mode, as the released code does).

    The moving average reaches through the first linear map,
    :math:`X\,\mathrm{EMA}(W) = \mathrm{EMA}(XW)`, so the teacher averages the student's products instead of
    multiplying with the features itself.

    Args:
        student: the encoder to follow.
        momentum: α, one for all models of the stack or one each.
        live: keep batch norm and dropout as in training.
    """

    def __init__(self, student: JointEncoder, momentum: Sequence[float], live: bool = False) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(student).requires_grad_(False)
        self.momentum = list(momentum)
        self.live = live
        self.projected: Projected | None = None
        self._sizes: Tensor | None = None
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, unless the teacher is meant to be live."""
        return super().train(self.live)

    @torch.no_grad()
    def tokens(
        self, student_projected: Projected, support: Support, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the teacher's tokens on the full graph, and dropout masks for its attention if it is live.

        Args:
            student_projected: the student's products with the features, of this step and unmasked.
            support: where messages may flow.
            dropout: where a live teacher's keep-masks come from.
        """
        if self.projected is None:
            self.projected = Projected(*(product.detach().clone() for product in student_projected))
        else:
            self._follow(list(self.projected), list(student_projected))
        noise = dropout if self.live else None
        tokens = self.encoder.tokens(self.projected, support, dropout=noise)
        return tokens, self.encoder.attention_keep(tokens.shape[1], noise)

    @torch.no_grad()
    def update(self, student: JointEncoder) -> None:
        """Move towards the student."""
        mine, theirs = ([*encoder.parameters(), *encoder.buffers()] for encoder in (self.encoder, student))
        self._follow(mine, theirs)

    def _follow(self, mine: list[Tensor], theirs: list[Tensor]) -> None:
        if len(set(self.momentum)) == 1:
            torch._foreach_lerp_(mine, theirs, 1 - self.momentum[0])
            return
        weight = self._step_sizes(mine[0].device)
        for average, new in zip(mine, theirs, strict=True):
            average.lerp_(new, weight.view(-1, *[1] * (new.dim() - 1)).to(new.dtype))

    def _step_sizes(self, device: torch.device) -> Tensor:
        """Return 1 − α of each model `[models]`; kept, since a copy to a device stops it for a moment."""
        if self._sizes is None:
            sizes = [1 - momentum for momentum in self.momentum]
            self._sizes = torch.tensor(sizes, dtype=torch.float64, device=device)
        return self._sizes
