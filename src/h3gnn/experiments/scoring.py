"""Scores of several representations: linear probe and k-means, by class and by local homophily."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation import metrics as measures
from h3gnn.evaluation.clustering import (
    cluster_scores,
    kmeans_clusters,
    kmeans_runs,
    pick_clusters,
    silhouettes,
)
from h3gnn.evaluation.probe import probe_candidates, projection_basis
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.graphs.graph import Graph
from h3gnn.report.findings import TRAINED, Floats, RepresentationScores, Scoreboard, Whole
from h3gnn.resources import map_in_threads, one_thread, one_torch_thread

HOMOPHILY_BINS = np.linspace(0.0, 1.0, 6)
"""Borders of the bins of local homophily."""
SEEDS = range(3)
"""Seeds of k-means."""
MOST_CLUSTERS = 12
"""Without classes, the number of clusters is the one up to this with the best silhouette."""

FEW, MANY = 5_000, 20_000
"""k-means takes the best of ten starts up to `FEW` nodes, of two up to `MANY`, then one.

With more than `MANY` nodes, representations are compared by a part of the data, as the page states:
"""
DIRECTIONS, DIRECTION_NODES = 512, 2_000
"""in this many principal directions, of this many evenly spaced nodes,"""
FEW_SPLITS, TRAINING_NODES = 3, 5_000
"""in the first splits, with at most this many training and validation nodes each,"""
CLUSTERED = 10_000
"""and by clusters of this many evenly spaced nodes."""


class Splits(NamedTuple):
    """Labels, int64 `[nodes]` with -1 for unknown, and bool masks `[nodes, splits]`."""

    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @classmethod
    def of(cls, graph: Graph) -> Splits:
        """Return those of a graph that has labels and splits."""
        assert graph.labels is not None
        assert graph.train_mask is not None
        assert graph.val_mask is not None
        assert graph.test_mask is not None
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        if graph.num_nodes <= MANY:
            return cls(graph.labels, *masks)
        train, val, test = (mask[:, :FEW_SPLITS] for mask in masks)
        train, val = (_spaced_subset(mask, TRAINING_NODES) for mask in (train, val))
        return cls(graph.labels, train, val, test)

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """Test nodes with a known class, `[splits, nodes]`."""
        known: npt.NDArray[np.bool_] = (self.test & (self.labels >= 0)[:, None]).t().numpy()
        return known


def _spaced_subset(mask: Tensor, most: int) -> Tensor:
    """Return a mask `[nodes, splits]` with at most `most` nodes of each split, evenly spaced."""
    kept = torch.zeros_like(mask)
    for split in range(mask.shape[1]):
        nodes = torch.nonzero(mask[:, split]).flatten()
        kept[nodes[torch.linspace(0, len(nodes) - 1, min(len(nodes), most)).round().long()], split] = True
    return kept


def reduce_columns(rows: Floats) -> Floats:
    """Return rows unchanged; many wide ones in their principal directions, which is not exact."""
    if len(rows) <= MANY or rows.shape[1] <= DIRECTIONS:
        return rows
    some = torch.from_numpy(rows[_spaced(len(rows), DIRECTION_NODES)])
    some = (some - some.mean(dim=0)).double()
    with one_torch_thread():
        directions = some.mT @ projection_basis(some @ some.mT)[:, -DIRECTIONS:]
    turned: npt.NDArray[np.float32] = (torch.from_numpy(rows) @ directions.float()).numpy()
    return turned


def reduce_all(embeddings: Mapping[str, Floats]) -> dict[str, Floats]:
    """Apply `reduce_columns` to every representation, several at a time."""
    nodes = max((len(rows) for rows in embeddings.values()), default=0)
    found = map_in_threads(reduce_columns, embeddings.values(), _work_size(nodes))
    return dict(zip(embeddings, found, strict=True))


def _spaced(nodes: int, most: int) -> npt.NDArray[np.int64]:
    """Return the positions of at most `most` evenly spaced nodes; of up to `MANY`, all."""
    count = nodes if nodes <= MANY else min(nodes, most)
    return np.linspace(0, nodes - 1, count).round().astype(np.int64)


def _work_size(nodes: int) -> int:
    """Return the number of nodes that determines how many representations are scored at a time."""
    return nodes if nodes <= MANY else TRAINING_NODES


def find_clusters(embedding: Floats, labels: Tensor | None) -> Whole:
    """Return each node's cluster `[nodes]`: as many as known classes, else by the best silhouette.

    Up to `MANY` nodes the result equals that of `h3gnn cluster`. One or two nodes are one cluster.
    """
    embedding, n_init = reduce_columns(embedding), 10 if len(embedding) <= MANY else 1
    classes = 0 if labels is None else np.unique(labels[labels >= 0]).size
    counts = range(2, min(MOST_CLUSTERS, len(embedding) - 1) + 1)
    with one_thread(len(embedding)):
        if classes:
            return kmeans_clusters(embedding, classes, n_init=n_init)
        picked = pick_clusters(embedding, counts, n_init=n_init) if counts else None
        return picked[0] if picked else np.zeros(len(embedding), dtype=np.int64)


def score_with_labels(
    embeddings: Mapping[str, Floats],
    splits: Splits,
    class_names: tuple[str, ...],
    homophily: Floats,
    watch: Callable[[str], None] = lambda name: None,
) -> tuple[Scoreboard, dict[str, npt.NDArray[np.int64]]]:
    """Score every representation, and return the classes that each one predicts, `[splits, nodes]`.

    Each split's probe is fitted on its training nodes, its strength chosen on its validation nodes, and it is
    scored on its test nodes alone. `watch` is called with each name before its work.
    """
    labels, tested, classes = splits.labels.numpy(), splits.tested, len(class_names)
    bins, of_bins = len(HOMOPHILY_BINS) - 1, homophily_bin(homophily)
    asked = np.broadcast_to(labels, tested.shape)[tested]
    leading = measures.leading_measure(measures.majority_share(asked), classes)

    def score(name: str) -> tuple[RepresentationScores, Probed]:
        watch(name)
        probed = probe_predictions(embeddings[name], splits)
        right = (probed.predicted == labels) & tested
        secondary, precision = _secondary(probed, labels, tested)
        scores = RepresentationScores(
            name,
            probed.accuracy,
            _agreement(embeddings[name], splits.labels),
            by_class=_shares(right, tested, labels, classes),
            by_homophily=_shares(right, tested, of_bins, bins),
            secondary=secondary,
            precision=None if leading == "accuracy" else precision,
        )
        return scores, probed

    found = dict(zip(embeddings, map_in_threads(score, embeddings, _work_size(len(labels))), strict=True))
    chosen = found[TRAINED if TRAINED in found else next(iter(found))][1]
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (asked, chosen.predicted[tested]), 1)
    scores = Scoreboard(
        tuple(row for row, _ in found.values()),
        _protocol(*tested.shape),
        confusion,
        class_names,
        np.bincount(asked, minlength=classes),
        HOMOPHILY_BINS,
        _counts(tested, of_bins, bins),
        leading=leading,
        rare=class_names[chosen.rare] if chosen.rare < classes else "",
    )
    return scores, {name: probed.predicted for name, (_, probed) in found.items()}


class Probed(NamedTuple):
    """Accuracy of the chosen probe of each split `[splits]`, and its predictions `[splits, nodes]`.

    `odds` are those of the class `rare`.
    """

    accuracy: Floats
    predicted: npt.NDArray[np.int64]
    odds: npt.NDArray[np.float32]
    rare: int


def probe_predictions(embedding: Floats, splits: Splits) -> Probed:
    """Fit each split's probe, and return its predictions for every node."""
    labels, train, val, _ = splits
    by_column = len(embedding) <= MANY  # of principal directions, the last would count like the first
    everywhere = torch.ones_like(splits.test)
    candidates = probe_candidates(embedding, labels, train, val, everywhere, by_column=by_column)
    chosen = [choice.position for choice in VALIDATION.choose({0: candidates})]
    predicted = np.stack([candidates.predicted[split][at] for split, at in enumerate(chosen)])
    odds = np.stack([candidates.odds[split][at] for split, at in enumerate(chosen)])
    right, asked = (predicted == labels.numpy()) & splits.tested, splits.tested.sum(axis=1)
    accuracy = np.where(asked > 0, right.sum(axis=1) / np.maximum(asked, 1), np.nan)
    return Probed(accuracy, predicted.astype(np.int64), odds, candidates.rare)


