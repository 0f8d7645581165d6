"""An order of nodes that follows from the graph alone, not from the order of rows, edges, columns or names.

Random numbers are drawn by position: which nodes are masked, which of them form a fold. Drawing them in this
order makes a result independent of the order in which the input lists its nodes and edges, and of their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.graphs.scaling import scipy_features

if TYPE_CHECKING:
    from h3gnn.graphs.graph import Graph, GraphLike

HOPS = 4
FIXED_ORDER = ("dataset", "generated")
"""Kinds of graphs that keep the order of their files, so that stored results stay comparable."""


def node_order(graph: GraphLike) -> npt.NDArray[np.int64]:
    """Return the nodes of a graph in memory in their canonical order, of others in that of the files."""
    if not graph.in_memory or graph.provenance.kind in FIXED_ORDER:
        return np.arange(graph.num_nodes)
    return canonical_order(graph)  # type: ignore[arg-type]


def canonical_order(graph: Graph) -> npt.NDArray[np.int64]:
    """Return the nodes sorted by a random projection of their features and neighbourhoods.

    Nodes with equal features and equal neighbourhoods up to `HOPS` hops keep their order; nothing that is
    learned depends on which of them comes first.
    """
    key = _standardized(_project(graph))
    source, target = graph.edge_index.numpy()
    weight = None if graph.edge_weight is None else graph.edge_weight.double().numpy()
    for _ in range(HOPS):
        received = _neighbour_mean(key, source, target, weight)
        sent = _neighbour_mean(key, target, source, weight)
        key = _standardized(key + 0.7 * received + 0.4 * sent)
    return np.argsort(np.round(key, 9), kind="stable")


def _project(graph: Graph) -> npt.NDArray[np.float64]:
    """Return one number per node: its columns, scaled to one standard deviation, in a random direction."""
    features: Any
    if graph.features.layout == torch.strided:
        features = graph.features.double().numpy()
        deviation = features.std(axis=0)
    else:
        features = scipy_features(graph.features).astype(np.float64)
        mean, square = (np.asarray(part.mean(axis=0)).ravel() for part in (features, features * features))
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
    direction = np.random.default_rng(0).normal(size=graph.num_features)
    if graph.feature_names:  # the order of columns is not that of their names
        direction = direction[np.argsort(np.argsort(graph.feature_names))]
    return np.asarray(features @ (direction / np.where(deviation > 0, deviation, 1)))


def _neighbour_mean(
    key: npt.NDArray[np.float64],
    source: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64] | None,
) -> npt.NDArray[np.float64]:
    """Return a function of the neighbours of each node that also depends on their number."""
    values = np.tanh(key[source]) if weight is None else weight * np.tanh(key[source])
    total = np.bincount(target, values, minlength=len(key))
    count = np.bincount(target, weight, minlength=len(key))
    return total / np.sqrt(1 + count) + 0.1 * np.log1p(count)


def _standardized(key: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    deviation = key.std()
    return np.asarray((key - key.mean()) / (deviation if deviation > 0 else 1))
