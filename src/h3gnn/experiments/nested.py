"""Tuning every method alike, split by split: what a split's own training and validation nodes choose.

Splits of one graph overlap: most test nodes of one are validation nodes of another. A setting that is chosen
on all splits together has therefore seen, as validation nodes, what it is then tested on. Here each split has
its own choice, made by its own training and validation nodes alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import GRIDS, Predictions, part_of
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.criteria import RidgeValidation
from h3gnn.evaluation.judge import Judgement
from h3gnn.evaluation.protocols import NESTED, VALIDATION, answers_of, score
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import Method, Task
from h3gnn.experiments.run import build_judge, judge_outcome, method_params, rare_name, settings_of
from h3gnn.experiments.spaces import COMMITTEE, with_objectives
from h3gnn.graphs.graph import Graph
from h3gnn.storage.origin import made_with
from h3gnn.training.resources import pick_device

DRAWS = 10
"""So many times are a split's training and validation nodes dealt anew, to score a setting."""


def run_nested(
    method: Method,
    graph: Graph,
    *,
    seeds: Sequence[int],
    trials: int,
    model: H3GNN | None = None,
    device: str = "auto",
    seed: int = 0,
    name: str | None = None,
    top: int | None = None,
    watch: Progress = unwatched,
) -> Result:
    """Train a method with several settings, and let each split choose among them by its own nodes alone.

    The settings are drawn before anything is trained: the method's own, and others out of its ranges. One
    that embeds is trained once with each; a split deals its training and validation nodes anew `DRAWS` times,
    and takes the setting whose ridge regression is right most often. A classifier's settings are compared by
    their accuracy on the split's validation nodes, on which it stops as well.

    Args:
        method: any with ranges.
        graph: with labels and splits.
        seeds: of the trainings; the settings are chosen for each.
        trials: how many settings.
        model: the settings of H3GNN, for the methods that take them.
        device: "auto", "cpu", "cuda".
        seed: of the drawn settings, and of the dealt nodes.
        name: of the graph, for the result.
        top: the k of recall at k.
        watch: told the share of the work that is done.
    """
    started, place, made = time.perf_counter(), pick_device(device), made_with()
    tried = draw_settings(ranges_of(method), trials, seed)
    used = list(seeds) if method.has_chance else list(seeds)[:1]
    base = settings_of(method, model)
    run = _classifiers if method.supervised else _embeddings
    judgements = []
    for position, one in enumerate(used):
        task = Task(graph, [one], place, base, part_of(watch, position, 1, len(used)))
        judgements.append(run(method, task, tried, seed, top))
    return Result(
        method=method.title,
        graph=name or graph.provenance.source,
        sha256=graph.provenance.sha256,
        protocol=NESTED.name,
        epoch_rule="validation" if method.supervised else "last",
        params={**method_params(method, model), "tried": tried},
        seeds=used,
        **made,
        device=str(place),
        seconds=time.perf_counter() - started,
        rare=rare_name(graph),
        top=top,
        **join_seeds([one.scores for one in judgements]),
    )


def ranges_of(method: Method) -> dict[str, Sequence[Any]]:
    """Return what a search of a method may choose from; a classifier's grid is part of it."""
    if method.takes_settings:
        own = {key: values for key, values in COMMITTEE.items() if key not in method.settings}
        return {} if method.settings.get("epochs") == 0 else own
    ranges = dict(method.system.ranges) if method.system else {}
    if method.supervised:
        ranges |= {
            one.name: sorted({getattr(point, one.name) for point in GRIDS["full"]})
            for one in fields(GridPoint)
        }
    return ranges


