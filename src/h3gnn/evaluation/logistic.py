"""Batches of L2-regularised logistic regressions by Newton's method, along a path of penalties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

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