def _secondary(
    probed: Probed, labels: npt.NDArray[np.int64], tested: npt.NDArray[np.bool_]
) -> tuple[dict[str, Floats], Floats]:
    """Return the measures other than accuracy for each split, and the mean precision–recall curve."""
    asked = [labels[own] for own in tested]
    odds = [scores[own] for scores, own in zip(probed.odds, tested, strict=True)]
    answers = [predicted[own] for predicted, own in zip(probed.predicted, tested, strict=True)]
    each = [measures.secondary_measures(*one, probed.rare) for one in zip(asked, answers, odds, strict=True)]
    curves = np.array(
        [measures.precision_at_recalls(*one, probed.rare) for one in zip(asked, odds, strict=True)]
    )
    known = curves[~np.isnan(curves).any(axis=1)]
    curve = known.mean(axis=0) if len(known) else np.full(curves.shape[1], np.nan)
    return {name: np.array([one[name] for one in each]) for name in each[0]}, curve


def score_without_labels(
    embeddings: Mapping[str, Floats], clusters: Whole, watch: Callable[[str], None] = lambda name: None
) -> Scoreboard:
    """Score every representation by the silhouette of as many clusters as the trained one has."""
    count = len(np.unique(clusters))
    if count < 2:
        return Scoreboard((), "too few different nodes to cluster")
    n_init = _n_init(clusters)

    def score(name: str) -> RepresentationScores:
        watch(name)
        rows = embeddings[name][_spaced(len(clusters), CLUSTERED)]
        found = kmeans_runs(rows, [(count, seed) for seed in SEEDS], n_init=n_init)
        return RepresentationScores(name, None, {"silhouette": np.array(silhouettes(rows, found))})

    rows = map_in_threads(score, embeddings, _work_size(len(clusters)))
    protocol = (
        f"No labels: {count} clusters, the number with the best silhouette in the H3GNN embedding. "
        f"Mean ± standard deviation over {len(SEEDS)} seeds of k-means.{_compared(len(clusters))}"
    )
    return Scoreboard(tuple(rows), protocol)


