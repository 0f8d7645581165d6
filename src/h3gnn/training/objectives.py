r"""What the student is asked for. Each objective gives every node its share of the loss.

An objective is called with the student's embedding of some seeds and returns `[models, seeds]`: how much
each of them adds to the loss, which is the mean over all seeds. That share is the node's difficulty, from
which the next mask is drawn. :math:`S(v)` is the student's embedding of node v in its view of the graph,
:math:`T(v)` the teacher's in the full graph; a hat is a column brought to mean 0 and variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, mse_loss, normalize

from h3gnn.encoder.layers import FeedForward, Generators, Linear
from h3gnn.encoder.sparse import take_rows
from h3gnn.encoder.stack import EncoderStack
from h3gnn.training.batches import Batch
from h3gnn.training.distributed import Ranks

Compare = Callable[[Tensor, slice], Tensor]
"""Given the embedding `[models, rows, D]` of some seeds and which they are, their shares of the loss."""


@dataclass(frozen=True)
class View:
    """What an objective may look at, for its own models.

    Attributes:
        batch: of this step.
        teacher: from some seeds to the teacher's embedding of them, `[models, rows, D]`; None without one.
        mask: bool `[models, seeds]`, whose features the student did not see.
        pairs_kept: bool `[models, pairs]`, which of the batch's pairs of neighbours it saw; None is all.
        generators: one per model.
        ranks: the processes that share the batch.
    """

    batch: Batch
    teacher: Callable[[slice], Tensor] | None
    mask: Tensor
    pairs_kept: Tensor | None
    generators: Sequence[torch.Generator]
    ranks: Ranks

    @property
    def seeds(self) -> int:
        """How many seeds are compared in this process."""
        return self.mask.shape[1]

    def features(self) -> Tensor:
        """Return the seeds' features as they are, `[seeds, features]`."""
        features, chosen = self.batch.part.features.dense, self.batch.compared
        return features[: self.seeds] if chosen is None else features.index_select(0, chosen)

    def target(self) -> Tensor:
        """Return the teacher's embedding of all seeds, `[models, seeds, D]`."""
        assert self.teacher is not None
        return self.teacher(slice(0, self.seeds))

    def draw(self, count: int, below: int) -> Tensor:
        """Return whole numbers under `below`, `[models, count]`, each row from its model's own generator."""
        device = self.mask.device
        drawn = torch.empty(len(self.generators), count, device=device)
        for row, generator in zip(drawn, self.generators, strict=True):
            row.uniform_(generator=generator)
        return (drawn * below).long().clamp_max_(below - 1)


class Objective(nn.Module):
    """One way to ask; its parameters are trained with the student's.

    Attributes:
        needs_teacher: it compares with a teacher's view of the unmasked graph.
        needs_pairs: it looks at neighbours, so that a batch has to hold some pairs of them.
        node_by_node: a node's share depends on that node's embedding alone, so that the nodes may be worked
            on in chunks.
        views: the chances with which the student's view drops feature columns and edges and masks nodes,
            where the user leaves them to the objective.

    Args:
        models: how many models are asked so.
        student: the stack that they stand in.
        targets: "standardized" or "plain".
        loss: by which of `LOSSES` `LatentPrediction` compares.
    """

    needs_teacher: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = False
    node_by_node: ClassVar[bool] = True
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.0, "edge_drop": 0.0, "mask_ratio": 0.5}

    def __init__(self, models: int, student: EncoderStack, targets: str, loss: str = "squared") -> None:
        super().__init__()
        self.models, self.standardized, self.difference = models, targets == "standardized", LOSSES[loss]
        self.in_bfloat16 = student.fuse_in_bfloat16

    def reset_parameters(self, generators: Generators) -> None:
        """Start anew, each model from its own generator."""
        for layer in self.children():
            layer.reset_parameters(generators)  # type: ignore[operator]

    def compare(self, view: View) -> Compare:
        """Look at a batch and return the comparison with it."""
        raise NotImplementedError

    def rough(self, values: Tensor) -> Tensor:
        """Return the values as large products take them: in bfloat16 where the fusion block is."""
        return values.bfloat16() if self.in_bfloat16 else values


