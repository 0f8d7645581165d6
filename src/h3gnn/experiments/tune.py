"""From a graph to a preset: a study, its finalists trained with more models, and the best of them by name."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.criteria import (
    ClusterAccuracy,
    ClusterAgreement,
    ProbeAccuracy,
    RidgeValidation,
    ValidationAccuracy,
)
from h3gnn.evaluation.limits import ONE_CLASS, LabelWarning, usable_splits
from h3gnn.evaluation.protocols import POOLED
from h3gnn.experiments.spaces import Space, with_objectives
from h3gnn.experiments.studies import connect, finished, storage_faults
from h3gnn.experiments.trials import check_trials
from h3gnn.experiments.tuning import (
    FIXED,
    Budget,
    Objective,
    Searcher,
    Tried,
    best_trials,
)
from h3gnn.graphs.graph import Graph
from h3gnn.settings import kept_for
from h3gnn.storage.origin import made_with

if TYPE_CHECKING:
    import optuna

OBJECTIVES = ("validation", "clustering", "label-free")
PROBED = "validation, linear probe"
FINAL_SEED = 77_000_000
"""Finalists start from seeds that no trial had."""


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        params: arguments of `H3GNN`.
        made: how they were found, for the preset file.
        record: what was asked for, every trial and finalist, for whoever wants to trace the choice.
    """

    params: dict[str, Any]
    made: dict[str, Any]
    record: dict[str, Any]

    def preset(self, study_file: str | None = None) -> dict[str, Any]:
        """Return the content of a preset file; it names the file that the record is written to, if any."""
        return {"params": self.params, "tuned": {**self.made, "study_file": study_file}}


def open_study(graph: Graph, name: str, storage: str | None, objective: str, seed: int) -> optuna.Study:
    """Create a study, or go on with one of that name.

    Args:
        graph: what the study is about; a study of another graph is refused.
        name: of the study.
        storage: an Optuna address such as `sqlite:///studies.db`, a file ending in `.log` for Optuna's
            journal, or None to keep the study in memory.
        objective: what its trials are scored by.
        seed: of the sampler.
    """
    study = connect(name, storage, seed)
    about = {"graph": graph.provenance.sha256, "objective": objective}
    with storage_faults(storage):
        for key, value in about.items():
            if study.user_attrs.setdefault(key, value) != value:
                raise InputError(f"the study {name} is about another {key}; choose another name with --study")
            study.set_user_attr(key, value)
    return study


def tune(
    graph: Graph,
    study: optuna.Study,
    space: Space,
    budget: Budget,
    *,
    models: int = 1,
    finalists: int = 4,
    repeats: int = 1,
    probed: bool = False,
    objective: str = "validation",
    splits: int | None = None,
    clusters: int | None = None,
    base: dict[str, Any] | None = None,
    device: torch.device,
    seed: int = 0,
    told: Callable[[optuna.Study], None] | None = None,
    looked: Callable[[int], None] = lambda epoch: None,
) -> Tuned:
    """Search, train the best few with more models each, and return the best of those.

    Args:
        graph: what to learn from.
        study: from `open_study`.
        space: what to choose from.
        budget: of the search.
        models: `n_models` of the result, and of each finalist.
        finalists: how many of the best trials are trained so.
        repeats: how often, from other seeds; their mean counts, which rewards luck less.
        probed: under "validation", score finalists by the linear probe instead of by ridge regression.
        objective: "validation" needs labels and splits and looks at training and validation nodes only;
            "clustering" is the accuracy of k-means on validation nodes; "label-free" looks at no label.
        splits: score trials on the first few splits only; finalists are scored on all.
        clusters: for k-means, how many; the number of classes, or 8, by default.
        base: arguments of `H3GNN` that the space does not name; its defaults otherwise.
        device: where to train.
        seed: of the models' starts.
        told: called after each stack of trials.
        looked: called with the epoch after each look at a stack.
    """
    code = made_with()  # before the search: files may change while it runs
    params = {**start_of(space), **(base or {})}
    smoothings = tuple(space.choices.get("smoothing", (params["smoothing"],)))
    if "auto" in smoothings:
        raise InputError("a search tries strengths of smoothing: give numbers, not auto")
    scored_by = _objective(graph, objective, splits, clusters, device)
    searcher = Searcher(graph, params, scored_by, budget, device, smoothings, looked)
    with storage_faults(study.study_name):
        check_trials(study, space)
        searcher.search(study, space, seed=seed, told=told)
        chosen = best_trials(study, finalists)
    if not chosen:
        raise InputError("no trial of the study ended with a score: allow more trials or more time")
    final_name = PROBED if probed and objective == "validation" else objective
    searcher.objective = _objective(graph, final_name, None, clusters, device)
    final = [_run_finalist(searcher, one, models, repeats, seed) for one in chosen]
    best = max(final, key=lambda one: one.score)
    found = _preset_params(best, params, models)
    made = _made(graph, study, objective, seed) | {"score": best.score, "scored_by": final_name}
    made |= {"repeats": repeats, "trainings": made["trials"] + repeats * len(final), **code}
    asked = _asked(
        space,
        budget,
        base=base or {},
        objective=objective,
        splits=splits,
        clusters=clusters,
        finalists=finalists,
        models=models,
        repeats=repeats,
        scored_by=final_name,
        seed=seed,
        final_seeds=_final_seeds(seed, repeats),
    )
    return Tuned(found, made, {"search": asked, **_record(study, final)})


