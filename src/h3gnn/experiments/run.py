"""Run one method on one graph for several seeds, and estimate how long a training takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.supervised import Predictions, part_of
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import summarize_runs
from h3gnn.evaluation.evaluator import Evaluation, Evaluator
from h3gnn.evaluation.metrics import warn_label_problems
from h3gnn.evaluation.protocols import (
    VALIDATION,
    Protocol,
    SplitScores,
    candidates_from_scores,
    held_out_labels,
    rarest_known_class,
    score,
)
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import SNAPSHOTS, Method, Task, find_methods, grid_of, snapshot_epochs
from h3gnn.experiments.tabular import TypedProblem
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.preprocessing import Preprocessing
from h3gnn.resources import check_memory
from h3gnn.settings import kept_for
from h3gnn.storage.runs import made_with
from h3gnn.training.distributed import Ranks
from h3gnn.training.history import Recorder
from h3gnn.training.loop import AfterEpoch
from h3gnn.training.models import Shape, Training, derive_seeds, stack_step
from h3gnn.training.resources import pick_device

METHOD_COLUMN = 4 * 4 * 32
"""Bytes that any method needs for a feature column: some weights, their gradients and Adam's moments."""
LONG, VERY_LONG = 30.0, 120.0
"""Seconds of remaining training from which a duration is reported, and mini-batches are measured too."""
SLOW = 60.0
"""Seconds after which a first epoch counts, although it includes the set-up."""
BATCH_SIZE, BATCHES = 1024, 2
"""Size and number of the mini-batches that are measured."""


def run_method(
    method: Method | str,
    graph: Graph,
    *,
    seeds: Sequence[int],
    model: H3GNN | None = None,
    protocol: Protocol = VALIDATION,
    epoch_rule: str = "last",
    device: str = "auto",
    grid: str | None = None,
    cluster: bool = False,
    snapshots: int = SNAPSHOTS,
    name: str | None = None,
    top: int | None = None,
    problem: TypedProblem | None = None,
    watch: Progress = unwatched,
    scoring: Callable[[str, float], None] = lambda step, share: None,
) -> Result:
    """Train a method once for each seed, and score it on every split of a graph.

    Args:
        method: one of `METHODS`, or its name.
        graph: with labels and splits.
        seeds: one training each; a method without chance takes the first.
        model: settings of H3GNN for the methods that take them; it is not fitted itself.
        protocol, epoch_rule: which labels may choose, and how H3GNN's epoch is chosen. Supervised methods
            always choose epoch and settings on validation nodes.
        device: "auto", "cpu", "cuda".
        grid: a name in `baselines.supervised.GRIDS`; None for the grid of the method.
        cluster: run k-means too, on methods that embed.
        snapshots: number of epochs that are evaluated, where the epoch is chosen.
        name: of the graph, for the result.
        top: the k of recall at k; by default the number of test nodes of the rare class.
        problem: the tables behind the graph of a type, for the methods that see them.
        watch: receives the share of the work that is done.
        scoring: receives the next step of one seed's scoring, and the share of it that is done.
    """
    started, place, made = time.perf_counter(), pick_device(device), made_with()
    method = find_methods(method)[0] if isinstance(method, str) else method
    used = method.used_seeds(seeds)
    settings, params = settings_of(method, model, grid), method_params(method, model, grid)
    chooses = method.takes_settings and bool(settings["epochs"])
    options: dict[str, Any] = {"protocol": protocol, "epoch_rule": epoch_rule if chooses else "last"}
    options |= {"probe": method.probe, "cluster": cluster and graph.targets is None}
    options |= {"parts": settings.get("n_models", 1), "top": top, "progress": scoring}
    rule = build_evaluator(graph, **options).epoch_rule  # rejects a graph without labels before training
    if chooses and rule != "last":
        params["snapshots"] = snapshots
    check_memory(
        METHOD_COLUMN * graph.num_features, f"{method.title} on {graph.num_features:,} feature columns"
    )
    eval_epochs = [] if rule == "last" else snapshot_epochs(settings.get("epochs", 0), snapshots)
    task = Task(graph, used, place, settings, watch, eval_epochs, problem)
    found: list[Evaluation] = []
    if method.predict is not None:
        found = [evaluate_predictions(one, build_evaluator(graph, **options)) for one in method.predict(task)]
    else:
        for position, seed in enumerate(used or [0]):  # an existing embedding has no seed
            evaluator = build_evaluator(graph, **options)
            part = part_of(watch, position, 1, max(1, len(used)))
            method.report(replace(task, seeds=[seed], watch=part), evaluator.add)
            found.append(evaluator.result())
            watch(len(found) / max(1, len(used)))
    clusterings, clustering = [one.clustering for one in found if one.clustering is not None], None
    if clusterings:
        values = {name: [value for one in clusterings for value in one[name]] for name in clusterings[0]}
        clustering = summarize_runs(values)
    return make_result(
        graph,
        [one.scores for one in found],
        name,
        started,
        method=method.title,
        protocol="validation" if method.supervised else protocol.name,
        epoch_rule="validation" if method.supervised else rule,
        params=params,
        seeds=used,
        device=str(place),
        clustering=clustering,
        top=top,
        **made,
    )


def make_result(
    graph: Graph, scores: Sequence[SplitScores], name: str | None, started: float, **facts: Any
) -> Result:
    """Return the scores of each seed as a result, with what identifies the graph."""
    labels, train, val, _ = labels_and_masks(graph)
    rare = rarest_known_class(labels, train, val)
    number = str(rare) if graph.num_classes else ""
    return Result(
        graph=name or graph.provenance.source,
        sha256=graph.provenance.sha256,
        seconds=time.perf_counter() - started,
        rare=graph.class_names[rare] if rare < graph.num_classes else number,
        **facts,
        **join_seeds(scores),
    )


