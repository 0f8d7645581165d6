"""Embeddings from trained encoders: of the fitted graph, and of graphs that share edges with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, JointEncoder, Support
from h3gnn.encoder.support import find_entries

CHUNK = 4096
"""So many nodes are fused at a time."""


@torch.no_grad()
def encode(
    encoder: JointEncoder, features: FeatureMatrix, support: Support, edge_weights: Tensor | None = None
) -> Tensor:
    """Return the embeddings of a stack of models side by side, `[nodes, models · D]`.

    Args:
        encoder: on the device of features and support.
        features: scaled, of all nodes.
        support: where messages may flow.
        edge_weights: `[models, entries]`; the learned ones by default.
    """
    encoder.eval()
    weights = None if edge_weights is None else edge_weights.to(features.device)
    tokens = encoder.tokens(encoder.project(features), support, edge_weights=weights)
    pieces = [encoder.fuse(piece) for piece in torch.split(tokens, CHUNK, dim=1)]
    return torch.cat(pieces, dim=1).transpose(0, 1).flatten(1)


def as_array(embedding: Tensor) -> npt.NDArray[np.float32]:
    """Return an embedding on any device as an array."""
    found: npt.NDArray[np.float32] = embedding.contiguous().cpu().numpy()
    return found


def carry_weights(encoder: JointEncoder, fitted: Support, support: Support, node_of: Tensor) -> Tensor:
    """Return edge weights for another support: an edge that was fitted keeps its own, others start.

    Args:
        encoder: fitted on `fitted`.
        fitted: the support of the fitted graph.
        support: of the other graph.
        node_of: for each of its nodes, which fitted node that is, or -1.
    """
    position, found = find_entries(fitted.pattern, support.pattern, node_of)
    learned = torch.sigmoid(encoder.edges.logit.detach().cpu())[:, position]
    return torch.where(found, learned, support.start) * support.factor
