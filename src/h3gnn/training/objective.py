"""What the student is asked for: the teacher's view of each node or, as an ablation, its raw features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from h3gnn.encoder import FeatureMatrix, JointEncoder, Projected, Support
from h3gnn.encoder.fusion import FeedForward
from h3gnn.encoder.layers import Dropout, Generators
from h3gnn.training.teacher import Teacher

Distance = Callable[[Tensor, slice], Tensor]
"""Given the embedding `[models, rows, D]` of some nodes and which they are, their squared distance to the
target, `[models, rows]`."""


class Objective(Protocol):
    """Sets a target for each node, and follows the student."""

    def distance(self, projected: Projected, support: Support, dropout: Dropout | None) -> Distance:
        """Look at the full graph and return the distance to this step's targets."""

    def update(self, student: JointEncoder) -> None:
        """Follow the student after its step."""


class LatentPrediction:
    r"""The teacher's embedding of the full graph is the target.

    .. math:: \mathcal L = \frac1N \sum_v \lVert S(v) - T(v) \rVert_2^2, \qquad
        \mathrm{Diffi}(v) = \lVert S(v) - T(v) \rVert_2^2
    """

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher

    def distance(self, projected: Projected, support: Support, dropout: Dropout | None) -> Distance:
        """Return the squared distance to the teacher's embedding."""
        tokens, kept = self.teacher.tokens(projected, support, dropout)

        def to_teacher(embedding: Tensor, rows: slice) -> Tensor:
            with torch.no_grad():
                target = self.teacher.encoder.fuse(tokens[:, rows], None if kept is None else kept[:, rows])
            return squared_distance(embedding, target)

        return to_teacher

    def update(self, student: JointEncoder) -> None:
        """Move the teacher."""
        self.teacher.update(student)


class FeatureReconstruction(nn.Module):
    r"""The ablation without a teacher: a decoder rebuilds the raw features.

    .. math:: \mathcal L_{E-D} = \frac1N \lVert D(E(\bar f)) - f \rVert_2^2
    """

    def __init__(self, models: int, in_channels: int, channels: int, features: FeatureMatrix) -> None:
        super().__init__()
        self.decoder = FeedForward(models, in_channels, channels, features.shape[1])
        self.features = features.dense()

    def reset_parameters(self, generators: Generators) -> None:
        """Start the decoder anew."""
        self.decoder.reset_parameters(generators)

    def distance(self, projected: Projected, support: Support, dropout: Dropout | None) -> Distance:
        """Return the squared distance of the decoded embedding to the raw features."""
        return lambda embedding, rows: squared_distance(self.decoder(embedding), self.features[rows])

    def update(self, student: JointEncoder) -> None:
        """Do nothing: the decoder is trained, it does not follow."""


def squared_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of each row, `[models, rows, D]` to `[models, rows]`."""
    return nn.functional.mse_loss(embedding, target.expand_as(embedding), reduction="none").sum(dim=-1)


def backward_by_chunks(
    fuse: Callable[[Tensor, Tensor | None], Tensor],
    distance: Distance,
    tokens: Tensor,
    kept: Tensor | None,
    chunk: int,
) -> Tensor:
    """Fuse, compare and run backward, a chunk of nodes at a time; return each node's difficulty.

    The fusion block and the loss are per node, so only the tokens' gradient has to be collected: the block's
    memory does not grow with the graph, and nothing is computed twice.

    Args:
        fuse: from tokens (and dropout masks) to embeddings.
        distance: from embeddings to each node's squared distance.
        tokens: `[models, nodes, tokens, channels]`.
        kept: the attention's dropout masks, or None.
        chunk: how many nodes at a time.
    """
    nodes = tokens.shape[1]
    gradient = torch.empty_like(tokens)
    difficulty = tokens.new_empty(tokens.shape[:2])
    for rows in _chunks(nodes, chunk):
        piece = tokens[:, rows].detach().requires_grad_()
        distances = distance(fuse(piece, None if kept is None else kept[:, rows]), rows)
        distances.backward(torch.full_like(distances, 1 / nodes))  # type: ignore[no-untyped-call]
        assert piece.grad is not None
        gradient[:, rows] = piece.grad
        difficulty[:, rows] = distances.detach()
    tokens.backward(gradient)  # type: ignore[no-untyped-call]
    return difficulty


def _chunks(nodes: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, nodes)) for start in range(0, nodes, chunk))
