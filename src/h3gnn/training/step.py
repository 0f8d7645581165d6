"""One epoch of the method, in the order of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

COLUMN_NOISE, SWAP_NOISE, PATH_NOISE = (1 << 20) + 1, (1 << 20) + 2, (1 << 20) + 3
"""Streams of the noise that drops feature columns, swaps the features of masked nodes, and drops paths."""
MaskStrategy = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From difficulty `[models, nodes]` and one generator per model to a mask, bool `[models, nodes]`."""


@dataclass(eq=False)
class Step:
    """Mask, encode with student and teacher, compare, update the student, update the teacher.

    The mask is drawn once per epoch over all nodes, from the difficulty of every node when it was last a
    seed. In mini-batches the other parts run for one batch after another, and the loss is over the seeds
    alone.

    Attributes:
        teacher: of the first models, if any has one.
        feature_drop, edge_drop: rates at which feature columns and edges are hidden from each model's
            student.
        replace_rate: rates at which a masked node gets another node's features instead of the mask token.
        generators: one per model, on the source's device.
        order: generator of the order of nodes, the samples, and the noise of batches; equal in all processes.
        chunk: number of nodes that are fused at a time.
        keep: whether the fusion block's results for all nodes fit into memory, for losses over all nodes.
        difficulty: `[models, nodes]`, of each node when it was last a seed.
    """

    student: EncoderStack
    teacher: Teacher | None
    objectives: ObjectiveEnsemble
    optimizer: StackedAdam
    source: Source
    feature_drop: Sequence[float]
    edge_drop: Sequence[float]
    replace_rate: Sequence[float]
    generators: Sequence[torch.Generator]
    order: torch.Generator
    chunk: int
    ranks: Ranks
    keep: bool = True

    def __post_init__(self) -> None:
        student, device = self.student, self.source.device
        self._columns = torch.arange(student.input.weight.shape[1], device=device)
        shape, dtype = (student.models, self.source.nodes), student.linear_bias.dtype
        self.difficulty = torch.zeros(shape, device=device, dtype=dtype)

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Train on every node once and return the loss and the size of the mask, `[2, models]`."""
        mask = mask_strategy(self.difficulty, self.generators)
        with rounded_products(self.source.device, allowed=self.student.fuse_in_bfloat16):
            found = [self.train_on(batch, mask) for batch in self.source.epoch(self.order, self.ranks)]
        loss = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        return torch.stack([loss.mean(dim=1), mask.sum(dim=1).to(loss.dtype)])

    def train_on(self, batch: Batch, mask: Tensor) -> Tensor:
        """Run one training step; return the difficulty of the seeds of all processes, `[models, seeds]`."""
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
        weights, pairs_kept = student.edges(batch.factor, batch.start), None
        kept_edges = batch.pairs_kept(self.edge_drop, noise)
        if kept_edges is not None:
            weights, pairs_kept = weights * kept_edges[0], kept_edges[1]
        follows = part.whole and self._follows_products(part.features)
        # the teacher first, while memory is free, unless it needs the student's products or draws after it
        last = follows or (self.teacher is not None and self.teacher.live)
        teacher = None if last else self._teacher_view(batch, noise)
        projected = student.project(part, self._seen_columns(noise))
        by_token, donors = self._swapped(hidden, part, noise, drawers)
        products = list(projected) if follows else None
        tokens = student.tokens(
            projected, part, weights, by_token, noise, donors, self._seen_paths(part, noise)
        )
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
        """Return the teacher's view of a batch; it averages the student's products, if given."""
        if self.teacher is None:
            return None
        weights = self.teacher.encoder.edges(batch.factor, batch.start)
        noise = noise.fork(self.teacher.models)
        return self.teacher.forward(batch.part, batch.compared, weights, products, noise, self.chunk)

    def _follows_products(self, features: FeatureMatrix) -> bool:
        """Whether the teacher averages the student's products, which must be of all columns.

        A GPU's tensor cores recompute them faster than an average over more rows than columns takes.
        """
        nodes, columns = features.shape
        tensor_cores = features.device.type == "cuda" and self.student.bfloat16_tokens
        return not any(self.feature_drop) and not (tensor_cores and columns <= nodes)

    def _seen_columns(self, noise: Noise) -> Tensor | None:
        """Draw the factors of the feature columns for each model's student, `[models, columns]`."""
        kept = noise.keep(self.feature_drop, self._columns, (), COLUMN_NOISE)
        if kept is None:
            return None
        return drop(torch.ones_like(kept, dtype=self.difficulty.dtype), kept, self.feature_drop)

    def _seen_paths(self, part: Part, noise: Noise) -> Tensor | None:
        """Draw which paths to other types each model's student sees of each node, as edges are dropped."""
        paths = self.student.path_tokens
        if paths is None:
            return None
        kept = noise.keep(self.edge_drop, part.seeds, (len(paths.widths),), PATH_NOISE)
        return None if kept is None else kept.to(self.difficulty.dtype)

    def _swapped(
        self, hidden: Tensor, part: Part, noise: Noise, drawers: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor | None]:
        """Choose masked nodes that get the features of another node, any of the seeds.

        Returns the nodes with the mask token, bool `[models, nodes]`, and the node whose features each node
        gets; None if no features are swapped.
        """
        kept = noise.keep(self.replace_rate, part.nodes, (), SWAP_NOISE)
        if kept is None:
            return hidden, None
        own, seeds = torch.arange(hidden.shape[1], device=hidden.device), part.counts[0]
        ahead = (draw(drawers, len(own), hidden.device) * (seeds - 1)).long().clamp_max_(max(0, seeds - 2))
        return hidden & kept, torch.where(hidden & ~kept, (own + 1 + ahead) % seeds, own)

    def _share_gradients(self, batch: Batch) -> None:
        """Add the gradients of all processes; a process without seeds adds zeros."""
        if batch.part.whole:
            return
        for parameter in self.optimizer.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.all_reduce([cast(Tensor, parameter.grad) for parameter in self.optimizer.parameters])

    def _share_statistics(self) -> None:
        """Average batch norm's running statistics over processes."""
        buffers = list(self.student.buffers())
        if buffers and self.ranks.size > 1:
            self.ranks.all_reduce(buffers)
            for buffer in buffers:
                buffer.div_(self.ranks.size)

    def teacher_distance(self) -> Tensor | None:
        """Return ‖Φ − Ψ‖ / ‖Φ‖ of each model, NaN without a teacher; None if no model has one."""
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

    The fusion block is per node. If the loss is, too, only the gradient of the tokens is collected: memory
    does not grow with the graph, and nothing is computed twice. If the loss depends on all nodes together
    (`whole`), their embeddings are computed first; the intermediate results are kept until the gradient is
    known if there is memory (`keep`), or computed again. `share` is this process's share of the batch's mean
    loss.
    """
    nodes = tokens.shape[1]
    gradient = torch.empty_like(tokens)
    at_least_float = torch.promote_types(tokens.dtype, torch.float32)
    difficulty = torch.empty(tokens.shape[:2], dtype=at_least_float, device=tokens.device)

    def fused(rows: slice) -> tuple[Tensor, Tensor]:
        piece = tokens[:, rows].detach().requires_grad_()
        return piece, fuse(piece, None if kept is None else kept[:, rows])

    def backward(piece: Tensor, embedding: Tensor, rows: slice, upstream: Tensor) -> None:
        embedding.backward(upstream)  # type: ignore[no-untyped-call]
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
