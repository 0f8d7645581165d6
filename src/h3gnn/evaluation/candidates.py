"""What a classifier could be: one candidate for each split and setting, and what may be known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
Setting = Mapping[str, float]


@dataclass(frozen=True)
class Candidates:
    """Classifiers of one embedding, for each split one per setting.

    Whoever chooses among them sees how they do on validation nodes. What they say about test nodes is kept
    so that the one chosen can be scored later; the test nodes' labels are not here.

    Attributes:
        settings: what the candidates of a split differ in, such as `{"strength": 0.1}`.
        val_accuracy: on each split's validation nodes, `[splits, settings]`.
        val_loss: mean cross-entropy there, `[splits, settings]`.
        val_nodes: how many labelled validation nodes each split has, `[splits]`.
        predicted: of each split, the class that each setting gives each test node, `[settings, nodes]`.
        odds: of each split, log p₁ / p₀ of the test nodes, `[settings, nodes]`; None unless two classes.
        classes: how many there are.
    """

    settings: tuple[Setting, ...]
    val_accuracy: npt.NDArray[np.float64]
    val_loss: npt.NDArray[np.float64]
    val_nodes: npt.NDArray[np.int64]
    predicted: tuple[npt.NDArray[np.int16], ...]
    odds: tuple[npt.NDArray[np.float32], ...] | None
    classes: int

    @property
    def splits(self) -> int:
        """How many splits there are."""
        return len(self.predicted)


Judged = tuple[Tensor, Tensor, int, Tensor, Tensor | None]
"""Of one split: validation accuracy, loss and number of nodes, test predictions and odds."""


def judge(log_p: Tensor, labels: Tensor, val: Tensor, test: Tensor) -> Judged:
    """Return what is kept of one split.

    Args:
        log_p: class log-probabilities `[settings, nodes, classes]`.
        labels: int64 `[nodes]`, negative where unknown.
        val, test: bool `[nodes]`; of the validation nodes, only labelled ones count.
    """
    seen = torch.nonzero(val & (labels >= 0)).flatten()
    answers = labels[seen]
    at_val = log_p[:, seen]
    right = (at_val.argmax(dim=-1) == answers).double()
    own = at_val.gather(-1, answers.expand(len(log_p), -1)[..., None]).squeeze(-1).double()
    many = max(1, len(seen))
    at_test = log_p[:, torch.nonzero(test).flatten()]
    predicted = at_test.argmax(dim=-1).to(torch.int16)
    odds = (at_test[..., 1] - at_test[..., 0]).float() if log_p.shape[-1] == 2 else None
    return right.sum(dim=1) / many, -own.sum(dim=1) / many, len(seen), predicted, odds


def gather(judged: Sequence[Judged], settings: Sequence[Setting], classes: int) -> Candidates:
    """Join what `judge` kept of each split."""
    odds = [one[4] for one in judged]
    return Candidates(
        tuple(settings),
        torch.stack([one[0] for one in judged]).cpu().numpy(),
        torch.stack([one[1] for one in judged]).cpu().numpy(),
        np.array([one[2] for one in judged]),
        tuple(one[3].cpu().numpy() for one in judged),
        None if any(one is None for one in odds) else tuple(o.cpu().numpy() for o in odds if o is not None),
        classes,
    )


def candidates_from_scores(
    log_p: Tensor, labels: Tensor, val_mask: Tensor, test_mask: Tensor, settings: Sequence[Setting] = ({},)
) -> Candidates:
    """Return the candidates of classifiers that were fitted elsewhere, a supervised network's for instance.

    Args:
        log_p: class log-probabilities `[splits, settings, nodes, classes]`; `[splits, nodes, classes]` where
            each split has one classifier.
        labels: int64 `[nodes]`, negative where unknown.
        val_mask, test_mask: bool `[nodes, splits]`.
        settings: what the candidates of a split differ in.
    """
    log_p = log_p[:, None] if log_p.dim() == 3 else log_p
    labels, val, test = (one.to(log_p.device) for one in (labels, val_mask, test_mask))
    judged = [judge(scores, labels, val[:, i], test[:, i]) for i, scores in enumerate(log_p)]
    return gather(judged, settings, log_p.shape[-1])
