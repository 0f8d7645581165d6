"""Generate a synthetic graph of mixed homophily."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from h3gnn.errors import InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

HOMOPHILY = (0.75, 0.75, 0.75, 0.05, 0.05)
"""Default share of a class's edges that stay inside it: three homophilic classes, two heterophilic."""


def mixed_graph(
    nodes: int = 1000,
    *,
    homophily: Sequence[float] | float = HOMOPHILY,
    degree: float = 5.0,
    words: int = 500,
    words_per_node: float = 12.0,
    topic_share: float = 0.45,
    noise: float = 0.15,
    splits: int = 10,
    seed: int = 0,
) -> Graph:
    """Return an undirected graph whose classes differ in homophily, with bag-of-words features and splits.

    A class with homophily h sends that share of its edges to itself. The rest goes to one partner class:
    classes are paired from the last to the first, so with the defaults the two heterophilic classes point at
    each other. A node's words come partly (`topic_share`) from its class's topic and partly from a common
    vocabulary; the topics of adjacent classes overlap by half. Neither words nor smoothing alone suffice.

    Args:
        nodes: number of nodes; classes are equally large.
        homophily: one value for each class, or one for all of five classes.
        degree: mean degree.
        words: size of the vocabulary, the number of features.
        words_per_node: mean number of words that a node has.
        topic_share: share of a node's words that come from its class.
        noise: share of edges between nodes drawn at random.
        splits: number of random 48/32/20 % train/validation/test splits, each stratified by class.
        seed: the same seed gives the same graph on every machine.
    """
    shares = [homophily] * 5 if isinstance(homophily, int | float) else [float(h) for h in homophily]
    _check(nodes, shares, degree, words, topic_share, noise)
    random = np.random.Generator(np.random.PCG64(seed))
    labels = np.sort(np.arange(nodes) % len(shares))
    edges = _edges(labels, np.array(shares), degree, noise, random)
    features = _bags_of_words(labels, len(shares), words, words_per_node, topic_share, random)
    return check_graph(
        features,
        np.concatenate([edges, edges[::-1]], axis=1),
        labels=labels,
        class_names=[f"class {i} (homophily {share:g})" for i, share in enumerate(shares)],
        masks=_splits(labels, splits, random),
        source=f"mixed_graph(nodes={nodes}, seed={seed})",
        kind="generated",
    )


def _check(
    nodes: int, homophily: list[float], degree: float, words: int, topic_share: float, noise: float
) -> None:
    classes = len(homophily)
    if classes < 2 or nodes < 5 * classes:
        message = f"a mixed graph needs two classes and five nodes in each, not {nodes} in {classes}"
        raise InputError(message, code="value-invalid")
    if any(not 0 <= share <= 1 for share in [*homophily, topic_share, noise]):
        raise InputError("homophily, topic_share and noise must be in [0, 1]", code="value-invalid")
    if degree <= 0 or words < 2 * classes:
        raise InputError(f"degree must be positive and words at least {2 * classes}", code="value-invalid")


def _edges(
    labels: npt.NDArray[np.int64],
    homophily: npt.NDArray[np.float64],
    degree: float,
    noise: float,
    random: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draw undirected pairs `[2, edges]` without loops or repeats."""
    nodes, classes = labels.shape[0], homophily.shape[0]
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    partner = np.arange(classes) ^ 1
    partner = classes - 1 - np.where(partner < classes, partner, 0)[::-1]
    source = random.integers(nodes, size=round(nodes * degree / 2))
    inside = random.random(source.size) < homophily[labels[source]]
    wanted = np.where(inside, labels[source], partner[labels[source]])
    target = np.array([random.choice(members[label]) for label in wanted])
    stray = random.random(source.size) < noise
    target[stray] = random.integers(nodes, size=int(stray.sum()))
    pairs = np.sort(np.stack([source, target]), axis=0)
    return np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)


def _bags_of_words(
    labels: npt.NDArray[np.int64],
    classes: int,
    words: int,
    words_per_node: float,
    topic_share: float,
    random: np.random.Generator,
) -> npt.NDArray[np.float32]:
    """Draw binary bags of words `[nodes, words]`; each class's topic overlaps the next one's by half."""
    step = words // (classes + 1)
    topics = [(np.arange(2 * step) + label * step) % words for label in range(classes)]
    features = np.zeros((labels.shape[0], words), dtype=np.float32)
    for node, label in enumerate(labels):
        count = max(1, int(random.poisson(words_per_node)))
        own = random.random(count) < topic_share
        drawn = np.where(own, random.choice(topics[label], count), random.integers(words, size=count))
        features[node, drawn] = 1.0
    return features


def _splits(
    labels: npt.NDArray[np.int64], splits: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Draw stratified 48/32/20 % splits `[nodes, splits]`; others than `random_splits` draws."""
    masks = np.zeros((3, labels.shape[0], splits), dtype=bool)
    for split in range(splits):
        for label in np.unique(labels):
            members = random.permutation(np.flatnonzero(labels == label))
            first, second = round(0.48 * members.size), round(0.80 * members.size)
            for mask, part in zip(masks, np.split(members, [first, second]), strict=True):
                mask[part, split] = True
    return masks[0], masks[1], masks[2]
