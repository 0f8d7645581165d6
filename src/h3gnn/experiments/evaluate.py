"""A graph's embeddings, given or trained, are judged and become a result that says where it came from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import spread
from h3gnn.evaluation.protocols import VALIDATION, Protocol
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.evaluation.snapshots import Judge, Judgement
from h3gnn.graphs.graph import Graph
from h3gnn.storage import versions
from h3gnn.training.resources import pick_device
from h3gnn.training.snapshots import Snapshots

SNAPSHOTS = 20
"""At so many points of the training may the epoch be chosen, where it is chosen."""


def evaluate_embedding(
    embedding: npt.ArrayLike | Tensor,
    graph: Graph,
    *,
    method: str,
    params: dict[str, Any],
    seeds: Sequence[int] = (),
    epoch: int = 0,
    name: str | None = None,
    protocol: Protocol = VALIDATION,
    probe: str = "logistic",
    cluster: bool = True,
) -> Result:
    """Score one embedding `[nodes, D]` of a labelled graph.

    Args:
        embedding: an array, or a tensor on the device where the probe is to run.
        graph: with labels and splits.
        method, params: what made the embedding.
        seeds: with which it was made, where that is known.
        epoch: how long it was trained.
        name: of the graph, for the result; else what the graph says itself.
        protocol, probe, cluster: as in `evaluation.snapshots.Judge`.
    """
    started = time.perf_counter()
    judge = build_judge(graph, protocol=protocol, probe=probe, cluster=cluster)
    judge.add(epoch, embedding)
    device = embedding.device if isinstance(embedding, Tensor) else torch.device("cpu")
    return to_result(
        [judge.result()],
        graph,
        method=method,
        name=name,
        protocol=protocol,
        epoch_rule=judge.epoch_rule,
        params={**params, "probe": probe},
        seeds=list(seeds),
        device=str(device),
        seconds=time.perf_counter() - started,
    )


def fit_and_judge(model: H3GNN, graph: Graph, judge: Judge, snapshots: int = SNAPSHOTS) -> None:
    """Fit a model and show the judge the epochs that its rule needs: the last, or some on the way."""
    if judge.epoch_rule == "last":
        model.fit(graph)
        judge.add(model.epochs, torch.from_numpy(model.embedding_).to(pick_device(model.device)))
        return
    gathered: dict[int, dict[int, Tensor]] = {}

    def take(epoch: int, models: range, embedding: Tensor) -> None:
        if len(models) == model.n_models:
            judge.add(epoch, embedding)
        else:  # groups come one after another, so parts must wait, where there is room
            gathered.setdefault(epoch, {})[models.start] = embedding.cpu()

    model.fit(graph, snapshots=Snapshots(snapshot_epochs(model.epochs, snapshots), take))
    for epoch, parts in sorted(gathered.items()):
        judge.add(epoch, torch.cat([parts[start] for start in sorted(parts)], dim=1))


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


def to_result(
    judgements: Sequence[Judgement],
    graph: Graph,
    *,
    method: str,
    name: str | None,
    protocol: Protocol,
    epoch_rule: str,
    params: dict[str, Any],
    seeds: list[int],
    device: str,
    seconds: float,
) -> Result:
    """Join the judgements of all seeds and say where they came from."""
    found = [one.clustering for one in judgements if one.clustering is not None]
    joined = (
        {measure: [value for one in found for value in one[measure]] for measure in found[0]}
        if found
        else None
    )
    return Result(
        method=method,
        graph=name or graph.provenance.source,
        sha256=graph.provenance.sha256,
        protocol=protocol.name,
        epoch_rule=epoch_rule,
        params=params,
        seeds=seeds,
        versions=versions(),
        device=device,
        seconds=seconds,
        clustering=None if joined is None else spread(joined),
        **join_seeds([one.scores for one in judgements]),
    )