def draw_settings(ranges: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return different settings: nothing changed first, then values drawn from the ranges."""
    generator = np.random.default_rng(seed)
    found: list[dict[str, Any]] = [{}]
    most = int(np.prod([float(len(values)) for values in ranges.values()])) if ranges else 0
    while len(found) < min(trials, most + 1):
        one = {name: values[int(generator.integers(len(values)))] for name, values in ranges.items()}
        if one not in found:
            found.append(one)
    return found


def inner_draws(labels: Tensor, train: Tensor, val: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Deal the training and validation nodes of one split anew: as many of each class for training as before.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train, val: bool `[nodes]`, of the split.
        draws: how often.
        seed: of the chance.

    Returns:
        Two bool masks `[nodes, draws]`; nodes of neither mask are in none.
    """
    generator = torch.Generator().manual_seed(seed)
    own = (train | val) & (labels >= 0)
    inner_train = torch.zeros(len(labels), draws, dtype=torch.bool)
    for one in torch.unique(labels[own]).tolist():
        members = torch.nonzero(own & (labels == one)).flatten()
        many = int((train & (labels == one)).sum())
        many = min(max(1, many), max(1, len(members) - 1))  # one is left to be asked, where there are two
        for draw in range(draws):
            order = torch.randperm(len(members), generator=generator)
            inner_train[members[order[:many]], draw] = True
    return inner_train, own[:, None] & ~inner_train


def _embeddings(
    method: Method, task: Task, tried: list[dict[str, Any]], seed: int, top: int | None
) -> Judgement:
    """Train with each setting, and score what each split chose."""
    graph, splits = task.graph, task.graph.num_splits
    criteria = _criteria(graph, task.device, seed)
    kept: list[Tensor] = []
    scores = np.zeros((len(tried), splits))
    for position, changes in enumerate(tried):
        watch = part_of(task.watch, position, 1, len(tried))
        settings = with_objectives({**task.settings, **changes})
        (outcome,) = method.train(replace(task, settings=settings, watch=watch))
        if isinstance(outcome, Predictions):
            raise InputError(f"{method.title} gives no embedding")
        rows = _Rows()
        outcome(rows)  # type: ignore[arg-type]
        assert rows.values is not None
        kept.append(rows.values.cpu())
        scores[position] = [_accuracy(one, rows.values) for one in criteria]
    chosen = scores.argmax(axis=0)
    candidates = {}
    for position in sorted(set(chosen.tolist())):
        judge = build_judge(graph, probe=method.probe)
        candidates[position] = judge.fit(kept[position].to(task.device), judge.labels, *judge.masks)
    picks = [VALIDATION.choose({at: candidates[at]})[split] for split, at in enumerate(chosen.tolist())]
    assert graph.labels is not None
    assert graph.test_mask is not None
    found = score(candidates, picks, answers_of(graph.labels, graph.test_mask), top)
    named = [{"trial": one.epoch, **one.setting} for one in picks]
    return Judgement(replace(found, chosen=named), None)


class _Rows:
    """Takes a training's last embedding in a judge's place."""

    epoch_rule = "last"

    def __init__(self) -> None:
        self.values: Tensor | None = None

    def add(self, epoch: int, values: Tensor) -> None:
        self.values = values


def _criteria(graph: Graph, device: torch.device, seed: int) -> list[RidgeValidation]:
    """Return for each split what scores a setting: it holds the labels of the split's own nodes alone."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    found = []
    for split in range(graph.num_splits):
        train, val = graph.train_mask[:, split], graph.val_mask[:, split]
        masks = inner_draws(graph.labels, train, val, DRAWS, seed + split)
        own = torch.where(train | val, graph.labels, -1)
        found.append(RidgeValidation(own, *masks, device))
    return found


def _accuracy(criterion: RidgeValidation, rows: Tensor) -> float:
    return float(criterion.accuracies(rows[None]).mean())


def _classifiers(
    method: Method, task: Task, tried: list[dict[str, Any]], seed: int, top: int | None
) -> Judgement:
    """Train with every setting, and take for each split the one that its validation nodes like best."""
    names = {one.name for one in fields(GridPoint)}
    usual = dict(task.settings["grid"][0])
    groups: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for changes in tried:
        own = {key: value for key, value in changes.items() if key not in names}
        point = {**usual, **{key: value for key, value in changes.items() if key in names}}
        same = [points for other, points in groups if other == own]
        if same:
            same[0].append(point)
        else:
            groups.append((own, [point]))
    found: list[tuple[dict[str, Any], Predictions]] = []
    for position, (own, points) in enumerate(groups):
        settings = {**task.settings, **own, "grid": points}
        watch = part_of(task.watch, position, 1, len(groups))
        (outcome,) = method.train(replace(task, settings=settings, watch=watch))
        assert isinstance(outcome, Predictions)
        found.append((own, outcome))
    best = _best_of([one for _, one in found], task.graph)
    scores = torch.stack([found[at][1].scores[split] for split, at in enumerate(best)])
    chosen = [{**found[at][0], **found[at][1].chosen[split]} for split, at in enumerate(best)]
    return judge_outcome(Predictions(scores, chosen), build_judge(task.graph, top=top))


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