def homophily_bin(homophily: Floats) -> npt.NDArray[np.int64]:
    """Return each node's bin of local homophily, -1 for a node without neighbours of known class."""
    inside = np.digitize(homophily, HOMOPHILY_BINS[1:-1] - 1e-6)
    return np.where(np.isnan(homophily), -1, inside)


def _agreement(embedding: Floats, labels: Tensor) -> dict[str, Floats]:
    """Return the agreement of k-means with the classes of the labelled nodes, for each seed."""
    some, n_init = _spaced(len(embedding), CLUSTERED), _n_init(embedding)
    each = cluster_scores(embedding[some], labels[torch.from_numpy(some)], seeds=SEEDS, n_init=n_init)
    named = {"accuracy": "acc", "NMI": "nmi", "ARI": "ari"}
    return {name: np.array(each[measure]) for name, measure in named.items()}


def _n_init(embedding: Floats | Whole) -> int:
    return 10 if len(embedding) <= FEW else 2 if len(embedding) <= MANY else 1


def _counts(tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Whole:
    counted = np.broadcast_to(group, tested.shape)[tested]
    return np.bincount(counted[counted >= 0], minlength=groups)


def _shares(right: npt.NDArray[np.bool_], tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Floats:
    """Return the accuracy on the test nodes of each group, over all splits."""
    total = _counts(tested, group, groups)
    return np.where(total > 0, _counts(right, group, groups) / np.maximum(total, 1), np.nan)


def _protocol(splits: int, nodes: int) -> str:
    over = "one split" if splits == 1 else f"{splits} splits"
    return (
        f"Linear probe: mean ± standard deviation of the test accuracy over {over}; fitted on training "
        "nodes, its strength chosen on validation nodes, the last epoch's embedding. "
        f"k-means: as many clusters as classes, mean ± standard deviation over {len(SEEDS)} seeds."
        f"{_compared(nodes)}"
    )


def _compared(nodes: int) -> str:
    """Return the sentence about the part of a large graph that is scored."""
    if nodes <= MANY:
        return ""
    return (
        f" Because of its size this graph is scored in its first {FEW_SPLITS} splits at most, with at most "
        f"{TRAINING_NODES:,} training and validation nodes each, by one start of k-means on {CLUSTERED:,} "
        f"evenly spaced nodes, and in the first {DIRECTIONS} principal directions of representations with "
        "more columns; `h3gnn evaluate` uses all of it."
    )
