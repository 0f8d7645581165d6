"""Scores of embeddings: of a run epoch by epoch, with one in memory at a time, and as criteria of a search.

A criterion is validation accuracy of a probe or of k-means, or agreement of clusterings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.evaluation import protocols
from h3gnn.evaluation.clustering import (
    MEASURES,
    cluster_scores,
    clustering_accuracy,
    kmeans_clusters,
    kmeans_runs,
)
from h3gnn.evaluation.metrics import is_known
from h3gnn.evaluation.probe import (
    as_rows,
    common_spread,
    gradient_candidates,
    probe_candidates,
    scaled_candidates,
    standardise,
)
from h3gnn.evaluation.protocols import NUMBERS, VALIDATION, Candidates, Protocol, SplitScores
from h3gnn.resources import one_thread

PROBES: dict[str, Callable[..., Candidates]] = {
    "logistic": probe_candidates,
    "gradient": gradient_candidates,
    "features": partial(probe_candidates, by_column=False),
    "scaled": scaled_candidates,
}
"""Probes by name: "logistic" is solved to convergence; "gradient" is a linear layer trained by Adam, as in
the paper; "features" is "logistic" with one scale for all columns; "scaled" chooses between both scalings.
Of numbers all but "gradient" are ridge regressions."""


def find_probe(name: str, *, numbers: bool = False) -> Callable[..., Candidates]:
    """Return a probe of classes or numbers by name."""
    if name not in PROBES:
        raise InputError(f"unknown probe {name!r}; the probes are {', '.join(PROBES)}", code="unknown-probe")
    if numbers and name == "gradient":
        message = f"the probe {name!r} predicts classes only: omit --probe"
        raise InputError(message, code="task-unsupported")
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


RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridge penalties, relative to a kernel with ones on its diagonal."""
CHUNK_BYTES = 2**30  # of inner products per chunk of splits


class Split(NamedTuple):
    """Training and validation nodes and their classes or numbers."""

    training: Tensor
    validation: Tensor
    labels: Tensor
    truth: Tensor


