"""Gradient descent on the two objectives of the theorem, and where a run was on its way to its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.encode import embed_models
from h3gnn.encoder.stack import per_model
from h3gnn.errors import InputError
from h3gnn.evaluation.evaluator import RidgeValidation
from h3gnn.experiments.scoring import Splits
from h3gnn.graphs.graph import Graph
from h3gnn.preprocessing import Preprocessing
from h3gnn.settings import BEFORE
from h3gnn.training.batches import WholeGraph, compared_nodes
from h3gnn.training.loop import make_runner, measure
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import PerModel, Shape, Training, derive_seeds, stack_step
from h3gnn.training.objectives import FeatureReconstruction, squared_distance
from h3gnn.training.step import Step
from reproduction.cells import Cell

RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
"""Learning rates of gradient descent: the first is taken with which no loss ever lies above its start."""

Numbers = list[list[float]]
"""One row for each seed."""


class Asked:
    r"""What both objectives ask, as a loss of the parameters alone: one mask, no dropout.

    .. math:: L_{T-S} = \frac1N \lVert S(\bar f; \Phi) - T(f; \Psi) \rVert^2, \qquad
        L_{E-D} = \frac1N \lVert D(E(\bar f)) - f \rVert^2

    The student or encoder E comes first among the parameters, then the decoder D, if there is one.

    Args:
        step: trains a stack of models, one for each seed, with one of the two objectives.
        seeds: of the models, from which the mask is drawn.
        training: how the step trains.
    """

    def __init__(self, step: Step, seeds: Sequence[int], training: Training) -> None:
        self.step, self.seeds, self.training = step, seeds, training
        self.batch = step.source.batch_of(torch.empty(0, dtype=torch.int64))
        asked = step.objectives.members[0]
        self.decoder = asked.decoder if isinstance(asked, FeatureReconstruction) else None
        self.mask = self.hide(training.mask_ratio)

    @classmethod
    def begin(cls, params: dict[str, Any], source: WholeGraph, seeds: Sequence[int]) -> Asked:
        """Draw the models anew."""
        training = Training.of(params | {"n_models": len(seeds)})
        columns, entries = source.features.shape[1], source.support.entries
        student = Shape.of(BEFORE | params).build(columns, entries, len(seeds), source.device)
        return cls(stack_step(student, source, seeds, training), seeds, training)

    def hide(self, ratio: PerModel) -> Tensor:
        """Return a mask, bool `[models, nodes]`; a larger ratio hides the same nodes and more."""
        drawn = [torch.Generator(self.step.source.device).manual_seed(seed) for seed in self.seeds]
        return RandomMask(per_model(ratio, len(drawn)))(self.step.difficulty, drawn)

    def encode(self, mask: Tensor | None) -> Tensor:
        """Return the student's embedding `[models, nodes, D]` of the graph with a mask."""
        found: Tensor = self.step.student(
            self.batch.part, self.step.student.edges(self.batch.factor, self.batch.start), mask
        )
        return found

    def decode(self, embedding: Tensor) -> Tensor:
        """Return what is compared: the decoder's features, or the embedding itself."""
        return embedding if self.decoder is None else cast(Tensor, self.decoder(embedding))

    @torch.no_grad()
    def wanted(self) -> Tensor:
        """Return what it is compared with: the raw features, or the teacher's embedding without a mask."""
        teacher = self.step.teacher
        if teacher is None:
            return self.batch.part.features.dense[None]
        found: Tensor = teacher.encoder(
            self.batch.part, teacher.encoder.edges(self.batch.factor, self.batch.start)
        )
        return found

    def loss(self) -> Tensor:
        """Return the loss of each model, `[models]`."""
        return squared_distance(self.decode(self.encode(self.mask)), self.wanted()).mean(dim=1)

    @property
    def encoder_parameters(self) -> list[nn.Parameter]:
        """Of the student or encoder."""
        return [one for one in self.step.student.parameters() if one.requires_grad]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that are trained."""
        return [*self.encoder_parameters, *self.step.objectives.parameters()]

    @property
    def others(self) -> list[Tensor]:
        """What the encoder's gradient depends on beside the encoder: the decoder, or the teacher."""
        teacher = self.step.teacher
        return [*(self.step.objectives if teacher is None else teacher.encoder).parameters()]

    def place(self) -> Tensor:
        """Return the parameters of each model as a vector, `[models, parameters]`."""
        return flat(self.parameters)


