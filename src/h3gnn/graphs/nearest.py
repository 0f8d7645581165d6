"""A graph for a plain table: each row joined to its nearest rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph


def nearest_neighbour_graph(table: object, scaled: Tensor, neighbours: int) -> Graph:
    """Return the graph of a table: edges run from each row's nearest rows to it.

    Rows are compared by Euclidean distance after scaling, so that no column's unit decides. A row is not its
    own neighbour.

    Args:
        table: the rows as the user gave them; they become the features.
        scaled: the same rows, scaled.
        neighbours: how many for each row; fewer where the table has fewer other rows.
    """
    rows = scaled.shape[0]
    count = min(neighbours, rows - 1)
    found = find_nearest(scaled, scaled, count + 1) if count else np.empty((rows, 0), dtype=np.int64)
    target, source = np.repeat(np.arange(rows), found.shape[1]), found.ravel()
    others = target != source
    edge_index = np.stack([source[others], target[others]])
    note = f"no edges were given: each row is joined to its {count} nearest rows"
    return check_graph(table, edge_index, source="table", notes=[note])


def find_nearest(known: Tensor, rows: Tensor, neighbours: int) -> npt.NDArray[np.int64]:
    """Return, for each of `rows`, the positions of its nearest rows in `known`, `[rows, neighbours]`."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbours, known.shape[0])).fit(known.to_dense().numpy())
    found: npt.NDArray[np.int64] = search.kneighbors(rows.to_dense().numpy(), return_distance=False)
    return found.astype(np.int64)
