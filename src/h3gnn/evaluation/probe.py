"""Linear probes of embeddings: a candidate classifier for each split and setting.

Logistic regressions are solved in batches, by Newton's method along a path of penalties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation import protocols
from h3gnn.evaluation.metrics import is_known, solve_ridge
from h3gnn.evaluation.protocols import VALIDATION, Candidates, Setting
from h3gnn.resources import map_in_threads, one_thread

COLUMNS = 1024  # that `inner_products` standardises at a time
CONSTANT = 1e-8  # columns with at most this standard deviation are constant
RELATIVE_VARIANCE = 1e-10  # principal directions with at most this share of the largest variance are dropped
MAX_ROTATED = 4096  # wider embeddings are not rotated to principal components, which takes cubic time
L2_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""L2 penalties, relative to a mean loss over the training nodes; large ones are for wide embeddings."""
TOGETHER = {"cpu": 256, "cuda": 4096}
"""Splits with at most this many training nodes in all are solved together, else one by one."""
WIDE = 2  # embeddings with more columns per training node are projected for each split
MAX_PRODUCTS = 2**28  # inner products in memory, 2 GiB


def as_rows(embedding: npt.ArrayLike | Tensor | SharedEmbedding) -> Tensor:
    """Return an embedding `[nodes, D]` as a tensor."""
    if isinstance(embedding, SharedEmbedding):
        return embedding.rows
    if isinstance(embedding, Tensor):
        return embedding.detach()
    return torch.as_tensor(np.asarray(embedding))


def standardise(embeddings: Tensor, spread: Tensor | None = None) -> Tensor:
    """Centre columns and divide them by their standard deviation or `spread`; constant ones become 0."""
    centred = embeddings - embeddings.mean(dim=-2, keepdim=True)
    if spread is None:
        spread = centred.std(dim=-2, correction=0, keepdim=True)
    return torch.where(spread > CONSTANT, centred / spread.clamp_min(CONSTANT), 0.0)


def common_spread(embedding: Tensor) -> Tensor:
    """Return one standard deviation for all columns.

    For raw features: standardised separately, a rare word would count more than a frequent one.
    """
    return torch.var(embedding.float(), dim=0, correction=0).mean().sqrt()


