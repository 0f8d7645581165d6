"""h3gnn: node embeddings without labels, for graphs that mix homophily and heterophily.

The names below are imported when they are first used: torch takes seconds, and `--help` should not.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # read by `_homes`, too
    from h3gnn.answers.extend import Extension
    from h3gnn.classifier import NodeClassifier, NodeRegressor
    from h3gnn.database import Database
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
    from h3gnn.graphs.libraries import from_hetero_data
    from h3gnn.graphs.profile import GraphProfile
    from h3gnn.graphs.profile import profile as profile_graph
    from h3gnn.graphs.synthetic import mixed_graph
    from h3gnn.graphs.type_view import type_view
    from h3gnn.ondisk.mapped import MappedGraph, open_mapped
    from h3gnn.ondisk.prepare import prepare_graph
    from h3gnn.settings import EncoderConfig, MaskingConfig, TargetConfig
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.tables.plan import TablePlan, encode_table
    from h3gnn.tables.read import read_graph
    from h3gnn.training.checkpoints import CheckpointWarning
    from h3gnn.training.history import CollapseWarning, History, UnfinishedWarning
    from h3gnn.training.loop import Snapshots
    from h3gnn.tuned import preset, preset_names

__version__ = "0.1.0"


__all__ = ["H3GNN", "EncoderConfig", "MaskingConfig", "TargetConfig", "preset", "preset_names"]
__all__ += ["History", "JointEncoder", "Snapshots", "__version__"]
__all__ += ["Graph", "GraphProfile", "as_graph", "load_graph", "mixed_graph", "profile_graph"]
__all__ += ["MappedGraph", "open_mapped", "prepare_graph", "read_graph", "read_graph_file", "with_splits"]
__all__ += ["Database", "TablePlan", "encode_table", "from_hetero_data", "type_view"]
__all__ += ["ProbeResult", "compare_clusters", "kmeans_clusters", "linear_probe"]
__all__ += ["Extension", "NodeClassifier", "NodeRegressor"]
__all__ += ["CheckpointError", "GraphError", "InputError", "LossError", "ModelFolderError", "RankLostError"]
__all__ += ["CheckpointWarning", "Checkpoints", "CollapseWarning", "TrainingStopped", "UnfinishedWarning"]


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Return the module of each public name and its name there, from the imports above."""
    import ast
    from pathlib import Path

    (block,) = (n for n in ast.parse(Path(__file__).read_text("utf-8")).body if isinstance(n, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {one.asname or one.name: (str(node.module), one.name) for node in imports for one in node.names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; garbage is collected afterwards, which saves a fifth."""
    import gc
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'h3gnn' has no attribute {name!r}")
    module, there = _homes()[name]
    collects = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(module), there)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
