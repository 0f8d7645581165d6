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
    training: Training, seed: int, drawn: Sequence[Changes], allowance: Allowance, watch: Progress
) -> tuple[Predictions, list[Changes]]:
    """Train with every setting, and take for each split the one that its validation nodes like best.

    Settings that share the system's own train as one stack.

    Args:
        training: of a method that sees labels.
        seed: of the trainings.
        drawn: the settings, each another.
        allowance: says when no further stack is begun.
        watch: told the share of the work that is done.

    Returns:
        The predictions, and the settings that were tried, in the order in which they were drawn.
    """
    began, usual = time.perf_counter(), training.settings["grid"][0]
    found: list[tuple[Changes, Predictions]] = []
    tried: list[Changes] = []
    groups = _grouped(drawn)
    for position, (own, alike) in enumerate(groups):
        if position and allowance.is_over(began):
            break
        part, points = part_of(watch, position, 1, len(groups)), [{**usual, **_point(one)} for one in alike]
        (outcome,) = training.method.train(training.task(seed, {**own, "grid": points}, watch=part))
        assert isinstance(outcome, Predictions)
        found.append((own, outcome))
        tried += alike
    best = _best_of([one for _, one in found], training.graph)
    scores = torch.stack([found[at][1].scores[split] for split, at in enumerate(best)])
    chosen = [{**found[at][0], **found[at][1].chosen[split]} for split, at in enumerate(best)]
    return Predictions(scores, chosen), [one for one in drawn if one in tried]


def _grouped(drawn: Sequence[Changes]) -> list[tuple[Changes, list[Changes]]]:
    """Return the system's own part of the settings, each with all settings that share it."""
    groups: list[tuple[Changes, list[Changes]]] = []
    for changes in drawn:
        own = {key: value for key, value in changes.items() if key not in _point(changes)}
        same = [alike for other, alike in groups if other == own]
        if same:
            same[0].append(changes)
        else:
            groups.append((own, [changes]))
    return groups


def _point(changes: Changes) -> Changes:
    """Return the part of a setting that is a point of the grid."""
    return {one.name: changes[one.name] for one in fields(GridPoint) if one.name in changes}


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
