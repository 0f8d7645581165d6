"""Many logistic regressions at once: one batched L-BFGS over splits and strengths."""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 10
"""How many past steps L-BFGS remembers."""
CHECK = 5
"""After so many steps the gradients are looked at."""


def fit_logistic(
    rows: Tensor,
    targets: Tensor,
    used: Tensor,
    strength: Tensor,
    *,
    iterations: int = 500,
    tolerance: float = 1e-6,
) -> Tensor:
    r"""Solve a batch of L2-regularised softmax regressions.

    .. math:: \min_W \frac1{|U|} \sum_{v \in U} -\log p_{y_v}(x_v; W) + \frac\lambda2 \lVert W \rVert^2

    The intercept, the last row of W, is not regularised.

    Args:
        rows: `[n, D]`.
        targets: one-hot `[n, classes]`.
        used: bool `[problems, n]`, the training rows of each problem.
        strength: λ of each problem `[problems]`.
        iterations: at most this many steps.
        tolerance: stop when no loss can be further than this from its least value.

    Returns:
        W `[problems, D + 1, classes]`.
    """
    start = rows.new_zeros(used.shape[0], rows.shape[1] + 1, targets.shape[1])
    return minimise(Regressions(rows, targets, used, strength), start, iterations, tolerance)


def predict_logistic(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the log-probabilities `[problems, nodes, classes]` that weights give some rows `[nodes, D]`."""
    return (_product(rows, weights[:, :-1]) + weights[:, -1:]).log_softmax(dim=-1)


class Regressions:
    """The losses of all problems over weights `[problems, D + 1, classes]`, each with its training rows."""

    def __init__(self, rows: Tensor, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        self.targets = targets
        self.share = (used / used.sum(dim=1, keepdim=True).clamp_min(1)).to(targets.dtype)
        self.strength = strength.to(targets.dtype)
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.curvature = 1 + 0.5 * rows.square().sum(dim=1).mean()
        self.penalised = rows.new_ones(rows.shape[1] + 1, 1)
        self.penalised[-1] = 0

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss `[problems]` and its gradient, a vector like the weights."""
        loss, slope = self.fit(_product(self.rows, weights))
        shrunk = weights * self.penalised * self.strength[:, None, None]
        return loss + 0.5 * self.dot(weights, shrunk), _product(self.rows.mT, slope) + shrunk

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product of each problem's weights `[problems]`."""
        return (a * b).sum(dim=(1, 2))

    def fit(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss `[problems]` of logits `[problems, n, classes]`, and its slope."""
        log_p = logits.log_softmax(dim=-1)
        loss = -((log_p * self.targets).sum(dim=-1) * self.share).sum(dim=-1)
        return loss, (log_p.exp() - self.targets) * self.share[:, :, None]

    def narrow(self, chosen: Tensor) -> None:
        """Go on with some of the problems only."""
        self.share, self.strength = self.share[chosen], self.strength[chosen]


def minimise(problem: Regressions, weights: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Walk from the given weights; every few steps, problems that are solved are put aside.

    The loss is at least as curved as λ/2 ‖W‖², so that it is no more than ‖g‖² / 2λ above its least value:
    the smaller the strength, the smaller the gradient has to be. The first step is as long as the curvature
    of the mean loss allows; a longer one would reach weights that separate the training rows and from which
    a weak pull leads back only slowly.
    """
    loss, gradient = problem(weights)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    found, left = weights.clone(), torch.arange(len(weights), device=weights.device)
    for iteration in range(iterations):
        if iteration % CHECK == 0:
            gap = problem.dot(gradient, gradient) / (2 * problem.strength)
            still = torch.nonzero(~(gap < tolerance)).flatten()
            found[left] = weights
            if not len(still):
                return found
            if len(still) < len(left):
                problem.narrow(still)
                left, weights, loss, gradient = (one[still] for one in (left, weights, loss, gradient))
                steps = [(change[still], curve[still], inverse[still]) for change, curve, inverse in steps]
        direction = -_approximate_newton(problem, gradient, steps)
        if not steps:
            direction = direction / problem.curvature
        moved, new_loss, new_gradient = _line_search(problem, weights, loss, gradient, direction)
        change, curve = moved - weights, new_gradient - gradient
        product = problem.dot(change, curve)
        steps.append((change, curve, torch.where(product > 1e-12, 1 / product.clamp_min(1e-12), 0.0)))
        del steps[:-MEMORY]
        weights, loss, gradient = moved, new_loss, new_gradient
    found[left] = weights
    return found


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply `[a, b]` with every problem's `[problems, b, classes]` at once."""
    problems, inner, classes = right.shape
    side_by_side = right.transpose(0, 1).reshape(inner, problems * classes)
    return (left @ side_by_side).view(-1, problems, classes).transpose(0, 1)


def _approximate_newton(
    problem: Regressions, gradient: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """Return H⁻¹ g by L-BFGS's two loops."""
    direction = gradient
    taken = []
    for change, curve, inverse in reversed(steps):
        amount = inverse * problem.dot(change, direction)
        direction = direction - amount[..., None, None] * curve
        taken.append(amount)
    if steps:
        change, curve, inverse = steps[-1]
        scale = problem.dot(change, curve) / problem.dot(curve, curve).clamp_min(1e-12)
        direction = direction * torch.where(inverse > 0, scale, 1.0)[..., None, None]
    for (change, curve, inverse), amount in zip(steps, reversed(taken), strict=True):
        correction = amount - inverse * problem.dot(curve, direction)
        direction = direction + correction[..., None, None] * change
    return direction


def _line_search(
    problem: Regressions, weights: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve each problem's step until its loss falls enough; a problem that cannot move stays."""
    slope = problem.dot(gradient, direction)
    uphill = slope >= 0
    direction = torch.where(uphill[..., None, None], -gradient, direction)
    slope = torch.where(uphill, -problem.dot(gradient, gradient), slope)
    slack = 4 * torch.finfo(loss.dtype).eps * loss.abs()  # rounding must not forbid the last steps
    length = torch.ones_like(loss)
    for _ in range(12):
        moved = weights + length[..., None, None] * direction
        new_loss, new_gradient = problem(moved)
        good = new_loss <= loss + 1e-4 * length * slope + slack
        if good.all():
            return moved, new_loss, new_gradient
        length = torch.where(good, length, 0.5 * length)
    moved = torch.where(good[..., None, None], moved, weights)
    new_loss, new_gradient = problem(moved)
    return moved, new_loss, new_gradient
