"""What labels at the edge do not allow: said in words, where numbers alone would be NaN or mean nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

ONE_CLASS = "all labelled nodes have one class: accuracies say nothing, and there is no ROC-AUC"


class LabelWarning(UserWarning):
    """Something cannot be computed from these labels and splits; the rest is."""


def limits_of(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> list[str]:
    """Return what cannot be computed, and why, one sentence each.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train, val, test: bool `[nodes, splits]`.
        class_names: for the words.
    """
    known = (labels >= 0)[:, None]
    train, val, test = (mask & known for mask in (train, val, test))
    splits, told = train.shape[1], []
    if len(torch.unique(labels[labels >= 0])) < 2:
        told.append(ONE_CLASS)
    lacking = "{} of {} split(s) have no labelled {} node: {}"
    for mask, which, without in (
        (train, "training", "the classifier there has learned nothing"),
        (val, "validation", "nothing can be chosen there, and the first of the probe's strengths is taken"),
        (test, "test", "there is no accuracy there"),
    ):
        empty = int((~mask.any(dim=0)).sum())
        if empty:
            told.append(lacking.format(empty, splits, which, without))
    unseen = _unseen(labels, train, test)
    if unseen:
        names = ", ".join(class_names[one] if one < len(class_names) else str(one) for one in unseen[:5])
        told.append(
            f"class(es) {names}{' and more' if len(unseen) > 5 else ''} have test nodes but no training node "
            "in some split: they cannot be predicted there, and count as wrong"
        )
    return told


def _unseen(labels: Tensor, train: Tensor, test: Tensor) -> list[int]:
    """Return the classes that some split tests and does not train."""
    found: set[int] = set()
    for taught, asked in zip(train.t(), test.t(), strict=True):
        if taught.any():
            found |= set(labels[asked].tolist()) - set(labels[taught].tolist())
    return sorted(found)


def warn_of_limits(
    labels: Tensor, train: Tensor, val: Tensor, test: Tensor, class_names: Sequence[str] = ()
) -> None:
    """Warn of each limit, once."""
    for limit in limits_of(labels, train, val, test, class_names):
        warnings.warn(limit, LabelWarning, stacklevel=1)  # one place: each is said once


def usable_splits(labels: Tensor, *masks: Tensor) -> Tensor:
    """Return which splits have a labelled node in each of the masks, bool `[splits]`."""
    known = (labels >= 0)[:, None]
    return torch.stack([(mask & known).any(dim=0) for mask in masks]).all(dim=0)
