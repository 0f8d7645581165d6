from __future__ import annotations

from typing import Any

from torch import Tensor

from h3gnn.graphs.graph import Graph


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    return {(int(start), int(end)) for start, end in graph.edge_index.t()}


def listed(values: Tensor | None) -> list[Any]:
    """Return the values of a part that the graph must have."""
    assert values is not None
    return list(values.tolist())
