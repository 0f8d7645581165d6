"""Running one method on one graph, for several seeds, into a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.supervised import Predictions
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.candidates import candidates_from_scores, known_rarest
from h3gnn.evaluation.clustering import spread
from h3gnn.evaluation.judge import Judge, Judgement
from h3gnn.evaluation.limits import warn_of_limits
from h3gnn.evaluation.protocols import VALIDATION, Protocol, answers_of, score
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import SNAPSHOTS, Method, Outcome, Task, find_grid, find_methods
from h3gnn.graphs.graph import Graph
from h3gnn.memory import check_room
from h3gnn.settings import kept_for
from h3gnn.storage.origin import made_with
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
    check_room(
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
        return {**(model or H3GNN()).get_params(), **method.settings}
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