def inner_products(embedding: Tensor, chosen: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return the inner products of all standardised rows with the chosen ones, float64 `[nodes, chosen]`.

    Columns are processed in pieces, so that a wide embedding is never copied as a whole.
    """
    total = torch.zeros(len(embedding), len(chosen), dtype=torch.float64, device=embedding.device)
    for columns in torch.split(embedding, COLUMNS, dim=1):
        scaled = standardise(columns.double(), spread)
        total.addmm_(scaled, scaled[chosen].mT)
    return total


def projection_basis(within: Tensor) -> Tensor:
    r"""Return :math:`U \Lambda^{-1/2}` for the inner products :math:`K = U \Lambda U^\top` of some rows.

    It turns inner products with these rows into coordinates along their principal directions.
    """
    values, vectors = torch.linalg.eigh(within)
    there = values > RELATIVE_VARIANCE * values[-1:].clamp_min(CONSTANT)
    return torch.as_tensor(vectors[:, there] / values[there].sqrt())


def project_onto(products: Tensor, chosen: Tensor) -> Tensor:
    """Project all rows onto the span of the chosen ones, from their inner products `[nodes, chosen]`."""
    return products @ projection_basis(products[chosen])


def principal_components(rows: Tensor) -> Tensor:
    """Rotate rows `[nodes, D]` to their principal components."""
    return rows @ torch.as_tensor(torch.linalg.eigh(rows.mT @ rows).eigenvectors)


class SharedEmbedding:
    """An embedding whose principal components are computed once for probes of several splits."""

    def __init__(self, embedding: npt.ArrayLike | Tensor) -> None:
        self.rows = as_rows(embedding)
        self._rotated: dict[bool, Tensor] = {}

    @classmethod
    def of(cls, embedding: npt.ArrayLike | Tensor | SharedEmbedding) -> SharedEmbedding:
        """Return a shared embedding unchanged, and wrap any other."""
        return embedding if isinstance(embedding, SharedEmbedding) else cls(embedding)

    def rotated(self, by_column: bool) -> Tensor:
        """Return the standardised rows as principal components (unless too wide), float32."""
        if by_column not in self._rotated:
            rows = standardise(self.rows.float(), self.spread(by_column))
            self._rotated[by_column] = principal_components(rows) if rows.shape[1] <= MAX_ROTATED else rows
        return self._rotated[by_column]

    def spread(self, by_column: bool) -> Tensor | None:
        """Return the `spread` of `standardise`: None for each column's own."""
        return None if by_column else common_spread(self.rows)


@dataclass(frozen=True)
class ProbeResult:
    """Test and validation accuracy of each split, with the L2 strength chosen on its validation nodes."""

    test: npt.NDArray[np.float64]
    validation: npt.NDArray[np.float64]
    strength: npt.NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean test accuracy."""
        return float(self.test.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the test accuracy over splits."""
        return float(self.test.std())


def linear_probe(
    embedding: npt.ArrayLike | Tensor,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    *,
    strengths: tuple[float, ...] = L2_GRID,
) -> ProbeResult:
    """Fit a logistic regression on each split's training nodes and score it on its test nodes.

    The embedding is standardised over all nodes. Validation nodes choose the L2 strength, see
    `Protocol.choose`; test nodes only score the chosen classifier.

    Args:
        embedding: `[nodes, D]`.
        labels: int64 `[nodes]`; nodes with a negative label are ignored.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths to choose from.
    """
    found = probe_candidates(embedding, labels, train_mask, val_mask, test_mask, strengths)
    choices = VALIDATION.choose({0: found})
    scores = protocols.score({0: found}, choices, protocols.held_out_labels(labels, test_mask))
    return ProbeResult(
        np.array(scores.accuracy),
        np.array(scores.validation),
        np.array([choice.setting["strength"] for choice in choices]),
    )


def probe_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    strengths: Sequence[float] = L2_GRID,
    classes: int | None = None,
    by_column: bool = True,
) -> Candidates:
    """Fit a logistic regression, of numbers a ridge regression, for each split and L2 strength.

    Nothing is chosen, and no test labels are used. `by_column` standardises columns separately; else all are
    divided by one number, as suits raw features. The number of classes is by default that of the training and
    validation nodes.
    """
    shared = SharedEmbedding.of(embedding)
    given = labels, train_mask, val_mask, test_mask
    labels, train, val, test = (one.to(shared.rows.device) for one in given)
    train = train & is_known(labels)[:, None]
    classes = protocols.count_classes(labels, train, val) if classes is None else classes
    rare = protocols.rarest_known_class(labels, train, val)
    settings = [{"strength": value} for value in strengths]
    with one_thread(len(labels)):
        basis = _Basis(shared, train, by_column)

    def fit_classes(splits: list[int]) -> list[Candidates]:
        nodes, scored = (torch.nonzero(one[:, splits].any(dim=1)).flatten() for one in (train, val | test))
        rows = basis.rows_for(nodes)
        targets = torch.nn.functional.one_hot(labels[nodes], classes).to(rows.dtype)
        weights = fit_logistic(rows[nodes], targets, train[nodes][:, splits].t(), strengths)
        found = []
        for split, own in zip(splits, weights, strict=True):
            log_p, masks = predict_logistic(rows[scored], own), (val[scored, split], test[scored, split])
            found.append(protocols.summarize_split(log_p, labels[scored], *masks, settings, rare))
        return found

    def fit_numbers(splits: list[int]) -> list[Candidates]:
        nodes = torch.nonzero(train[:, splits].any(dim=1)).flatten()
        rows, found = basis.rows_for(nodes).double(), []
        for split in splits:
            own, scored = (torch.nonzero(one[:, split]).flatten() for one in (train, val | test))
            weights = solve_ridge(rows[own], labels[own], strengths if len(own) else ())
            predicted = weights[:, :-1] @ rows[scored].mT + weights[:, -1:]
            masks = val[scored, split], test[scored, split]
            found.append(protocols.summarize_numbers(predicted, labels[scored], *masks, settings))
        return found

    fit = fit_numbers if labels.is_floating_point() else fit_classes
    groups = map_in_threads(fit, basis.groups, len(labels), labels.device.type)
    return protocols.join_splits([one for group in groups for one in group])


