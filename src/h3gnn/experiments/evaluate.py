"""A judge for a graph, and trainings that show it the epochs that its rule asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.judge import Judge
from h3gnn.graphs.graph import Graph
from h3gnn.training.loop import Snapshots
from h3gnn.training.resources import pick_device

SNAPSHOTS = 20
"""At so many points of the training may the epoch be chosen, where it is chosen."""


def fit_and_judge(model: H3GNN, graph: Graph, judge: Judge, snapshots: int = SNAPSHOTS) -> None:
    """Fit a model and show the judge the epochs that its rule needs: the last, or some on the way."""
    if judge.epoch_rule == "last":
        model.fit(graph)
        judge.add(model.epochs, torch.from_numpy(model.embedding_).to(pick_device(model.device)))
        return
    model.fit(graph, snapshots=Snapshots(snapshot_epochs(model.epochs, snapshots), judge.take))


def snapshot_epochs(epochs: int, many: int = SNAPSHOTS) -> list[int]:
    """Return up to so many epochs, evenly spaced, the last one among them and never the untrained start."""
    if epochs == 0:
        return [0]
    spaced = np.linspace(0, epochs, min(many, epochs) + 1)[1:]
    return sorted({round(float(epoch)) for epoch in spaced})


def build_judge(graph: Graph, **options: Any) -> Judge:
    """Return a judge for a graph's labels and splits; the options are those of `Judge`."""
    if graph.labels is None or not bool((graph.labels >= 0).any()):
        raise InputError(
            f"{graph.provenance.source} has no labels to score against; `h3gnn cluster` needs none"
        )
    if graph.train_mask is None or graph.val_mask is None or graph.test_mask is None:
        raise InputError(f"{graph.provenance.source} has no splits into training, validation and test nodes")
    return Judge(graph.labels, graph.train_mask, graph.val_mask, graph.test_mask, **options)
