"""One epoch of the method, in the order in which the paper tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.stack import EncoderStack
from h3gnn.training.batches import Batch, Source
from h3gnn.training.distributed import Ranks
from h3gnn.training.edges import Edges
from h3gnn.training.objectives import Committee, Compare
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.teacher import Teacher

MaskStrategy = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From difficulty `[models, nodes]` and one generator per model to a mask, bool `[models, nodes]`."""


class Step:
    """Mask, encode with the student, look with the teacher, compare, step, move the teacher.

    The mask is drawn once per epoch over all nodes, from the difficulty that every node had when it was last
    a seed. The whole graph is one batch; in mini-batches the rest is done for one batch after another, and the
    loss is the seeds' alone.

    Args:
        student: a stack of one or more models.
        teacher: of the first models, if any has one.
        committee: what each model is asked for.
        optimizer: over the parameters of student and objectives.
        edges: the edge weights of students and teachers.
        source: the graph, batch by batch.
        generators: one per model, on the source's device.
        order: for the order of nodes, what is sampled, and the noise of batches; the same in every process.
        chunk: how many nodes the fusion block sees at a time.
        ranks: the processes that share the work.

    Attributes:
        difficulty: `[models, nodes]`, of each node when it was last a seed.
    """

    def __init__(
        self,
        student: EncoderStack,
        teacher: Teacher | None,
        committee: Committee,
        optimizer: StackedAdam,
        edges: Edges,
        source: Source,
        generators: Sequence[torch.Generator],
        order: torch.Generator,
        chunk: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.student, self.teacher, self.committee = student, teacher, committee
        self.optimizer, self.edges, self.source = optimizer, edges, source
        self.generators, self.order, self.chunk = list(generators), order, chunk
        self.ranks = ranks or Ranks()
        dtype = student.linear_bias.dtype
        self.difficulty = torch.zeros(student.models, source.nodes, device=source.device, dtype=dtype)

    def set_learning_rate(self, factor: float) -> None:
        """Set every learning rate to this share of its own."""
        self.optimizer.set_learning_rate(factor)
        self.edges.set_learning_rate(factor)

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Train on every node once and return the loss and the size of the mask, `[2, models]`."""
        mask = mask_strategy(self.difficulty, self.generators)
        for batch in self.source.epoch(self.order, self.ranks):
            self._train_on(batch, mask)
        return torch.stack([self.difficulty.mean(dim=1), mask.sum(dim=1).to(self.difficulty.dtype)])

    def _train_on(self, batch: Batch, mask: Tensor) -> None:
        difficulty = self._look(batch, mask)
        self._share_gradients(batch)
        spent = self.student.input.weight.grad
        self.optimizer.step()
        batch.part.features.recycle(spent)
        self.edges.step(batch, self.ranks)
        self._share_statistics()
        if self.teacher is not None:
            self.teacher.update(self.student)
        if batch.seeds is None:
            self.difficulty.copy_(difficulty)
        else:
            self.difficulty[:, batch.seeds] = self.ranks.join(difficulty)

    def _look(self, batch: Batch, mask: Tensor) -> Tensor:
        """Run forward and backward on this process's seeds; return their difficulty `[models, seeds]`."""
        student, part = self.student, batch.part
        noise = self.source.noise(self.generators, self.order)
        weights = self.edges.student(batch)
        if part.counts[0] == 0:
            return self.difficulty[:, :0]
        projected = student.project(part)
        tokens = student.tokens(projected, part, weights, part.rows_of(mask), noise)
        kept = student.attention_keep(part, noise)
        view = None
        if self.teacher is not None:
            heard = self.edges.teacher(batch)
            view = self.teacher.look(part, heard, projected if part.whole else None, noise.another())
        compare = self.committee.compare(batch, view)
        return backward_by_chunks(student.fuse, compare, tokens, kept, self.chunk, batch.share)

    def _share_gradients(self, batch: Batch) -> None:
        """Add up the gradients of all processes; one without seeds has zeros to add."""
        if batch.seeds is None:
            return
        for parameter in self.optimizer.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add([cast(Tensor, parameter.grad) for parameter in self.optimizer.parameters])

    def _share_statistics(self) -> None:
        """Let batch norm's running statistics be the mean over processes."""
        buffers = list(self.student.buffers())
        if buffers and self.ranks.size > 1:
            self.ranks.add(buffers)
            torch._foreach_div_(buffers, self.ranks.size)

    def teacher_distance(self) -> Tensor | None:
        """Return ‖Φ − Ψ‖ / ‖Φ‖ for each model, NaN where it has no teacher; None where none has."""
        if self.teacher is None:
            return None
        apart, size = self.teacher.distance(self.student)
        of_edges = self.edges.distance()
        if of_edges is not None:
            apart, size = apart + of_edges[0].to(apart), size + of_edges[1].to(size)
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
) -> Tensor:
    """Fuse, compare and run backward, a chunk of nodes at a time; return each node's difficulty.

    The fusion block and the loss are per node, so only the tokens' gradient has to be collected: the block's
    memory does not grow with the graph, and nothing is computed twice.

    Args:
        fuse: from tokens (and dropout masks) to embeddings.
        compare: from embeddings to each node's share of the loss.
        tokens: `[models, nodes, tokens, channels]`.
        kept: the attention's dropout masks, or None.
        chunk: how many nodes at a time.
        share: of a batch that several processes share, how much of its mean loss is these nodes'.
    """
    nodes = tokens.shape[1]
    gradient = torch.empty_like(tokens)
    difficulty = tokens.new_empty(tokens.shape[:2])
    for rows in _chunks(nodes, chunk):
        piece = tokens[:, rows].detach().requires_grad_()
        shares = compare(fuse(piece, None if kept is None else kept[:, rows]), rows)
        shares.backward(torch.full_like(shares, share / nodes))  # type: ignore[no-untyped-call]
        assert piece.grad is not None
        gradient[:, rows] = piece.grad
        difficulty[:, rows] = shares.detach()
    tokens.backward(gradient)  # type: ignore[no-untyped-call]
    return difficulty


def _chunks(nodes: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, nodes)) for start in range(0, nodes, chunk))
