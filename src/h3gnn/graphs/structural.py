"""Structural features for a graph without features, computed from its edges alone.

Eigenvectors of different graphs are not comparable, so `transfer_structural_features` keeps the features of
known nodes and derives those of new nodes from their neighbours.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.ids import match_by_id_or_position
from h3gnn.graphs.provenance import Repair
from h3gnn.resources import check_memory

NO_FEATURES = Repair(
    "structural-features", "no features in the data: structural features are built from the edges"
)

EIGENVECTORS = 32
"""At most this many spectral columns."""

LARGEST_COMPONENTS = 64
"""Spectral columns are computed for this many of the largest components; elsewhere they are 0."""

DENSE_BELOW = 512
"""Components up to this size are decomposed exactly; larger ones by Lanczos iteration."""

BLOCK_ROWS = 16_384
"""Rows per block when counting triangles, which bounds the memory."""

STRUCTURAL = 8 * 3 * (8 + EIGENVECTORS)
"""Bytes per node, including temporary copies."""

Array = npt.NDArray[np.float64]


def build_graph(
    features: Any, edge_index: Any, *, nodes: int, repairs: tuple[Repair, ...] = (), **known: Any
) -> Graph:
    """Validate the parts of a graph, and build structural features if there are no others."""
    structural = features is None
    if structural:
        check_memory(STRUCTURAL * nodes, f"structural features of {nodes:,} nodes", GraphError)
        placeholder = np.zeros((nodes, 1), dtype=np.float32)
        edges = check_graph(placeholder, edge_index, locate=known.get("locate")).edge_index
        features = structural_features(edges, nodes)
        repairs = (*repairs, NO_FEATURES)
    return check_graph(features, edge_index, structural=structural, repairs=repairs, **known)


def structural_features(edge_index: Tensor, nodes: int) -> Tensor:
    """Describe every node by role and position in the graph, deterministically.

    Degrees alone cannot distinguish the nodes of a regular graph, and position alone does not describe a
    role. The columns hold both:

    - 0, 1: log(1 + in-degree), log(1 + out-degree);
    - 2 to 5: mean, minimum, maximum and standard deviation of log(1 + degree) over the neighbours, the
      local degree profile of Cai and Wang (2018), of the undirected degree;
    - 6, 7: log(1 + triangles) and the clustering coefficient;
    - then up to 32 eigenvectors of the symmetric normalised adjacency, from the second largest eigenvalue
      on (the first is the square root of the degree), computed per connected component.

    Self-loops are ignored. Columns 0 to 7 are divided by their largest value; eigenvectors have mean square
    1 over their component, a fixed sign, and are clipped at ±3 so that localised ones do not dominate.
    The result is float32 `[nodes, 8 + spectral]`.
    """
    directed, adjacency = simple_adjacency(edge_index, nodes)
    profile = degree_profile(directed, adjacency)
    with threadpool_limits(1):  # another summation order gives other eigenvectors
        columns = np.column_stack([profile / largest_values(profile), _spectral_profile(adjacency)])
    return torch.from_numpy(columns.astype(np.float32))


def degree_profile(directed: Any, adjacency: Any) -> Array:
    """Return columns 0 to 7 of `structural_features` before scaling, `[nodes, 8]`."""
    degrees = (np.log1p(directed.sum(axis=axis)) for axis in (0, 1))
    return np.column_stack([*degrees, *_neighbour_profile(adjacency), *_triangle_profile(adjacency)])


def largest_values(profile: Array) -> Array:
    """Return the largest value of each column of a profile, by which it is divided, `[8]`."""
    largest = profile.max(axis=0)
    return np.asarray(np.where(largest > 0, largest, 1.0))


def simple_adjacency(edge_index: Tensor, nodes: int) -> tuple[Any, Any]:
    """Return the unweighted adjacency without self-loops, directed and undirected."""
    source, target = edge_index.cpu().numpy()
    between = source != target
    ends = (source[between], target[between])
    directed = sp.csr_array((np.ones(ends[0].size), ends), shape=(nodes, nodes))
    directed.data[:] = 1.0
    adjacency = directed.maximum(directed.T).tocsr()
    adjacency.sort_indices()
    return directed, adjacency


def _neighbour_profile(adjacency: Any) -> tuple[Array, Array, Array, Array]:
    """Return mean, minimum, maximum and deviation of the neighbours' log degree; 0 without neighbours."""
    degree = np.diff(adjacency.indptr)
    log_degree = np.log1p(degree.astype(np.float64))
    neighbours = log_degree[adjacency.indices]
    some = degree > 0
    starts = adjacency.indptr[:-1][some]
    mean, low, high, square = (np.zeros(degree.size) for _ in range(4))
    if starts.size:
        mean[some] = np.add.reduceat(neighbours, starts) / degree[some]
        low[some] = np.minimum.reduceat(neighbours, starts)
        high[some] = np.maximum.reduceat(neighbours, starts)
        square[some] = np.add.reduceat(neighbours**2, starts) / degree[some]
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    deviation[deviation < 1e-6] = 0.0  # rounding errors where all neighbours are alike
    return mean, low, high, deviation


