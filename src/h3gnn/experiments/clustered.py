"""k-means on a method's embedding, with settings chosen without labels; and what labels would have chosen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.criteria import ClusterAccuracy, ClusterAgreement
from h3gnn.experiments.allowances import Allowance, Changes, Training, ranges_of
from h3gnn.experiments.methods import Method
from h3gnn.graphs.graph import Graph

CHOICES = ("defaults", "without labels", "by validation labels", "by all labels")
"""How the settings are chosen: not at all; by clusters that agree; by labels of validation nodes, or all."""


def run_clustered(
    method: Method, graph: Graph, seeds: Sequence[int], allowance: Allowance, device: torch.device
) -> dict[str, Any]:
    """Cluster the embedding of every setting that is tried, and return what each rule of choosing takes.

    The settings are tried from the first seed; what was chosen is trained from the others, too.

    Args:
        method: one that embeds.
        graph: with labels.
        seeds: of the trainings.
        allowance: how many settings, and how long.
        device: where to train.

    Returns:
        For each of `CHOICES` the setting and the values of every measure, one for each seed; and how many
        settings were tried.
    """
    assert graph.labels is not None
    assert graph.val_mask is not None
    training = Training(method, graph, None, device)
    agreement = ClusterAgreement(graph.num_classes)
    by_labels = ClusterAccuracy(graph.labels, graph.val_mask, graph.num_classes)
    began = time.perf_counter()
    tried: list[tuple[Changes, float, float, dict[str, list[float]]]] = []

    def cluster(trial: int, changes: Changes, epoch: int, rows: Tensor) -> None:
        liked = agreement.score(rows), by_labels.score(rows)
        tried.append((changes, *liked, _measured(rows, graph, seeds[0])))

    at_the_end = replace(allowance, looks=())
    training.explore(ranges_of(method), at_the_end, seeds[0], cluster)
    best = {
        "defaults": 0,
        "without labels": int(np.argmax([one[1] for one in tried])),
        "by validation labels": int(np.argmax([one[2] for one in tried])),
        "by all labels": int(np.argmax([one[3]["acc"][0] for one in tried])),
    }
    known: dict[int, dict[str, list[float]]] = {}
    for place in sorted(set(best.values())):
        changes, _, _, found = tried[place]
        for seed in seeds[1:]:
            more = _measured(training.rows(seed, changes), graph, seed)
            found = {name: [*found[name], *more[name]] for name in MEASURES}
        known[place] = found
    choices = {choice: {"changes": tried[place][0], "values": known[place]} for choice, place in best.items()}
    return {"choices": choices, "tried": len(tried), "searched_s": time.perf_counter() - began}


def _measured(rows: Tensor, graph: Graph, seed: int) -> dict[str, list[float]]:
    assert graph.labels is not None
    return cluster_scores(rows, graph.labels, seeds=(seed,))
