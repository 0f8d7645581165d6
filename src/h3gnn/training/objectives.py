"""Objectives: each maps the student's embedding of some seeds to their shares of the loss, `[models, seeds]`.

The loss is the mean of the shares. A node's share is its difficulty, from which the next mask is drawn.
:math:`S(v)` is the student's embedding of node v in its view of the graph, :math:`T(v)` the teacher's in the
full graph; a hat is a column standardized to mean 0 and variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
"""From the embedding `[models, rows, D]` of some seeds and their positions to their shares of the loss."""


@dataclass(frozen=True)
class View:
    """The data of one step that an objective compares the embedding with, for its own models.

    Attributes:
        teacher: from some seeds to the teacher's embedding of them, `[models, rows, D]`; None without one.
        mask: nodes whose features were hidden from the student, bool `[models, seeds]`.
        pairs_kept: which of the batch's pairs of neighbours were not, bool `[models, pairs]`; None is all.
    """

    batch: Batch
    teacher: Callable[[slice], Tensor] | None
    mask: Tensor
    pairs_kept: Tensor | None
    generators: Sequence[torch.Generator]
    ranks: Ranks

    @property
    def seeds(self) -> int:
        """Number of seeds that are compared in this process."""
        return self.mask.shape[1]

    def features(self) -> Tensor:
        """Return the seeds' features, unmasked, `[seeds, features]`."""
        features, chosen = self.batch.part.features.dense, self.batch.compared
        return features[: self.seeds] if chosen is None else features.index_select(0, chosen)

    def target(self) -> Tensor:
        """Return the teacher's embedding of all seeds, `[models, seeds, D]`."""
        assert self.teacher is not None
        return self.teacher(slice(0, self.seeds))

    def draw(self, count: int, below: int) -> Tensor:
        """Draw integers below `below`, `[models, count]`, each row from its model's generator."""
        device = self.mask.device
        drawn = torch.empty(len(self.generators), count, device=device)
        for row, generator in zip(drawn, self.generators, strict=True):
            row.uniform_(generator=generator)
        return (drawn * below).long().clamp_max_(below - 1)


class Objective(nn.Module):
    """Base class; its parameters are trained with the student's.

    Attributes:
        needs_teacher: it compares with a teacher's view of the unmasked graph.
        needs_pairs: it uses pairs of neighbours, so that a batch must contain some.
        node_by_node: a node's share depends on that node's embedding alone, which allows chunks of nodes.
        views: default rates at which the student's view drops feature columns and edges and masks nodes.
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
        """Initialize the parameters, each model's from its own generator."""
        for layer in self.children():
            layer.reset_parameters(generators)  # type: ignore[operator]

    def compare(self, view: View) -> Compare:
        """Return the comparison of embeddings with a view."""
        raise NotImplementedError

    def reduced(self, values: Tensor) -> Tensor:
        """Convert the factors of large products to bfloat16 if the fusion block uses it."""
        return values.bfloat16() if self.in_bfloat16 else values


class LatentPrediction(Objective):
    r"""The teacher's embedding of the full graph is the target: the paper's objective.

    .. math:: \mathcal L = \frac1N \sum_v \lVert S(v) - T(v) \rVert_2^2, \qquad
        \mathrm{Diffi}(v) = \lVert S(v) - T(v) \rVert_2^2

    With `targets="standardized"` the distance is to :math:`\hat T(v)`: a plain distance can fall by shrinking
    whatever is hard to predict. In mini-batches mean and variance are the batch's, over all processes.

    The released code has two more losses, `"cosine"`, :math:`1 - \cos(S(v), T(v))`, and `"scaled-cosine"`,
    its square (GraphMAE's :math:`\gamma = 2`), which reduces the weight of easy nodes.
    """

    needs_teacher = True
    views: ClassVar[dict[str, float]] = {"feature_drop": 0.2, "edge_drop": 0.4, "mask_ratio": 0.1}

    def compare(self, view: View) -> Compare:
        """Return the distance of each node from the teacher's embedding."""
        if not self.standardized:
            teacher = view.teacher
            assert teacher is not None
            return lambda embedding, rows: self.difference(embedding, teacher(rows))
        target = standardize(view.target(), view.ranks)
        return lambda embedding, rows: self.difference(embedding, target[:, rows])


