"""Many logistic regressions: Newton's method along the strengths, from the strongest to the weakest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NEWTON = 60
"""At most so many of Newton's steps for one strength."""
INNER = 250
"""At most so many steps of conjugate gradients for one of Newton's."""
ROUGH = 0.25
"""How far a first step of Newton's is solved; later ones are solved further, the nearer the end is."""
HALVINGS = 30
"""A step is halved at most so many times; one that still does not help ends its problem."""


def fit_logistic(
    rows: Tensor, targets: Tensor, used: Tensor, strengths: Sequence[float], *, tolerance: float = 1e-6
) -> Tensor:
    r"""Solve L2-regularised softmax regressions, for each set of training rows one per strength.

    .. math:: \min_W \frac1{|U|} \sum_{v \in U} -\log p_{y_v}(x_v; W) + \frac\lambda2 \lVert W \rVert^2

    The intercept, the last row of W, is not regularised. The solution is a smooth path in the logarithm of
    λ: each strength begins where the two before it point to. Columns that are hardly correlated, as those of
    `principal_components` and `turned` are, make it quick; any others only take longer.

    Args:
        rows: `[n, D]`.
        targets: one-hot `[n, classes]`.
        used: bool `[problems, n]`, the training rows of each problem.
        strengths: every λ, in any order.
        tolerance: a problem ends when its loss can be no further than this from its least value.

    Returns:
        W `[problems, strengths, D + 1, classes]`.
    """
    problem = Regressions(rows, targets, used)
    found: dict[float, Tensor] = {}
    for strength in sorted(set(strengths), reverse=True):
        problem.strength = strength
        found[strength] = minimise(problem, _start(problem, found), tolerance)
    return torch.stack([found[strength] for strength in strengths], dim=1)


def _start(problem: Regressions, found: dict[float, Tensor]) -> Tensor:
    """Return where the last two solutions point to, or the last one where that is better, or zero."""
    if not found:
        return problem.rows.new_zeros(len(problem.share), problem.rows.shape[1], problem.targets.shape[1])
    *_, (near, last) = found.items()
    if len(found) == 1:
        return last
    *_, (far, before), _ = found.items()
    further = math.log(near / problem.strength) / math.log(far / near)
    return problem.better(last + further * (last - before), last)


def predict_logistic(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the log-probabilities `[problems, nodes, classes]` that weights give some rows `[nodes, D]`."""
    return (_product(rows, weights[:, :-1]) + weights[:, -1:]).log_softmax(dim=-1)


class Regressions:
    """The losses of all problems over weights `[problems, D + 1, classes]`, each with its training rows."""

    def __init__(self, rows: Tensor, targets: Tensor, used: Tensor, strength: float = 1.0) -> None:
        self.targets, self.strength = targets, strength
        self.share = (used / used.sum(dim=1, keepdim=True).clamp_min(1)).to(targets.dtype)[:, :, None]
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.spread = self.rows.square().mean(dim=0)[:, None]
        self.penalised = rows.new_ones(rows.shape[1] + 1, 1)
        self.penalised[-1] = 0

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[problems]`, its gradient, like the weights, and p `[problems, n, classes]`."""
        loss, log_p, shrunk = self.loss(weights)
        p = log_p.exp()
        return loss, _product(self.rows.mT, (p - self.targets) * self.share) + shrunk, p

    def loss(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[problems]`, log p `[problems, n, classes]`, and the pull on the weights."""
        log_p = _product(self.rows, weights).log_softmax(dim=-1)
        shrunk = self.strength * weights * self.penalised
        fit = -(log_p * self.targets * self.share).sum(dim=(1, 2))
        return fit + 0.5 * dot(weights, shrunk), log_p, shrunk

    def curve(self, p: Tensor, direction: Tensor) -> Tensor:
        r"""Return the Hessian's product with a direction: :math:`X^\top (P - p p^\top) X` and the pull."""
        along = p * _product(self.rows, direction)
        along = (along - p * along.sum(dim=-1, keepdim=True)) * self.share
        return _product(self.rows.mT, along) + self.strength * direction * self.penalised

    def steepness(self, p: Tensor) -> Tensor:
        """Return the Hessian's diagonal, as it would be if p had nothing to do with the rows."""
        bend = (p * (1 - p) * self.share).sum(dim=1, keepdim=True)
        return (bend * self.spread + self.strength * self.penalised).clamp_min(1e-9)

    def gap(self, gradient: Tensor, steepness: Tensor) -> Tensor:
        """Return how far the loss can be from its least value: it is at least as curved as λ/2 ‖W‖².

        The intercept has no pull; its own curvature stands in.
        """
        pulled = gradient[:, :-1].square().sum(dim=(1, 2)) / self.strength
        return 0.5 * (pulled + (gradient[:, -1].square() / steepness[:, -1]).sum(dim=1))

    def better(self, some: Tensor, others: Tensor) -> Tensor:
        """Return, for each problem, the weights with the lower loss."""
        return torch.where((self.loss(some)[0] < self.loss(others)[0])[:, None, None], some, others)


def minimise(problem: Regressions, weights: Tensor, tolerance: float) -> Tensor:
    """Walk from the given weights by Newton's method; a problem that is solved stays where it is."""
    loss, gradient, p = problem(weights)
    going = torch.ones_like(loss, dtype=torch.bool)
    for _ in range(NEWTON):
        steepness = problem.steepness(p)
        gap = problem.gap(gradient, steepness)
        going = going & ~(gap < tolerance)
        if not going.any():
            break
        direction = _newton(problem, gradient, p, steepness, going, tolerance)
        moved, new_loss, new_gradient, new_p = _line_search(problem, weights, loss, gradient, direction)
        going = going & (new_loss < loss)  # else rounding forbids what is left
        stay = ~going[:, None, None]
        weights, gradient, p = (
            torch.where(stay, old, new)
            for old, new in ((weights, moved), (gradient, new_gradient), (p, new_p))
        )
        loss = torch.where(going, new_loss, loss)
    return weights


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each problem's weights `[problems]`."""
    return (a * b).sum(dim=(1, 2))


def _newton(
    problem: Regressions, gradient: Tensor, p: Tensor, steepness: Tensor, going: Tensor, tolerance: float
) -> Tensor:
    """Return −H⁻¹ g by conjugate gradients, as far as it pays: no further than the tolerance asks for."""
    direction, rest = torch.zeros_like(gradient), -gradient
    search = rest / steepness
    size = dot(rest, search)
    goal = size * (size / 2).clamp_max(ROUGH**2)
    for _ in range(INNER):
        curved = problem.curve(p, search)
        bend = dot(search, curved)
        length = torch.where(going & (bend > 0), size / bend, 0.0)[:, None, None]
        direction, rest = direction + length * search, rest - length * curved
        scaled = rest / steepness
        new_size = dot(rest, scaled)
        going = going & (new_size > goal) & ~(problem.gap(rest, steepness) < 0.5 * tolerance)
        if not going.any():
            break
        search = scaled + torch.where(going, new_size / size, 0.0)[:, None, None] * search
        size = new_size
    return direction


def _line_search(
    problem: Regressions, weights: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve each problem's step until its loss falls enough."""
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
    """Multiply `[a, b]` with every problem's `[problems, b, classes]` at once.

    As (RᵀLᵀ)ᵀ: on a CPU a few long rows times a matrix are several times as fast as a matrix times a few
    columns.
    """
    problems, inner, classes = right.shape
    one_below_another = right.mT.reshape(problems * classes, inner)
    return (one_below_another @ left.mT).view(problems, classes, -1).mT.contiguous()