class LatentPrediction(Objective):
    r"""The teacher's embedding of the full graph is the target: the paper's objective.

    .. math:: \mathcal L = \frac1N \sum_v \lVert S(v) - T(v) \rVert_2^2, \qquad
        \mathrm{Diffi}(v) = \lVert S(v) - T(v) \rVert_2^2

    With `targets="standardized"` the distance is to :math:`\hat T(v)`: a plain distance can fall by shrinking
    whatever is hard to predict. In mini-batches mean and variance are the batch's, over all processes.

    The released code has two more losses, `"cosine"`, :math:`1 - \cos(S(v), T(v))`, and `"scaled-cosine"`,
    its square (GraphMAE's :math:`\gamma = 2`), by which an easy node counts for less.
    """

    needs_teacher = True
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.2, "edge_drop": 0.4, "mask_ratio": 0.1}

    def compare(self, view: View) -> Compare:
        """Return how far each node is from the teacher's embedding."""
        if not self.standardized:
            teacher = view.teacher
            assert teacher is not None
            return lambda embedding, rows: self.difference(embedding, teacher(rows))
        target = standardize(view.target(), view.ranks)
        return lambda embedding, rows: self.difference(embedding, target[:, rows])


class Decorrelation(Objective):
    r"""Like the teacher, but with columns that say different things (CCA-SSG; Zhang et al., 2021).

    .. math:: \mathcal L = \frac1N \sum_v \lVert \hat S(v) - \hat T(v) \rVert_2^2
        + \lambda \Bigl\lVert \tfrac1N \hat S^\top \hat S - I \Bigr\rVert_F^2

    A node's share is its distance and an equal part of the second term. The statistics are those of the seeds
    that a process has.
    """

    needs_teacher = True
    node_by_node = False
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.5, "edge_drop": 0.5, "mask_ratio": 0.1}
    strength = 1e-3

    def compare(self, view: View) -> Compare:
        """Return distance and correlation."""
        target = standardize(view.target())

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            found = standardize(embedding)
            columns = self.rough(found)
            covariance = torch.bmm(columns.mT, columns).to(found.dtype) / found.shape[1]
            excess = covariance - torch.eye(covariance.shape[1], device=covariance.device)
            return squared_distance(found, target) + self.strength * excess.square().sum(dim=(1, 2))[:, None]

        return shares


class HiddenEdges(Objective):
    r"""Tell the edges that the student did not see from random pairs (MaskGAE; Li et al., 2023).

    .. math:: \mathcal L = -\operatorname*{mean}_{(u,v)\,\text{hidden}} \log \sigma(h_{uv})
        - \operatorname*{mean}_{(u,w)\,\text{random}} \log (1 - \sigma(h_{uw})), \qquad
        h_{uv} = \mathrm{MLP}(S(u) \odot S(v))

    At most `MOST` pairs of each kind are drawn per step; where none of them was hidden, all count as hidden.
    A node's share is that of the pairs that begin with it.
    """

    needs_pairs = True
    node_by_node = False
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.0, "edge_drop": 0.7, "mask_ratio": 0.0}
    MOST = 20_000

    def __init__(self, models: int, student: EncoderStack, *how: str) -> None:
        super().__init__(models, student, *how)
        self.head = FeedForward(models, student.out_channels, student.channels, 1)

    def compare(self, view: View) -> Compare:
        """Draw pairs and return how badly they are told apart."""
        pairs, seeds = view.batch.pairs, view.seeds
        count = min(pairs.shape[1], self.MOST)
        if count == 0:
            return lambda embedding, rows: 0.0 * embedding.sum(dim=2)
        chosen = view.draw(count, pairs.shape[1])
        source, target = pairs[0][chosen], pairs[1][chosen]
        other = view.draw(count, seeds)
        weight = torch.ones_like(chosen, dtype=view.batch.factor.dtype)
        if view.pairs_kept is not None:
            hidden = ~view.pairs_kept.gather(1, chosen)
            weight = (hidden | ~hidden.any(dim=1, keepdim=True)).to(weight.dtype)
        weight = weight / weight.sum(dim=1, keepdim=True)

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            seen = self.rough(embedding)
            begin, ends = take_rows(seen, source), take_rows(seen, torch.cat([target, other], dim=1))
            told = self.head((ends.view(len(ends), 2, count, -1) * begin.unsqueeze(1)).flatten(1, 2))
            hidden, random = told.to(embedding.dtype).squeeze(2).chunk(2, dim=1)
            wrong = weight * binary_cross_entropy_with_logits(
                hidden, torch.ones_like(hidden), reduction="none"
            )
            chance = binary_cross_entropy_with_logits(random, torch.zeros_like(random), reduction="none")
            each = seeds * (wrong + chance / count)
            return embedding.new_zeros(embedding.shape[:2]).scatter_add(1, source, each)

        return shares


