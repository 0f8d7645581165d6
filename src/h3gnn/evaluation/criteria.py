"""What a search makes large: accuracy of probe or k-means on validation nodes, or clusters that agree."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from h3gnn.evaluation.candidates import standardise
from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import VALIDATION

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


class ValidationAccuracy:
    """Mean over splits of the accuracy on validation nodes, by ridge regression."""

    def __init__(self, ridge: RidgeValidation) -> None:
        self.ridge = ridge

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model."""
        scores: list[float] = self.ridge.accuracies(embeddings).mean(dim=1).tolist()
        return scores


class _EachModel:
    """Scores models one by one; a model that is not finite scores 0."""

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model of `[models, nodes, D]`."""
        return [self.score(one) if bool(one.isfinite().all()) else 0.0 for one in embeddings]

    def score(self, embedding: Tensor) -> float:
        """Return the score of one model's embedding."""
        raise NotImplementedError


class ProbeAccuracy(_EachModel):
    """The same by the linear probe itself, with the strength that it would choose: slower, and to the point.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train_mask, val_mask: bool `[nodes, splits]`.
    """

    def __init__(self, labels: Tensor, train_mask: Tensor, val_mask: Tensor) -> None:
        self.known = (labels, train_mask, val_mask, torch.zeros_like(val_mask))

    def score(self, embedding: Tensor) -> float:
        """Return the mean accuracy of what each split's validation nodes choose."""
        found = probe_candidates(embedding, *self.known)
        choices = VALIDATION.choose({0: found})
        return float(np.mean([found.val_accuracy[i, one.position] for i, one in enumerate(choices)]))


class ClusterAccuracy(_EachModel):
    """k-means on all nodes, and its accuracy on validation nodes under the best matching; mean over splits.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        val_mask: bool `[nodes, splits]`.
        clusters: how many.
        starts: of k-means; the best by its own loss is taken, as where clusters are scored.
    """

    def __init__(self, labels: Tensor, val_mask: Tensor, clusters: int, starts: int = 10) -> None:
        self.clusters, self.starts = clusters, starts
        known = labels.cpu().numpy()
        seen = [val.cpu().numpy() & (known >= 0) for val in val_mask.t()]
        self.splits = [(one, known[one]) for one in seen]

    def score(self, embedding: Tensor) -> float:
        """Return the mean accuracy over splits."""
        found = kmeans_clusters(embedding, self.clusters, starts=self.starts)
        return float(np.mean([clustering_accuracy(found[seen], truth) for seen, truth in self.splits]))


class ClusterAgreement(_EachModel):
    """Label-free: how far the k-means clusters of several starts agree, by the adjusted Rand index.

    A representation with structure falls into the same clusters wherever k-means starts; noise does not. The
    agreement is multiplied by the clusters' evenness (their entropy over its largest value), so that a
    collapsed representation with one large cluster does not win.

    Args:
        clusters: how many.
        starts: k-means runs to compare, one start each.
    """

    def __init__(self, clusters: int, starts: int = 4) -> None:
        self.clusters, self.starts = clusters, starts

    def score(self, embedding: Tensor) -> float:
        """Return agreement times evenness."""
        from sklearn.metrics import adjusted_rand_score

        rows = standardise(embedding).cpu().numpy()
        found = [kmeans_clusters(rows, self.clusters, starts=1, seed=seed) for seed in range(self.starts)]
        agreement = np.mean([adjusted_rand_score(a, b) for a, b in combinations(found, 2)])
        sizes = np.mean([np.sort(np.bincount(one, minlength=self.clusters)) for one in found], axis=0)
        shares = sizes[sizes > 0] / sizes.sum()
        evenness = -(shares * np.log(shares)).sum() / np.log(max(2, self.clusters))
        return float(agreement * evenness)