def _triangle_profile(adjacency: Any) -> tuple[Array, Array]:
    degree = np.diff(adjacency.indptr).astype(np.float64)
    triangles = count_triangles(adjacency)
    pairs = degree * (degree - 1) / 2
    clustering = np.divide(triangles, pairs, out=np.zeros_like(triangles), where=pairs > 0)
    return np.log1p(triangles), clustering


def count_triangles(adjacency: Any) -> Array:
    """Count the triangles at each node of a symmetric 0/1 matrix without diagonal.

    Edges are directed from the lower to the higher degree, so that hubs have few outgoing edges and the
    products below stay sparse where `adjacency @ adjacency` would fill up.
    """
    nodes = adjacency.shape[0]
    rank = np.empty(nodes, dtype=np.int64)
    rank[np.argsort(np.diff(adjacency.indptr), kind="stable")] = np.arange(nodes)
    coo = adjacency.tocoo()
    upward = rank[coo.row] < rank[coo.col]
    ends = (coo.row[upward], coo.col[upward])
    up = sp.csr_array((np.ones(ends[0].size), ends), shape=adjacency.shape)
    down = up.T.tocsr()
    triangles = np.zeros(nodes)
    for start in range(0, nodes, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, nodes))
        here = up[rows]
        lowest = (here @ up).multiply(here)  # triangles in which the row is the lowest node
        middle = (down[rows] @ up).multiply(here)  # the row is in the middle, the column is the highest
        triangles[rows] += lowest.sum(axis=1) + middle.sum(axis=1)
        triangles += middle.sum(axis=0)
    return triangles


def _spectral_profile(adjacency: Any) -> Array:
    nodes = adjacency.shape[0]
    _, component = sp.csgraph.connected_components(adjacency, directed=False)
    sizes = np.bincount(component)
    width = max(0, min(EIGENVECTORS, int(sizes.max()) - 2))
    columns = np.zeros((nodes, width))
    by_component = np.argsort(component, kind="stable")
    ends = np.cumsum(sizes)
    for one in np.argsort(-sizes, kind="stable")[:LARGEST_COMPONENTS]:
        wanted = min(width, int(sizes[one]) - 2)
        if wanted < 1:
            break
        members = by_component[ends[one] - sizes[one] : ends[one]]
        vectors = _leading_eigenvectors(adjacency[members][:, members], wanted)
        columns[members, : vectors.shape[1]] = np.clip(vectors * np.sqrt(members.size), -3.0, 3.0)
    return columns


