"""Representations that need no training: features, beside their neighbours' mean, or averaged over walks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines.layers import adjacency, neighbour_mean
from h3gnn.encoder.readout import Smoother, StepMatrix, step_support
from h3gnn.graphs.graph import Graph

DIFFUSION = 0.9
"""How far the diffused features are carried, see `Smoother`."""


def raw_features(graph: Graph) -> npt.NDArray[np.float32]:
    """Return the features as they are, `[nodes, features]`."""
    features: npt.NDArray[np.float32] = graph.dense_features().numpy()
    return features


def smoothed_features(graph: Graph, hops: int) -> npt.NDArray[np.float32]:
    r"""Return :math:`[\hat X \,|\, \bar A \hat X \,|\, \bar A^2 \hat X]`, `[nodes, (hops + 1) · features]`.

    :math:`\hat X` are the features with rows of length 1, and :math:`\bar A` takes the mean over a node's
    neighbours, edges taken both ways, without the node itself.
    """
    mean = neighbour_mean(adjacency(graph, self_loops=False))
    steps = [torch.nn.functional.normalize(graph.dense_features(), dim=1)]
    for _ in range(hops):
        steps.append(mean @ steps[-1])
    smoothed: npt.NDArray[np.float32] = torch.cat(steps, dim=1).numpy()
    return smoothed


def diffused_features(graph: Graph, smoothing: float = DIFFUSION) -> npt.NDArray[np.float32]:
    """Return the features with rows of length 1, averaged over random walks, `[nodes, features]`.

    What H3GNN's own smoothing does to an embedding, done to the features: what it earns without any training.
    """
    unit = torch.nn.functional.normalize(graph.dense_features(), dim=1)
    support = step_support(graph.edge_index, graph.num_nodes, graph.edge_weight)
    walk = StepMatrix(support, "walks", unit.device)
    diffused: npt.NDArray[np.float32] = Smoother(walk, smoothing)(unit).numpy()
    return diffused
