"""Graphs, generators and trainings that several tests share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from h3gnn.encoder import FeatureMatrix, Support, build_support
from h3gnn.encoder.sparse import to_csr
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import SampledBatches, WholeGraph
from h3gnn.training.distributed import rows_in_memory
from h3gnn.training.models import Training

CPU = torch.device("cpu")
HOUSE = torch.tensor([[0, 1, 2, 3, 0, 3], [1, 2, 3, 0, 4, 4]])
"""A square 0 – 1 – 2 – 3, a roof 4 above 0 and 3, and node 5 by itself."""


def generators_of(seeds: Iterable[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def support_of(graph: Graph, dtype: torch.dtype = torch.double, *, normalize: bool = False) -> Support:
    return build_support(graph.edge_index, graph.num_nodes, normalize=normalize).to(CPU, dtype)


def whole_graph_of(graph: Graph, storage: str = "auto", dtype: torch.dtype = torch.double) -> WholeGraph:
    return WholeGraph(FeatureMatrix(graph.dense_features().to(dtype), storage), support_of(graph, dtype), 2)


def batches_of(
    graph: Graph,
    batch_size: int,
    num_neighbors: int | list[int],
    *,
    paired: bool = False,
    sparse: bool = False,
    normalize: bool = False,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.double,
) -> SampledBatches:
    features, support = graph.dense_features().to(dtype), support_of(graph, dtype, normalize=normalize)
    rows = rows_in_memory(to_csr(features) if sparse else features, support)
    hops = len(num_neighbors) if isinstance(num_neighbors, list) else 2
    options = {"batch_size": batch_size, "num_neighbors": num_neighbors, "paired": paired}
    return SampledBatches(rows, hops, device, **options)  # type: ignore[arg-type]


def plain_training(objectives: list[str], **changed: Any) -> Training:
    """Return a training with constant rates and neither dropped features nor dropped edges."""
    zeros = dict.fromkeys(("feature_drop", "edge_drop", "replace_rate", "weight_decay"), 0.0)
    options: dict[str, Any] = {
        **{"targets": "plain", "loss": "squared", "teacher_mode": "eval", "momentum": 0.9, **zeros},
        **{"mask": "random", "mask_ratio": 0.5, "hard_fraction": 0.5, "mask_size": "bounded"},
        **{"mask_warmup": 1, "epochs": 10, "learning_rate": 0.01, "schedule": "constant"},
        **{"warmup_epochs": 0, "edge_rate": 1.0},
    }
    return Training(objective=objectives, **{**options, **changed})
