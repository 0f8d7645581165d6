"""Embeddings of several epochs in, the scores of the chosen one out: one embedding in memory at a time."""

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
from h3gnn.evaluation.clustering import MEASURES, cluster_scores, kmeans_clusters
from h3gnn.evaluation.probe import as_rows, gradient_candidates, probe_candidates, scaled_candidates
from h3gnn.evaluation.protocols import (
    VALIDATION,
    Candidates,
    Protocol,
    SplitScores,
    answers_of,
    known_classes,
    score,
)
from h3gnn.resources import one_thread

PROBES: dict[str, Callable[..., Candidates]] = {
    "logistic": probe_candidates,
    "gradient": gradient_candidates,
    "features": partial(probe_candidates, by_column=False),
    "scaled": scaled_candidates,
}
"""The default is solved to the end; "gradient" is a linear layer trained by Adam, as in the paper; "features"
is the default, with all columns divided by one number instead of each by its own; "scaled" is both, and the
scale is chosen as the strength is."""


def find_probe(name: str) -> Callable[..., Candidates]:
    """Return a probe by its name."""
    if name not in PROBES:
        raise InputError(f"there is no probe {name!r}; the probes are {', '.join(PROBES)}")
    return PROBES[name]


@dataclass(frozen=True)
class Judgement:
    """The scores of one training run, and of k-means where it was asked for."""

    scores: SplitScores
    clustering: dict[str, list[float]] | None


class Joining:
    """Takes the embeddings of some models at a time, and adds them up when those of all are there.

    Args:
        parts: how many models' embeddings stand side by side.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._waiting: dict[int, list[Tensor]] = {}

    def take(self, epoch: int, models: range, embedding: Tensor) -> None:
        """Take the embedding of some models as a training hands it over; `add` it when all are there."""
        if len(models) < self.parts:  # trained in groups: what comes first waits in the computer's memory
            pieces = self._waiting.setdefault(epoch, [])
            pieces.append(embedding.cpu())
            if models.stop < self.parts:
                return
            embedding = torch.cat(self._waiting.pop(epoch), dim=1).to(embedding.device)
        self.add(epoch, embedding)

    def add(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> None:
        """Take the embedding after so many epochs, `[nodes, D]`."""
        raise NotImplementedError


class Judge(Joining):
    """Takes a run's embeddings epoch by epoch and keeps of each what its protocol needs.

    Under the rule "last" only the newest embedding is kept and probed at the end. Under "label-free" it is
    the one in which the parts agree most, see `agreement`. Under "validation", and for the protocol
    `published`, every epoch is probed and a few numbers for each validation and test node are kept.

    k-means is run on the epoch that the rule chose. "validation" has an epoch for each split, so there
    k-means takes the last; `published` takes each measure's best over epochs, as the released code does.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        protocol: what may be looked at.
        epoch_rule: "last", "validation" or "label-free"; `published` has its own.
        probe: one of `PROBES`.
        parts: how many models' embeddings stand side by side, for "label-free" and for `take`.
        cluster: whether to run k-means too.
        cluster_options: `seeds` and `starts` of `cluster_scores`.
        probe_last: probe the last embedding alone, where k-means is what is asked for.
        top: the k of recall at k; by default as many as the rare class has test nodes.
        told: called with what is done next, and the share of the scoring that is done.
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
        probe_last: bool = False,
        top: int | None = None,
        told: Callable[[str, float], None] = lambda words, share: None,
    ) -> None:
        self.labels, self.masks, self.protocol = labels, (train_mask, val_mask, test_mask), protocol
        self.epoch_rule = protocol.epoch_rule(epoch_rule)
        super().__init__(parts)
        self.fit = find_probe(probe)
        self.cluster, self.cluster_options, self.probe_last = cluster, cluster_options or {}, probe_last
        self.top, self.told = top, told
        self.kept: tuple[int, Any] | None = None
        self.best_agreement = -np.inf
        self.by_epoch: dict[int, Candidates] = {}
        self.clusters: dict[int, dict[str, list[float]]] = {}

    def add(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> None:
        """Take the embedding after so many epochs, `[nodes, D]`."""
        if self.epoch_rule == "label-free":
            agreed = agreement(embedding, known_classes(self.labels, *self.masks[:2]), self.parts)
            if agreed > self.best_agreement:
                self.best_agreement, self.kept = agreed, (epoch, embedding)
            return
        self.kept = (epoch, embedding)
        if self.epoch_rule != "last" and not self.probe_last:
            self._candidates(epoch, embedding)
        if self.protocol.sees_test and self.cluster:
            self._clustering(epoch, embedding)

    def result(self) -> Judgement:
        """Choose, and score what was chosen."""
        last = self.result_at_end()
        if self.epoch_rule in ("last", "label-free"):
            return last
        answers = answers_of(self.labels, self.masks[2])
        choices = self.protocol.choose(self.by_epoch, answers if self.protocol.sees_test else None)
        clustering = last.clustering
        if clustering is not None:
            every = self.clusters.values()
            clustering = {name: max((one[name] for one in every), key=np.mean) for name in MEASURES}
        return Judgement(score(self.by_epoch, choices, answers, self.top), clustering)

    def result_at_end(self) -> Judgement:
        """Score the embedding that was kept with nothing chosen on test nodes, whatever the protocol."""
        if self.kept is None:
            raise ValueError("there is no embedding to judge")
        epoch, embedding = self.kept
        self.told("linear probe", 0.0)
        candidates, answers = self._candidates(epoch, embedding), answers_of(self.labels, self.masks[2])
        if self.cluster:
            self.told("k-means", 0.5)
        scores = score({epoch: candidates}, VALIDATION.choose({epoch: candidates}), answers, self.top)
        return Judgement(scores, self._clustering(epoch, embedding) if self.cluster else None)

    def _candidates(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> Candidates:
        if epoch not in self.by_epoch:
            self.by_epoch[epoch] = self.fit(embedding, self.labels, *self.masks)
        return self.by_epoch[epoch]

    def _clustering(self, epoch: int, embedding: npt.ArrayLike | Tensor) -> dict[str, list[float]]:
        if epoch not in self.clusters:
            with one_thread(len(self.labels)):
                self.clusters[epoch] = cluster_scores(embedding, self.labels, **self.cluster_options)
        return self.clusters[epoch]


def agreement(embedding: npt.ArrayLike | Tensor, clusters: int, parts: int = 1) -> float:
    """Return how much the parts of an embedding agree on the nodes' clusters, without any label.

    Each part is clustered by k-means on its own, and the adjusted Rand index is averaged over pairs. With
    several models the parts are their embeddings; of one model, the even and the odd columns.
    """
    from sklearn.metrics import adjusted_rand_score

    rows = as_rows(embedding)
    pieces = torch.chunk(rows, parts, dim=1) if parts > 1 else (rows[:, ::2], rows[:, 1::2])
    found = [kmeans_clusters(piece, clusters, starts=3) for piece in pieces]
    return float(np.mean([adjusted_rand_score(one, other) for one, other in combinations(found, 2)]))
