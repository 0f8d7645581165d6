"""A classifier with several settings: those that can train as one stack, and what each split likes best."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields

import torch

from h3gnn.baselines import Progress
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import Predictions, part_of
from h3gnn.experiments.allowances import Allowance, Changes, Training
from h3gnn.graphs.graph import Graph


def try_classifier(
    training: Training, seed: int, tried: Sequence[Changes], allowance: Allowance, watch: Progress
) -> tuple[Predictions, int]:
    """Train with every setting, and take for each split the one that its validation nodes like best.

    Settings that share the system's own train as one stack.

    Args:
        training: of a method that sees labels.
        seed: of the trainings.
        tried: the settings.
        allowance: says when no further stack is begun.
        watch: told the share of the work that is done.

    Returns:
        The predictions, and how many settings were tried.
    """
    began, used = time.perf_counter(), 0
    found: list[tuple[Changes, Predictions]] = []
    groups = _grouped(tried, dict(training.settings["grid"][0]))
    for position, (own, points) in enumerate(groups):
        if position and allowance.is_over(began):
            break
        part = part_of(watch, position, 1, len(groups))
        (outcome,) = training.method.train(training.task(seed, {**own, "grid": points}, watch=part))
        assert isinstance(outcome, Predictions)
        found.append((own, outcome))
        used += len(points)
    best = _best_of([one for _, one in found], training.graph)
    scores = torch.stack([found[at][1].scores[split] for split, at in enumerate(best)])
    chosen = [{**found[at][0], **found[at][1].chosen[split]} for split, at in enumerate(best)]
    return Predictions(scores, chosen), used


def _grouped(tried: Sequence[Changes], usual: Changes) -> list[tuple[Changes, list[Changes]]]:
    """Return settings of a classifier with the points of the grid that go with each."""
    names = {one.name for one in fields(GridPoint)}
    groups: list[tuple[Changes, list[Changes]]] = []
    for changes in tried:
        own = {key: value for key, value in changes.items() if key not in names}
        point = {**usual, **{key: value for key, value in changes.items() if key in names}}
        same = [points for other, points in groups if other == own]
        if same:
            same[0].append(point)
        else:
            groups.append((own, [point]))
    return groups


def _best_of(found: Sequence[Predictions], graph: Graph) -> list[int]:
    """Return for each split whose predictions are right most often on its validation nodes."""
    assert graph.labels is not None
    assert graph.val_mask is not None
    seen = graph.val_mask & (graph.labels >= 0)[:, None]
    labels = graph.labels.clamp_min(0)
    best = []
    for split in range(graph.num_splits):
        own = seen[:, split]
        right, loss = [], []
        for one in found:
            scores = one.scores[split][own]
            right.append(float((scores.argmax(dim=-1) == labels[own]).float().mean()))
            loss.append(-float(scores.gather(1, labels[own][:, None]).mean()))
        best.append(min(range(len(found)), key=lambda at: (-right[at], loss[at])))
    return best
