"""What the student is asked for at the seeds of a batch: the teacher's view, or the raw features."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from h3gnn.encoder import JointEncoder
from h3gnn.encoder.blocks import Part, part_attention_keep, part_tokens
from h3gnn.encoder.fusion import FeedForward
from h3gnn.encoder.noise import NodeNoise
from h3gnn.training.edges import SparseEdges
from h3gnn.training.objective import Distance, LatentPrediction, squared_distance
from h3gnn.training.teacher import Teacher


class Target(Protocol):
    """Sets a target for each seed, and follows the student.

    Attributes:
        objective: the same thing as full-graph training knows it, where there is a teacher.
    """

    objective: LatentPrediction | None

    def state(self) -> dict[str, Tensor]:
        """Return what has to be kept to go on later, beside the student and the teacher."""

    def distance(self, part: Part, entries: Tensor, factor: Tensor, noise: NodeNoise) -> Distance:
        """Look at a part of the graph, unmasked, and return the distance to its seeds' targets."""

    def follow(self, student: JointEncoder) -> None:
        """Follow the student after its step."""

    def measure(self, student: JointEncoder) -> dict[str, Tensor]:
        """Return what the history keeps of the target, each `[models]`."""


class TeacherTarget:
    """The teacher's embedding of the same part is the target.

    The dense weights follow at every step; the edge weights follow in `SparseEdges`, where they are read.
    """

    def __init__(self, teacher: Teacher, edges: SparseEdges) -> None:
        self.teacher, self.edges = teacher, edges
        self.objective: LatentPrediction | None = LatentPrediction(teacher)

    def state(self) -> dict[str, Tensor]:
        """Nothing beside the teacher."""
        return {}

    @torch.no_grad()
    def distance(self, part: Part, entries: Tensor, factor: Tensor, noise: NodeNoise) -> Distance:
        """Return the squared distance to the teacher's embedding."""
        encoder = self.teacher.encoder
        logit = self.edges.teacher(entries).to(factor.device)
        heard = NodeNoise([seed + 1 for seed in noise.seeds]) if self.teacher.live else None
        tokens = part_tokens(encoder, part, torch.sigmoid(logit) * factor, noise=heard)
        kept = part_attention_keep(encoder, part, heard)

        def to_teacher(embedding: Tensor, rows: slice) -> Tensor:
            with torch.no_grad():
                target = encoder.fuse(tokens[:, rows], None if kept is None else kept[:, rows])
            return squared_distance(embedding, target)

        return to_teacher

    @torch.no_grad()
    def follow(self, student: JointEncoder) -> None:
        """Move everything but the edge weights."""
        mine, theirs = _dense(self.teacher.encoder), _dense(student)
        for model, momentum in enumerate(self.teacher.momentum):
            torch._foreach_lerp_([t[model] for t in mine], [t[model] for t in theirs], 1 - momentum)

    @torch.no_grad()
    def measure(self, student: JointEncoder) -> dict[str, Tensor]:
        """Return ‖Φ − Ψ‖ / ‖Φ‖ for each model, over all weights."""
        self.edges.settle()
        apart = torch.zeros(student.models, dtype=torch.float64)
        size = torch.zeros(student.models, dtype=torch.float64)
        pairs = [*zip(_dense(student), _dense(self.teacher.encoder), strict=True)]
        assert self.edges.teacher_logit is not None
        chunk = 1 << 20
        pairs += zip(
            torch.split(self.edges.logit, chunk, dim=1),
            torch.split(self.edges.teacher_logit, chunk, dim=1),
            strict=True,
        )
        for theirs, mine in pairs:
            apart += (theirs - mine).flatten(1).square().sum(dim=1).double().cpu()
            size += theirs.flatten(1).square().sum(dim=1).double().cpu()
        return {"teacher_distance": (apart / size.clamp_min(torch.finfo(size.dtype).tiny)).sqrt()}


class FeatureTarget:
    """The ablation without a teacher: a decoder rebuilds the seeds' raw features."""

    def __init__(self, decoder: FeedForward) -> None:
        self.decoder = decoder
        self.objective: LatentPrediction | None = None

    def state(self) -> dict[str, Tensor]:
        """Return the decoder's weights."""
        return {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}

    def distance(self, part: Part, entries: Tensor, factor: Tensor, noise: NodeNoise) -> Distance:
        """Return the squared distance of the decoded embedding to the raw features."""
        wanted = part.features.to_dense()[: part.counts[0]]
        return lambda embedding, rows: squared_distance(self.decoder(embedding), wanted[rows])

    def follow(self, student: JointEncoder) -> None:
        """Do nothing: the decoder is trained, it does not follow."""

    def measure(self, student: JointEncoder) -> dict[str, Tensor]:
        """There is nothing to measure."""
        return {}


def _dense(encoder: JointEncoder) -> list[Tensor]:
    """Return every weight and buffer but the edge weights."""
    weights = [value.detach() for name, value in encoder.named_parameters() if name != "edges.logit"]
    return [*weights, *encoder.buffers()]
