"""Which nodes of one graph are those of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.graphs.graph import Graph


def match_nodes(known: Graph, other: Graph) -> Tensor:
    """Return, for each node of `other`, which node of `known` it is, or -1.

    With ids on both sides, equal ids are equal nodes. Where the user named none, a node is known when
    position and features are both the same: position alone could join strangers.
    """
    if known.has_ids and other.has_ids:
        where = {name: position for position, name in enumerate(known.node_ids.tolist())}
        return torch.tensor([where.get(name, -1) for name in other.node_ids.tolist()])
    nodes = torch.arange(other.num_nodes)
    shared = min(known.num_nodes, other.num_nodes)
    same = (known.dense_features()[:shared] == other.dense_features()[:shared]).all(dim=1)
    alike = torch.zeros(other.num_nodes, dtype=torch.bool)
    alike[:shared] = same
    return torch.where(alike, nodes, -1)


def match_rows(known: Tensor, rows: Tensor) -> npt.NDArray[Any]:
    """Return, for each row, the position of the same row in `known`, or -1; itself where the place agrees."""
    stored, asked = known.to_dense().numpy(), rows.to_dense().numpy()
    where: dict[bytes, int] = {}
    for position, row in enumerate(stored):
        where.setdefault(row.tobytes(), position)
    found = np.array([where.get(row.tobytes(), -1) for row in asked], dtype=np.int64)
    shared = min(len(stored), len(asked))
    in_place = np.flatnonzero((stored[:shared] == asked[:shared]).all(axis=1))
    found[in_place] = in_place
    return found
