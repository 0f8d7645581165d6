"""Batches of nodes that lie close together: METIS clusters, through `pymetis`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import InputError
from h3gnn.training.sampling import Whole

PER_BATCH = 4
"""A batch joins this many clusters, drawn anew in every epoch, so that the edges between them are met too."""


def find_clusters(crow: npt.NDArray[Any], cols: npt.NDArray[Any], size: int) -> list[Whole]:
    """Cut the graph into clusters of about `size` nodes with few edges between them.

    Args:
        crow, cols: the support; METIS needs it in memory and reads it as undirected.
        size: nodes per cluster.

    Raises:
        InputError: without `pymetis`.
    """
    try:
        import pymetis
    except ImportError:
        raise InputError(
            'batches="clusters" needs pymetis; install it with `pip install "h3gnn[scale]"`, '
            'or use batches="neighbours"'
        ) from None
    nodes = len(crow) - 1
    parts = max(1, round(nodes / size))
    if parts == 1:
        return [np.arange(nodes)]
    pointers, neighbours = _undirected(crow, cols)
    adjacency = pymetis.CSRAdjacency(pointers, neighbours)
    _, membership = pymetis.part_graph(parts, adjacency=adjacency)
    of = np.asarray(membership, dtype=np.int64)
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(1, parts))
    return [cluster for cluster in np.split(order, ends) if len(cluster)]


def _undirected(crow: npt.NDArray[Any], cols: npt.NDArray[Any]) -> tuple[Whole, Whole]:
    """Return each edge in both directions, once, and no loops."""
    nodes = len(crow) - 1
    rows = np.repeat(np.arange(nodes), np.diff(crow))
    ends = np.asarray(cols, dtype=np.int64)
    keys = np.unique(np.concatenate([rows * nodes + ends, ends * nodes + rows]))
    rows, ends = keys // nodes, keys % nodes
    rows, ends = rows[rows != ends], ends[rows != ends]
    return np.searchsorted(rows, np.arange(nodes + 1)), ends


def cluster_batches(clusters: list[Whole], generator: torch.Generator) -> list[Whole]:
    """Return the batches of an epoch: every cluster once, some at a time, in random order."""
    order = torch.randperm(len(clusters), generator=generator).tolist()
    groups = [order[start : start + PER_BATCH] for start in range(0, len(order), PER_BATCH)]
    return [np.concatenate([clusters[one] for one in group]) for group in groups]


def node_batches(nodes: int, size: int, generator: torch.Generator) -> list[Whole]:
    """Return the batches of an epoch: every node once, in random order, in batches as even as can be."""
    order = torch.randperm(nodes, generator=generator).numpy()
    return [np.asarray(batch) for batch in np.array_split(order, max(1, -(-nodes // size)))]
