"""One epoch of the method, in the order in which the paper tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.noise import Noise, drop
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.tokens import Part, Projected, Unprojected
from h3gnn.training.batches import Batch, Source
from h3gnn.training.distributed import Ranks
from h3gnn.training.masking import draw
from h3gnn.training.objectives import Compare, ObjectiveEnsemble, View
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.resources import rounded_products
from h3gnn.training.teacher import Teacher, TeacherView

COLUMN_PLACE, SWAP_PLACE = (1 << 20) + 1, (1 << 20) + 2
"""Where the noise is drawn that drops feature columns, and that picks the nodes to show as another."""

MaskStrategy = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From difficulty `[models, nodes]` and one generator per model to a mask, bool `[models, nodes]`."""


class Step:
    """Mask, encode with the student, look with the teacher, compare, step, move the teacher.

    The mask is drawn once per epoch over all nodes, from the difficulty that every node had when it was last
    a seed. The whole graph is one batch; in mini-batches the rest is done for one batch after another, and
    the loss is the seeds' alone.

    Args:
        student: a stack of one or more models.
        teacher: of the first models, if any has one.
        objectives: what each model learns to predict.
        optimizer: over the parameters of student and objectives.
        source: the graph, batch by batch.
        feature_drop, edge_drop: the chances with which each model's student does not see a feature column or
            an edge.
        replace_rate: the chances with which a masked node shows another node's features, not the mask token.
        generators: one per model, on the source's device.
        order: for the order of nodes, what is sampled, and the noise of batches; the same in every process.
        chunk: how many nodes the fusion block sees at a time.
        keep: there is memory for what the block computes for all nodes, where a loss looks at all together.
        ranks: the processes that share the work.

    Attributes:
        difficulty: `[models, nodes]`, of each node when it was last a seed.
    """

    def __init__(
        self,
        student: EncoderStack,
        teacher: Teacher | None,
        objectives: ObjectiveEnsemble,
        optimizer: StackedAdam,
        source: Source,
        feature_drop: Sequence[float],
        edge_drop: Sequence[float],
        replace_rate: Sequence[float],
        generators: Sequence[torch.Generator],
        order: torch.Generator,
        chunk: int,
        ranks: Ranks | None = None,
        *,
        keep: bool = True,
    ) -> None:
        self.student, self.teacher, self.objectives = student, teacher, objectives
        self.optimizer, self.source = optimizer, source
        self.feature_drop, self.edge_drop = list(feature_drop), list(edge_drop)
        self.replace_rate = list(replace_rate)
        self.generators, self.order, self.chunk, self.keep = list(generators), order, chunk, keep
        self._columns = torch.arange(student.input.weight.shape[1], device=source.device)
        self.ranks = ranks or Ranks()
        dtype = student.linear_bias.dtype
        self.difficulty = torch.zeros(student.models, source.nodes, device=source.device, dtype=dtype)

    def set_learning_rate(self, factor: float) -> None:
        """Set every learning rate to this share of its own."""
        self.optimizer.set_learning_rate(factor)

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Train on every node once and return the loss and the size of the mask, `[2, models]`."""
        mask = mask_strategy(self.difficulty, self.generators)
        with rounded_products(self.source.device, allowed=self.student.fuse_in_bfloat16):
            found = [self.train_on(batch, mask) for batch in self.source.epoch(self.order, self.ranks)]
        loss = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        return torch.stack([loss.mean(dim=1), mask.sum(dim=1).to(loss.dtype)])

    def train_on(self, batch: Batch, mask: Tensor) -> Tensor:
        """Make one step; return the difficulty of the seeds of all processes, `[models, seeds]`."""
        difficulty = self._forward_backward(batch, mask)
        self._share_gradients(batch)
        spent = self.student.input.weight.grad
        self.optimizer.step()
        batch.part.features.recycle(spent)
        self._share_statistics()
        if self.teacher is not None:
            self.teacher.update(self.student)
        if batch.seeds is None:
            self.difficulty.copy_(difficulty)
            return difficulty
        every = self.ranks.all_gather(difficulty[:, : batch.own])
        self.difficulty.index_copy_(1, batch.seeds, every)
        return every

    def _forward_backward(self, batch: Batch, mask: Tensor) -> Tensor:
        """Run forward and backward on this process's seeds; return their difficulty `[models, seeds]`."""
        student, part = self.student, batch.part
        noise, drawers = self.source.noise(self.generators, self.order, self.ranks)
        hidden = part.rows_of(mask)
        weights, pairs_kept = self._seen_edges(batch, noise)
        follows = part.whole and self._follows_products(part.features)
        # while little else is kept, unless it needs the student's products or draws after it
        last = follows or (self.teacher is not None and self.teacher.live)
        teacher = None if last else self._teacher_view(batch, noise)
        projected = student.project(part, self._seen_columns(noise))
        by_token, donors = self._swapped(hidden, part, noise, drawers)
        products = list(projected) if follows else None
        tokens = student.tokens(projected, part, weights, by_token, noise, donors)
        nodes = part.seeds if batch.compared is None else batch.compared
        tokens, kept = batch.chosen(tokens), student.attention_keep(nodes, noise)
        teacher = self._teacher_view(batch, noise, products) if last else teacher
        view = View(
            batch,
            None if teacher is None else teacher.embedding,
            batch.chosen(hidden),
            pairs_kept,
            drawers,
            self.ranks,
        )
        compare, whole = self.objectives.compare(view), not self.objectives.node_by_node
        return backward_by_chunks(
            student.fuse, compare, tokens, kept, self.chunk, batch.share, whole=whole, keep=self.keep
        )

    def _teacher_view(
        self, batch: Batch, noise: Noise, products: Sequence[Projected | Unprojected] | None = None
    ) -> TeacherView | None:
        """Let the teacher, if there is one, look at a batch; it averages the student's products, if given."""
        if self.teacher is None:
            return None
        weights = self.teacher.encoder.edges(batch.factor, batch.start)
        noise = noise.another(self.teacher.models)
        return self.teacher.forward(batch.part, batch.compared, weights, products, noise, self.chunk)

    def _follows_products(self, features: FeatureMatrix) -> bool:
        """Whether the teacher averages the student's products, which must be of all columns.

        A GPU's tensor cores make them anew in less time than an average of more rows than columns takes.
        """
        nodes, columns = features.shape
        return not any(self.feature_drop) and not (self.student.rounds_tokens and columns <= nodes)

    def _seen_columns(self, noise: Noise) -> Tensor | None:
        """Draw what each model's student sees of the feature columns, `[models, columns]`."""
        kept = noise.keep(self.feature_drop, self._columns, (), COLUMN_PLACE)
        return (
            None
            if kept is None
            else drop(torch.ones_like(kept, dtype=self.difficulty.dtype), kept, self.feature_drop)
        )

    def _swapped(
        self, hidden: Tensor, part: Part, noise: Noise, drawers: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor | None]:
        """Pick masked nodes that show the features of another node, any of the seeds.

        Returns:
            Who shows the mask token, bool `[models, nodes]`, and whose features each node shows; None where
            each shows its own.
        """
        kept = noise.keep(self.replace_rate, part.nodes, (), SWAP_PLACE)
        if kept is None:
            return hidden, None
        own, seeds = torch.arange(hidden.shape[1], device=hidden.device), part.counts[0]
        ahead = (draw(drawers, len(own), hidden.device) * (seeds - 1)).long().clamp_max_(max(0, seeds - 2))
        return hidden & kept, torch.where(hidden & ~kept, (own + 1 + ahead) % seeds, own)

    def _seen_edges(self, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor | None]:
        """Return the students' edge weights, with some edges dropped, and which pairs are kept."""
        weights: Tensor = self.student.edges(batch.factor, batch.start)
        kept = batch.pairs_kept(self.edge_drop, noise)
        return (weights, None) if kept is None else (weights * kept[0], kept[1])

    def _share_gradients(self, batch: Batch) -> None:
        """Add up the gradients of all processes; one without seeds has zeros to add."""
        if batch.part.whole:
            return
        for parameter in self.optimizer.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.all_reduce([cast(Tensor, parameter.grad) for parameter in self.optimizer.parameters])

    def _share_statistics(self) -> None:
        """Let batch norm's running statistics be the mean over processes."""
        buffers = list(self.student.buffers())
        if buffers and self.ranks.size > 1:
            self.ranks.all_reduce(buffers)
            for buffer in buffers:
                buffer.div_(self.ranks.size)

    def teacher_distance(self) -> Tensor | None:
        """Return ‖Φ − Ψ‖ / ‖Φ‖ for each model, NaN where it has no teacher; None where none has."""
        if self.teacher is None:
            return None
        apart, size = self.teacher.distance(self.student)
        found = (apart / size.clamp_min(torch.finfo(size.dtype).tiny)).sqrt()
        missing = self.student.models - self.teacher.models
        return torch.cat([found, found.new_full((missing,), float("nan"))]) if missing else found