class Decorrelation(Objective):
    r"""Match the teacher with decorrelated columns (CCA-SSG; Zhang et al., 2021).

    .. math:: \mathcal L = \frac1N \sum_v \lVert \hat S(v) - \hat T(v) \rVert_2^2
        + \lambda \Bigl\lVert \tfrac1N \hat S^\top \hat S - I \Bigr\rVert_F^2

    A node's share is its distance and an equal part of the second term. Statistics are per process.
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
            columns = self.reduced(found)
            covariance = torch.bmm(columns.mT, columns).to(found.dtype) / found.shape[1]
            excess = covariance - torch.eye(covariance.shape[1], device=covariance.device)
            return squared_distance(found, target) + self.strength * excess.square().sum(dim=(1, 2))[:, None]

        return shares


class HiddenEdges(Objective):
    r"""Distinguish edges hidden from the student from random pairs (MaskGAE; Li et al., 2023).

    .. math:: \mathcal L = -\operatorname*{mean}_{(u,v)\,\text{hidden}} \log \sigma(h_{uv})
        - \operatorname*{mean}_{(u,w)\,\text{random}} \log (1 - \sigma(h_{uw})), \qquad
        h_{uv} = \mathrm{MLP}(S(u) \odot S(v))

    At most `MOST` pairs of each kind are drawn per step; if none of them was hidden, all count as hidden.
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
        """Draw pairs and return their classification loss."""
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
            values = self.reduced(embedding)
            begin, ends = take_rows(values, source), take_rows(values, torch.cat([target, other], dim=1))
            logits = self.head((ends.view(len(ends), 2, count, -1) * begin.unsqueeze(1)).flatten(1, 2))
            hidden, random = logits.to(embedding.dtype).squeeze(2).chunk(2, dim=1)
            missed = binary_cross_entropy_with_logits(hidden, torch.ones_like(hidden), reduction="none")
            false = binary_cross_entropy_with_logits(random, torch.zeros_like(random), reduction="none")
            per_pair = seeds * (weight * missed + false / count)
            return embedding.new_zeros(embedding.shape[:2]).scatter_add(1, source, per_pair)

        return shares


class NeighbourPrediction(Objective):
    r"""Predict the teacher's view of the neighbours (GraphACL; Xiao et al., 2023).

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
            predicted = self.head(self.reduced(embedding)).to(embedding.dtype)
            near = (normalize(predicted, dim=2) * wanted).sum(dim=2)
            unit = self.reduced(normalize(embedding, dim=2))
            far = torch.bmm(unit, take_rows(unit, others).mT).to(embedding.dtype) / self.temperature
            return far.logsumexp(dim=2) - math.log(self.SAMPLED) - near / self.temperature

        return shares


class FeatureReconstruction(Objective):
    r"""A decoder reconstructs the raw features of every node: the paper's ablation without a teacher.

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
    r"""Reconstruct masked nodes' features from their neighbours (GraphMAE's objective; Hou et al., 2022).

    Masked nodes are hidden again, one graph convolution reconstructs their features from the others, and

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
"""Objectives by name."""


def assign_objectives(objectives: str | Sequence[str], models: int) -> list[str]:
    """Return the objective of each model: assigned in turn, those with a teacher first.

    With fewer models than objectives, only the first objectives are used.
    """
    names = [objectives] if isinstance(objectives, str) else list(objectives)
    assigned = [names[model % len(names)] for model in range(models)]
    return sorted(assigned, key=lambda name: (not OBJECTIVES[name].needs_teacher, names.index(name)))


class ObjectiveEnsemble(nn.Module):
    """The objectives of a stack of models; adjacent models with the same objective share one member.

    Models whose objective needs a teacher come first in the stack, since the teachers are the first models'.
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
            raise ValueError("models with a teacher must precede those without one")

    def __iter__(self) -> zip[tuple[Objective, range]]:
        return zip(cast("Sequence[Objective]", self.members), self.runs, strict=True)

    @property
    def node_by_node(self) -> bool:
        """Whether all members work node by node."""
        return all(one.node_by_node for one, _ in self)

    def reset_parameters(self, generators: Generators) -> None:
        """Initialize the parameters of all members."""
        for one, models in self:
            one.reset_parameters([generators[model] for model in models])

    def compare(self, view: View) -> Compare:
        """Return the comparison for the whole stack, given a view of all of its models."""
        if len(self.runs) == 1:
            return next(iter(self))[0].compare(view)
        last: list[tuple[slice, Tensor]] = []

        def teacher(models: slice, rows: slice) -> Tensor:
            """Share one embedding of the teacher between members that need the same rows."""
            assert view.teacher is not None
            if not last or last[0][0] != rows:
                last[:] = [(rows, view.teacher(rows))]
            return last[0][1][models]

        compares = []
        for one, models in self:
            of = slice(models.start, models.stop)
            own = replace(
                view,
                teacher=partial(teacher, of) if one.needs_teacher else None,
                mask=view.mask[of],
                pairs_kept=None if view.pairs_kept is None else view.pairs_kept[of],
                generators=view.generators[of],
            )
            compares.append(one.compare(own))
        sizes = [len(models) for models in self.runs]

        def shares(embedding: Tensor, rows: slice) -> Tensor:
            parts = torch.split(embedding, sizes)  # backward is one copy; slices would each fill a stack
            return torch.cat([compare(part, rows) for compare, part in zip(compares, parts, strict=True)])

        return shares


def squared_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of each row, `[models, rows, D]` to `[models, rows]`."""
    return mse_loss(embedding, target.expand_as(embedding), reduction="none").sum(dim=-1)


def cosine_distance(embedding: Tensor, target: Tensor) -> Tensor:
    """Return 1 − cos of each row, at least 0 despite rounding."""
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
    """Standardize every column of `[models, nodes, D]` to mean 0 and variance 1, over all processes."""
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