class NeighbourPrediction(Objective):
    r"""Predict the teacher's view of the neighbours, and stand apart from the rest.

    After GraphACL (Xiao et al., 2023):

    .. math:: \mathcal L = \frac1N \sum_v \Bigl( -\frac1\tau \operatorname*{mean}_{u \in \mathcal N(v)}
        \cos(W S(v), T(u)) + \log \operatorname*{mean}_{w} e^{\cos(S(v), S(w)) / \tau} \Bigr)

    over `SAMPLED` random nodes w. In mini-batches :math:`\mathcal N(v)` are the neighbours in the batch.
    """

    needs_teacher = True
    needs_pairs = True
    node_by_node = False
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.2, "edge_drop": 0.2, "mask_ratio": 0.0}
    temperature = 0.75
    SAMPLED = 1024

    def __init__(self, models: int, student: EncoderStack, *how: str) -> None:
        super().__init__(models, student, *how)
        self.head = Linear(models, student.out_channels, student.out_channels)

    def compare(self, view: View) -> Compare:
        """Return the contrast between neighbours and random nodes."""
        wanted = view.batch.neighbour_mean(normalize(view.target(), dim=2))
        others = view.draw(self.SAMPLED, view.seeds)

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            said = self.head(self.rough(embedding)).to(embedding.dtype)
            near = (normalize(said, dim=2) * wanted).sum(dim=2)
            unit = self.rough(normalize(embedding, dim=2))
            far = torch.bmm(unit, take_rows(unit, others).mT).to(embedding.dtype) / self.temperature
            return far.logsumexp(dim=2) - math.log(self.SAMPLED) - near / self.temperature

        return shares


class FeatureReconstruction(Objective):
    r"""A decoder rebuilds the raw features of every node: the paper's ablation without a teacher.

    .. math:: \mathcal L_{E-D} = \frac1N \sum_v \lVert D(S(v)) - x_v \rVert_2^2
    """

    def __init__(self, models: int, student: EncoderStack, *how: str) -> None:
        super().__init__(models, student, *how)
        columns = student.input.weight.shape[1]
        self.decoder = FeedForward(models, student.out_channels, student.channels, columns)

    def compare(self, view: View) -> Compare:
        """Return the squared distance of the decoded embedding to the raw features."""
        wanted = view.features()
        return lambda embedding, rows: squared_distance(self.decoder(embedding), wanted[rows])


class MaskedReconstruction(Objective):
    r"""Rebuild masked nodes' features from their neighbours (GraphMAE's objective; Hou et al., 2022).

    Masked nodes are hidden once more, then one graph convolution rebuilds features from what is left, and

    .. math:: \mathcal L = \operatorname*{mean}_{v \in \mathcal M} (1 - \cos(\hat x_v, x_v))^\gamma
    """

    needs_pairs = True
    node_by_node = False

    def __init__(self, models: int, student: EncoderStack, *how: str) -> None:
        super().__init__(models, student, *how)
        self.inner = Linear(models, student.out_channels, student.channels, bias=False)
        self.outer = Linear(models, student.channels, student.input.weight.shape[1])

    def compare(self, view: View) -> Compare:
        """Return the scaled cosine error of the masked nodes."""
        wanted = view.features()
        share = view.mask.to(wanted.dtype)
        share = view.seeds * share / share.sum(dim=1, keepdim=True).clamp_min(1)

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            hidden = self.inner(embedding).masked_fill(view.mask[..., None], 0.0)
            rebuilt = self.outer(view.batch.neighbour_mean(hidden))
            return share * scaled_cosine(rebuilt, wanted[None])

        return shares


OBJECTIVES: dict[str, type[Objective]] = {
    "teacher": LatentPrediction,
    "decorrelation": Decorrelation,
    "neighbours": NeighbourPrediction,
    "edges": HiddenEdges,
    "features": FeatureReconstruction,
    "masked-features": MaskedReconstruction,
}
"""By the name that the user gives; those with a teacher first, since these models stand first in a stack."""


def assign_objectives(objectives: str | Sequence[str], models: int) -> list[str]:
    """Return the objective of each model: they are dealt out in turn, and those with a teacher stand first.

    With fewer models than objectives, the first ones take part.
    """
    every = [objectives] if isinstance(objectives, str) else list(objectives)
    dealt = [every[model % len(every)] for model in range(models)]
    return sorted(dealt, key=lambda name: (not OBJECTIVES[name].needs_teacher, every.index(name)))


