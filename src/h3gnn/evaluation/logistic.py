"""Many logistic regressions at once: one batched L-BFGS over models, splits and strengths."""

from __future__ import annotations

from typing import Protocol

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
        rows: `[models, n, D]`.
        targets: one-hot `[n, classes]`.
        used: bool `[problems, n]`, the training rows of each problem.
        strength: λ of each problem `[problems]`.
        iterations: at most this many steps.
        tolerance: stop when no loss can be further than this from its least value.

    Returns:
        W `[models, problems, D + 1, classes]`.
    """
    problem = _FromRows(rows, targets, used, strength)
    start = rows.new_zeros(rows.shape[0], used.shape[0], rows.shape[2] + 1, targets.shape[1])
    return _minimise(problem, start, iterations, tolerance)


def fit_kernel_logistic(
    kernel: Tensor,
    targets: Tensor,
    used: Tensor,
    strength: Tensor,
    *,
    iterations: int = 500,
    tolerance: float = 1e-6,
) -> Tensor:
    """Solve the same problems from the products of rows alone, which is less work where D > n.

    The solution lies in the span of the training rows, W = Xᵀ A, so that XW = K A with K = X Xᵀ. L-BFGS
    walks through the same W; each of its vectors is kept as coefficients a beside K a, for with both at hand
    an inner product ⟨Xᵀa, Xᵀb⟩ = aᵀ(K b) costs no more than one of two vectors.

    Args:
        kernel: K `[models, n, n]`; in float64, since its condition is the square of the rows'.
        targets, used, strength, iterations, tolerance: as in `fit_logistic`.

    Returns:
        A, and the intercept as its last row, `[models, problems, n + 1, classes]`.
    """
    models, many, _ = kernel.shape
    problem = _FromKernel(kernel, targets, used, strength)
    start = kernel.new_zeros(models, used.shape[0], 2 * many + 1, targets.shape[1])
    found = _minimise(problem, start, iterations, tolerance)
    return torch.cat([found[:, :, :many], found[:, :, -1:]], dim=2)


class _Problem(Protocol):
    """A loss over vectors that have an inner product."""

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss `[models, problems]` and its gradient, a vector like the weights."""

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product `[models, problems]`."""

    strength: Tensor
    curvature: Tensor

    def narrow(self, chosen: Tensor) -> None:
        """Go on with some of the problems only."""


def _minimise(problem: _Problem, weights: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Walk from the given weights; every few steps, problems that are solved are put aside.

    The loss is at least as curved as λ/2 ‖W‖², so that it is no more than ‖g‖² / 2λ above its least value:
    the smaller the strength, the smaller the gradient has to be. The first step is as long as the curvature
    of the mean loss allows; a longer one would reach weights that separate the training rows and from which
    a weak pull leads back only slowly.
    """
    loss, gradient = problem(weights)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    found, left = weights.clone(), torch.arange(weights.shape[1], device=weights.device)
    for iteration in range(iterations):
        if iteration % CHECK == 0:
            gap = problem.dot(gradient, gradient).amax(dim=0) / (2 * problem.strength)
            still = torch.nonzero(~(gap < tolerance)).flatten()
            found[:, left] = weights
            if not len(still):
                return found
            if len(still) < len(left):
                problem.narrow(still)
                left, weights, loss, gradient = (
                    left[still],
                    weights[:, still],
                    loss[:, still],
                    gradient[:, still],
                )
                steps = [(change[:, still], curve[:, still], i[:, still]) for change, curve, i in steps]
        direction = -_approximate_newton(problem, gradient, steps)
        if not steps:
            direction = direction / problem.curvature
        moved, new_loss, new_gradient = _line_search(problem, weights, loss, gradient, direction)
        change, curve = moved - weights, new_gradient - gradient
        product = problem.dot(change, curve)
        steps.append((change, curve, torch.where(product > 1e-12, 1 / product.clamp_min(1e-12), 0.0)))
        del steps[:-MEMORY]
        weights, loss, gradient = moved, new_loss, new_gradient
    found[:, left] = weights
    return found


class _Batch:
    """The training rows' targets, and each problem's share of them."""

    def __init__(self, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        self.targets = targets
        self.share = (used / used.sum(dim=1, keepdim=True).clamp_min(1)).to(targets.dtype)
        self.strength = strength.to(targets.dtype)

    def narrow(self, chosen: Tensor) -> None:
        """Go on with some of the problems only."""
        self.share, self.strength = self.share[chosen], self.strength[chosen]

    def fit(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss `[models, problems]` of logits `[models, problems, n, classes]`, its slope."""
        log_p = logits.log_softmax(dim=-1)
        loss = -((log_p * self.targets).sum(dim=-1) * self.share).sum(dim=-1)
        return loss, (log_p.exp() - self.targets) * self.share[:, :, None]


class _FromRows(_Batch):
    """Weights `[models, problems, D + 1, classes]`, with the usual inner product."""

    def __init__(self, rows: Tensor, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        super().__init__(targets, used, strength)
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        self.curvature = 1 + 0.5 * rows.square().sum(dim=2).mean()
        self.penalised = torch.ones(rows.shape[2] + 1, 1, dtype=rows.dtype, device=rows.device)
        self.penalised[-1] = 0

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient."""
        loss, slope = self.fit(_product(self.rows, weights))
        shrunk = weights * self.penalised * self.strength[:, None, None]
        return loss + 0.5 * self.dot(weights, shrunk), _product(self.rows.mT, slope) + shrunk

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product of each problem's weights."""
        return (a * b).sum(dim=(2, 3))


class _FromKernel(_Batch):
    """Vectors `[models, problems, n + n + 1, classes]`: coefficients a, products K a, and the intercept."""

    def __init__(self, kernel: Tensor, targets: Tensor, used: Tensor, strength: Tensor) -> None:
        super().__init__(targets, used, strength)
        self.kernel = kernel
        self.many = kernel.shape[1]
        self.curvature = 1 + 0.5 * kernel.diagonal(dim1=1, dim2=2).mean()

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient."""
        coefficients, products, intercept = torch.split(weights, [self.many, self.many, 1], dim=2)
        loss, slope = self.fit(products + intercept)
        strength = self.strength[:, None, None]
        gradient = slope + strength * coefficients
        penalty = 0.5 * self.strength * (coefficients * products).sum(dim=(2, 3))
        whole = [gradient, _product(self.kernel, gradient), slope.sum(dim=2, keepdim=True)]
        return loss + penalty, torch.cat(whole, dim=2)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ⟨Xᵀa, Xᵀb⟩ and the intercepts' product."""
        inner = (a[:, :, : self.many] * b[:, :, self.many : -1]).sum(dim=(2, 3))
        return inner + (a[:, :, -1] * b[:, :, -1]).sum(dim=2)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply `[models, a, b]` with every problem's `[models, problems, b, classes]` at once."""
    models, problems, inner, classes = right.shape
    side_by_side = right.transpose(1, 2).reshape(models, inner, problems * classes)
    return torch.bmm(left, side_by_side).view(models, -1, problems, classes).transpose(1, 2)


def _approximate_newton(
    problem: _Problem, gradient: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]
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
    problem: _Problem, weights: Tensor, loss: Tensor, gradient: Tensor, direction: Tensor
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