def start_of(space: Space) -> dict[str, Any]:
    """Return the arguments of `H3GNN` that a search in this space starts from."""
    model = H3GNN() if space.start is None else H3GNN.from_preset(space.start)
    params: dict[str, Any] = model.get_params()
    return params


def _run_finalist(searcher: Searcher, trial: Tried, models: int, repeats: int, seed: int) -> Tried:
    again = [Tried(trial.params, one) for one in _final_seeds(seed, repeats)]
    for one in again:
        searcher.score([one], models, [rung for rung in searcher.budget.rungs if rung <= max(trial.curve)])
    return Tried.mean(again)


def _final_seeds(seed: int, repeats: int) -> list[int]:
    """Return the seed of the first model of each training of a finalist."""
    return [FINAL_SEED + seed + 1000 * repeat for repeat in range(repeats)]


def _objective(
    graph: Graph, name: str, splits: int | None, clusters: int | None, device: torch.device
) -> Objective:
    if name == "label-free":
        return ClusterAgreement(clusters or graph.num_classes or 8)
    if name not in (*OBJECTIVES, PROBED):
        raise InputError(f"there is no objective {name!r}; the objectives are {', '.join(OBJECTIVES)}")
    if graph.labels is None or graph.train_mask is None or graph.val_mask is None:
        raise InputError("the graph has no labels to validate on; use --objective label-free")
    if len(torch.unique(graph.labels[graph.labels >= 0])) < 2:
        warnings.warn(ONE_CLASS, LabelWarning, stacklevel=1)  # one place: it is said once
    train, val = graph.train_mask[:, :splits], graph.val_mask[:, :splits]
    usable = usable_splits(graph.labels, *((val,) if name == "clustering" else (train, val)))
    if not usable.any():
        raise InputError(
            "no split has labelled nodes to train on and to validate on, so that nothing can be scored: use "
            "--objective label-free"
        )
    if not usable.all():
        message = (
            f"{int((~usable).sum())} of {len(usable)} split(s) lack labelled nodes: scored on the others"
        )
        warnings.warn(message, LabelWarning, stacklevel=3)
    train, val = train[:, usable], val[:, usable]
    if name == "clustering":
        return ClusterAccuracy(graph.labels, val, clusters or graph.num_classes)
    if name == PROBED:
        return ProbeAccuracy(graph.labels, train, val)
    return ValidationAccuracy(RidgeValidation(graph.labels, train, val, device))


def _preset_params(best: Tried, base: dict[str, Any], models: int) -> dict[str, Any]:
    """Return all arguments that shape a result; those of one machine or one run are left out."""
    epochs, smoothing = best.best
    chosen = {"epochs": epochs, "smoothing": smoothing, "n_models": models}
    return kept_for("preset", with_objectives({**base, **best.params, **FIXED, **chosen}))


def _made(graph: Graph, study: optuna.Study, objective: str, seed: int) -> dict[str, Any]:
    return {
        "by": "h3gnn tune",
        "study": study.study_name,
        "graph": graph.provenance.source,
        "sha256": graph.provenance.sha256,
        "protocol": "no labels" if objective == "label-free" else POOLED.name,
        "objective": objective,
        "trials": finished(study),
        "seed": seed,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _asked(space: Space, budget: Budget, **options: Any) -> dict[str, Any]:
    """Return what a search was asked for: all values that it chose from, its budget, and the rest by name."""
    choices = {name: list(values) for name, values in space.choices.items()}
    rungs = list(budget.rungs)
    return {"space": choices, "start": space.start, **asdict(budget), "rungs": rungs, **options}


def _record(study: optuna.Study, final: list[Tried]) -> dict[str, Any]:
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "params": trial.params,
            "seed": trial.user_attrs.get("seed"),
            "smoothing": trial.user_attrs.get("smoothing"),
            "curve": {str(epoch): round(score, 5) for epoch, score in trial.intermediate_values.items()},
        }
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished()
    ]
    finalists = [
        {
            "params": one.params,
            "looks": [[epoch, smoothing, round(score, 5)] for (epoch, smoothing), score in one.looks.items()],
        }
        for one in final
    ]
    return {"trials": trials, "finalists": finalists}
