"""Another run beside the one that a page is about: its embedding of the same nodes, and what differs."""

from __future__ import annotations

import numpy as np

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.names import find_ids
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.report.findings import Floats, OtherRun
from h3gnn.settings import kept_for


def beside(model: H3GNN, graph: Graph, other: H3GNN, name: str) -> tuple[OtherRun, Floats]:
    """Return what differs in another run, and its embedding of this run's nodes, `[nodes, dimensions]`.

    Args:
        model: the run that the page is about.
        graph: its graph.
        other: a run whose graph holds the same nodes, and perhaps more.
        name: of the other run.
    """
    if isinstance(other.graph_, MappedGraph):
        raise InputError(f"{name} is a run on a graph in files, which a page does not show")
    mine, theirs = (kept_for("run", one.get_params()) for one in (model, other))
    different = {key: (value, theirs.get(key)) for key, value in mine.items() if value != theirs.get(key)}
    notes = []
    if other.graph_.provenance.sha256 != model.graph_.provenance.sha256:
        notes.append(f"the graph: {other.graph_.num_nodes:,} nodes, {other.graph_.num_edges:,} edges there")
    return OtherRun(f"other run: {name}", different, tuple(notes)), other.embedding_[
        _places(graph, other, name)
    ]


def _places(graph: Graph, other: H3GNN, name: str) -> np.ndarray:
    """Return where each node is in the other run's graph; by id, or by position where nobody named nodes."""
    if not (graph.has_ids or other.graph_.has_ids):
        if graph.num_nodes != other.graph_.num_nodes:
            raise InputError(
                f"{name} has {other.graph_.num_nodes:,} nodes and this run {graph.num_nodes:,}, and none "
                "has an id: which are the same cannot be told"
            )
        return np.arange(graph.num_nodes)
    place = find_ids(graph.node_ids, other.graph_.node_ids)
    missing = np.flatnonzero(place < 0)
    if missing.size:
        raise InputError(
            f"{name} has no node {graph.node_ids[missing[0]]} ({missing.size:,} of {graph.num_nodes:,} nodes "
            "are missing there); if this run has the newer, larger graph, give the other one first"
        )
    return np.asarray(place)
