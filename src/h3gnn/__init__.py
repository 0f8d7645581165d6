"""h3gnn: node embeddings without labels, for graphs that mix homophily and heterophily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h3gnn.answers.extend import Extension
    from h3gnn.classifier import NodeClassifier
    from h3gnn.encoder.joint import JointEncoder
    from h3gnn.errors import (
        CheckpointError,
        GraphError,
        InputError,
        LossError,
        ModelFolderError,
        RankLostError,
        TrainingStopped,
    )
    from h3gnn.estimator import H3GNN
    from h3gnn.evaluation.clustering import compare_clusters, kmeans_clusters
    from h3gnn.evaluation.probe import ProbeResult, linear_probe
    from h3gnn.graphs.convert import as_graph
    from h3gnn.graphs.datasets import load as load_graph
    from h3gnn.graphs.formats import read_graph_file
    from h3gnn.graphs.graph import Graph, with_splits
    from h3gnn.graphs.profile import GraphProfile
    from h3gnn.graphs.profile import profile as profile_graph
    from h3gnn.graphs.synthetic import mixed_graph
    from h3gnn.ondisk.mapped import MappedGraph, open_mapped
    from h3gnn.ondisk.prepare import prepare_graph
    from h3gnn.settings import preset, preset_names
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.tables.plan import TablePlan, encode_table
    from h3gnn.tables.read import read_graph
    from h3gnn.training.checkpoints import CheckpointWarning
    from h3gnn.training.history import CollapseWarning, History
    from h3gnn.training.loop import Snapshots

__version__ = "0.1.0"

__all__ = ["H3GNN", "History", "JointEncoder", "Snapshots", "__version__", "preset", "preset_names"]
__all__ += ["Graph", "GraphProfile", "as_graph", "load_graph", "mixed_graph", "profile_graph"]
__all__ += ["MappedGraph", "open_mapped", "prepare_graph", "read_graph", "read_graph_file", "with_splits"]
__all__ += ["TablePlan", "encode_table"]
__all__ += ["ProbeResult", "compare_clusters", "kmeans_clusters", "linear_probe"]
__all__ += ["Extension", "NodeClassifier"]
__all__ += ["CheckpointError", "GraphError", "InputError", "LossError", "ModelFolderError", "RankLostError"]
__all__ += ["CheckpointWarning", "Checkpoints", "CollapseWarning", "TrainingStopped"]

_HOMES = {
    "answers.extend": ("Extension",),
    "classifier": ("NodeClassifier",),
    "encoder.joint": ("JointEncoder",),
    "errors": (
        "CheckpointError",
        "GraphError",
        "InputError",
        "LossError",
        "ModelFolderError",
        "RankLostError",
        "TrainingStopped",
    ),
    "estimator": ("H3GNN",),
    "evaluation.clustering": ("compare_clusters", "kmeans_clusters"),
    "evaluation.probe": ("ProbeResult", "linear_probe"),
    "graphs.datasets": ("load_graph",),
    "graphs.convert": ("as_graph",),
    "graphs.formats": ("read_graph_file",),
    "graphs.graph": ("Graph", "with_splits"),
    "ondisk.mapped": ("MappedGraph", "open_mapped"),
    "ondisk.prepare": ("prepare_graph",),
    "tables.plan": ("TablePlan", "encode_table"),
    "tables.read": ("read_graph",),
    "graphs.profile": ("GraphProfile", "profile_graph"),
    "graphs.synthetic": ("mixed_graph",),
    "settings": ("preset", "preset_names"),
    "storage.checkpoint_file": ("Checkpoints",),
    "training.checkpoints": ("CheckpointWarning",),
    "training.history": ("CollapseWarning", "History"),
    "training.loop": ("Snapshots",),
}
_AT_HOME = {"load_graph": "load", "profile_graph": "profile"}
"""Names that are shorter where they live, since the module there says the rest."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, and `--help` should not."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"h3gnn.{home}"), _AT_HOME.get(name, name))
    raise AttributeError(f"module 'h3gnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
