"""Running one method on one graph, for several seeds, into a result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from h3gnn.baselines.supervised import EPOCHS, GRIDS, PATIENCE, part_of, predict
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.candidates import candidates_from_scores
from h3gnn.evaluation.judge import Judgement
from h3gnn.evaluation.protocols import VALIDATION, Protocol, SplitScores, answers_of, score
from h3gnn.evaluation.results import Result
from h3gnn.experiments.evaluate import build_judge, evaluate_estimator, to_result
from h3gnn.experiments.methods import Method, Watch, find_methods
from h3gnn.graphs.graph import Graph
from h3gnn.settings import kept_for
from h3gnn.training.resources import SHARE, free_bytes, pick_device

STACK = {"cpu": 2**29, "cuda": 40 * 2**30}
"""Bytes of a stack of supervised models; larger ones are no faster."""


def run_method(
    method: Method | str,
    graph: Graph,
    *,
    seeds: Sequence[int],
    model: H3GNN | None = None,
    protocol: Protocol = VALIDATION,
    epoch_rule: str = "last",
    device: str = "auto",
    grid: str = "small",
    epochs: int | None = None,
    cluster: bool = False,
    name: str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train a method once for each seed, and score it on every split of a graph.

    Args:
        method: one of `METHODS`, or its name.
        graph: with labels and splits.
        seeds: one training each; a method without chance takes the first.
        model: the settings of H3GNN, for the methods that are made of it; by default its defaults.
        protocol, epoch_rule: what may be looked at, and how H3GNN's epoch is chosen. Supervised methods
            choose epoch and settings on validation nodes always; the others' epoch is their own.
        device: "auto", "cpu", "cuda".
        grid: name of the hyper-parameter grid of the supervised methods, in `baselines.supervised.GRIDS`.
        epochs: at most so many for the supervised methods; None for the usual number.
        cluster: run k-means too, on methods that embed.
        name: of the graph, for the result.
        watch: told the share of the work that is done.
    """
    watch = watch or (lambda share: None)
    method = find_methods(method)[0] if isinstance(method, str) else method
    used = list(seeds) if method.has_chance else list(seeds)[:1]
    settings = {**(model or H3GNN()).get_params(), **(method.overrides or {}), "device": device}
    if method.overrides is None:
        given = H3GNN(**settings)
        return _run_baseline(method, graph, used, given, protocol, grid, epochs, cluster, name, watch)
    trained: list[int] = []

    def done(seed: int) -> None:
        trained.append(seed)
        watch(len(trained) / len(used))

    return evaluate_estimator(
        H3GNN(**{**settings, "verbose": False}),
        graph,
        seeds=used,
        method=method.title,
        name=name,
        protocol=protocol,
        epoch_rule=epoch_rule if settings["epochs"] else "last",
        cluster=cluster,
        done=done,
    )


def method_params(
    method: Method, model: H3GNN | None = None, grid: str = "small", epochs: int | None = None
) -> dict[str, Any]:
    """Return a method's configuration as results record it."""
    if method.takes_settings:
        given = {**(model or H3GNN()).get_params(), **(method.overrides or {})}
        return {**kept_for("result", given), "probe": method.probe}
    if method.classifier:
        if grid not in GRIDS:
            raise InputError(f"there is no grid {grid!r}; the grids are {', '.join(GRIDS)}")
        points = [setting.as_dict() for setting in GRIDS[grid]]
        return {"grid": points, "epochs": epochs or EPOCHS, "patience": PATIENCE, "scale_features": "auto"}
    return {**method.params, "probe": method.probe}


def _run_baseline(
    method: Method,
    graph: Graph,
    seeds: list[int],
    model: H3GNN,
    protocol: Protocol,
    grid: str,
    epochs: int | None,
    cluster: bool,
    name: str | None,
    watch: Watch,
) -> Result:
    started, place = time.perf_counter(), pick_device(model.device)
    params = method_params(method, model, grid, epochs)
    if method.classifier:
        judgements = _judge_classifier(method, graph, seeds, place, grid, epochs, watch)
        rule = "validation"
    else:
        judgements = _judge_embeddings(method, graph, seeds, model, protocol, cluster, watch)
        rule = protocol.epoch_rule("last")
    return to_result(
        judgements,
        graph,
        method=method.title,
        name=name,
        protocol=VALIDATION if method.classifier else protocol,
        epoch_rule=rule,
        params=params,
        seeds=seeds,
        device=str(place),
        seconds=time.perf_counter() - started,
    )


def _judge_embeddings(
    method: Method,
    graph: Graph,
    seeds: list[int],
    model: H3GNN,
    protocol: Protocol,
    cluster: bool,
    watch: Watch,
) -> list[Judgement]:
    device, judgements = pick_device(model.device), []
    for turn, seed in enumerate(seeds):
        judge = build_judge(graph, protocol=protocol, probe=method.probe, cluster=cluster)
        told = part_of(watch, turn, 1, len(seeds))
        if method.embed is not None:
            embedding = method.embed(graph, seed, device, told)
        elif method.objective is not None:
            seeded = H3GNN(**{**model.get_params(), "random_state": seed, "verbose": False})
            embedding = method.objective(seeded, graph, told)
        judge.add(0, torch.from_numpy(embedding).to(device))
        judgements.append(judge.result())
        watch((turn + 1) / len(seeds))
    return judgements


def _judge_classifier(
    method: Method,
    graph: Graph,
    seeds: list[int],
    device: torch.device,
    grid: str,
    epochs: int | None,
    watch: Watch,
) -> list[Judgement]:
    """Train on each split; under any protocol, validation nodes choose."""
    build_judge(graph)  # says at once if there are no labels
    assert graph.labels is not None
    assert graph.val_mask is not None
    assert graph.test_mask is not None
    memory = min(int(SHARE * free_bytes(device)), STACK.get(device.type, STACK["cpu"]))
    found = predict(
        method.name,
        graph,
        seeds,
        device=device,
        memory=memory,
        grid=GRIDS[grid],
        epochs=epochs or EPOCHS,
        watch=watch,
    )
    answers = answers_of(graph.labels, graph.test_mask)
    judgements = []
    for scores, chosen in zip(found.scores, found.chosen, strict=True):
        candidates = {0: candidates_from_scores(scores, graph.labels, graph.val_mask, graph.test_mask)}
        scored = score(candidates, VALIDATION.choose(candidates), answers)
        kept = SplitScores(scored.accuracy, scored.macro_f1, scored.roc_auc, scored.validation, chosen)
        judgements.append(Judgement(kept, None))
    return judgements