class ObjectiveEnsemble(nn.Module):
    """The objectives of a stack of models: neighbouring models with the same one are asked together.

    Models whose objective needs a teacher stand first in the stack, since the teachers are the first models'.

    Args:
        names: the objective of each model.
        student: the stack.
        targets: "standardized" or "plain".
        loss: of the objective "teacher".
    """

    def __init__(
        self, names: Sequence[str], student: EncoderStack, targets: str, loss: str = "squared"
    ) -> None:
        super().__init__()
        runs: list[tuple[str, range]] = []
        for model, name in enumerate(names):
            first = runs.pop()[1].start if runs and runs[-1][0] == name else model
            runs.append((name, range(first, model + 1)))
        self.runs = [models for _, models in runs]
        self.members = nn.ModuleList(
            OBJECTIVES[name](len(models), student, targets, loss) for name, models in runs
        )
        self.teachers = sum(len(models) for one, models in self if one.needs_teacher)
        if any(one.needs_teacher and models.stop > self.teachers for one, models in self):
            raise ValueError("models with a teacher must stand before those without one")

    def __iter__(self) -> zip[tuple[Objective, range]]:
        return zip(cast("Sequence[Objective]", self.members), self.runs, strict=True)

    @property
    def node_by_node(self) -> bool:
        """Whether all members are."""
        return all(one.node_by_node for one, _ in self)

    def reset_parameters(self, generators: Generators) -> None:
        """Start all members anew."""
        for one, models in self:
            one.reset_parameters([generators[model] for model in models])

    def compare(self, view: View) -> Compare:
        """Return the comparison for the whole stack, given a view of all of its models."""
        if len(self.runs) == 1:
            return next(iter(self))[0].compare(view)
        last: list[tuple[slice, Tensor]] = []

        def teacher(rows: slice) -> Tensor:
            """Let members that ask for the same rows share one look of the teacher's."""
            assert view.teacher is not None
            if not last or last[0][0] != rows:
                last[:] = [(rows, view.teacher(rows))]
            return last[0][1]

        def teacher_of(models: slice) -> Callable[[slice], Tensor]:
            return lambda rows: teacher(rows)[models]

        compares = []
        for one, models in self:
            of = slice(models.start, models.stop)
            mine = View(
                view.batch,
                teacher_of(of) if one.needs_teacher else None,
                view.mask[of],
                None if view.pairs_kept is None else view.pairs_kept[of],
                view.generators[of],
                view.ranks,
            )
            compares.append(one.compare(mine))
        sizes = [len(models) for models in self.runs]

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            parts = torch.split(embedding, sizes)  # backward is one copy; slices would each fill a stack
            return torch.cat([ask(part, rows) for ask, part in zip(compares, parts, strict=True)])

        return shares


def squared_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of each row, `[models, rows, D]` to `[models, rows]`."""
    return mse_loss(embedding, target.expand_as(embedding), reduction="none").sum(dim=-1)


def cosine_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return 1 − cos of each row, at least 0 whatever rounding does."""
    return (1 - cosine_similarity(embedding, target, dim=-1)).clamp_min(0)


def scaled_cosine(embedding: Tensor, target: Tensor, sharpness: int = 2) -> Tensor:
    """Return (1 − cos)^γ of each row."""
    return (1 - cosine_similarity(embedding, target, dim=-1)).pow(sharpness)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": squared_distance,
    "cosine": cosine_distance,
    "scaled-cosine": scaled_cosine,
}


def standardize(embedding: Tensor, ranks: Ranks | None = None) -> Tensor:
    """Bring every column of `[models, nodes, D]` to mean 0 and variance 1, over all processes' nodes."""
    if ranks is None or ranks.size == 1:
        centred = embedding - embedding.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)  # torch.var_mean is slow along this axis
        return centred * torch.rsqrt(variance + 1e-8)
    count = embedding.new_tensor([float(embedding.shape[1])])
    mean = embedding.sum(dim=1, keepdim=True)
    ranks.all_reduce([count, mean])
    mean /= count
    variance = (embedding - mean).square().sum(dim=1, keepdim=True)
    ranks.all_reduce([variance])
    variance /= count
    return (embedding - mean) * torch.rsqrt(variance + 1e-8)
