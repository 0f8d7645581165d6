"""Scores the embeddings of a run epoch by epoch, with one embedding in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import protocols
from h3gnn.evaluation.clustering import MEASURES, cluster_scores, kmeans_clusters
from h3gnn.evaluation.probe import (
    as_rows,
    gradient_candidates,
    probe_candidates,
    ridge_candidates,
    scaled_candidates,
)
from h3gnn.evaluation.protocols import VALIDATION, Candidates, Protocol, SplitScores
from h3gnn.resources import one_thread

PROBES: dict[str, Callable[..., Candidates]] = {
    "logistic": probe_candidates,
    "gradient": gradient_candidates,
    "features": partial(probe_candidates, by_column=False),
    "scaled": scaled_candidates,
}
"""Probes by name: "logistic" is solved to convergence; "gradient" is a linear layer trained by Adam, as in
the paper; "features" is "logistic" with one scale for all columns; "scaled" chooses between both scalings."""


OF_NUMBERS: dict[str, Callable[..., Candidates]] = {
    "logistic": ridge_candidates,
    "features": partial(ridge_candidates, by_column=False),
    "scaled": scaled_candidates,
}
"""The same for numbers, by ridge regression."""


def find_probe(name: str, *, numbers: bool = False) -> Callable[..., Candidates]:
    """Return a probe of classes or numbers by name."""
    if numbers and name in PROBES:
        if name not in OF_NUMBERS:
            message = f"the probe {name!r} predicts classes only: omit --probe"
            raise InputError(message, code="task-unsupported")
        return OF_NUMBERS[name]
    if name not in PROBES:
        raise InputError(f"unknown probe {name!r}; the probes are {', '.join(PROBES)}", code="unknown-probe")
    return PROBES[name]


@dataclass(frozen=True)
class Evaluation:
    """The scores of one training run, and those of k-means if requested."""

    scores: SplitScores
    clustering: dict[str, list[float]] | None


class Evaluator:
    """Receives the embeddings of a run and keeps only those that its protocol needs.

    The rule "last" keeps the newest embedding and probes it at the end. "label-free" keeps the one whose
    parts agree most, see `agreement`. "validation" and the protocol `published` probe every epoch.

    k-means runs on the chosen epoch. "validation" chooses an epoch per split, so k-means uses the last one;
    `published` uses the best epoch of each measure, as the released code does.

    Labels are int64 `[nodes]`, negative where unknown, or numbers, NaN where unknown; masks are bool
    `[nodes, splits]`. `parts` is the number of models whose embeddings are concatenated, for "label-free";
    `cluster_options` are `seeds` and `n_init` of `cluster_scores`; `top` is the k of recall at k, by default
    the number of test nodes of the rare class. Numbers are not compared with clusters.
    `progress` receives the next step and the fraction of the scoring that is done.
    """

    def __init__(
        self,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        test_mask: Tensor,
        *,
        protocol: Protocol = VALIDATION,
        epoch_rule: str = "last",
        probe: str = "logistic",
        parts: int = 1,
        cluster: bool = False,
        cluster_options: dict[str, Any] | None = None,
        top: int | None = None,
        progress: Callable[[str, float], None] = lambda step, share: None,
    ) -> None:
        self.labels, self.masks, self.protocol = labels, (train_mask, val_mask, test_mask), protocol
        numbers = labels.is_floating_point()
        self.epoch_rule, self.fit = protocol.epoch_rule(epoch_rule), find_probe(probe, numbers=numbers)
        if numbers and self.epoch_rule == "label-free":
            message = "the epoch rule label-free needs classes; use last or validation for numbers"
            raise InputError(message, code="task-unsupported")
        self.cluster, self.cluster_options = cluster and not numbers, cluster_options or {}
        self.parts, self.top, self.progress = parts, top, progress
        self.kept: tuple[int, Any] | None = None
        self.best_agreement = -np.inf
        self.by_epoch: dict[int, Candidates] = {}
        self.clusters: dict[int, dict[str, list[float]]] = {}

    def add(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> None:
        """Add the embedding `[nodes, D]` of an epoch."""
        if self.epoch_rule == "label-free":
            agreed = agreement(embedding, protocols.count_classes(self.labels, *self.masks[:2]), self.parts)
            if agreed > self.best_agreement:
                self.best_agreement, self.kept = agreed, (epoch, embedding)
            return
        self.kept = (epoch, embedding)
        if self.epoch_rule != "last":
            self._candidates(epoch, embedding)
        if self.protocol.uses_test_labels and self.cluster:
            self._clustering(epoch, embedding)

    def result(self) -> Evaluation:
        """Choose an epoch and a probe for each split, and score them."""
        if self.kept is None:
            raise ValueError("no embedding was added")
        self.progress("linear probe", 0.0)
        self._candidates(*self.kept)
        labels = protocols.held_out_labels(self.labels, self.masks[2])
        choices = self.protocol.choose(self.by_epoch, labels if self.protocol.uses_test_labels else None)
        clustering = None
        if self.cluster:
            self.progress("k-means", 0.5)
            self._clustering(*self.kept)
            every = self.clusters.values()
            clustering = {name: max((one[name] for one in every), key=np.mean) for name in MEASURES}
        return Evaluation(protocols.score(self.by_epoch, choices, labels, self.top), clustering)

    def _candidates(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> None:
        if epoch not in self.by_epoch:
            self.by_epoch[epoch] = self.fit(embedding, self.labels, *self.masks)

    def _clustering(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> None:
        if epoch not in self.clusters:
            with one_thread(len(self.labels)):
                self.clusters[epoch] = cluster_scores(embedding, self.labels, **self.cluster_options)


def agreement(embedding: npt.ArrayLike | Tensor, clusters: int, parts: int = 1) -> float:
    """Return the mean adjusted Rand index between k-means clusterings of the parts of an embedding.

    The parts are the embeddings of the models, or the even and the odd columns of a single model.
    """
    from sklearn.metrics import adjusted_rand_score

    rows = as_rows(embedding)
    pieces = torch.chunk(rows, parts, dim=1) if parts > 1 else (rows[:, ::2], rows[:, 1::2])
    found = [kmeans_clusters(piece, clusters, n_init=3) for piece in pieces]
    return float(np.mean([adjusted_rand_score(one, other) for one, other in combinations(found, 2)]))