def labels_and_masks(graph: Graph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return classes or numbers, training, validation and test masks; reject a graph without them."""
    labels = graph.labels if graph.targets is None else graph.targets
    if labels is None or not graph.labelled.any():
        message = f"{graph.provenance.source} has no labels to score against; `h3gnn cluster` needs none"
        raise InputError(message, code="no-labels")
    if graph.train_mask is None or graph.val_mask is None or graph.test_mask is None:
        message = f"{graph.provenance.source} has no splits into training, validation and test nodes"
        raise InputError(message, code="no-splits")
    return labels, graph.train_mask, graph.val_mask, graph.test_mask


def build_evaluator(graph: Graph, **options: Any) -> Evaluator:
    """Return an evaluator for a graph's labels and splits; the options are those of `Evaluator`."""
    labels, train, val, test = labels_and_masks(graph)
    warn_label_problems(labels, train, val, test, graph.class_names)
    return Evaluator(labels, train, val, test, **options)


def method_params(method: Method, model: H3GNN | None = None, grid: str | None = None) -> dict[str, Any]:
    """Return a method's configuration as results record it."""
    settings = settings_of(method, model, grid)
    if method.takes_settings:
        settings = kept_for("result", settings)
    return settings if method.supervised else {**settings, "probe": method.probe}


def settings_of(method: Method, model: H3GNN | None = None, grid: str | None = None) -> dict[str, Any]:
    """Return a method's settings including the user's: those of H3GNN, or the points of the grid."""
    if method.takes_settings:
        return {**(model or H3GNN()).get_settings(), **method.settings}
    if grid is None or "grid" not in method.settings:
        return {**method.settings}
    return {**method.settings, "grid": grid_of(method, grid)}


def evaluate_predictions(predictions: Predictions, evaluator: Evaluator) -> Evaluation:
    """Score a classifier, which has chosen everything on validation nodes under any protocol."""
    labels, (train, val, test) = evaluator.labels, evaluator.masks
    rare = rarest_known_class(labels, train, val)
    candidates = {0: candidates_from_scores(predictions.scores, labels, val, test, rare)}
    scored = score(candidates, VALIDATION.choose(candidates), held_out_labels(labels, test), evaluator.top)
    return Evaluation(replace(scored, chosen=predictions.chosen), None)


class TrainingTime:
    """Reports the expected duration of a training once, after its first epochs, by `report(sentence)`."""

    def __init__(
        self,
        model: H3GNN,
        graph: GraphLike,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.graph, self.report, self.clock = model, graph, report, clock
        self.start, self.reported = clock(), False

    def of(self, first: int) -> AfterEpoch:
        """Return the callback after each epoch of the group of models that starts with a given one."""
        group_start = self.clock()
        seen: list[tuple[int, float]] = []

        def after(epoch: int, recorder: Recorder) -> None:
            if self.reported:
                return
            now = self.clock()
            seen.append((epoch, now))
            epochs, warm = epoch - seen[0][0], now - seen[0][1]
            if epochs >= 3 or warm >= 1.0:  # the first epoch includes the set-up and does not count
                self._estimate(epoch, recorder, first, warm / epochs)
            elif now - group_start >= SLOW:
                self._estimate(epoch, recorder, first, (now - group_start) / (epochs + 1))

        return after

    def _estimate(self, epoch: int, recorder: Recorder, first: int, seconds: float) -> None:
        """Report the duration, given the seconds per epoch of the current group of models."""
        self.reported = True
        model, group = self.model, len(recorder.newest()["loss"])
        later_groups = (model.n_models - first - group) / group
        left = seconds * (model.epochs - 1 - epoch + later_groups * model.epochs)
        total = self.clock() - self.start + left
        if left < LONG:
            return
        models = "1 model" if model.n_models == 1 else f"{model.n_models} models"
        words = f"{self.graph.num_nodes:,} nodes, {models}, {model.epochs} epochs: about {duration(total)}"
        batched = self._in_batches() if left >= VERY_LONG else None
        if batched is not None and batched < 0.8 * total:
            words += f"; with `--batch-size {BATCH_SIZE}` about {duration(batched)}"
        self.report(words)

    def _in_batches(self) -> float | None:
        """Return the seconds of the whole training in mini-batches; None where that is no option."""
        model, graph = self.model, self.graph
        if model.get_settings()["edge_weights"] in ("free", "learned"):  # they need the full graph
            return None
        if model.batch_size is not None or not graph.in_memory or graph.num_nodes < 4 * BATCH_SIZE:
            return None
        return model.epochs * batched_epoch_seconds(model, graph, BATCH_SIZE)


def batched_epoch_seconds(model: H3GNN, graph: GraphLike, batch_size: int) -> float:
    """Return the seconds of a training epoch in mini-batches, extrapolated from a few of them."""
    params = {**model.get_settings(), "batch_size": batch_size}
    models, device = model.n_models, pick_device(model.device)
    source, training = Preprocessing.of(params).fit(graph).source(params, device), Training.of(params)
    student = Shape.of(params).build(graph.num_features, 0, models, device)
    step = stack_step(student, source, derive_seeds(0, models), training)
    mask = training.mask_of(models)(0)(step.difficulty, step.generators)
    batches = source.epoch(step.order, Ranks())
    step.train_on(next(batches), mask)  # includes the set-up
    start, nodes = time.perf_counter(), 0
    for batch in islice(batches, BATCHES):
        nodes += batch.own
        step.train_on(batch, mask)
    return (time.perf_counter() - start) * source.nodes / max(1, nodes)


def duration(seconds: float) -> str:
    """Format a duration, rounded."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
