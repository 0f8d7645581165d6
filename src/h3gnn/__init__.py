"""h3gnn: node embeddings without labels, for graphs that mix homophily and heterophily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h3gnn.errors import CheckpointError, GraphError, InputError, ModelFolderError
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.training.checkpoints import Checkpoints, CheckpointWarning, TrainingStopped
    from h3gnn.training.history import CollapseWarning
    from h3gnn.training.loop import Snapshots

__version__ = "0.1.0"

__all__ = [
    "H3GNN",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpoints",
    "CollapseWarning",
    "Graph",
    "GraphError",
    "InputError",
    "ModelFolderError",
    "Snapshots",
    "TrainingStopped",
    "__version__",
]

_HOMES = {
    "H3GNN": "h3gnn.estimator",
    "CheckpointError": "h3gnn.errors",
    "CheckpointWarning": "h3gnn.training.checkpoints",
    "Checkpoints": "h3gnn.training.checkpoints",
    "CollapseWarning": "h3gnn.training.history",
    "Graph": "h3gnn.graphs.graph",
    "GraphError": "h3gnn.errors",
    "InputError": "h3gnn.errors",
    "ModelFolderError": "h3gnn.errors",
    "Snapshots": "h3gnn.training.loop",
    "TrainingStopped": "h3gnn.training.checkpoints",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, and `--help` should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'h3gnn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