def scaled_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding, labels: Tensor, *given: Any, **options: Any
) -> Candidates:
    """Return `probe_candidates` of both scalings: each column separately, and all by one number."""
    shared = SharedEmbedding.of(embedding)
    by_scale = {"columns": {**options, "by_column": True}, "common": {**options, "by_column": False}}
    found = {scale: probe_candidates(shared, labels, *given, **how) for scale, how in by_scale.items()}
    return protocols.concat_candidates(found, "scale")


class _Basis:
    """Standardised rows, projected to few columns where possible, and the splits that are solved together.

    An L2-regularised classifier lies in the span of its training rows, so projecting a wide embedding onto
    that span is exact. Projected rows are float64: if a split lacks a class, its intercept has no minimum,
    and the result should not depend on rounding. Many nodes on a CPU are float32, which is a quarter faster.
    """

    def __init__(self, shared: SharedEmbedding, train: Tensor, by_column: bool) -> None:
        self.union = torch.nonzero(train.any(dim=1)).flatten()
        nodes, columns = shared.rows.shape
        kind, every = shared.rows.device.type, list(range(train.shape[1]))
        largest = int(train.sum(dim=0).amax()) if train.numel() else 0
        apart = len(self.union) > max(largest, TOGETHER.get(kind, 256))
        wide = columns > (WIDE * largest if apart else len(self.union))
        self.groups = [[split] for split in every] if apart else [every]
        self.precision = torch.float32 if apart and kind == "cpu" else torch.float64
        self.rows = self.products = None
        if wide and nodes * len(self.union) <= MAX_PRODUCTS:
            self.products = inner_products(shared.rows, self.union, shared.spread(by_column))
        else:
            self.rows = shared.rotated(by_column)

    def rows_for(self, nodes: Tensor) -> Tensor:
        """Return rows of all nodes for classifiers trained on some, `[nodes, columns]`."""
        if self.products is None:
            assert self.rows is not None
            return self.rows
        return project_onto(self.products[:, torch.searchsorted(self.union, nodes)], nodes).to(self.precision)


def gradient_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    *,
    learning_rates: tuple[float, ...] = (0.01, 0.005, 0.001),
    weight_decays: tuple[float, ...] = (0.0, 5e-4, 5e-5),
    steps: int = 300,
    every: int = 10,
    classes: int | None = None,
) -> Candidates:
    """Train a linear layer by Adam for each split, learning rate and weight decay; the paper's by default.

    The layers start at 0, without randomness. Every `every` steps give a candidate.
    """
    rows = standardise(as_rows(embedding).float())
    labels, train, val, test = (one.to(rows.device) for one in (labels, train_mask, val_mask, test_mask))
    train = train & (labels >= 0)[:, None]
    classes = protocols.count_classes(labels, train, val) if classes is None else classes
    rare = protocols.rarest_known_class(labels, train, val)
    grid = list(product(learning_rates, weight_decays))
    scored = [torch.nonzero((val | test)[:, split]).flatten() for split in range(train.shape[1])]
    log_p: list[list[Tensor]] = [[] for _ in scored]  # of the scored nodes of each split
    settings: list[Setting] = []
    with one_thread(len(labels)), torch.no_grad():
        rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)  # a column for the bias
        layers = _train_layers(rows, labels, train, grid, classes)
        for step, weights in enumerate(islice(layers, steps), 1):
            if step % every == 0 or step == steps:
                settings += [
                    {"learning_rate": rate, "weight_decay": decay, "step": step} for rate, decay in grid
                ]
                for split, nodes in enumerate(scored):
                    own = torch.stack([weight[split] for weight in weights])
                    log_p[split].append((rows[nodes] @ own).log_softmax(dim=-1))
    found = []
    for split, nodes in enumerate(scored):
        masks = val[nodes, split], test[nodes, split]
        found.append(
            protocols.summarize_split(torch.cat(log_p[split]), labels[nodes], *masks, settings, rare)
        )
    return protocols.join_splits(found)


