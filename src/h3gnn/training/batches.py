"""One epoch in mini-batches: the six lines of full-graph training, for one batch of nodes after another.

The mask is drawn once per epoch over all nodes, from the difficulty that every node had when it was last a
seed: the same function on the same kind of array as in full-graph training. The loss is the seeds' alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from h3gnn.encoder import JointEncoder
from h3gnn.encoder.blocks import Part, part_attention_keep, part_tokens
from h3gnn.encoder.noise import NodeNoise
from h3gnn.training.collapse import effective_rank, sample_rows
from h3gnn.training.distributed import Ranks
from h3gnn.training.edges import SparseEdges
from h3gnn.training.history import History, Recorder, difficulty_quantiles
from h3gnn.training.loop import Watch
from h3gnn.training.objective import LatentPrediction, backward_by_chunks
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.parts import Parts, Piece
from h3gnn.training.step import MaskStrategy
from h3gnn.training.targets import Target

EDGE_LOGIT = "edges.logit"


def dense_parameters(student: JointEncoder) -> nn.ParameterList:
    """Return all parameters but the edge weights, which are stepped sparsely."""
    return nn.ParameterList([value for name, value in student.named_parameters() if name != EDGE_LOGIT])


class BatchStep:
    """An epoch of mini-batches over all nodes.

    Args:
        student: a stack of one or more models.
        target: what the student is asked for; it holds the teacher.
        optimizer: over the dense parameters.
        edges: the edge weights and their steps.
        parts: batches of nodes and what they hear.
        generators: one per model, for the masks.
        order: for the order of nodes, what is sampled, and dropout; the same in every process.
        chunk: how many nodes the fusion block sees at a time.
        ranks: the processes that share the work.

    Attributes:
        difficulty: `[models, nodes]`, of each node when it was last a seed.
    """

    def __init__(
        self,
        student: JointEncoder,
        target: Target,
        optimizer: StackedAdam,
        edges: SparseEdges,
        parts: Parts,
        generators: Sequence[torch.Generator],
        order: torch.Generator,
        chunk: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.student, self.target, self.optimizer, self.edges = student, target, optimizer, edges
        self.parts, self.mask_generators, self.order, self.chunk = parts, list(generators), order, chunk
        self.ranks = ranks or Ranks()
        self.difficulty = torch.zeros(student.models, parts.nodes, device=parts.device)
        self.steps = 0

    @property
    def objective(self) -> LatentPrediction | None:
        """What the student is asked for, as a checkpoint knows it."""
        return self.target.objective

    @property
    def features(self) -> Tensor:
        """Nothing, on the device where the encoder works: features are read batch by batch."""
        return torch.empty(0, device=self.parts.device)

    @property
    def generators(self) -> list[torch.Generator]:
        """Everything that draws, for a checkpoint."""
        return [*self.mask_generators, self.order]

    def more_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs beside that of full-graph training."""
        return self.edges.state() | self.target.state()

    def set_learning_rate(self, factor: float) -> None:
        """Set every learning rate to this share of its own."""
        self.optimizer.set_learning_rate(factor)
        self.edges.factor = factor

    def __call__(self, mask_strategy: MaskStrategy) -> Tensor:
        """Train on every node once and return the loss and the size of the mask, `[2, models]`."""
        mask = mask_strategy(self.difficulty, self.mask_generators)
        for piece in self.parts.epoch(self.order, self.ranks):
            self._train_on(piece, mask)
        return torch.stack([self.difficulty.mean(dim=1), mask.sum(dim=1).to(self.difficulty.dtype)])

    def _train_on(self, piece: Piece, mask: Tensor) -> None:
        noise = NodeNoise(_draw(self.student.models, self.order))
        logit = self.edges.student(piece.entries).to(self.parts.device).requires_grad_()
        difficulty = self._backward(piece, torch.sigmoid(logit) * piece.factor, mask, noise)
        gradient = torch.zeros_like(logit) if logit.grad is None else logit.grad
        self.ranks.add(self._gradients())
        entries, gradient = self.ranks.merge(piece.entries.to(gradient.device), gradient)
        self.optimizer.step()
        self.edges.step(entries.to(self.edges.logit.device), gradient.to(self.edges.logit.device))
        self._share_statistics()
        self.target.follow(self.student)
        batch = torch.from_numpy(piece.batch).to(self.difficulty.device)
        self.difficulty[:, batch] = self.ranks.join(difficulty, piece.batch)
        self.steps += 1

    def _backward(self, piece: Piece, weights: Tensor, mask: Tensor, noise: NodeNoise) -> Tensor:
        """Run forward and backward on this process's seeds; return their difficulty `[models, seeds]`."""
        part = piece.part
        share = part.counts[0] / len(piece.batch)  # of the batch's mean loss, this much is ours
        if share == 0:
            return self.difficulty[:, :0]
        tokens = part_tokens(self.student, part, weights, mask[:, part.nodes], noise)
        kept = part_attention_keep(self.student, part, noise)
        distance = self.target.distance(part, piece.entries, piece.factor, noise)
        scaled = backward_by_chunks(
            self.student.fuse, lambda found, rows: share * distance(found, rows), tokens, kept, self.chunk
        )
        return scaled / share

    def _gradients(self) -> list[Tensor]:
        """Return a gradient of every parameter: a process without seeds has zeros to add."""
        for parameter in self.optimizer.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [cast(Tensor, parameter.grad) for parameter in self.optimizer.parameters]

    def _share_statistics(self) -> None:
        """Let batch norm's running statistics be the mean over processes."""
        buffers = list(self.student.buffers())
        if buffers and self.ranks.size > 1:
            self.ranks.add(buffers)
            torch._foreach_div_(buffers, self.ranks.size)

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Measure the rank of the student's embedding of some nodes, and the teacher's distance."""
        training = self.student.training
        self.student.eval()
        piece = self.parts.piece_of(sample_rows(self.parts.nodes).numpy())
        weights = torch.sigmoid(self.edges.student(piece.entries).to(self.parts.device)) * piece.factor
        measured = {"effective_rank": effective_rank(_embed(self.student, piece.part, weights))}
        measured |= self.target.measure(self.student)
        self.student.train(training)
        return measured


def _embed(encoder: JointEncoder, part: Part, weights: Tensor) -> Tensor:
    return encoder.fuse(part_tokens(encoder, part, weights))


def _draw(count: int, generator: torch.Generator) -> list[int]:
    drawn: list[int] = torch.randint(2**62, (count,), generator=generator).tolist()
    return drawn


def train_in_batches(
    step: BatchStep,
    *,
    epochs: int,
    mask_of: Callable[[int], MaskStrategy],
    learning_rate_of: Callable[[int], float],
    measurements: int = 20,
    watch: Watch | None = None,
    recorder: Recorder | None = None,
) -> History:
    """Train the student(s) of a step in place and return the history; the arguments are those of `train`."""
    recorder = Recorder() if recorder is None else recorder
    every = max(1, epochs // measurements)
    at_start: dict[str, Tensor] = {} if len(recorder) else step.measure()
    step.student.train()
    for epoch in range(len(recorder), epochs):
        step.set_learning_rate(learning_rate_of(epoch))
        loss, masked = step(mask_of(epoch))
        measured = at_start if epoch == 0 else {}
        if epoch > 0 and (epoch % every == 0 or epoch == epochs - 1):
            measured = step.measure()
        if measured:
            measured |= difficulty_quantiles(step.difficulty)
        recorder.add(loss=loss, masked=masked, **measured)
        if watch is not None:
            watch(epoch, recorder)
    step.student.eval()
    return recorder.history(step.difficulty)


def agree(step: BatchStep, recorder: Recorder, ranks: Ranks) -> Recorder:
    """Bring all processes to where the first one is, which alone may have read a checkpoint."""
    if ranks.size == 1:
        return recorder
    done = torch.tensor([len(recorder)], device=step.parts.device)
    ranks.copy_first([done])
    if int(done) == 0:
        return recorder
    drawn = [generator.get_state() for generator in step.generators]
    teacher = [] if step.objective is None else step.objective.teacher.encoder.state_dict().values()
    ranks.copy_first([*step.student.state_dict().values(), *teacher, step.difficulty])
    ranks.copy_first([*step.more_state().values(), *drawn])
    for generator, state in zip(step.generators, drawn, strict=True):
        generator.set_state(state)
    _agree_on_moments(step.optimizer, ranks)
    while len(recorder) < int(done):
        recorder.add()
    return recorder


def _agree_on_moments(optimizer: StackedAdam, ranks: Ranks) -> None:
    adam = optimizer.adam
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = (
                    torch.zeros_like(parameter),
                    torch.zeros_like(parameter),
                )
            ranks.copy_first([state["step"], state["exp_avg"], state["exp_avg_sq"]])
