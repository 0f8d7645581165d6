"""The teacher: a moving average of the student that is never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder.noise import Noise
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.tokens import Part, Projected, Unprojected
from h3gnn.encoder.triton import kernels_for


class Teacher(nn.Module):
    r"""The exponential moving average of the student, both parameters and buffers.

    .. math:: \Psi_i = \alpha \Psi_{i-1} + (1 - \alpha) \Phi_i, \qquad \Psi_0 = \Phi_0

    Its parameters take no gradient, and it stays in evaluation mode even after `.train()` (`live=True` keeps
    it in training mode, as in the released code). Its models are the first ones of the student's stack;
    `momentum` is α of each.

    On the whole graph the moving average commutes with the first linear map,
    :math:`X\,\mathrm{EMA}(W) = \mathrm{EMA}(XW)`, so the teacher averages the student's products instead of
    multiplying with the features.
    """

    def __init__(self, student: EncoderStack, momentum: Sequence[float], live: bool = False) -> None:
        super().__init__()
        self.momentum, self.live = list(momentum), live
        self.encoder = student.copy_models(range(len(self.momentum))).requires_grad_(False)
        self.products: Projected | None = None
        self._sizes: Tensor | None = None
        self.train()

    @property
    def models(self) -> int:
        """Number of models with a teacher."""
        return len(self.momentum)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, unless the teacher is live."""
        return super().train(self.live)

    @torch.no_grad()
    def forward(
        self,
        part: Part,
        compared: Tensor | None,
        edge_weights: Tensor,
        student_products: Sequence[Projected | Unprojected] | None,
        noise: Noise,
        chunk: int | None = None,
    ) -> TeacherView:
        """Return the teacher's tokens of a part, unmasked.

        `compared` selects seeds; None is all. `student_products` are the student's products with the features
        of this step, unmasked, which the teacher averages; with None it multiplies itself. `noise` is used by
        a live teacher.
        """
        projected: list[Projected | Unprojected] = (
            self.encoder.project(part)
            if student_products is None
            else [self._average(cast(Projected, student_products[0]))]
        )
        used_noise = noise if self.live else None
        tokens = self.encoder.tokens(projected, part, edge_weights, noise=used_noise)
        nodes = part.seeds
        if compared is not None:
            tokens, nodes = tokens.index_select(1, compared), nodes[compared]
        kept = self.encoder.attention_keep(nodes, used_noise)
        return TeacherView(self.encoder, tokens, kept, chunk or max(1, tokens.shape[1]))

    def _average(self, products: Projected) -> Projected:
        dtype = self.encoder.linear_bias.dtype  # small steps would be lost in bfloat16
        mine = [product.detach()[: self.models].to(dtype) for product in products]
        if self.products is None:
            self.products = Projected(*(product.clone() for product in mine))
        else:
            self._follow(list(self.products), mine)
        return Projected(*(average.to(products.nodes.dtype) for average in self.products))

    @torch.no_grad()
    def update(self, student: EncoderStack) -> None:
        """Move towards the student."""
        self._follow(self._weights(self.encoder), [w[: self.models] for w in self._weights(student)])

    def _weights(self, encoder: EncoderStack) -> list[Tensor]:
        return [*(parameter.detach() for parameter in encoder.parameters()), *encoder.buffers()]

    def distance(self, student: EncoderStack) -> tuple[Tensor, Tensor]:
        """Return ‖Φ − Ψ‖² and ‖Φ‖² of each model `[models]`, over all averaged weights."""
        pairs = list(zip(self._weights(student), self._weights(self.encoder), strict=True))
        apart = torch.stack([(s[: self.models] - t).flatten(1).square().sum(dim=1) for s, t in pairs])
        size = torch.stack([s[: self.models].flatten(1).square().sum(dim=1) for s, _ in pairs])
        return apart.sum(dim=0), size.sum(dim=0)

    def _follow(self, mine: list[Tensor], theirs: list[Tensor]) -> None:
        if len(set(self.momentum)) == 1:
            move_towards(mine, theirs, 1 - self.momentum[0])
            return
        if self._sizes is None:  # cached, since a copy to a GPU is a sync
            sizes = [1 - momentum for momentum in self.momentum]
            self._sizes = torch.tensor(sizes, dtype=torch.float64, device=mine[0].device)
        for average, new in zip(mine, theirs, strict=True):
            average.lerp_(new, self._sizes.view(-1, *[1] * (new.dim() - 1)).to(new.dtype))


def move_towards(averages: Sequence[Tensor], values: Sequence[Tensor], share: float) -> None:
    """Move each average by a share of its distance to the new value, in place."""
    kernels = kernels_for(averages[0])
    pairs = list(zip(averages, values, strict=True))
    if kernels is not None:
        for average, value in pairs:
            if kernels.is_large(average):
                kernels.ema_update(average, value, share)
        pairs = [pair for pair in pairs if not kernels.is_large(pair[0])]
    torch._foreach_lerp_([average for average, _ in pairs], [value for _, value in pairs], share)


class TeacherView:
    """The teacher's view of a part of the graph: its embedding of any of the seeds."""

    def __init__(self, encoder: EncoderStack, tokens: Tensor, kept: Tensor | None, chunk: int) -> None:
        self.encoder, self.tokens, self.kept, self.chunk = encoder, tokens, kept, chunk

    @torch.no_grad()
    def embedding(self, rows: slice) -> Tensor:
        """Return the teacher's embedding of some seeds, `[models, rows, D]`."""
        first, last, _ = rows.indices(self.tokens.shape[1])
        if last - first <= self.chunk:
            return self._fused(slice(first, last))
        shape = self.encoder.models, last - first, self.encoder.out_channels
        found = self.encoder.linear_bias.new_empty(shape)
        for start in range(first, last, self.chunk):
            some = slice(start, min(start + self.chunk, last))
            found[:, start - first : some.stop - first] = self._fused(some)
        return found

    def _fused(self, rows: slice) -> Tensor:
        return self.encoder.fuse(self.tokens[:, rows], None if self.kept is None else self.kept[:, rows])
