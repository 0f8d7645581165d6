"""Many logistic regressions at once: one batched L-BFGS over models, splits and strengths."""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 10
"""How many past steps L-BFGS remembers."""


def fit_logistic(
    rows: Tensor,
    targets: Tensor,
    used: Tensor,
    strength: Tensor,
    *,
    iterations: int = 200,
    tolerance: float = 1e-4,
) -> Tensor:
    r"""Solve a batch of L2-regularised softmax regressions.

    .. math:: \min_W \frac1{|U|} \sum_{v \in U} -\log p_{y_v}(x_v; W) + \frac\lambda2 \lVert W \rVert^2

    The intercept, the last row of W, is not regularised.

    Args:
        rows: `[models, n, D]`.
        targets: one-hot `[n, classes]`.
        used: bool `[problems, n]`, the training rows of each problem.
        strength: λ of each problem `[problems]`.
        iterations: at most this many steps.
        tolerance: stop when no gradient entry is larger.

    Returns:
        W `[models, problems, D + 1, classes]`.
    """
    problem = _Problem(rows, targets, used, strength)
    weights = rows.new_zeros(rows.shape[0], used.shape[0], rows.shape[2] + 1, targets.shape[1])
    loss, gradient = problem(weights)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(iterations):
        if gradient.abs().amax() < tolerance:
            break
        direction = -_approximate_newton(gradient, steps)
        moved, new_loss, new_gradient = _line_search(problem, weights, loss, gradient, direction)
        change, curve = moved - weights, new_gradient - gradient
        product = _dot(change, curve)
        steps.append((change, curve, torch.where(product > 1e-12, 1 / product.clamp_min(1e-12), 0.0)))
        del steps[:-MEMORY]
        weights, loss, gradient = moved, new_loss, new_gradient
    return weights


class _Problem:
    """Loss `[models, problems]` and gradient of a batch of weights."""

    def __init__(self, rows: Tensor, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.targets = targets
        self.share = (used / used.sum(dim=1, keepdim=True).clamp_min(1)).to(rows.dtype)
        self.strength = strength.to(rows.dtype)
        self.penalised = torch.ones(rows.shape[2] + 1, 1, dtype=rows.dtype, device=rows.device)
        self.penalised[-1] = 0

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient."""
        models, problems, width, classes = weights.shape
        side_by_side = weights.permute(0, 2, 1, 3).reshape(models, width, problems * classes)
        logits = torch.bmm(self.rows, side_by_side).view(models, -1, problems, classes)
        share = self.share.t()  # [n, problems]
        log_p = logits.log_softmax(dim=-1)
        fit = -((log_p * self.targets[:, None, :]).sum(dim=-1) * share).sum(dim=1)
        slope = (log_p.exp() - self.targets[:, None, :]) * share[:, :, None]
        gradient = torch.bmm(self.rows.mT, slope.reshape(models, -1, problems * classes))
        gradient = gradient.view(models, width, problems, classes).transpose(1, 2)
        shrunk = weights * self.penalised * self.strength[:, None, None]
        return fit + 0.5 * _dot(weights, shrunk), gradient + shrunk


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(2, 3))


def _approximate_newton(gradient: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return H⁻¹ g by L-BFGS's two loops."""
    direction = gradient
    taken = []
    for change, curve, inverse in reversed(steps):
        amount = inverse * _dot(change, direction)
        direction = direction - amount[..., None, None] * curve
        taken.append(amount)
    if steps:
        change, curve, inverse = steps[-1]
        scale = _dot(change, curve) / _dot(curve, curve).clamp_min(1e-12)
        direction = direction * torch.where(inverse > 0, scale, 1.0)[..., None, None]
    for (change, curve, inverse), amount in zip(steps, reversed(taken), strict=True):
        correction = amount - inverse * _dot(curve, direction)
        direction = direction + correction[..., None, None] * change
    return direction


def _line_search(
    problem: _Problem, weights: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve each problem's step until its loss falls enough; a problem that cannot move stays."""
    slope = _dot(gradient, direction)
    uphill = slope >= 0
    direction = torch.where(uphill[..., None, None], -gradient, direction)
    slope = torch.where(uphill, -_dot(gradient, gradient), slope)
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
