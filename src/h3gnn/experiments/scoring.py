"""How representations stand beside one another: probe and k-means, by class and by local homophily."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation import metrics as measures
from h3gnn.evaluation.clustering import cluster_scores, kmeans_clusters, pick_clusters, silhouettes
from h3gnn.evaluation.probe import probe_candidates, projection_basis
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.graphs.graph import Graph
from h3gnn.report.findings import TRAINED, Floats, RepresentationScores, Scoreboard, Whole
from h3gnn.resources import map_in_threads, one_thread, one_torch_thread

HOMOPHILY_BINS = np.linspace(0.0, 1.0, 6)
"""Borders of the bins, from nodes whose neighbours are all of other classes to those all of their own."""

SEEDS = range(3)
"""k-means is scored from these seeds."""

MOST_CLUSTERS = 12
"""Without classes, the number of clusters is the one up to this with the best silhouette."""

FEW = 5_000
"""Up to so many nodes, a score of k-means takes the best of ten starts; then of two, beyond `MANY` one."""


MANY = 20_000
"""Beyond so many nodes representations are compared in fewer columns and splits, and the page says so."""

DIRECTIONS, DIRECTED_BY = 512, 2_000
"""Then the first so many principal directions are looked at, those of so many evenly spaced nodes."""

FEW_SPLITS, TRAINED_ON = 3, 5_000
"""Then no more than the first so many splits are scored, with so many training and validation nodes each."""

CLUSTERED = 10_000
"""Then so many evenly spaced nodes are clustered to be scored; the clusters that are shown are of all."""


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
        return cls(graph.labels, _some_of(train, TRAINED_ON), _some_of(val, TRAINED_ON), test)

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """Test nodes with a known class, `[splits, nodes]`."""
        known: npt.NDArray[np.bool_] = (self.test & (self.labels >= 0)[:, None]).t().numpy()
        return known


def _some_of(mask: Tensor, most: int) -> Tensor:
    """Return a mask `[nodes, splits]` with at most so many nodes of each split, evenly spaced."""
    kept = torch.zeros_like(mask)
    for split in range(mask.shape[1]):
        nodes = torch.nonzero(mask[:, split]).flatten()
        kept[nodes[torch.linspace(0, len(nodes) - 1, min(len(nodes), most)).round().long()], split] = True
    return kept


def as_compared(rows: Floats) -> Floats:
    """Return rows as they are; many wide ones in their principal directions, which is not exact."""
    if len(rows) <= MANY or rows.shape[1] <= DIRECTIONS:
        return rows
    some = torch.from_numpy(rows[_spaced(len(rows), DIRECTED_BY)])
    some = (some - some.mean(dim=0)).double()
    with one_torch_thread():
        directions = some.mT @ projection_basis(some @ some.mT)[:, -DIRECTIONS:]
    turned: npt.NDArray[np.float32] = (torch.from_numpy(rows) @ directions.float()).numpy()
    return turned


def all_as_compared(embeddings: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return every representation `as_compared`, several at a time."""
    nodes = max((len(rows) for rows in embeddings.values()), default=0)
    found = map_in_threads(as_compared, embeddings.values(), _at_once(nodes))
    return dict(zip(embeddings, found, strict=True))


def _spaced(nodes: int, most: int) -> npt.NDArray[np.int64]:
    """Return so many evenly spaced nodes, or all."""
    return np.linspace(0, nodes - 1, min(nodes, most)).round().astype(np.int64)


def _clustered(nodes: int) -> npt.NDArray[np.int64]:
    """Return which nodes are clustered to be scored."""
    return _spaced(nodes, nodes if nodes <= MANY else CLUSTERED)


def _at_once(nodes: int) -> int:
    """Return how many nodes the work on one representation is like: of many nodes, few are looked at."""
    return nodes if nodes <= MANY else TRAINED_ON