def _train_layers(
    rows: Tensor, labels: Tensor, train: Tensor, grid: list[tuple[float, float]], classes: int
) -> Iterator[list[Tensor]]:
    """Train a linear layer for each split and setting; yield each setting's weights after every step.

    The losses are summed over layers; Adam scales each weight separately, so the layers do not interact.
    """
    nodes = torch.nonzero(train.any(dim=1)).flatten()
    training, targets = rows[nodes], torch.nn.functional.one_hot(labels[nodes], classes)
    share = (train[nodes] / train.sum(dim=0).clamp_min(1)).t().float()  # [splits, training nodes]
    weights = [rows.new_zeros(train.shape[1], rows.shape[1], classes).requires_grad_() for _ in grid]
    groups = zip(weights, grid, strict=True)
    adam = torch.optim.Adam(
        [{"params": [one], "lr": rate, "weight_decay": decay} for one, (rate, decay) in groups]
    )
    while True:
        for weight in weights:
            p = torch.einsum("nd,sdk->snk", training, weight).softmax(dim=-1)
            weight.grad = torch.einsum("nd,snk->sdk", training, (p - targets) * share[:, :, None])
        adam.step()
        yield weights


NEWTON_STEPS = 60  # at most, per penalty
CG_STEPS = 250  # conjugate-gradient steps at most, per Newton step
FORCING = 0.25  # relative accuracy of the first Newton steps; later ones are solved more accurately
HALVINGS = 30  # of a step at most; a problem whose loss still does not decrease is done


def fit_logistic(
    rows: Tensor, targets: Tensor, used: Tensor, penalties: Sequence[float], *, tolerance: float = 1e-6
) -> Tensor:
    r"""Solve softmax regressions, one for each set of training rows and each L2 penalty λ.

    .. math:: \min_W \frac1{|U|} \sum_{v \in U} -\log p_{y_v}(x_v; W) + \frac\lambda2 \lVert W \rVert^2

    The intercept, the last row of W, is not penalised. The solution is smooth in log λ: each penalty, from
    the largest to the smallest, starts at the extrapolation of the last two. Columns that are hardly
    correlated, such as principal components, converge fastest. `tolerance` bounds the distance of the loss
    from its minimum.

    From rows `[n, D]`, one-hot targets `[n, classes]` and the training rows of each problem, bool
    `[problems, n]`, the result is W `[problems, penalties, D + 1, classes]`.
    """
    problem = Regressions(rows, targets, used)
    found: dict[float, Tensor] = {}
    for penalty in sorted(set(penalties), reverse=True):
        problem.penalty = penalty
        found[penalty] = minimise(problem, _start(problem, found), tolerance)
    return torch.stack([found[penalty] for penalty in penalties], dim=1)


def _start(problem: Regressions, found: dict[float, Tensor]) -> Tensor:
    """Return the extrapolation of the last two solutions, or the last one if that is better, or zero."""
    if not found:
        return problem.rows.new_zeros(len(problem.share), problem.rows.shape[1], problem.targets.shape[1])
    *_, (near, last) = found.items()
    if len(found) == 1:
        return last
    *_, (far, before), _ = found.items()
    further = math.log(near / problem.penalty) / math.log(far / near)
    return problem.better(last + further * (last - before), last)


def predict_logistic(rows: Tensor, weights: Tensor) -> Tensor:
    """Return log-probabilities `[problems, nodes, classes]` of rows `[nodes, D]`."""
    return (_product(rows, weights[:, :-1]) + weights[:, -1:]).log_softmax(dim=-1)