class RidgeValidation:
    r"""Validation accuracy of ridge regression onto the classes, or R² onto numbers; no labels of test nodes.

    With the rows z of the standardised embedding scaled so that :math:`k(u, v) = z_u^\top z_v / D + 1`,

    .. math:: \alpha = (K_{tt} + \rho I)^{-1} Y_t, \qquad \hat y_v = \arg\max_c \, (K_{vt}\, \alpha)_c

    for the training nodes t of each split. All splits are solved together, with padding. One penalty ρ is
    chosen for all splits; one for each would reward luck. Labels are int64 `[nodes]`, negative where unknown,
    or numbers, NaN where unknown; masks are bool `[nodes, splits]`. Without `by_column` all columns share one
    scale, for blocks with weights.
    """

    def __init__(
        self,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        device: torch.device,
        ridges: tuple[float, ...] = RIDGES,
        *,
        by_column: bool = True,
    ) -> None:
        known, self.by_column = is_known(labels), by_column
        self.ridges, self.device = ridges, device
        self.classes = NUMBERS if labels.is_floating_point() else int(labels.max()) + 1
        splits = []
        for masks in zip(train_mask.t(), val_mask.t(), strict=True):
            training, validation = (torch.nonzero(mask & known).flatten() for mask in masks)
            own, truth = labels[training], labels[validation]
            if self.classes == NUMBERS and len(own):
                scale = own.std(correction=0).clamp_min(torch.finfo(own.dtype).tiny)
                own, truth = (((one - own.mean()) / scale).float() for one in (own, truth))
            splits.append(Split(training, validation, own, truth))
        self._set(splits, [0] * len(splits))

    @classmethod
    def concat(cls, several: Sequence[RidgeValidation]) -> RidgeValidation:
        """Solve several together; each chooses its own penalty."""
        joined = cls.__new__(cls)
        joined.ridges, joined.device = several[0].ridges, several[0].device
        joined.by_column = several[0].by_column
        joined.classes = max(one.classes for one in several)
        splits = [split for one in several for split in one.splits]
        joined._set(splits, [i for i, one in enumerate(several) for _ in one.splits])
        return joined

    def _set(self, splits: Sequence[Split], group: Sequence[int]) -> None:
        """Store the splits as padded tensors; the splits of a group share a penalty."""
        self.splits, self.group = list(splits), torch.tensor(group, device=self.device)
        used = torch.unique(torch.cat([torch.cat([one.training, one.validation]) for one in splits]))
        self.used = used.to(self.device)
        self.training = self._padded([torch.searchsorted(used, one.training) for one in splits], 0)
        self.validation = self._padded([torch.searchsorted(used, one.validation) for one in splits], 0)
        self.truth = self._padded([one.truth for one in splits], np.nan if self.classes == NUMBERS else -1)
        self.val_counts = torch.tensor([len(one.truth) for one in splits], device=self.device).clamp_min(1)
        counts = torch.tensor([len(one.training) for one in splits], device=self.device)
        self.is_real = torch.arange(self.training.shape[1], device=self.device) < counts[:, None]
        labels = self._padded([one.labels for one in splits], 0)
        wanted = labels[:, :, None]
        wanted = torch.nn.functional.one_hot(labels, self.classes) if self.classes else wanted
        self.targets = wanted * self.is_real[:, :, None].float()

    def _padded(self, rows: Sequence[Tensor], value: float) -> Tensor:
        padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
        return padded.to(self.device)

    def accuracies(self, rows: Tensor) -> Tensor:
        """Return the accuracy or R² of an embedding `[nodes, D]` per split; 0 if it is not finite."""
        finite, rows = rows.isfinite().all(), rows.nan_to_num(0.0, 0.0, 0.0)
        spread = None if self.by_column else common_spread(rows)
        scaled = standardise(rows, spread)[self.used] * rows.shape[1] ** -0.5
        width, many = rows.shape[1] + 1, self.training.shape[1]
        primal = width < many
        form = self._primal if primal else self._dual
        known = torch.nn.functional.pad(scaled, (0, 1), value=1.0) if primal else scaled @ scaled.mT + 1
        size = 4 * min(width, many) * (many + self.validation.shape[1])
        every = torch.arange(len(self.splits), device=self.device)
        pieces = torch.split(every, max(1, CHUNK_BYTES // max(1, size)))
        each = torch.cat([self._accuracy(*form(known, some), some) for some in pieces], dim=1)
        means = torch.zeros(len(self.ridges), int(self.group.max()) + 1, device=each.device)
        means.index_add_(1, self.group, each)
        best = means.argmax(dim=0)[self.group]
        return each[best, torch.arange(len(best), device=best.device)] * finite

    def _dual(self, products: Tensor, some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return K, Y and the validation rows of some splits, from inner products."""
        training, there = self.training[some], self.is_real[some]
        within = products[training[:, :, None], training[:, None, :]]
        within = torch.where(there[:, :, None] & there[:, None, :], within, 0.0)
        across = products[self.validation[some][:, :, None], training[:, None, :]]
        return within, self.targets[some], across

    def _primal(self, rows: Tensor, some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same from columns: (ZᵀZ + ρI)⁻¹ ZᵀY = Zᵀ (ZZᵀ + ρI)⁻¹ Y."""
        own = rows[self.training[some]] * self.is_real[some][:, :, None]
        return own.mT @ own, own.mT @ self.targets[some], rows[self.validation[some]]

    def _accuracy(self, within: Tensor, targets: Tensor, across: Tensor, some: Tensor) -> Tensor:
        """Return the accuracy of some splits for each penalty, `[ridges, splits]`."""
        right = []
        for ridge in self.ridges:
            added = ridge * torch.eye(within.shape[1], device=self.device)
            factor, _ = torch.linalg.cholesky_ex(within + added)
            answer = torch.bmm(across, torch.cholesky_solve(targets, factor))
            if self.classes == NUMBERS:
                truth = self.truth[some]
                error, total = ((one**2).nansum(dim=1) for one in (answer[..., 0] - truth, truth))
                right.append((total - error) / total.clamp_min(torch.finfo(total.dtype).tiny))
                continue
            right.append((answer.argmax(dim=-1) == self.truth[some]).sum(dim=1) / self.val_counts[some])
        return torch.stack(right)


Criterion = Callable[[Tensor], float]
"""From an embedding `[nodes, D]` to a score; larger is better."""


def validation_accuracy(ridge: RidgeValidation) -> Criterion:
    """Score by the mean validation accuracy of ridge regression."""
    return lambda embedding: float(ridge.accuracies(embedding).mean())


def probe_accuracy(labels: Tensor, train_mask: Tensor, val_mask: Tensor) -> Criterion:
    """Score by the mean validation accuracy of the linear probe, which is slower than ridge regression."""
    known = (labels, train_mask, val_mask, torch.zeros_like(val_mask))

    def score(embedding: Tensor) -> float:
        found = probe_candidates(embedding, *known)
        choices = VALIDATION.choose({0: found})
        return float(np.mean([found.val_accuracy[i, one.position] for i, one in enumerate(choices)]))

    return _finite(score)


def cluster_accuracy(labels: Tensor, val_mask: Tensor, clusters: int, n_init: int = 10) -> Criterion:
    """Score by the accuracy of k-means on validation nodes under the best matching, mean over splits."""
    known = labels.cpu().numpy()
    seen = [val.cpu().numpy() & (known >= 0) for val in val_mask.t()]

    def score(embedding: Tensor) -> float:
        found = kmeans_clusters(embedding, clusters, n_init=n_init)
        return float(np.mean([clustering_accuracy(found[one], known[one]) for one in seen]))

    return _finite(score)


def cluster_agreement(clusters: int, runs: int = 4) -> Criterion:
    """Score without labels: the adjusted Rand index between runs of k-means, times the evenness of sizes.

    A representation with structure gives the same clusters from every initialisation. The evenness (entropy
    of the sizes over its maximum) penalises collapsed representations.
    """

    def score(embedding: Tensor) -> float:
        from sklearn.metrics import adjusted_rand_score

        rows = standardise(embedding)
        found = kmeans_runs(rows, [(clusters, seed) for seed in range(runs)], n_init=1)
        agreement = np.mean([adjusted_rand_score(a, b) for a, b in combinations(found, 2)])
        sizes = np.mean([np.sort(np.bincount(one, minlength=clusters)) for one in found], axis=0)
        shares = sizes[sizes > 0] / sizes.sum()
        evenness = -(shares * np.log(shares)).sum() / np.log(max(2, clusters))
        return float(agreement * evenness)

    return _finite(score)


def _finite(score: Criterion) -> Criterion:
    """Score an embedding that is not finite as 0."""
    return lambda embedding: score(embedding) if bool(embedding.isfinite().all()) else 0.0