def _leading_eigenvectors(adjacency: Any, wanted: int) -> Array:
    """Return the eigenvectors of eigenvalues 2 to `wanted + 1` of a connected graph, signs fixed."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    nodes = adjacency.shape[0]
    scale = sp.diags_array(1.0 / np.sqrt(np.diff(adjacency.indptr)))
    normalised = (scale @ adjacency @ scale).tocsr()
    if nodes <= DENSE_BELOW:
        _, vectors = np.linalg.eigh(normalised.toarray())
        vectors = vectors[:, ::-1][:, 1 : wanted + 1]
    else:
        normalised = normalised.astype(np.float32)  # twice as fast; the features are float32
        start = np.random.default_rng(0).standard_normal(nodes).astype(np.float32)
        try:
            values, vectors = eigsh(normalised, wanted + 1, which="LA", v0=start, tol=1e-3, maxiter=10)
            vectors = vectors[:, np.argsort(-values)][:, 1:]
        except ArpackNoConvergence:
            vectors = _smoothest_subspace(normalised, wanted)
    # make the entry of largest absolute value positive; rounding makes ties deterministic
    peak = np.abs(vectors).round(6).argmax(axis=0)
    signs = np.sign(vectors[peak, np.arange(vectors.shape[1])])
    return np.asarray(vectors * np.where(signs == 0, 1.0, signs))


def _smoothest_subspace(normalised: Any, wanted: int, rounds: int = 12) -> Array:
    """Approximate the leading eigenvectors by subspace iteration, if Lanczos does not converge.

    Long thin graphs (roads, chains) have nearly equal eigenvalues; smooth vectors of the same subspace
    suffice.
    """
    basis = np.random.default_rng(0).standard_normal((normalised.shape[0], wanted + 9)).astype(np.float32)
    for _ in range(rounds):
        for _ in range(4):
            basis = np.float32(0.5) * (basis + normalised @ basis)
        basis, _ = np.linalg.qr(basis)
    _, rotation = np.linalg.eigh(basis.T @ (normalised @ basis))
    return np.asarray((basis @ rotation)[:, ::-1][:, 1 : wanted + 1])


MIN_KEPT = 0.5
"""Share of neighbours that the same node keeps, and share of common nodes that must be the same."""


def transfer_structural_features(fitted: Graph, graph: Graph) -> tuple[Graph, Tensor]:
    """Return a changed graph with features comparable to the fitted ones, and the fitted node of each node.

    Nodes are the same if they have the same id (without ids, the same position) and keep half of their
    neighbours; new nodes are -1. A graph that shares too few nodes is rejected.
    """
    before, old = simple_adjacency(fitted.edge_index, fitted.num_nodes)
    directed, adjacency = simple_adjacency(graph.edge_index, graph.num_nodes)
    same = _known_nodes(fitted, graph, old, adjacency)
    profile = degree_profile(directed, adjacency) / largest_values(degree_profile(before, old))
    rows = fitted.dense_features().numpy()
    positions = _extend_positions(rows[:, profile.shape[1] :], same, adjacency)
    features = np.column_stack([profile, positions]).astype(np.float32)
    features[same >= 0] = rows[same[same >= 0]]
    return replace(graph, features=torch.from_numpy(features)), torch.from_numpy(same)


def check_same_features(fitted: GraphLike, graph: GraphLike) -> None:
    """Reject structural features where the model was fitted on the user's features, and vice versa."""
    if fitted.provenance.structural and not graph.provenance.structural:
        message = "the model was fitted on structural features: leave the features out, or fit a new model"
        raise GraphError(message, code="features-unexpected")
    if graph.provenance.structural and not fitted.provenance.structural:
        raise GraphError(
            f"the model was fitted on features ({fitted.num_features} columns), but this graph has none: "
            "give the same columns",
            code="features-missing",
        )


def _known_nodes(fitted: Graph, graph: Graph, old: Any, adjacency: Any) -> npt.NDArray[np.int64]:
    """Return the fitted node of each node, -1 for new nodes."""
    same = match_by_id_or_position(fitted, graph)
    common = np.flatnonzero(same >= 0)
    before = old[same[common]][:, same[common]]
    degree = before.sum(axis=1)
    kept = before.multiply(adjacency[common][:, common]).sum(axis=1)
    known, tested = kept >= MIN_KEPT * degree, degree > 0
    if not common.size or (tested.any() and known[tested].mean() < MIN_KEPT):
        raise GraphError(
            f"neither graph has features, and only {int((known & tested).sum()):,} of {graph.num_nodes:,} "
            f"nodes have the {'id' if graph.has_ids else 'position'} and neighbours of a fitted node, so "
            "structural features are not comparable; fit on this graph, or give both graphs features",
            code="structural-features-not-comparable",
        )
    same[common[~known]] = -1
    return same


def _extend_positions(
    positions: npt.NDArray[np.float32], same: npt.NDArray[np.int64], adjacency: Any
) -> Array:
    """Keep the positions of known nodes and derive those of new nodes, layer by layer, from their neighbours.

    An eigenvector of the normalised adjacency, divided by the root of the degree, is at each node
    approximately the mean over its neighbours.
    """
    root = np.sqrt(np.maximum(np.diff(adjacency.indptr), 1.0))[:, None]
    placed = same >= 0
    columns = np.zeros((same.size, positions.shape[1]))
    columns[placed] = positions[same[placed]]
    waiting = np.flatnonzero(~placed)
    while waiting.size:
        rows = sp.csr_array(adjacency[waiting])
        neighbours = rows @ placed.astype(np.float64)
        ready = neighbours > 0
        if not ready.any():
            break
        mean = (rows @ (columns / root * placed[:, None]))[ready] / neighbours[ready, None]
        columns[waiting[ready]] = np.clip(mean * root[waiting[ready]], -3.0, 3.0)
        placed[waiting[ready]] = True
        waiting = waiting[~ready]
    if waiting.size and positions.shape[1]:
        warnings.warn(
            f"{waiting.size:,} node(s) are not connected to any fitted node: their structural features hold "
            "degrees only, and no position",
            stacklevel=5,
        )
    return columns
