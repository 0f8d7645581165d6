"""Write tables as CSV files, and read the edges of a graph by node id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h3gnn.graphs.graph import Graph


def write(folder: Path, **texts: str) -> dict[str, Any]:
    """Write each text to a CSV file of its name; return the paths."""
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.csv" for name in texts}


def named_edges(graph: Graph) -> set[tuple[Any, Any]]:
    return set(zip(*graph.node_ids[graph.edge_index.numpy()].tolist(), strict=True))


def weights(graph: Graph) -> dict[tuple[Any, Any], float]:
    assert graph.edge_weight is not None
    ends = graph.node_ids[graph.edge_index.numpy()]
    return dict(zip(zip(*ends.tolist(), strict=True), graph.edge_weight.tolist(), strict=True))


def repairs(graph: Graph) -> dict[str, int | None]:
    """Return how often each repair was made, by its code."""
    return {repair.code: repair.count for repair in graph.provenance.repairs}
