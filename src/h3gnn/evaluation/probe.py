"""The linear probe: frozen embeddings, a linear classifier, and a strength that validation nodes choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.logistic import fit_logistic

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
"""The L2 strengths to choose from, relative to a mean loss over the training nodes."""


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy on the test nodes of each split, with the strength that its validation nodes chose."""

    test: npt.NDArray[np.float64]
    validation: npt.NDArray[np.float64]
    strength: npt.NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean test accuracy over splits."""
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
    strengths: tuple[float, ...] = STRENGTHS,
) -> ProbeResult:
    """Fit a linear classifier on each split's training nodes and score it on its test nodes.

    The embedding is standardised over all nodes (no label is needed for that). For each split the strength is
    the one with the best accuracy on that split's validation nodes, ties broken by the validation loss. Test
    nodes are looked at once, to score.

    Args:
        embedding: `[nodes, D]`.
        labels: int64 `[nodes]`; nodes with a negative label are left out.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths to choose from.
    """
    rows = torch.as_tensor(np.asarray(embedding) if not isinstance(embedding, Tensor) else embedding)
    known = (labels >= 0).to(rows.device)
    train, val, test = (
        (mask.to(rows.device) & known[:, None]).t() for mask in (train_mask, val_mask, test_mask)
    )
    scores = probe_scores(rows[None], labels.to(rows.device), train, strengths)[0]
    val_accuracy, val_loss = _accuracy(scores, labels, val), _loss(scores, labels, val)
    chosen = _best(val_accuracy, val_loss)  # [splits]
    split = torch.arange(len(chosen), device=chosen.device)
    test_accuracy = _accuracy(scores, labels, test)
    return ProbeResult(
        _numpy(test_accuracy[split, chosen]),
        _numpy(val_accuracy[split, chosen]),
        np.array([strengths[int(i)] for i in chosen]),
    )


def probe_scores(embeddings: Tensor, labels: Tensor, train: Tensor, strengths: tuple[float, ...]) -> Tensor:
    """Return class log-probabilities `[models, splits, strengths, nodes, classes]`, all solved at once.

    Args:
        embeddings: `[models, nodes, D]`.
        labels: int64 `[nodes]`.
        train: bool `[splits, nodes]`.
        strengths: L2 strengths.
    """
    classes = int(labels.max()) + 1
    needed = train.any(dim=0)
    rows = _span(standardise(embeddings), needed)
    targets = torch.nn.functional.one_hot(labels[needed].clamp_min(0), classes).to(rows.dtype)
    used = train[:, needed].repeat_interleave(len(strengths), dim=0)
    strength = torch.tensor(strengths, dtype=rows.dtype, device=rows.device).repeat(train.shape[0])
    weights = fit_logistic(rows[:, needed], targets, used, strength)
    logits = torch.einsum("mnd,mpdk->mpnk", rows, weights[:, :, :-1]) + weights[:, :, -1:]
    scores = logits.log_softmax(dim=-1)
    return scores.view(scores.shape[0], train.shape[0], len(strengths), *scores.shape[2:])


def standardise(embeddings: Tensor) -> Tensor:
    """Return each column with mean 0 and variance 1 over the nodes; constant columns become 0."""
    centred = embeddings - embeddings.mean(dim=-2, keepdim=True)
    spread = centred.std(dim=-2, correction=0, keepdim=True)
    return torch.where(spread > 1e-8, centred / spread.clamp_min(1e-8), 0.0)


def _span(rows: Tensor, needed: Tensor) -> Tensor:
    """Express all rows in a basis of the training rows' span, where that is smaller.

    An L2-regularised linear classifier lies in the span of its training rows, so this changes no prediction;
    it turns a wide problem into one with as many columns as training rows.
    """
    training = rows[:, needed]
    if training.shape[1] >= training.shape[2]:
        return rows
    basis: Tensor = torch.linalg.qr(training.mT).Q  # [models, D, n]
    return rows @ basis


def _accuracy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the accuracy on masked nodes, `[splits, strengths]`."""
    right = (scores.argmax(dim=-1) == labels.to(scores.device)).double()
    return (right * mask[:, None, :]).sum(dim=-1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


def _loss(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the mean cross-entropy on masked nodes, `[splits, strengths]`."""
    index = labels.clamp_min(0).to(scores.device).expand(scores.shape[:-1]).unsqueeze(-1)
    own = scores.gather(-1, index).squeeze(-1).double()
    return -(own * mask[:, None, :]).sum(dim=-1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


def _best(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Return the position of the best accuracy in each row, ties broken by the smaller loss."""
    tied = accuracy >= accuracy.amax(dim=1, keepdim=True) - 1e-12
    return torch.where(tied, loss, float("inf")).argmin(dim=1)


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.double().cpu().numpy()
    return array
