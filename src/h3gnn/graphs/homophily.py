"""Do neighbours share a class? Five answers, and one for every node."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.graphs.pyg import import_pyg


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
    """

    edge: float
    node: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float
    by_class: tuple[float, ...]
    of_nodes: Tensor


def measure_homophily(edge_index: Tensor, labels: Tensor, num_classes: int) -> Homophily:
    """Measure how the labels of a graph lie on its edges.

    Args:
        edge_index: int64 `[2, edges]`.
        labels: int64 `[nodes]`, -1 where unknown.
        num_classes: number of classes.
    """
    pyg = import_pyg()
    labelled = labels >= 0
    edges, _ = pyg.utils.subgraph(labelled, edge_index, relabel_nodes=True, num_nodes=labels.numel())
    known = labels[labelled]
    simple = pyg.utils.to_undirected(pyg.utils.remove_self_loops(edges)[0], num_nodes=known.numel())
    of_nodes = torch.full((labels.numel(),), torch.nan)
    of_nodes[labelled] = _share_of_own_class(simple, known)
    return Homophily(
        edge=_pyg_measure(edges, known, "edge"),
        node=_pyg_measure(edges, known, "node"),
        class_insensitive=_pyg_measure(edges, known, "edge_insensitive"),
        adjusted=adjusted_homophily(simple, known, num_classes),
        label_informativeness=label_informativeness(simple, known, num_classes),
        by_class=_by_class(edges, known, num_classes),
        of_nodes=of_nodes,
    )


def adjusted_homophily(edge_index: Tensor, labels: Tensor, num_classes: int) -> float:
    """Return `(h - e) / (1 - e)`, where e is the edge homophily that the degrees alone would give."""
    if edge_index.shape[1] == 0:
        return float("nan")
    joint = _joint(edge_index, labels, num_classes)
    expected = float((joint.sum(1) ** 2).sum())
    return (float(joint.trace()) - expected) / (1 - expected) if expected < 1 else float("nan")


def label_informativeness(edge_index: Tensor, labels: Tensor, num_classes: int) -> float:
    """Return `I(class, neighbour's class) / H(class)` for an edge drawn at random."""
    if edge_index.shape[1] == 0:
        return float("nan")
    joint = _joint(edge_index, labels, num_classes)
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
