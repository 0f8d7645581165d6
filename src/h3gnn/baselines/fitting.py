"""Training one stack of classifiers, and keeping each model's best epoch by its validation nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.baselines.classifiers import Classifier
from h3gnn.baselines.stacks import Member, Noise, WideAdam

Watch = Callable[[float], None]
"""Told the share of the work that is done."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The best epoch of each model of a stack: scores `[nodes, models, classes]`, the rest `[models]`."""

    scores: Tensor
    accuracy: Tensor
    loss: Tensor
    epoch: Tensor


def train_stack(
    classifier: Classifier,
    members: Sequence[Member],
    labels: Tensor,
    train_share: Tensor,
    val_share: Tensor,
    *,
    epochs: int,
    patience: int,
    watch: Watch | None = None,
) -> Trained:
    """Train a stack; keep each model's scores at the epoch with the best validation accuracy.

    Nothing is read back from the device but, every fifty epochs, whether any model is still rising.

    Args:
        classifier: the stack.
        members: its models.
        labels: `[nodes]`, negative where unknown.
        train_share, val_share: what each node counts, `[nodes, splits]`.
        epochs, patience: how long.
        watch: told the share of the epochs that is done.
    """
    device = labels.device
    split_of = torch.tensor([member.split for member in members], device=device)
    train, val = train_share.index_select(1, split_of), val_share.index_select(1, split_of)
    noise = Noise(members, device)
    adam = WideAdam(list(classifier.weights.tensors.values()), members)
    best = Best(labels, val, patience)
    for epoch in range(epochs):
        own = _own(classifier.logits(noise).log_softmax(dim=-1), labels)
        (-(own * train).sum()).backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            best.look(classifier.logits(None).log_softmax(dim=-1), epoch)
        if epoch % 50 == 49:
            if watch is not None:
                watch((epoch + 1) / epochs)
            if best.finished(epoch):
                break
    assert best.scores is not None
    return Trained(best.scores, best.accuracy, best.loss, best.epoch)


class Best:
    """The best epoch of each model so far, by validation accuracy and then validation loss."""

    def __init__(self, labels: Tensor, val_share: Tensor, patience: int) -> None:
        models, device = val_share.shape[1], labels.device
        self.labels, self.val_share, self.patience = labels, val_share, patience
        self.accuracy = torch.full((models,), -1.0, device=device)
        self.loss = torch.full((models,), torch.inf, device=device)
        self.epoch = torch.zeros(models, dtype=torch.int64, device=device)
        self.scores: Tensor | None = None

    def look(self, scores: Tensor, epoch: int) -> None:
        """Take this epoch's log-probabilities `[nodes, models, classes]` where they are better."""
        right = (scores.argmax(dim=-1) == self.labels[:, None]).to(scores.dtype)
        accuracy = (right * self.val_share).sum(dim=0)
        loss = -(_own(scores, self.labels) * self.val_share).sum(dim=0)
        rounding = 1e-6
        better = (accuracy > self.accuracy + rounding) | (
            (accuracy > self.accuracy - rounding) & (loss < self.loss)
        )
        better &= epoch - self.epoch <= self.patience
        self.accuracy = torch.where(better, accuracy, self.accuracy)
        self.loss = torch.where(better, loss, self.loss)
        self.epoch = torch.where(better, epoch, self.epoch)
        self.scores = scores if self.scores is None else torch.where(better[:, None], scores, self.scores)

    def finished(self, epoch: int) -> bool:
        """Tell whether every model's patience is at its end."""
        return bool((epoch - self.epoch > self.patience).all())


def _own(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each node's own class, `[nodes, models]`; unknown ones take class 0."""
    index = labels.clamp_min(0)[:, None, None].expand(-1, scores.shape[1], 1)
    return scores.gather(2, index).squeeze(2)
