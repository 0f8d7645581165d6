"""Do neighbours share a class? Five answers, one for every node, and what they mean in a plain sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from h3gnn.graphs.convert import import_pyg

HOMOPHILOUS = 0.5
PARTLY = 0.15
INFORMATIVE = 0.05
SMOOTH = 0.92
"""Where the words change. Conventions, not laws: on the paper's nine graphs they tell apart the citation
graphs (adjusted homophily 0.67 to 0.77, centred smoothness 0.84 to 0.89) and the others (0.03 at most, 0.95
at least)."""


@dataclass(frozen=True)
class Homophily:
    """How labels lie on edges; only nodes with a label, and edges between two of them, count.

    Attributes:
        edge: share of directed edges, self-loops included, whose ends share a class (PyG, "edge").
        node: mean over nodes of the share of incoming edges from the own class (PyG, "node").
        class_insensitive: corrected for the sizes of the classes (PyG, "edge_insensitive").
        adjusted: edge homophily corrected for the degrees of the classes, 0 where chance would put it
            (Platonov et al., 2023); without direction and self-loops.
        label_informativeness: share of a node's class entropy that a random neighbour's class takes away,
            0 to 1 (the same authors); without direction and self-loops.
        by_class: for each class, the share of directed edges into it that come from it; NaN without edges.
        of_nodes: float `[nodes]`, share of neighbours that have the node's class, NaN without any;
            without direction and self-loops.
        pairs: undirected edges between two labelled nodes.
        adjusted_interval, informativeness_interval: where the two would lie with 95 % for all nodes; None
            where all nodes have a label, and nothing is left open.
    """

    edge: float
    node: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float
    by_class: tuple[float, ...]
    of_nodes: Tensor
    pairs: int = 0
    adjusted_interval: Interval | None = None
    informativeness_interval: Interval | None = None


def measure_homophily(edge_index: Tensor, labels: Tensor, num_classes: int) -> Homophily:
    """Measure how the labels of a graph lie on its edges.

    Args:
        edge_index: int64 `[2, edges]`.
        labels: int64 `[nodes]`, -1 where unknown.
        num_classes: number of classes.
    """
    labelled = labels >= 0
    edges, known = _between(edge_index, labelled), labels[labelled]
    simple = simple_edges(edges, known.numel())
    sure = None
    if not bool(labelled.all()):
        sure = intervals(simple, known, num_classes, _adjusted, _informativeness)
    return Homophily(
        edge=_pyg_measure(edges, known, "edge"),
        node=_pyg_measure(edges, known, "node"),
        class_insensitive=_pyg_measure(edges, known, "edge_insensitive"),
        adjusted=adjusted_homophily(simple, known, num_classes),
        label_informativeness=label_informativeness(simple, known, num_classes),
        by_class=_by_class(edges, known, num_classes),
        of_nodes=local_homophily(edge_index, labels),
        pairs=simple.shape[1] // 2,
        adjusted_interval=None if sure is None else sure[0],
        informativeness_interval=None if sure is None else sure[1],
    )


def local_homophily(edge_index: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each node's neighbours that have its class, float `[nodes]`, as in `Homophily`."""
    labelled = labels >= 0
    edges, known = _between(edge_index, labelled), labels[labelled]
    of_nodes = torch.full((labels.numel(),), torch.nan)
    of_nodes[labelled] = _share_of_own_class(simple_edges(edges, known.numel()), known)
    return of_nodes


