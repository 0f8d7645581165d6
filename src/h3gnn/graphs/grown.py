"""A graph without features that has changed since the fit, told in the terms of the fitted one.

Structural features of the new graph alone would be numbers of another kind: an eigenvector of one graph says
nothing in another, and ten more nodes turn and reorder all of them. So a known node keeps its features, and a
new one stands where its neighbours stand, its degrees divided by the fitted graph's largest.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import Graph, Told
from h3gnn.graphs.names import find_ids
from h3gnn.graphs.structural import Array, degree_profile, largest_values, simple_adjacency

KEPT = 0.5
"""A node is known while this share of its fitted neighbours still are its neighbours; a graph is, while this
share of the nodes that it shares with the fitted one are known."""


def in_terms_of(fitted: Graph, graph: Graph) -> tuple[Graph, Tensor]:
    """Return a changed graph with features in the fitted graph's terms, and which fitted node each node is.

    Args:
        fitted: a graph whose features were built from its edges.
        graph: another one, which shares most nodes with it: those with the same ids or, without ids, at the
            same positions, that have kept half of their neighbours.

    Returns:
        The graph with float32 features as wide as the fitted ones, and int64 `[nodes]`, -1 for new nodes.

    Raises:
        GraphError: where too few nodes are known for the fitted positions to mean anything.
    """
    before, old = simple_adjacency(fitted.edge_index, fitted.num_nodes)
    directed, adjacency = simple_adjacency(graph.edge_index, graph.num_nodes)
    same = _known_nodes(fitted, graph, old, adjacency)
    profile = degree_profile(directed, adjacency) / largest_values(degree_profile(before, old))
    rows = fitted.dense_features().numpy()
    positions = _place(rows[:, profile.shape[1] :], same, adjacency)
    features = np.column_stack([profile, positions]).astype(np.float32)
    features[same >= 0] = rows[same[same >= 0]]
    return replace(graph, features=torch.from_numpy(features)), torch.from_numpy(same)


def check_kind(fitted: Told, graph: Told) -> None:
    """Refuse to take structural features for features of the user's, or the other way round."""
    if fitted.provenance.structural and not graph.provenance.structural:
        raise GraphError(
            "the model was fitted without features, on structural ones: leave the features out, or fit anew"
        )
    if graph.provenance.structural and not fitted.provenance.structural:
        raise GraphError(
            f"the model was fitted with features ({fitted.num_features} columns) and this graph has none: "
            "give the same columns"
        )


def _known_nodes(fitted: Graph, graph: Graph, old: Any, adjacency: Any) -> npt.NDArray[np.int64]:
    """Return the fitted node that each node is, -1 for none."""
    if fitted.has_ids or graph.has_ids:
        same = find_ids(graph.node_ids, fitted.node_ids)
    else:
        nodes = np.arange(graph.num_nodes)
        same = np.where(nodes < fitted.num_nodes, nodes, -1)
    here = np.flatnonzero(same >= 0)
    there = same[here]
    had = old[there][:, there]
    kept = had.multiply(adjacency[here][:, here]).sum(axis=1)
    known = kept >= KEPT * had.sum(axis=1)
    tested = had.sum(axis=1) > 0
    if not here.size or (tested.any() and known[tested].mean() < KEPT):
        raise GraphError(
            "both graphs have no features of their own, and this one is not the fitted one with changes: "
            f"{int((known & tested).sum()):,} of its {graph.num_nodes:,} nodes are known by "
            f"{'name' if graph.has_ids else 'position'} and neighbours, so positions in the fitted graph "
            "mean nothing here; fit on this graph, or give both graphs features"
        )
    same[here[~known]] = -1
    return same.astype(np.int64)


def _place(positions: npt.NDArray[np.float32], same: npt.NDArray[np.int64], adjacency: Any) -> Array:
    """Leave known nodes where they are and put new ones, layer by layer, where their neighbours are.

    An eigenvector of the normalised adjacency, divided by the root of the degree, is at each node about the
    mean over its neighbours: this is what a new node gets.
    """
    root = np.sqrt(np.maximum(np.diff(adjacency.indptr), 1.0))[:, None]
    placed = same >= 0
    columns = np.zeros((same.size, positions.shape[1]))
    columns[placed] = positions[same[placed]]
    waiting = np.flatnonzero(~placed)
    while waiting.size:
        rows = sp.csr_array(adjacency[waiting])
        heard = rows @ placed.astype(np.float64)
        ready = heard > 0
        if not ready.any():
            break
        mean = (rows @ (columns / root * placed[:, None]))[ready] / heard[ready, None]
        columns[waiting[ready]] = np.clip(mean * root[waiting[ready]], -3.0, 3.0)
        placed[waiting[ready]] = True
        waiting = waiting[~ready]
    if waiting.size and positions.shape[1]:
        warnings.warn(
            f"{waiting.size:,} node(s) of this graph are joined to no fitted node, so they have no position "
            "in the fitted graph: their embedding tells their degrees alone",
            stacklevel=5,
        )
    return columns
