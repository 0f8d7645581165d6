"""Running one method on one graph, for several seeds, into a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.supervised import Predictions
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import spread
from h3gnn.evaluation.evaluator import Judge, Judgement
from h3gnn.evaluation.metrics import warn_of_limits
from h3gnn.evaluation.protocols import (
    VALIDATION,
    Protocol,
    answers_of,
    candidates_from_scores,
    known_rarest,
    score,
)
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import SNAPSHOTS, Method, Outcome, Task, find_grid, find_methods
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
"""Bytes that any method takes for a column of features: some weights, their gradient and Adam's moments."""


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
    watch: Progress = unwatched,
    told: Callable[[str, float], None] = lambda words, share: None,
) -> Result:
    """Train a method once for each seed, and score it on every split of a graph.

    Args:
        method: one of `METHODS`, or its name.
        graph: with labels and splits.
        seeds: one training each; a method without chance takes the first.
        model: the settings of H3GNN, for the methods that take them; by default its defaults. It is not
            fitted itself.
        protocol, epoch_rule: what may be looked at, and how H3GNN's epoch is chosen. Supervised methods
            choose epoch and settings on validation nodes always; the others' epoch is their own.
        device: "auto", "cpu", "cuda".
        grid: name of the hyper-parameter grid of the supervised methods, in `baselines.supervised.GRIDS`;
            None for the method's own.
        cluster: run k-means too, on methods that embed.
        snapshots: at how many points of H3GNN's training the epoch may be chosen, where it is chosen.
        name: of the graph, for the result.
        top: the k of recall at k; by default as many as the rare class has test nodes.
        watch: told the share of the work that is done.
        told: called with what is scored next, and the share of one seed's scoring that is done.
    """
    started, place, made = time.perf_counter(), pick_device(device), made_with()
    method = find_methods(method)[0] if isinstance(method, str) else method
    used = list(seeds) if method.has_chance else list(seeds)[:1]
    settings, params = settings_of(method, model, grid), method_params(method, model, grid)
    chooses = method.takes_settings and bool(settings["epochs"])
    options: dict[str, Any] = {"protocol": protocol, "epoch_rule": epoch_rule if chooses else "last"}
    options |= {"probe": method.probe, "cluster": cluster, "parts": settings.get("n_models", 1), "top": top}
    options["told"] = told
    rule = build_judge(graph, **options).epoch_rule  # says at once if there are no labels
    if chooses and rule != "last":
        params["snapshots"] = snapshots
    check_memory(
        METHOD_COLUMN * graph.num_features, f"{method.title} on {graph.num_features:,} feature columns"
    )
    judgements: list[Judgement] = []
    for outcome in method.train(Task(graph, used, place, settings, watch, snapshots)):
        judgements.append(judge_outcome(outcome, build_judge(graph, **options)))
        if not method.supervised:
            watch(len(judgements) / max(1, len(used)))
    return Result(
        method=method.title,
        graph=name or graph.provenance.source,
        sha256=graph.provenance.sha256,
        protocol="validation" if method.supervised else protocol.name,
        epoch_rule="validation" if method.supervised else rule,
        params=params,
        seeds=used,
        **made,
        device=str(place),
        seconds=time.perf_counter() - started,
        clustering=_join_clusterings([one.clustering for one in judgements if one.clustering is not None]),
        rare=rare_name(graph),
        top=top,
        **join_seeds([one.scores for one in judgements]),
    )


def build_judge(graph: Graph, **options: Any) -> Judge:
    """Return a judge for a graph's labels and splits; the options are those of `Judge`."""
    if graph.labels is None or not bool((graph.labels >= 0).any()):
        raise InputError(
            f"{graph.provenance.source} has no labels to score against; `h3gnn cluster` needs none"
        )
    if graph.train_mask is None or graph.val_mask is None or graph.test_mask is None:
        raise InputError(f"{graph.provenance.source} has no splits into training, validation and test nodes")
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    warn_of_limits(graph.labels, *masks, graph.class_names)
    return Judge(graph.labels, *masks, **options)


def method_params(method: Method, model: H3GNN | None = None, grid: str | None = None) -> dict[str, Any]:
    """Return a method's configuration as results record it."""
    settings = settings_of(method, model, grid)
    if method.takes_settings:
        settings = kept_for("result", settings)
    return settings if method.supervised else {**settings, "probe": method.probe}


def settings_of(method: Method, model: H3GNN | None = None, grid: str | None = None) -> dict[str, Any]:
    """Return a method's settings with what the user asked for: those of H3GNN, or the grid's points."""
    if method.takes_settings:
        return {**(model or H3GNN()).get_settings(), **method.settings}
    return {**method.settings, **({"grid": find_grid(grid)} if method.supervised and grid else {})}