def backward_by_chunks(
    fuse: Callable[[Tensor, Tensor | None], Tensor],
    compare: Compare,
    tokens: Tensor,
    kept: Tensor | None,
    chunk: int,
    share: float = 1.0,
    *,
    whole: bool = False,
    keep: bool = True,
) -> Tensor:
    """Fuse, compare and run backward, a chunk of nodes at a time; return each node's difficulty.

    The fusion block is per node. Where the loss is, too, only the tokens' gradient has to be collected: the
    block's memory does not grow with the graph, and nothing is computed twice. Where the loss looks at all
    nodes together, their embeddings are made first; what the block computed on the way is kept until their
    gradient is known, or computed again then.

    Args:
        fuse: from tokens (and dropout masks) to embeddings.
        compare: from embeddings to each node's share of the loss.
        tokens: `[models, nodes, tokens, channels]`.
        kept: the attention's dropout masks, or None.
        chunk: how many nodes at a time.
        share: of a batch that several processes share, how much of its mean loss is these nodes'.
        whole: the loss looks at all nodes together.
        keep: there is memory for what the block computes for all nodes.
    """
    nodes = tokens.shape[1]
    gradient = torch.empty_like(tokens)
    at_least_float = torch.promote_types(tokens.dtype, torch.float32)
    difficulty = torch.empty(tokens.shape[:2], dtype=at_least_float, device=tokens.device)

    def fused(rows: slice) -> tuple[Tensor, Tensor]:
        piece = tokens[:, rows].detach().requires_grad_()
        return piece, fuse(piece, None if kept is None else kept[:, rows])

    def backward(piece: Tensor, embedding: Tensor, rows: slice, slope: Tensor) -> None:
        embedding.backward(slope)  # type: ignore[no-untyped-call]
        assert piece.grad is not None
        gradient[:, rows] = piece.grad

    pieces = [slice(start, min(start + chunk, nodes)) for start in range(0, nodes, chunk)]
    if not whole or len(pieces) == 1:
        for rows in pieces:
            piece, embedding = fused(rows)
            shares = compare(embedding, rows)
            backward(piece, shares, rows, torch.full_like(shares, share / nodes))
            difficulty[:, rows] = shares.detach()
    else:
        done: list[tuple[Tensor, Tensor]] = []
        every: Tensor | None = None
        with torch.set_grad_enabled(keep):
            for rows in pieces:
                piece, embedding = fused(rows)
                if every is None:
                    every = embedding.new_empty(*tokens.shape[:2], embedding.shape[2])
                every[:, rows] = embedding.detach()
                if keep:
                    done.append((piece, embedding))
        assert every is not None
        shares = compare(every.requires_grad_(), slice(0, nodes))
        shares.backward(torch.full_like(shares, share / nodes))  # type: ignore[no-untyped-call]
        difficulty.copy_(shares.detach())
        assert every.grad is not None
        for rows in reversed(pieces):
            backward(*(done.pop() if keep else fused(rows)), rows, every.grad[:, rows])
    tokens.backward(gradient)  # type: ignore[no-untyped-call]
    return difficulty
