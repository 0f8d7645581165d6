"""A linear classifier in closed form, cheap enough to score hundreds of models on the way of a search."""

from __future__ import annotations

import torch
from torch import Tensor

from h3gnn.evaluation.rows import standardise

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Strengths to choose from, relative to a kernel with ones on its diagonal."""


class RidgeValidation:
    r"""Accuracy on validation nodes of ridge regression onto the classes, for a batch of embeddings.

    With the rows z of the standardised embedding scaled so that :math:`k(u, v) = z_u^\top z_v / D + 1`,

    .. math:: \alpha = (K_{tt} + \rho I)^{-1} Y_t, \qquad \hat y_v = \arg\max_c \, (K_{vt}\, \alpha)_c

    for the training nodes t of each split. The class holds no label of a test node.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train_mask, val_mask: bool `[nodes, splits]`.
        device: where the embeddings will lie.
        ridges: the strengths ρ; for each embedding the one counts that is best over all splits' validation
            nodes together. (The best for each split by itself would reward luck.)
    """

    def __init__(
        self,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        device: torch.device,
        ridges: tuple[float, ...] = RIDGES,
    ) -> None:
        known = labels >= 0
        self.ridges = ridges
        self.classes = int(labels.max()) + 1
        self.splits = []
        for train, val in zip(train_mask.t(), val_mask.t(), strict=True):
            training, validation = (torch.nonzero(mask & known).flatten() for mask in (train, val))
            targets = torch.nn.functional.one_hot(labels[training], self.classes).float()
            parts = (training, validation, targets, labels[validation])
            self.splits.append(tuple(part.to(device) for part in parts))

    def accuracies(self, embeddings: Tensor) -> Tensor:
        """Return the accuracy of each embedding on each split's validation nodes, `[embeddings, splits]`.

        Args:
            embeddings: `[embeddings, nodes, D]`; one that is not finite scores 0.
        """
        finite = embeddings.isfinite().flatten(1).all(dim=1)
        rows = standardise(embeddings.nan_to_num(0.0, 0.0, 0.0)) * embeddings.shape[2] ** -0.5
        each = torch.stack([self._of_split(rows, *split) for split in self.splits], dim=2)
        best = each.mean(dim=2).argmax(dim=0)
        return each[best, torch.arange(len(best), device=best.device)] * finite[:, None]

    def _of_split(
        self, rows: Tensor, training: Tensor, validation: Tensor, targets: Tensor, truth: Tensor
    ) -> Tensor:
        """Return the accuracy with each ridge, `[ridges, embeddings]`."""
        known = rows[:, training]
        within, across = (torch.bmm(part, known.mT) + 1 for part in (known, rows[:, validation]))
        identity = torch.eye(len(training), device=rows.device)
        right = []
        for ridge in self.ridges:
            factor, _ = torch.linalg.cholesky_ex(within + ridge * identity)
            answer = torch.bmm(across, torch.cholesky_solve(targets.expand(len(rows), -1, -1), factor))
            right.append((answer.argmax(dim=-1) == truth).float().mean(dim=1))
        return torch.stack(right)