class Regressions:
    """The losses of all problems, as functions of weights `[problems, D + 1, classes]`."""

    def __init__(self, rows: Tensor, targets: Tensor, used: Tensor, penalty: float = 1.0) -> None:
        self.targets, self.penalty = targets, penalty
        self.share = (used / used.sum(dim=1, keepdim=True).clamp_min(1)).to(targets.dtype)[:, :, None]
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.mean_square = self.rows.square().mean(dim=0)[:, None]
        self.penalised = rows.new_ones(rows.shape[1] + 1, 1)
        self.penalised[-1] = 0

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[problems]`, its gradient, and p `[problems, n, classes]`."""
        loss, log_p, shrinkage = self.loss(weights)
        p = log_p.exp()
        return loss, _product(self.rows.mT, (p - self.targets) * self.share) + shrinkage, p

    def loss(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[problems]`, log p `[problems, n, classes]`, and the gradient of the penalty."""
        log_p = _product(self.rows, weights).log_softmax(dim=-1)
        shrinkage = self.penalty * weights * self.penalised
        fit = -(log_p * self.targets * self.share).sum(dim=(1, 2))
        return fit + 0.5 * dot(weights, shrinkage), log_p, shrinkage

    def hessian_product(self, p: Tensor, direction: Tensor) -> Tensor:
        r"""Return :math:`(X^\top (P - p p^\top) X + \lambda) d` for a direction d."""
        along = p * _product(self.rows, direction)
        along = (along - p * along.sum(dim=-1, keepdim=True)) * self.share
        return _product(self.rows.mT, along) + self.penalty * direction * self.penalised

    def diagonal(self, p: Tensor) -> Tensor:
        """Return the diagonal of the Hessian, as if p and the rows were independent."""
        curvature = (p * (1 - p) * self.share).sum(dim=1, keepdim=True)
        return (curvature * self.mean_square + self.penalty * self.penalised).clamp_min(1e-9)

    def gap(self, gradient: Tensor, diagonal: Tensor) -> Tensor:
        """Bound the distance from the minimum by the curvature of λ/2 ‖W‖², and of the intercept."""
        penalised = gradient[:, :-1].square().sum(dim=(1, 2)) / self.penalty
        return 0.5 * (penalised + (gradient[:, -1].square() / diagonal[:, -1]).sum(dim=1))

    def better(self, some: Tensor, others: Tensor) -> Tensor:
        """Return, for each problem, the weights with the lower loss."""
        return torch.where((self.loss(some)[0] < self.loss(others)[0])[:, None, None], some, others)


def minimise(problem: Regressions, weights: Tensor, tolerance: float) -> Tensor:
    """Run Newton's method from the given weights; solved problems stay unchanged."""
    loss, gradient, p = problem(weights)
    active = torch.ones_like(loss, dtype=torch.bool)
    for _ in range(NEWTON_STEPS):
        diagonal = problem.diagonal(p)
        active = active & ~(problem.gap(gradient, diagonal) < tolerance)
        if not active.any():
            break
        direction = _newton(problem, gradient, p, diagonal, active, tolerance)
        moved, new_loss, new_gradient, new_p = _line_search(problem, weights, loss, gradient, direction)
        active = active & (new_loss < loss)  # else the limit of the precision is reached
        stay = ~active[:, None, None]
        weights, gradient, p = (
            torch.where(stay, old, new)
            for old, new in ((weights, moved), (gradient, new_gradient), (p, new_p))
        )
        loss = torch.where(active, new_loss, loss)
    return weights


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each problem's weights `[problems]`."""
    return (a * b).sum(dim=(1, 2))


def _newton(
    problem: Regressions, gradient: Tensor, p: Tensor, diagonal: Tensor, active: Tensor, tolerance: float
) -> Tensor:
    """Return −H⁻¹ g by preconditioned conjugate gradients, no more accurately than the tolerance needs."""
    direction, residual = torch.zeros_like(gradient), -gradient
    search = residual / diagonal
    size = dot(residual, search)
    goal = size * (size / 2).clamp_max(FORCING**2)
    for _ in range(CG_STEPS):
        product = problem.hessian_product(p, search)
        curvature = dot(search, product)
        length = torch.where(active & (curvature > 0), size / curvature, 0.0)[:, None, None]
        direction, residual = direction + length * search, residual - length * product
        scaled = residual / diagonal
        new_size = dot(residual, scaled)
        active = active & (new_size > goal) & ~(problem.gap(residual, diagonal) < 0.5 * tolerance)
        if not active.any():
            break
        search = scaled + torch.where(active, new_size / size, 0.0)[:, None, None] * search
        size = new_size
    return direction


def _line_search(
    problem: Regressions, weights: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve each problem's step until its loss decreases enough."""
    slope, length = dot(gradient, direction), torch.ones_like(loss)
    for _ in range(HALVINGS):
        moved = weights + length[:, None, None] * direction
        new_loss, new_gradient, p = problem(moved)
        good = new_loss <= loss + 1e-4 * length * slope
        if good.all():
            break
        length = torch.where(good, length, 0.5 * length)
    return moved, new_loss, new_gradient, p


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply `[a, b]` with each problem's `[problems, b, classes]`, as (RᵀLᵀ)ᵀ.

    On a CPU a few long rows times a matrix are several times faster than a matrix times a few columns.
    """
    problems, inner, classes = right.shape
    flat = right.mT.reshape(problems * classes, inner)
    return (flat @ left.mT).view(problems, classes, -1).mT.contiguous()
