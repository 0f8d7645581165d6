"""A graph as encoders take it in: features on one scale, and the support that messages flow along.

Here, and not where it is used, does it matter whether a graph lies in memory or in files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.encoder import Support, build_support
from h3gnn.encoder.encode import GraphRows, gather_rows
from h3gnn.encoder.readout import StepMatrix, step_support
from h3gnn.encoder.support import support_of_rows
from h3gnn.graphs.graph import Graph, match_nodes
from h3gnn.graphs.names import find_ids
from h3gnn.graphs.scaling import FeatureScaler, scaler_of
from h3gnn.ondisk.mapped import ROWS_AT_A_TIME, MappedGraph, feature_rows, support_rows
from h3gnn.training.batches import rows_in_memory
from h3gnn.training.models import FromSettings


@dataclass(frozen=True)
class Intake(FromSettings):
    """How a graph is taken in."""

    undirected: bool
    self_loops: bool
    edge_start: float | str
    edge_weights: str
    normalize: bool
    scale_features: str

    def scaler(self, graph: Graph | MappedGraph) -> FeatureScaler:
        """Learn the scale of a graph's features."""
        if isinstance(graph, MappedGraph):
            return graph.scaler(self.scale_features)
        return scaler_of(graph, self.scale_features)

    def support(self, graph: Graph | MappedGraph) -> Support:
        """Return where messages may flow in a graph."""
        start, bounded = self.edge_start, self.edge_weights != "free"
        if isinstance(graph, MappedGraph):
            found = support_rows(graph, undirected=self.undirected, self_loops=self.self_loops)
            rows = found.crow, found.cols, found.weight
            return support_of_rows(*rows, start=start, normalize=self.normalize, bounded=bounded)
        return build_support(
            graph.edge_index,
            graph.num_nodes,
            edge_weight=graph.edge_weight,
            undirected=self.undirected,
            self_loops=self.self_loops,
            start=start,
            normalize=self.normalize,
            bounded=bounded,
        )

    def rows(self, graph: Graph | MappedGraph) -> GraphRows:
        """Return a graph as a fit takes it in."""
        return rows_of(graph, self.scaler(graph), self.support(graph))


def rows_of(
    graph: Graph | MappedGraph, scaler: FeatureScaler, support: Support, order: list[int] | None = None
) -> GraphRows:
    """Return a graph as rows that are read on demand, with a scale and a support that are there already.

    The columns of a graph in files may be read in another order.
    """
    if isinstance(graph, MappedGraph):
        return GraphRows(feature_rows(graph, scaler, order, gather_rows), support, graph.num_features)
    return rows_in_memory(scaler(graph.features), support)


def match_anywhere(known: Graph | MappedGraph, other: Graph | MappedGraph) -> Tensor:
    """Return what `match_nodes` does, of graphs in memory or in files."""
    if isinstance(known, Graph) and isinstance(other, Graph):
        return match_nodes(known, other)
    if known.has_ids and other.has_ids:
        return torch.from_numpy(find_ids(other.node_ids, known.node_ids))
    same, nodes = torch.full((other.num_nodes,), -1), min(known.num_nodes, other.num_nodes)
    if known.num_features != other.num_features:
        return same
    both = [_plain_rows(graph) for graph in (known, other)]
    for block in torch.split(torch.arange(nodes), ROWS_AT_A_TIME):
        ours, theirs = (read(block) for read in both)
        same[block] = torch.where((ours == theirs).all(dim=1), block, -1)
    return same


def _plain_rows(graph: Graph | MappedGraph) -> Callable[[Tensor], Tensor]:
    """Return a reader of dense features as the data has them."""
    if isinstance(graph, MappedGraph):
        read = feature_rows(graph, FeatureScaler("none"))
        return lambda nodes: read(nodes).to_dense()
    dense = graph.dense_features()
    return lambda nodes: dense[nodes]


def steps_of(graph: Graph | MappedGraph, kind: str, device: torch.device | None = None) -> StepMatrix:
    """Return one step along the edges of a graph, which a read-out smooths by.

    Args:
        graph: in memory or in files.
        kind: of `StepMatrix`.
        device: where embeddings lie; a graph in files has none, and its rows are read as they are needed.
    """
    if isinstance(graph, MappedGraph):
        rows = support_rows(graph, undirected=True, self_loops=True)
        support = support_of_rows(rows.crow, rows.cols, rows.weight, start="normalized", normalize=False)
        return StepMatrix(support, kind)
    return StepMatrix(step_support(graph.edge_index, graph.num_nodes, graph.edge_weight), kind, device)