def judge_outcome(outcome: Outcome, judge: Judge) -> Judgement:
    """Score one seed; of predictions everything was chosen on validation nodes, whatever the protocol."""
    if not isinstance(outcome, Predictions):
        outcome(judge)
        return judge.result()
    labels, (train, val, test) = judge.labels, judge.masks
    rare = known_rarest(labels, train, val)
    candidates = {0: candidates_from_scores(outcome.scores, labels, val, test, rare)}
    scored = score(candidates, VALIDATION.choose(candidates), answers_of(labels, test), judge.top)
    return Judgement(replace(scored, chosen=outcome.chosen), None)


def _join_clusterings(found: list[dict[str, list[float]]]) -> dict[str, Any] | None:
    if not found:
        return None
    return spread({measure: [value for one in found for value in one[measure]] for measure in found[0]})


def rare_name(graph: Graph) -> str:
    """Return the name of the class that average precision is about."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    rare = known_rarest(graph.labels, graph.train_mask, graph.val_mask)
    return graph.class_names[rare] if rare < graph.num_classes else str(rare)


LONG = 30.0
"""A training with fewer seconds to go is over before anybody wants to know."""
VERY_LONG = 120.0
"""From so many seconds on it is worth a moment to find out what mini-batches would take."""
SLOW = 60.0
"""A first epoch that takes so long tells alone, though it sets things up as well."""
BATCH_SIZE = 1024
MEASURED = 2
"""So many mini-batches are measured."""


class Outlook:
    """Says once, as soon as the first epochs tell, what a training does and how long it will take.

    Args:
        model: that is trained.
        graph: that it is trained on.
        tell: gets the sentence.
        clock: seconds, from any start.
    """

    def __init__(
        self,
        model: H3GNN,
        graph: GraphLike,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.graph, self.tell, self.clock = model, graph, tell, clock
        self.began, self.told = clock(), False

    def of(self, first: int) -> AfterEpoch:
        """Return what is called after each epoch of the group of models that starts with a given one."""
        at = self.clock()
        seen: list[tuple[int, float]] = []

        def after(epoch: int, recorder: Recorder) -> None:
            if self.told:
                return
            now = self.clock()
            seen.append((epoch, now))
            epochs, warm = epoch - seen[0][0], now - seen[0][1]
            if epochs >= 3 or warm >= 1.0:  # the first epoch sets things up, and does not count
                self._say(epoch, recorder, first, warm / epochs)
            elif now - at >= SLOW:
                self._say(epoch, recorder, first, (now - at) / (epochs + 1))

        return after

    def _say(self, epoch: int, recorder: Recorder, first: int, seconds: float) -> None:
        """Tell how long it takes, given the seconds of an epoch of the models that train now."""
        self.told = True
        model, group = self.model, len(recorder.newest()["loss"])
        later = (model.n_models - first - group) / group  # groups of models that train after this one
        left = seconds * (model.epochs - 1 - epoch + later * model.epochs)
        whole = self.clock() - self.began + left
        if left < LONG:
            return
        models = "1 model" if model.n_models == 1 else f"{model.n_models} models"
        words = f"{self.graph.num_nodes:,} nodes, {models}, {model.epochs} epochs: about {duration(whole)}"
        other = self._in_batches() if left >= VERY_LONG else None
        if other is not None and other < 0.8 * whole:
            words += f"; with `--batch-size {BATCH_SIZE}` about {duration(other)}"
        self.tell(words)

    def _in_batches(self) -> float | None:
        """Return the seconds of a whole training in mini-batches; None where that is no choice."""
        model, graph = self.model, self.graph
        if model.get_settings()["edge_weights"] in ("free", "learned"):  # they need the full graph
            return None
        if model.batch_size is not None or not graph.in_memory or graph.num_nodes < 4 * BATCH_SIZE:
            return None
        return model.epochs * batched_epoch(model, graph, BATCH_SIZE)


def batched_epoch(model: H3GNN, graph: GraphLike, batch_size: int) -> float:
    """Return how long an epoch of a model's training would take in mini-batches, measured on two of them.

    The model does not change.
    """
    params = {**model.get_settings(), "batch_size": batch_size}
    models, device = model.n_models, pick_device(model.device)
    prepared = Preprocessing.of(params).fit(graph)
    source, training = prepared.source(params, device), Training.of(params)
    student = Shape.of(params).build(graph.num_features, 0, models, device)
    step = stack_step(student, source, derive_seeds(0, models), training)
    mask = training.mask_of(models)(0)(step.difficulty, step.generators)
    batches = source.epoch(step.order, Ranks())
    step._train_on(next(batches), mask)  # sets things up
    began, nodes = time.perf_counter(), 0
    for batch in islice(batches, MEASURED):
        nodes += batch.own
        step._train_on(batch, mask)
    return (time.perf_counter() - began) * source.nodes / max(1, nodes)


def duration(seconds: float) -> str:
    """Return a time as a person would say it."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
