"""The linear probe: frozen embeddings, a linear classifier, and a strength that validation nodes choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.candidates import Candidates, gather, judge
from h3gnn.evaluation.logistic import fit_kernel_logistic, fit_logistic
from h3gnn.evaluation.rows import as_rows, common_spread, inner_products, standardise

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The L2 strengths to choose from, relative to a mean loss over the training nodes.

The strong ones are for wide embeddings: sixteen models side by side have tens of thousands of columns.
"""
TOGETHER = {"cpu": 256, "cuda": 2048}
"""Splits are solved together while all their training nodes are no more than this, else one by one."""
PRODUCTS = 2**28
"""So many inner products may be in memory at once, 2 GiB of them."""


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

    The embedding is standardised over all nodes (no label is needed for that). For each split its validation
    nodes choose the strength, see `Protocol.choose`. Test nodes are looked at once, to score.

    Args:
        embedding: `[nodes, D]`.
        labels: int64 `[nodes]`; nodes with a negative label are left out.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths to choose from.
    """
    from h3gnn.evaluation.protocols import VALIDATION, answers_of, score

    found = probe_candidates(embedding, labels, train_mask, val_mask, test_mask, strengths)
    choices = VALIDATION.choose({0: found})
    scores = score({0: found}, choices, answers_of(labels, test_mask))
    return ProbeResult(
        np.array(scores.accuracy),
        np.array(scores.validation),
        np.array([choice.setting["strength"] for choice in choices]),
    )


def probe_candidates(
    embedding: npt.ArrayLike | Tensor,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    strengths: Sequence[float] = STRENGTHS,
    classes: int | None = None,
    by_column: bool = True,
) -> Candidates:
    """Fit a classifier for each split and strength; nothing is chosen yet, and no test label is looked at.

    Args:
        embedding: `[nodes, D]`, an array or a tensor on any device; the work is done on that device.
        labels: int64 `[nodes]`; nodes with a negative label are left out.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths.
        classes: how many there are; by default what the training and validation nodes show.
        by_column: standardise each column; else all are centred and divided by one number, as suits features.
    """
    rows = as_rows(embedding)[None]
    return probe_each(rows, labels, train_mask, val_mask, test_mask, strengths, classes, by_column)[0]


def probe_each(
    embeddings: Tensor,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    strengths: Sequence[float] = STRENGTHS,
    classes: int | None = None,
    by_column: bool = True,
) -> list[Candidates]:
    """Probe several embeddings of one graph at once, `[models, nodes, D]`; see `probe_candidates`."""
    labels, train, val, test = (
        one.to(embeddings.device) for one in (labels, train_mask, val_mask, test_mask)
    )
    train = train & (labels >= 0)[:, None]
    if classes is None:
        classes = known_classes(labels, train, val)
    solver = _Solver(embeddings, labels, train, tuple(strengths), classes, by_column)
    judged: list[list[Any]] = [[] for _ in embeddings]
    for splits in solver.groups():
        asked = torch.nonzero((val | test)[:, splits].any(dim=1)).flatten()
        log_p = solver.solve(splits, asked)  # [models, splits, strengths, asked, classes]
        for place, split in enumerate(splits):
            for model, scores in enumerate(log_p[:, place]):
                judged[model].append(judge(scores, labels[asked], val[asked, split], test[asked, split]))
    return [gather(one, [{"strength": value} for value in strengths], classes) for one in judged]


def known_classes(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return how many classes the training and validation nodes show; test labels are not looked at."""
    seen = labels[(train | val).any(dim=1)]
    return max(2, int(seen.max()) + 1 if len(seen) else 0)


class _Solver:
    """Logistic regressions on some splits of stacked embeddings, by rows or by their inner products.

    An L2-regularised classifier lies in the span of its training rows, so that where an embedding has more
    columns than a split has training nodes, the rows' inner products say all that is needed.
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        train: Tensor,
        strengths: tuple[float, ...],
        classes: int,
        by_column: bool,
    ) -> None:
        self.embeddings, self.labels, self.train = embeddings, labels, train
        self.strengths, self.classes = strengths, classes
        self.union = torch.nonzero(train.any(dim=1)).flatten()
        largest = int(train.sum(dim=0).amax()) if train.numel() else 0
        self.apart = len(self.union) > max(largest, TOGETHER.get(embeddings.device.type, 256))
        models, nodes, width = embeddings.shape
        together = len(self.union) if not self.apart else largest
        wide = width > together and models * nodes * together <= PRODUCTS
        share = wide and models * nodes * len(self.union) <= PRODUCTS
        self.spread = None if by_column else common_spread(embeddings)
        self.rows = None if wide else standardise(embeddings.float(), self.spread)
        self.products = inner_products(embeddings, self.union, self.spread) if share else None

    def groups(self) -> list[list[int]]:
        """Return which splits to solve together."""
        splits = list(range(self.train.shape[1]))
        return [[split] for split in splits] if self.apart else [splits]

    def solve(self, splits: list[int], asked: Tensor) -> Tensor:
        """Return log-probabilities of the asked nodes, `[models, splits, strengths, asked, classes]`."""
        place = torch.nonzero(self.train[self.union][:, splits].any(dim=1)).flatten()
        nodes = self.union[place]
        used = self.train[nodes][:, splits].t().repeat_interleave(len(self.strengths), dim=0)
        strength = torch.tensor(self.strengths, device=used.device).repeat(len(splits))
        targets = torch.nn.functional.one_hot(self.labels[nodes], self.classes)
        if self.rows is not None:
            weights = fit_logistic(self.rows[:, nodes], targets.float(), used, strength)
            basis = self.rows[:, asked]
        else:
            if self.products is not None:
                towards = self.products[:, :, place]  # [models, nodes, training nodes]
            else:
                towards = inner_products(self.embeddings, nodes, self.spread)
            weights = fit_kernel_logistic(towards[:, nodes], targets.double(), used, strength)
            basis = towards[:, asked]
        logits = torch.einsum("mnd,mpdk->mpnk", basis, weights[:, :, :-1]) + weights[:, :, -1:]
        log_p = logits.log_softmax(dim=-1)
        return log_p.view(len(log_p), len(splits), len(self.strengths), *log_p.shape[2:])