def simple_edges(edge_index: Tensor, nodes: int) -> Tensor:
    """Return edges both ways, each once and without self-loops, int64 `[2, edges]`, sorted."""
    first, second = edge_index[:, edge_index[0] != edge_index[1]]
    codes = torch.unique(torch.cat([first * nodes + second, second * nodes + first]))
    return torch.stack([codes // max(1, nodes), codes % max(1, nodes)])


def _between(edge_index: Tensor, labelled: Tensor) -> Tensor:
    """Return the edges between labelled nodes, which are numbered anew."""
    both = labelled[edge_index[0]] & labelled[edge_index[1]]
    return (labelled.cumsum(0) - 1)[edge_index[:, both]]


def adjusted_homophily(edge_index: Tensor, labels: Tensor, num_classes: int) -> float:
    """Return `(h - e) / (1 - e)`, where e is the edge homophily that the degrees alone would give."""
    return _adjusted(_joint(edge_index, labels, num_classes)) if edge_index.shape[1] else float("nan")


def _adjusted(joint: Tensor) -> float:
    expected = float((joint.sum(1) ** 2).sum())
    return (float(joint.trace()) - expected) / (1 - expected) if expected < 1 else float("nan")


def label_informativeness(edge_index: Tensor, labels: Tensor, num_classes: int) -> float:
    """Return `I(class, neighbour's class) / H(class)` for an edge drawn at random."""
    return _informativeness(_joint(edge_index, labels, num_classes)) if edge_index.shape[1] else float("nan")


def _informativeness(joint: Tensor) -> float:
    margin = joint.sum(1)
    entropy = -float(torch.special.xlogy(margin, margin).sum())
    independent = margin[:, None] * margin[None, :]
    there = joint > 0
    information = float((joint[there] * (joint[there] / independent[there]).log()).sum())
    return information / entropy if entropy > 0 else float("nan")


def _joint(edge_index: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the share of edges from class to class, `[classes, classes]`."""
    pairs = labels[edge_index[0]] * num_classes + labels[edge_index[1]]
    counts = torch.bincount(pairs, minlength=num_classes**2).double()
    return (counts / counts.sum()).view(num_classes, num_classes)


def _pyg_measure(edges: Tensor, labels: Tensor, method: str) -> float:
    if edges.shape[1] == 0 or (method == "edge_insensitive" and int(labels.max()) < 1):
        return float("nan")
    return float(import_pyg().utils.homophily(edges, labels, method=method))


def _by_class(edges: Tensor, labels: Tensor, num_classes: int) -> tuple[float, ...]:
    if edges.shape[1] == 0:
        return (float("nan"),) * num_classes
    shares = import_pyg().utils.homophily(edges, labels, batch=labels, method="edge").tolist()
    into = torch.bincount(labels[edges[1]], minlength=num_classes).tolist()
    return tuple(shares[one] if into[one] else float("nan") for one in range(num_classes))


def _share_of_own_class(edges: Tensor, labels: Tensor) -> Tensor:
    degree = torch.bincount(edges[1], minlength=labels.numel()).float()
    same = (labels[edges[0]] == labels[edges[1]]).float()
    own = torch.zeros(labels.numel()).index_add_(0, edges[1], same)
    return own / torch.where(degree > 0, degree, torch.nan)


def verdict(
    *,
    edges: int,
    smoothness: float | None,
    adjusted_homophily: float | None,
    label_informativeness: float | None,
    mixed_share: float | None,
    labelled: int = 0,
    pairs: int = 0,
    adjusted_interval: Interval | None = None,
    informativeness_interval: Interval | None = None,
) -> str:
    """Return the sentence; where few labels leave it open, one that says so.

    Args:
        edges: edges between different nodes.
        smoothness: of the centred features; None where they are all alike.
        adjusted_homophily, label_informativeness, mixed_share: None where labels do not tell them.
        labelled: how many nodes have a label.
        pairs: edges between two of them.
        adjusted_interval, informativeness_interval: None where all nodes have a label.
    """
    if edges == 0:
        return "No edge joins two nodes, so only the features speak and a graph method has nothing to add."
    if adjusted_homophily is None or label_informativeness is None:
        return _without_labels(smoothness, labelled, pairs)
    if adjusted_interval is not None and informativeness_interval is not None:
        may_be = {_kind(a, i) for a in adjusted_interval for i in informativeness_interval}
        if len(may_be) > 1:
            return _left_open(pairs, adjusted_interval, smoothness)
    figure = (
        f"adjusted homophily {adjusted_homophily:.2f}{_within(adjusted_interval)}, "
        f"label informativeness {label_informativeness:.2f}{_within(informativeness_interval)}"
    )
    mixed = f"{100 * (mixed_share or 0):.0f} % of the nodes have neighbours both in and out of their class"
    return f"{KINDS[_kind(adjusted_homophily, label_informativeness)].format(figure=figure)}; {mixed}."


KINDS = {
    "homophilous": "Neighbours mostly share a class ({figure}), so averaging over neighbours helps and the "
    "hop tokens can carry most of the embedding",
    "mixed": "Neighbours share a class more often than chance, but far from always ({figure}): the mixture "
    "of homophily and heterophily that this method is made for",
    "heterophilous": "Neighbours rarely share a class, yet which classes they have tells something "
    "({figure}), so it pays to keep a node's own features apart from its neighbours', as this method does",
    "neither": "One neighbour's class says almost nothing about a node's own ({figure}), so averaging over "
    "neighbours alone will not do, and the node's own features have to carry most",
}
"""What is said of each kind of graph."""


def _kind(adjusted: float, informativeness: float) -> str:
    if adjusted >= HOMOPHILOUS:
        return "homophilous"
    if adjusted >= PARTLY:
        return "mixed"
    return "heterophilous" if informativeness >= INFORMATIVE else "neither"


def _within(interval: Interval | None) -> str:
    return "" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"


def _left_open(pairs: int, interval: Interval, smoothness: float | None) -> str:
    """Return what can be said where the labels are too few: how wide the interval is, and the features."""
    words = "1 edge joins two labelled nodes" if pairs == 1 else f"{pairs:,} edges join two labelled nodes"
    features = ""
    if smoothness is not None:
        alike = "similar features" if smoothness < SMOOTH else "features no more alike than others"
        features = f"; neighbours have {alike} (centred smoothness {smoothness:.2f})"
    return (
        f"There are too few labels to tell whether neighbours share a class: {words}, and with 95 % adjusted "
        f"homophily lies somewhere from {interval[0]:.2f} to {interval[1]:.2f}{features}."
    )


def _without_labels(smoothness: float | None, labelled: int, pairs: int) -> str:
    known = "There are no labels"
    if labelled:
        known = "All labelled neighbours have one class" if pairs else "No edge joins two labelled nodes"
    if smoothness is None:
        return f"{known}, and features that are all alike: nothing tells what the edges mean."
    if smoothness < SMOOTH:
        return (
            f"{known}, but neighbours have similar features (centred smoothness {smoothness:.2f}, below 1), "
            "as in homophilous graphs, so the hop tokens can carry much of the embedding."
        )
    return (
        f"{known}, and neighbours have features no more alike than others (centred smoothness "
        f"{smoothness:.2f}, about 1), as in heterophilous graphs, so it pays to keep a node's own features "
        "apart from its neighbours', as this method does."
    )


LEVEL = 0.95
REPEATS = 400
WORK = 20_000_000
"""About so many edges are counted in all: a large graph, whose interval is narrow, is drawn less often."""

Interval = tuple[float, float]
Measure = Callable[[Tensor], float]
"""From the share of edges from class to class, `[classes, classes]`, to a number."""


def intervals(
    edge_index: Tensor, labels: Tensor, num_classes: int, adjusted: Measure, informativeness: Measure
) -> tuple[Interval, Interval] | None:
    """Return 95 % intervals of adjusted homophily and label informativeness; None without an edge.

    Nodes are drawn anew with repetition, and an edge counts as often as both of its ends were drawn: edges at
    one hub stand or fall together, and the interval knows. A few edges that happen to agree would look
    certain so; therefore the interval of adjusted homophily is never narrower than the exact one for as many
    independent pairs (Clopper and Pearson).

    Args:
        edge_index: edges between labelled nodes, each in both directions, without self-loops.
        labels: of the labelled nodes, int64 `[nodes]`.
        num_classes: how many classes there are.
        adjusted, informativeness: the measures.
    """
    edges = edge_index.shape[1]
    if edges == 0:
        return None
    kind = labels[edge_index[0]] * num_classes + labels[edge_index[1]]
    draw = torch.Generator().manual_seed(0)
    found: list[tuple[float, float]] = []
    for _ in range(max(50, min(REPEATS, WORK // edges))):
        picked = torch.randint(labels.numel(), (labels.numel(),), generator=draw)
        often = torch.bincount(picked, minlength=labels.numel()).double()
        counts = torch.bincount(kind, often[edge_index[0]] * often[edge_index[1]], num_classes**2)
        if float(counts.sum()) > 0:
            share = (counts / counts.sum()).view(num_classes, num_classes)
            found.append((adjusted(share), informativeness(share)))
    drawn = np.array(found or [(np.nan, np.nan)])
    whole = (torch.bincount(kind, minlength=num_classes**2).double() / edges).view(num_classes, num_classes)
    exact = _exact(whole, edges // 2)
    return _spread([*_middle(drawn[:, 0]), *exact]), _spread(list(_middle(drawn[:, 1])))


def _exact(share: Tensor, pairs: int) -> Interval:
    """Return the adjusted homophily at the ends of the exact interval of edge homophily."""
    from scipy.stats import beta

    same = round(float(share.trace()) * pairs)
    rest = (1 - LEVEL) / 2
    low = float(beta.ppf(rest, same, pairs - same + 1)) if same else 0.0
    high = float(beta.ppf(1 - rest, same + 1, pairs - same)) if same < pairs else 1.0
    expected = float((share.sum(1) ** 2).sum())
    return (
        ((low - expected) / (1 - expected), (high - expected) / (1 - expected)) if expected < 1 else (-1, 1)
    )


def _middle(values: np.ndarray) -> Interval:
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _spread(ends: list[float]) -> Interval:
    """Return the smallest interval with all of these in it, within what the measures can be."""
    known = [one for one in ends if not np.isnan(one)]
    return (max(-1.0, min(known)), min(1.0, max(known))) if known else (-1.0, 1.0)