def find_clusters(embedding: Floats, labels: Tensor | None) -> Whole:
    """Return each node's cluster `[nodes]`: as many as known classes, else what the silhouette picks.

    This is what `h3gnn cluster` finds too, but for graphs of many nodes, which are seen `as_compared`. One or
    two nodes without classes are one cluster.
    """
    embedding, n_init = as_compared(embedding), 10 if len(embedding) <= MANY else _n_init(embedding)
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
    told: Callable[[str], None] = lambda name: None,
) -> tuple[Scoreboard, dict[str, npt.NDArray[np.int64]]]:
    """Score every representation, and return the classes that each one predicts, `[splits, nodes]`.

    Each split's probe is fitted on its training nodes, its strength chosen on its validation nodes, and it is
    scored on its test nodes alone. `told` is called with each name before its work.
    """
    labels, tested, classes = splits.labels.numpy(), splits.tested, len(class_names)
    bins, of_bins = len(HOMOPHILY_BINS) - 1, homophily_bin(homophily)
    asked = np.broadcast_to(labels, tested.shape)[tested]
    leading = measures.leading_measure(measures.majority_share(asked), classes)

    def stand(name: str) -> tuple[RepresentationScores, Probed]:
        told(name)
        probed = probe_predictions(embeddings[name], splits)
        right = (probed.predicted == labels) & tested
        secondary, precision = _secondary(probed, labels, tested)
        standing = RepresentationScores(
            name,
            probed.accuracy,
            _agreement(embeddings[name], splits.labels),
            by_class=_shares(right, tested, labels, classes),
            by_homophily=_shares(right, tested, of_bins, bins),
            secondary=secondary,
            precision=None if leading == "accuracy" else precision,
        )
        return standing, probed

    found = dict(zip(embeddings, map_in_threads(stand, embeddings, _at_once(len(labels))), strict=True))
    chosen = found[TRAINED if TRAINED in found else next(iter(found))][1]
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (asked, chosen.predicted[tested]), 1)
    scores = Scoreboard(
        tuple(standing for standing, _ in found.values()),
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
    """What the chosen probe of each split says.

    Attributes:
        accuracy: on its test nodes, `[splits]`.
        predicted: the class of every node, `[splits, nodes]`.
        odds: of the rare class at every node, `[splits, nodes]`.
        rare: that class.
    """

    accuracy: Floats
    predicted: npt.NDArray[np.int64]
    odds: npt.NDArray[np.float32]
    rare: int


def probe_predictions(embedding: Floats, splits: Splits) -> Probed:
    """Fit each split's probe, and return what it says about every node."""
    everywhere = torch.ones_like(splits.test)
    candidates = probe_candidates(
        embedding,
        splits.labels,
        splits.train,
        splits.val,
        everywhere,
        by_column=len(embedding) <= MANY,  # of principal directions, the last would count like the first
    )
    chosen = [choice.position for choice in VALIDATION.choose({0: candidates})]
    predicted = np.stack([candidates.predicted[split][at] for split, at in enumerate(chosen)])
    odds = np.stack([candidates.odds[split][at] for split, at in enumerate(chosen)])
    tested = splits.tested
    right = ((predicted == splits.labels.numpy()) & tested).sum(axis=1)
    asked = tested.sum(axis=1)
    accuracy = np.where(asked > 0, right / np.maximum(asked, 1), np.nan)
    return Probed(accuracy, predicted.astype(np.int64), odds, candidates.rare)


def _secondary(
    probed: Probed, labels: npt.NDArray[np.int64], tested: npt.NDArray[np.bool_]
) -> tuple[dict[str, Floats], Floats]:
    """Return what stands beside accuracy for each split, and the mean precision–recall curve."""
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
    embeddings: Mapping[str, Floats], clusters: Whole, told: Callable[[str], None] = lambda name: None
) -> Scoreboard:
    """Score every representation by the silhouette of as many clusters as the trained one has."""
    count = len(np.unique(clusters))
    if count < 2:
        return Scoreboard((), "too few different nodes to cluster")

    n_init = _n_init(clusters)

    def stand(name: str) -> RepresentationScores:
        told(name)
        rows = embeddings[name][_clustered(len(clusters))]
        found = [kmeans_clusters(rows, count, n_init=n_init, seed=seed) for seed in SEEDS]
        return RepresentationScores(name, None, {"silhouette": np.array(silhouettes(rows, found))})

    rows = map_in_threads(stand, embeddings, _at_once(len(clusters)))
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
    """Return how well k-means agrees with the classes of the labelled nodes, from each seed."""
    some, n_init = _clustered(len(embedding)), _n_init(embedding)
    each = cluster_scores(embedding[some], labels[torch.from_numpy(some)], seeds=SEEDS, n_init=n_init)
    named = {"accuracy": "acc", "NMI": "nmi", "ARI": "ari"}
    return {name: np.array(each[measure]) for name, measure in named.items()}


def _n_init(embedding: Floats | Whole) -> int:
    return 10 if len(embedding) <= FEW else 2 if len(embedding) <= MANY else 1


def _counts(tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Whole:
    counted = np.broadcast_to(group, tested.shape)[tested]
    return np.bincount(counted[counted >= 0], minlength=groups)


def _shares(right: npt.NDArray[np.bool_], tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Floats:
    """Return the share of right answers among the test nodes of each group, over all splits."""
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
    """Return the sentence that says what was left out for the sake of time."""
    if nodes <= MANY:
        return ""
    return (
        f" For its size this graph was scored in its first {FEW_SPLITS} splits at most, with {TRAINED_ON:,} "
        f"training and validation nodes each at most, by one start of k-means on {CLUSTERED:,} evenly spaced "
        f"nodes, and representations with more than {DIRECTIONS} columns in so many principal directions; "
        "`h3gnn evaluate` leaves nothing out."
    )
