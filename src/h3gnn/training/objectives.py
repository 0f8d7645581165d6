"""What the student is asked for. Each objective gives every node its share of the loss.

An objective is called with the student's embedding of some seeds and returns `[models, seeds]`: how much each of
them adds to the loss, whose mean over all seeds is the loss. That share is the node's difficulty, from which
the next mask is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

from torch import Tensor, nn

from h3gnn.encoder.layers import FeedForward, Generators
from h3gnn.encoder.stack import EncoderStack
from h3gnn.training.batches import Batch
from h3gnn.training.teacher import TeacherView

Compare = Callable[[Tensor, slice], Tensor]
"""Given the embedding `[models, rows, D]` of some seeds and which they are, their shares of the loss."""


class Objective(nn.Module):
    """One way to ask; its parameters are trained with the student's.

    Attributes:
        needs_teacher: it compares with a teacher's view of the unmasked graph.
        node_by_node: a node's share depends on that node's embedding alone, so that the nodes may be worked
            on in chunks.
    """

    needs_teacher: ClassVar[bool] = False
    node_by_node: ClassVar[bool] = True

    def reset_parameters(self, generators: Generators) -> None:
        """Start anew, each model from its own generator."""

    def compare(self, batch: Batch, target: Callable[[slice], Tensor] | None) -> Compare:
        """Look at a batch and return the comparison with it.

        Args:
            batch: of this step.
            target: from some seeds to the teacher's embedding of them, `[models, rows, D]`.
        """
        raise NotImplementedError


class LatentPrediction(Objective):
    r"""The teacher's embedding of the full graph is the target: the paper's objective.

    .. math:: \mathcal L = \frac1N \sum_v \lVert S(v) - T(v) \rVert_2^2, \qquad
        \mathrm{Diffi}(v) = \lVert S(v) - T(v) \rVert_2^2
    """

    needs_teacher = True

    def compare(self, batch: Batch, target: Callable[[slice], Tensor] | None) -> Compare:
        """Return the squared distance to the teacher's embedding."""
        assert target is not None
        return lambda embedding, rows: squared_distance(embedding, target(rows))


class FeatureReconstruction(Objective):
    r"""The ablation without a teacher: a decoder rebuilds the raw features.

    .. math:: \mathcal L_{E-D} = \frac1N \lVert D(E(\bar f)) - f \rVert_2^2
    """

    def __init__(self, models: int, in_channels: int, channels: int, columns: int) -> None:
        super().__init__()
        self.decoder = FeedForward(models, in_channels, channels, columns)

    def reset_parameters(self, generators: Generators) -> None:
        """Start the decoder anew."""
        self.decoder.reset_parameters(generators)

    def compare(self, batch: Batch, target: Callable[[slice], Tensor] | None) -> Compare:
        """Return the squared distance of the decoded embedding to the raw features."""
        wanted = batch.part.features.first(batch.part.counts[0]).dense()
        return lambda embedding, rows: squared_distance(self.decoder(embedding), wanted[rows])


OBJECTIVES = ("teacher", "decoder")


def build_objective(name: str, models: int, student: EncoderStack) -> Objective:
    """Return an objective by name, for so many models."""
    if name == "teacher":
        return LatentPrediction()
    columns = student.input.weight.shape[1]
    return FeatureReconstruction(models, student.out_channels, student.channels, columns)


def needs_teacher(name: str) -> bool:
    """Tell whether an objective compares with a teacher."""
    return name == "teacher"


class Committee(nn.Module):
    """The objectives of a stack of models: neighbouring models with the same one are asked together.

    Models whose objective needs a teacher stand first in the stack, since the teachers are the first models'.

    Args:
        names: the objective of each model.
        student: the stack.
    """

    def __init__(self, names: Sequence[str], student: EncoderStack) -> None:
        super().__init__()
        runs: list[tuple[str, range]] = []
        for model, name in enumerate(names):
            if runs and runs[-1][0] == name:
                runs[-1] = (name, range(runs[-1][1].start, model + 1))
            else:
                runs.append((name, range(model, model + 1)))
        self.models = [models for _, models in runs]
        self.members = nn.ModuleList(build_objective(name, len(models), student) for name, models in runs)
        self.teachers = sum(len(m) for one, m in self if one.needs_teacher)
        if any(one.needs_teacher and models.stop > self.teachers for one, models in self):
            raise ValueError("models with a teacher must stand before those without one")

    def __iter__(self) -> zip[tuple[Objective, range]]:
        return zip(cast("Sequence[Objective]", self.members), self.models, strict=True)

    @property
    def node_by_node(self) -> bool:
        """Whether all members are."""
        return all(one.node_by_node for one, _ in self)

    def reset_parameters(self, generators: Generators) -> None:
        """Start all members anew."""
        for one, models in self:
            one.reset_parameters([generators[model] for model in models])

    def compare(self, batch: Batch, view: TeacherView | None) -> Compare:
        """Return the comparison for the whole stack."""
        if len(self.models) == 1:
            one, _ = next(iter(self))
            return one.compare(batch, None if view is None else view.embedding)
        raise NotImplementedError


def squared_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of each row, `[models, rows, D]` to `[models, rows]`."""
    return nn.functional.mse_loss(embedding, target.expand_as(embedding), reduction="none").sum(dim=-1)
