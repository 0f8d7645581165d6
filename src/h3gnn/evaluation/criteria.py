"""What a search makes large: accuracy of probe or k-means on validation nodes, or clusters that agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.probe import probe_candidates, standardise
from h3gnn.evaluation.protocols import VALIDATION

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Strengths to choose from, relative to a kernel with ones on its diagonal."""
AT_ONCE = 2**30
"""So many bytes of inner products are worked on at a time."""


class Draw(NamedTuple):
    """Who is learned from and who is asked: positions, the classes of the first as 0 and 1, of the second."""

    training: Tensor
    validation: Tensor
    targets: Tensor
    truth: Tensor


class RidgeValidation:
    r"""Accuracy on validation nodes of ridge regression onto the classes, for a batch of embeddings.

    With the rows z of the standardised embedding scaled so that :math:`k(u, v) = z_u^\top z_v / D + 1`,

    .. math:: \alpha = (K_{tt} + \rho I)^{-1} Y_t, \qquad \hat y_v = \arg\max_c \, (K_{vt}\, \alpha)_c

    for the training nodes t of each split. The class holds no label of a test node. The inner products are
    formed once; all splits are solved together, shorter ones filled up with nodes that say nothing.

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
        self.ridges, self.device = ridges, device
        self.classes = int(labels.max()) + 1
        draws = []
        for train, val in zip(train_mask.t(), val_mask.t(), strict=True):
            training, validation = (torch.nonzero(mask & known).flatten() for mask in (train, val))
            targets = torch.nn.functional.one_hot(labels[training], self.classes).float()
            draws.append(Draw(training, validation, targets, labels[validation]))
        self._take(draws, [0] * len(draws))

    @classmethod
    def beside(cls, several: Sequence[RidgeValidation]) -> RidgeValidation:
        """Return several as one, worked out together; each chooses its strength by its own splits."""
        joined = cls.__new__(cls)
        joined.ridges, joined.device = several[0].ridges, several[0].device
        joined.classes = max(one.classes for one in several)
        draws = [draw for one in several for draw in one.draws]
        joined._take(draws, [place for place, one in enumerate(several) for _ in one.draws])
        return joined

    def _take(self, draws: Sequence[Draw], group: Sequence[int]) -> None:
        """Keep the draws as padded tensors; `group` says which of them choose their strength together."""
        self.draws, self.group = list(draws), torch.tensor(group, device=self.device)
        used = torch.unique(torch.cat([torch.cat([one.training, one.validation]) for one in draws]))
        self.used = used.to(self.device)
        self.training = self._padded([torch.searchsorted(used, one.training) for one in draws], 0)
        self.validation = self._padded([torch.searchsorted(used, one.validation) for one in draws], 0)
        self.truth = self._padded([one.truth for one in draws], -1)
        self.asked = torch.tensor([len(one.truth) for one in draws], device=self.device).clamp_min(1)
        counts = torch.tensor([len(one.training) for one in draws], device=self.device)
        self.is_there = torch.arange(self.training.shape[1], device=self.device) < counts[:, None]
        self.targets = torch.zeros(*self.training.shape, self.classes, device=self.device)
        for place, one in enumerate(draws):
            self.targets[place, : len(one.training), : one.targets.shape[1]] = one.targets.to(self.device)

    def _padded(self, rows: Sequence[Tensor], value: int) -> Tensor:
        padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
        return padded.to(self.device)

    def accuracies(self, embeddings: Tensor) -> Tensor:
        """Return the accuracy of each embedding on each split's validation nodes, `[embeddings, splits]`.

        Args:
            embeddings: `[embeddings, nodes, D]`; one that is not finite scores 0.
        """
        return torch.stack([self._of(one) for one in embeddings])

    def _of(self, rows: Tensor) -> Tensor:
        """Return the accuracy of one embedding on each split's validation nodes, `[splits]`."""
        scaled = standardise(rows.nan_to_num(0.0, 0.0, 0.0))[self.used] * rows.shape[1] ** -0.5
        width, many = rows.shape[1] + 1, self.training.shape[1]
        # columns where they are fewer than training nodes, else inner products: the same answers
        way, known = (
            (self._by_columns, torch.nn.functional.pad(scaled, (0, 1), value=1.0))
            if width < many
            else (self._by_products, scaled @ scaled.mT + 1)
        )
        size = 4 * min(width, many) * (many + self.validation.shape[1])
        pieces = torch.split(
            torch.arange(len(self.draws), device=self.device), max(1, AT_ONCE // max(1, size))
        )
        each = torch.cat([self._right(*way(known, some), some) for some in pieces], dim=1)  # [ridges, splits]
        means = torch.zeros(len(self.ridges), int(self.group.max()) + 1, device=each.device)
        means.index_add_(1, self.group, each)
        best = means.argmax(dim=0)[self.group]
        return each[best, torch.arange(len(best), device=best.device)] * rows.isfinite().all()

    def _by_products(self, products: Tensor, some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return of some splits K, Y and what the validation nodes are asked with, from inner products."""
        training, there = self.training[some], self.is_there[some]
        within = products[training[:, :, None], training[:, None, :]]
        within = torch.where(there[:, :, None] & there[:, None, :], within, 0.0)
        across = products[self.validation[some][:, :, None], training[:, None, :]]
        return within, self.targets[some], across

    def _by_columns(self, rows: Tensor, some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return the same from columns.

        .. math:: (Z^\top Z + \rho I)^{-1} Z^\top Y = Z^\top (Z Z^\top + \rho I)^{-1} Y
        """
        own = rows[self.training[some]] * self.is_there[some][:, :, None]
        return own.mT @ own, own.mT @ self.targets[some], rows[self.validation[some]]

    def _right(self, within: Tensor, targets: Tensor, across: Tensor, some: Tensor) -> Tensor:
        """Return the accuracy of some splits with each ridge, `[ridges, splits]`."""
        right = []
        for ridge in self.ridges:
            factor, _ = torch.linalg.cholesky_ex(
                within + ridge * torch.eye(within.shape[1], device=self.device)
            )
            answer = torch.bmm(across, torch.cholesky_solve(targets, factor))
            found = (answer.argmax(dim=-1) == self.truth[some]).sum(dim=1)
            right.append(found / self.asked[some])
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
