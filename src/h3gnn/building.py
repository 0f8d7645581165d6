"""From the estimator's arguments to the parts that they describe."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from h3gnn.encoder import JointEncoder, Support, build_support
from h3gnn.graphs.graph import Graph
from h3gnn.training.models import Training
from h3gnn.training.resources import use_bfloat16


def support_of(params: Mapping[str, Any], graph: Graph) -> Support:
    """Return where messages may flow in this graph."""
    return build_support(
        graph.edge_index,
        graph.num_nodes,
        edge_weight=graph.edge_weight,
        undirected=params["undirected"],
        self_loops=params["self_loops"],
        start=params["edge_start"],
        normalize=params["normalize"],
    )


def encoder_of(
    params: Mapping[str, Any], features: int, entries: int, models: int, device: torch.device
) -> JointEncoder:
    """Return a stack of encoders, not yet drawn; a dropout rate may be a list with one for each model.

    Args:
        params: arguments of `H3GNN` by name.
        features: number of feature columns.
        entries: number of entries of the support.
        models: how many models.
        device: where they will be trained, which decides how the weights lie in memory.
    """
    return JointEncoder(
        features,
        params["channels"],
        entries,
        hops=params["hops"],
        hidden_channels=params["hidden_channels"],
        heads=params["heads"],
        norm=params["norm"],
        fusion=params["fusion"],
        output=params["output"],
        batch_norm=params["batch_norm"],
        token_dropout=params["token_dropout"],
        attention_dropout=params["attention_dropout"],
        mask_token=params["mask_token"],
        fuse_in_bfloat16=use_bfloat16(params["precision"], device),
        side_by_side=device.type == "cuda",
        models=models,
    )


def training_of(params: Mapping[str, Any]) -> Training:
    """Return how the models are trained."""
    return Training(**{field.name: params[field.name] for field in fields(Training)})


def derive_seeds(random_state: int | np.random.RandomState | None, models: int) -> list[int]:
    """Return one seed per model; model i of a larger request has the same seed as in a smaller one."""
    seed = random_state
    if not isinstance(seed, numbers.Integral):
        seed = check_random_state(random_state).randint(2**31)
    streams = np.random.SeedSequence(int(seed)).spawn(models)
    return [int(stream.generate_state(1)[0]) for stream in streams]