def flat(values: Sequence[Tensor]) -> Tensor:
    """Return tensors whose first axis is models as one vector for each model."""
    return torch.cat([value.detach().flatten(1) for value in values], dim=1)


@dataclass
class Walk:
    """Where a run was at the looks, before its last quarter and at its end."""

    places: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def settled(self) -> dict[str, Any]:
        r"""Return how far the run is from its limit at the looks, each `[models][looks]`.

        `distance` is :math:`\lVert\Phi_t - \Phi^*\rVert^2 / \lVert\Phi_0 - \Phi^*\rVert^2`, `gap` is
        :math:`(L_t - L^*) / (L_0 - L^*)`, and `moving` is the root of the distance after three quarters of
        the run: near 0 where the limit deserves its name.
        """
        losses = torch.stack(self.losses, dim=1).double()
        apart = torch.stack([(one - self.places[-1]).square().sum(dim=1) for one in self.places], dim=1)
        distance = (apart / apart[:, :1]).double()
        gap = (losses - losses[:, -1:]) / (losses[:, :1] - losses[:, -1:])
        return {
            "distance": distance[:, :-2].tolist(),
            "gap": gap[:, :-2].tolist(),
            "moving": distance[:, -2].sqrt().tolist(),
        }


def walk(
    asked: Asked,
    advance: Callable[[int], None],
    looks: Sequence[int],
    epochs: int,
    look: Callable[[int], None],
) -> Walk:
    """Train for some epochs, and note where the parameters and the loss are at the looks and at the end."""
    found, noted = Walk(), [*looks, 3 * epochs // 4, epochs]
    for epoch in range(epochs + 1):
        for _ in range(noted.count(epoch)):
            asked.step.student.eval()
            found.places.append(asked.place())
            with torch.no_grad():
                found.losses.append(asked.loss())
        if epoch in looks:
            look(epoch)
        if epoch < epochs:
            advance(epoch)
    return found


class LossRoseError(Exception):
    """A loss is above its start, or no number any more."""


class Descent:
    r"""Gradient descent, :math:`\theta_{t+1} = \theta_t - \eta \nabla L(\theta_t)`; the teacher follows.

    With :math:`\Delta` for the change over one step, it measures at each look and for each model

    - `smoothness`, :math:`\lVert\Delta\nabla L\rVert / \lVert\Delta\Theta_{enc}\rVert` of the encoder: at
      most the theorem's β;
    - `convexity`, :math:`\langle\nabla L, \theta - \theta^*\rangle / \lVert\theta - \theta^*\rVert^2`, which
      the proof needs to be at least μ; no convex loss has it below 0;
    - `coupling`, the change of the encoder's gradient when decoder or teacher adds its step to the encoder's,
      as a share of :math:`\lVert\Delta\nabla L\rVert`.
    """

    def __init__(self, asked: Asked, rate: float) -> None:
        self.asked, self.rate = asked, rate
        self.width = flat(asked.encoder_parameters).shape[1]
        self.gradient, self.start = self._gradient()
        self.slopes: list[Tensor] = []
        self.changes: dict[str, list[Tensor]] = {"smoothness": [], "coupling": []}

    def _gradient(self) -> tuple[Tensor, Tensor]:
        """Return the gradient `[models, parameters]`, the encoder's first, and the loss of each model."""
        parameters = self.asked.parameters
        loss = self.asked.loss()
        found = torch.autograd.grad(loss.sum(), parameters, materialize_grads=True)
        return flat(found), loss.detach()

    def advance(self, epoch: int) -> None:
        """Make one step.

        Raises:
            LossRoseError: where the loss of a model is then above its start.
        """
        self._step()
        self.gradient, loss = self._gradient()
        if not bool((loss <= self.start).all()):
            raise LossRoseError

    @torch.no_grad()
    def _step(self) -> None:
        parameters = self.asked.parameters
        widths = [parameter[0].numel() for parameter in parameters]
        for parameter, slope in zip(parameters, torch.split(self.gradient, widths, dim=1), strict=True):
            parameter.sub_(slope.view_as(parameter), alpha=self.rate)
        if self.asked.step.teacher is not None:
            self.asked.step.teacher.update(self.asked.step.student)

    def look(self, epoch: int) -> None:
        """Measure how one step from here changes the gradient, and come back."""
        asked, before = self.asked, self.gradient
        moved = [*asked.parameters, *(asked.others if asked.step.teacher is not None else [])]
        kept = [one.detach().clone() for one in moved]
        others, place = [one.detach().clone() for one in asked.others], asked.place()
        self._step()
        after, moves = self._gradient()[0], asked.place() - place
        put_back(asked.others, others)
        alone = self._gradient()[0]
        put_back(moved, kept)
        mine = slice(0, self.width)
        size = (after - before)[:, mine].norm(dim=1)
        self.slopes.append(before)
        self.changes["smoothness"].append(size / moves[:, mine].norm(dim=1))
        self.changes["coupling"].append((after - alone)[:, mine].norm(dim=1) / size)

    def measured(self, places: Sequence[Tensor]) -> dict[str, Numbers]:
        """Return what was measured, each `[models][looks]`, given the places at the looks and the limit."""
        ways = [place - places[-1] for place in places[: len(self.slopes)]]
        pairs = zip(ways, self.slopes, strict=True)
        convexity = [(way * slope).sum(dim=1) / way.square().sum(dim=1) for way, slope in pairs]
        found = {**self.changes, "convexity": convexity}
        return {name: torch.stack(some, dim=1).tolist() for name, some in found.items()}


@torch.no_grad()
def put_back(values: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Give tensors the values that they had."""
    for value, old in zip(values, kept, strict=True):
        value.copy_(old)


def descend(
    begin: Callable[[], Asked], looks: Sequence[int], epochs: int
) -> tuple[float, dict[str, Numbers], dict[str, Any]]:
    """Descend at the largest rate with which the losses fall; return it, the gradients and the settling."""
    for rate in RATES:
        asked = begin()
        asked.step.student.eval()
        descent = Descent(asked, rate)
        try:
            found = walk(asked, descent.advance, looks, epochs, descent.look)
        except LossRoseError:
            continue
        return rate, descent.measured(found.places), found.settled()
    message = f"with no learning rate down to {RATES[-1]:g} the loss falls by gradient descent"
    raise InputError(message, code="no-learning-rate")


LIMIT, LOOKS = 4, 20
"""The limit lies at so many times the shown epochs, of which so many are looked at."""
RATIOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Mask ratios at which the error is measured."""


def look_epochs(epochs: int, count: int) -> list[int]:
    """Return growing epochs, close together at the start, the last included: `epochs · (i / count)²`."""
    if epochs == 0:
        return [0]
    return sorted({max(1, round(epochs * (i / count) ** 2)) for i in range(1, count + 1)})


def source_of(graph: Graph, params: Mapping[str, Any], device: torch.device) -> WholeGraph:
    """Return the graph as one batch, with its features scaled."""
    features = graph.fit_scaler(params["scale_features"])(graph.features).to(device)
    compared = compared_nodes(params["nodes_per_step"], graph.num_nodes)
    return WholeGraph(
        FeatureMatrix(features, storage=params["feature_storage"]),
        Preprocessing.of(params).support(graph).to(device),
        params["hops"],
        compared,
    )


def run_convergence(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Measure one objective on one graph, all seeds as one stack; test nodes are not looked at."""
    shown = cell.params["epochs"]
    source = source_of(graph, cell.params, device)
    seeds = [derive_seeds(seed, 1)[0] for seed in cell.seeds]
    looks = [0, *look_epochs(shown, LOOKS)]

    def begin() -> Asked:
        return Asked.begin(cell.params | {"epochs": LIMIT * shown}, source, seeds)

    rate, gradients, descent = descend(begin, looks, LIMIT * shown)
    return {
        "epochs": looks,
        "rate": f"{rate:g}",
        "descent": descent,
        "gradients": gradients,
        **train_as_usual(begin(), graph, looks, LIMIT * shown),
    }


def train_as_usual(asked: Asked, graph: Graph, looks: Sequence[int], epochs: int) -> dict[str, Any]:
    """Train with Adam, new masks and dropout; the loss that is noted is that of the fixed mask without.

    Accuracy is that on validation nodes. Errors under masks are measured before training and at the last
    look, the rank of the embedding before training and at the end of the whole run.
    """
    step, device = asked.step, asked.step.source.device
    labels, train, val, _ = Splits.of(graph)
    ridge = RidgeValidation(labels, train, val, device)
    mask_of, rate_of = asked.training.mask_of(len(asked.seeds)), asked.training.learning_rate_of()
    run = make_runner(step)
    curve: list[Tensor] = []
    masks: list[dict[str, Any]] = []

    def look(epoch: int) -> None:
        embedding = embed_models(step.student, cast(WholeGraph, step.source).rows())
        curve.append(torch.stack([ridge.accuracies(rows).mean() for rows in embedding]))
        if epoch in (looks[0], looks[-1]):
            masks.append(errors_under_masks(asked))

    def advance(epoch: int) -> None:
        step.student.train()
        step.optimizer.set_learning_rate(rate_of(epoch))
        run(mask_of(epoch))

    ranks = [measure(step)["effective_rank"]]
    found = walk(asked, advance, looks, epochs, look)
    ranks.append(measure(step)["effective_rank"])
    return {
        "adam": found.settled(),
        "validation": torch.stack(curve, dim=1).tolist(),
        "masks": {"untrained": masks[0], "trained": masks[-1]},
        "rank": torch.stack(ranks, dim=1).tolist(),
    }


@torch.no_grad()
def errors_under_masks(asked: Asked) -> dict[str, Any]:
    r"""Measure the error against how far the mask moves the features, at every mask ratio.

    `shift` is :math:`\delta = \lVert\bar f - f\rVert / \lVert f\rVert` and `error` the objective's own
    distance divided by the size of what is wanted: embeddings and features are different spaces, so that
    only relative sizes compare. `encoder` is the largest
    :math:`\lVert E(\bar f) - E(f)\rVert / \lVert\bar f - f\rVert`, and `decoder` the largest
    :math:`\lVert D(E(\bar f)) - D(E(f))\rVert / \lVert E(\bar f) - E(f)\rVert`: at most :math:`L_E` and
    :math:`L_D`, the latter 1 where there is no decoder.
    """
    features, token = asked.batch.part.features.dense, asked.step.student.input.mask_token
    wanted, seen = asked.wanted(), asked.encode(None)
    said = asked.decode(seen)
    found: dict[str, list[Tensor]] = {"shift": [], "error": [], "encoder": [], "decoder": []}
    for ratio in RATIOS:
        mask = asked.hide(ratio)
        shift = ((token - features) * mask[..., None]).flatten(1).norm(dim=1)
        embedding = asked.encode(mask)
        answer = asked.decode(embedding)
        moved = (embedding - seen).flatten(1).norm(dim=1)
        found["shift"].append(shift / features.norm())
        found["error"].append((answer - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1))
        if bool(mask.any()):
            found["encoder"].append(moved / shift)
            found["decoder"].append((answer - said).flatten(1).norm(dim=1) / moved)
    curves = {name: torch.stack(found[name], dim=1).tolist() for name in ("shift", "error")}
    most = {name: torch.stack(found[name]).amax(dim=0).tolist() for name in ("encoder", "decoder")}
    return {**curves, **most}
