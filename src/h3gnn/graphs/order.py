"""Graphs with their nodes and columns in another order; see `h3gnn.graphs.canonical`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.graphs.canonical import FIXED_ORDER, canonical_order, node_order
from h3gnn.graphs.graph import Graph, scipy_features, torch_features, with_columns

__all__ = ["FIXED_ORDER", "canonical_graph", "canonical_order", "node_order", "reorder_nodes"]
MASKS = ("train_mask", "val_mask", "test_mask")


def canonical_graph(graph: Graph) -> Graph:
    """Return the graph with its nodes, and its columns by name, in an order that follows from it alone."""
    if graph.provenance.kind in FIXED_ORDER:
        return graph
    names = graph.feature_names
    columns = sorted(range(len(names)), key=names.__getitem__)
    sorted_columns = with_columns(graph, columns, tuple(names[at] for at in columns)) if names else graph
    return replace(reorder_nodes(sorted_columns, canonical_order(graph)), provenance=graph.provenance)


def reorder_nodes(graph: Graph, order: npt.NDArray[np.int64]) -> Graph:
    """Return the graph with its nodes in another order; edges stay sorted by target."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    ends = position[graph.edge_index.numpy()]
    by_target = np.lexsort((ends[0], ends[1]))
    chosen, edges = torch.from_numpy(order), torch.from_numpy(by_target)
    if graph.features.layout == torch.strided:
        features = graph.features[chosen]
    else:
        features = torch_features(scipy_features(graph.features)[order])
    parts = {name: getattr(graph, name) for name in ("labels", "targets", "node_types", *MASKS)}
    moved: dict[str, Any] = {name: None if part is None else part[chosen] for name, part in parts.items()}
    links = graph.link_columns
    return replace(
        graph,
        features=features,
        link_columns=None if links is None else replace(links, values=links.values[order]),
        edge_index=torch.from_numpy(ends[:, by_target]),
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[edges],
        node_ids=graph.node_ids[order],
        **moved,
    )
