"""From a graph to a preset: an Optuna study with finalists, or a list of drawn settings."""

from __future__ import annotations

import datetime as dt
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.encoder.readout import Smoother
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation import evaluator
from h3gnn.evaluation.evaluator import Criterion
from h3gnn.evaluation.metrics import ONE_CLASS, LabelWarning, is_known, usable_splits
from h3gnn.evaluation.protocols import NESTED, POOLED
from h3gnn.experiments import studies
from h3gnn.experiments.methods import METHODS, fit_and_report
from h3gnn.experiments.search import Changes, run_nested
from h3gnn.experiments.spaces import SearchBudget, Space, check_varied, with_objectives
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.preprocessing import step_matrix
from h3gnn.settings import canonical, kept_for
from h3gnn.storage.runs import made_with

if TYPE_CHECKING:
    import optuna

OBJECTIVES = ("validation", "clustering", "label-free")
PROBED = "validation, linear probe"
FINAL_SEED = 77_000_000
"""Finalists start from seeds that no trial has."""
CONSTANT_RATE = {"schedule": "constant"}
"""With a constant learning rate, a run of fewer epochs is the beginning of a longer one."""


@dataclass(frozen=True)
class Budget:
    """The budget of a study; a trial joins the embeddings of several models and is scored at several epochs.

    No further trial starts after `seconds`.
    """

    trials: int = 100
    joined: int = 1
    eval_epochs: tuple[int, ...] = (10, 20, 40, 80, 160, 300)
    seconds: float | None = None


@dataclass
class ScoredTrial:
    """A configuration, the seed of its models, and its scores by epoch and smoothing."""

    params: dict[str, Any]
    seed: int
    scores: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The best score."""
        return max(self.scores.values(), default=float("-inf"))

    @property
    def best(self) -> tuple[int, float]:
        """The epoch and the smoothing of the first best score."""
        return max(self.scores, key=lambda at: self.scores[at], default=(0, 0.0))

    @property
    def curve(self) -> dict[int, float]:
        """The best score of each epoch."""
        return {epoch: max(s for (e, _), s in self.scores.items() if e == epoch) for epoch, _ in self.scores}

    @classmethod
    def mean(cls, repeats: Sequence[ScoredTrial]) -> ScoredTrial:
        """Return one configuration with the mean scores of its repeats."""
        scores = {at: sum(one.scores[at] for one in repeats) / len(repeats) for at in repeats[0].scores}
        return cls(repeats[0].params, repeats[0].seed, scores)


@dataclass(frozen=True)
class Tuned:
    """The arguments of `H3GNN` that a search found, its origin for the preset file, and all trials."""

    params: dict[str, Any]
    made: dict[str, Any]
    record: dict[str, Any]

    def preset(self, study_file: str | None = None) -> dict[str, Any]:
        """Return the content of a preset file, which names the file of the record."""
        return {"params": self.params, "tuned": {**self.made, "study_file": study_file}}


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
    progress: Callable[[optuna.Study], None] = lambda study: None,
    scored: Callable[[int], None] = lambda epoch: None,
) -> Tuned:
    """Search, train the best few with more models each, and return the best of those.

    Args:
        graph, study, space, budget: the study comes from `open_study`.
        models: `n_models` of the result, and of each finalist.
        finalists: number of the best trials that are trained again.
        repeats: trainings of each finalist, from different seeds; their mean counts.
        probed: under "validation", score finalists by the linear probe instead of by ridge regression.
        objective: "validation" uses labels of training and validation nodes only; "clustering" is the
            accuracy of k-means on validation nodes; "label-free" uses no label.
        splits: score trials on the first splits only; finalists are scored on all.
        clusters: for k-means; by default the number of classes, or 8.
        base: arguments of `H3GNN` that the space does not name; its defaults otherwise.
        device, seed: of the sampler and of the models.
        progress: called after each trial.
        scored: called with the epoch after each score of a trial.
    """
    made_by = made_with()  # before the search: files may change while it runs
    params = {**start_of(space), **(base or {})}
    smoothings = tuple(space.choices.get("smoothing", (params["smoothing"],)))
    if "auto" in smoothings:
        raise InputError('a search needs numbers for smoothing, not "auto"', code="value-invalid")
    criterion = _criterion(graph, objective, splits, clusters, device)
    searcher = Searcher(graph, params, criterion, device, smoothings, scored)
    with studies.storage_errors(study.study_name):
        studies.check_study(study, space)
        searcher.search(study, space, budget, seed, progress)
        best = best_trials(study, finalists)
    if not best:
        words = "no trial of the study ended with a score: allow more trials or time"
        raise InputError(words, code="no-trial")
    scored_by = PROBED if probed and objective == "validation" else objective
    searcher.criterion = _criterion(graph, scored_by, None, clusters, device)
    final_seeds = [FINAL_SEED + seed + 1000 * repeat for repeat in range(repeats)]
    final = [
        ScoredTrial.mean([searcher.run(one.params, start, models, list(one.curve)) for start in final_seeds])
        for one in best
    ]
    winner = max(final, key=lambda one: one.score)
    epochs, smoothing = winner.best
    chosen = {**winner.params, **CONSTANT_RATE, "epochs": epochs, "smoothing": smoothing, "n_models": models}
    made = {
        **_about(study.study_name, graph),
        "protocol": "no labels" if objective == "label-free" else POOLED.name,
        "trainings": studies.finished(study) + repeats * len(final),
        **{"trials": studies.finished(study), "seed": seed, "date": _today(), "repeats": repeats},
        **{"objective": objective, "score": winner.score, "scored_by": scored_by},
        **made_by,
    }
    request = {
        "space": {name: list(values) for name, values in space.choices.items()},
        "start": space.start,
        **{**asdict(budget), "eval_epochs": list(budget.eval_epochs)},
        **{"base": base or {}, "objective": objective, "splits": splits, "clusters": clusters},
        **{"finalists": finalists, "models": models, "repeats": repeats, "scored_by": scored_by},
        **{"seed": seed, "final_seeds": final_seeds},
    }
    preset = kept_for("preset", with_objectives({**params, **chosen}))
    return Tuned(preset, made, {"search": request, **_record(study, final)})


def start_of(space: Space) -> dict[str, Any]:
    """Return the arguments of `H3GNN` that a search in this space starts from."""
    return dict((H3GNN() if space.start is None else H3GNN.from_preset(space.start)).get_settings())


def _about(study: str, graph: Graph) -> dict[str, Any]:
    origin = graph.provenance
    return {"by": "h3gnn tune", "study": study, "graph": origin.source, "sha256": origin.sha256}


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


class Searcher:
    """Trains configurations on one graph and scores them at several epochs, with every smoothing.

    `base` holds the arguments of `H3GNN` that a search does not vary; `scored` is called with the epoch after
    each score.
    """

    def __init__(
        self,
        graph: Graph,
        base: Mapping[str, Any],
        criterion: Criterion,
        device: torch.device,
        smoothings: Sequence[float] = (0.0,),
        scored: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self.graph, self.criterion, self.device, self.scored = graph, criterion, device, scored
        self.base = {**base, **CONSTANT_RATE, "smoothing": 0.0, "verbose": False, "device": str(device)}
        walk = step_matrix(graph, "walks", device)
        self.smoothers = [Smoother(walk, value) for value in smoothings]

    def run(
        self,
        params: Mapping[str, Any],
        seed: int,
        models: int,
        epochs: Sequence[int],
        after: Callable[[int, ScoredTrial], None] = lambda epoch, trial: None,
    ) -> ScoredTrial:
        """Train a configuration and score it; `after` is called after each scored epoch."""
        trial = ScoredTrial(dict(params), seed)
        changes = {"epochs": epochs[-1], "n_models": models, "random_state": seed}

        def score(epoch: int, rows: Tensor) -> None:
            for smoother in self.smoothers:
                trial.scores[epoch, smoother.strength] = self.criterion(smoother(rows))
            self.scored(epoch)
            after(epoch, trial)

        model = H3GNN.from_settings(with_objectives({**self.base, **params, **changes}))
        fit_and_report(model, self.graph, score, epochs)
        return trial

    def search(
        self,
        study: optuna.Study,
        space: Space,
        budget: Budget,
        seed: int,
        progress: Callable[[optuna.Study], None] = lambda study: None,
    ) -> None:
        """Run trials until the budget is spent; a study with trials continues.

        The sampler is seeded by the position of a trial among those that did not fail, so that an interrupted
        search proposes the same configurations as an uninterrupted one.
        """
        studies.fail_orphans(study)
        if studies.finished(study) >= budget.trials:
            return

        def after_trial(study: optuna.Study, trial: Any) -> None:
            progress(study)
            if studies.finished(study) >= budget.trials:
                study.stop()
            studies.seed_sampler(study, seed)

        if space.start is None and studies.position_of(study) == 0:
            study.enqueue_trial({name: values[0] for name, values in space.proposed.items()})
        studies.seed_sampler(study, seed)
        study.optimize(
            partial(self._run_trial, space, budget, seed),
            timeout=budget.seconds,
            callbacks=[after_trial],
            gc_after_trial=self.device.type == "cuda",
        )

    def _run_trial(self, space: Space, budget: Budget, seed: int, trial: optuna.Trial) -> float:
        import optuna

        trial.set_user_attr("owner", [socket.gethostname(), os.getpid()])
        params = {name: trial.suggest_categorical(name, list(v)) for name, v in space.proposed.items()}
        start = seed + 1000 * studies.position_of(trial.study, trial.number)
        trial.set_user_attr("seed", start)

        def report(epoch: int, scored: ScoredTrial) -> None:
            trial.report(scored.curve[epoch], epoch)
            is_last = epoch == budget.eval_epochs[-1]
            if is_last or trial.should_prune():
                trial.set_user_attr("smoothing", scored.best[1])
                if not is_last:
                    raise optuna.TrialPruned

        try:
            return self.run(params, start, budget.joined, budget.eval_epochs, report).score
        except torch.OutOfMemoryError:
            trial.set_user_attr("failed", "out of memory")
            raise optuna.TrialPruned from None
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # other processes may share the device


def best_trials(study: optuna.Study, count: int) -> list[ScoredTrial]:
    """Return the best trials with different configurations."""
    trials = [
        ScoredTrial(dict(one.params), 0, {(epoch, 0.0): s for epoch, s in one.intermediate_values.items()})
        for one in studies.ended_trials(study)
        if one.intermediate_values
    ]
    best: list[ScoredTrial] = []
    for one in sorted(trials, key=lambda one: -one.score):
        if all(one.params != other.params for other in best):
            best.append(one)
    return best[:count]


def _criterion(
    graph: Graph, name: str, splits: int | None, clusters: int | None, device: torch.device
) -> Criterion:
    if name == "label-free":
        return evaluator.cluster_agreement(clusters or graph.num_classes or 8)
    if name not in (*OBJECTIVES, PROBED):
        words = f"unknown objective {name!r}; the objectives are {', '.join(OBJECTIVES)}"
        raise InputError(words, code="unknown-objective")
    labels = graph.labels if graph.targets is None else graph.targets
    if labels is None or graph.train_mask is None or graph.val_mask is None:
        words = "the graph has no labels to validate on; use --objective label-free"
        raise InputError(words, code="no-labels")
    if labels.is_floating_point() and name == "clustering":
        words = "the objective clustering needs classes; use --objective validation"
        raise InputError(words, code="task-unsupported")
    if len(torch.unique(labels[is_known(labels)])) < 2:
        warnings.warn(ONE_CLASS, LabelWarning, stacklevel=1)  # one place, so that it is shown once
    train, val = graph.train_mask[:, :splits], graph.val_mask[:, :splits]
    usable = usable_splits(labels, *((val,) if name == "clustering" else (train, val)))
    if not usable.any():
        words = "no split has labelled training and validation nodes; use --objective label-free"
        raise InputError(words, code="no-usable-split")
    if not usable.all():
        skipped = f"{int((~usable).sum())} of {len(usable)} split(s)"
        warnings.warn(f"{skipped} have no labelled nodes and are not scored", LabelWarning, stacklevel=3)
    train, val = train[:, usable], val[:, usable]
    if name == "clustering":
        return evaluator.cluster_accuracy(labels, val, clusters or graph.num_classes)
    if name == PROBED:
        return evaluator.probe_accuracy(labels, train, val)
    return evaluator.validation_accuracy(evaluator.RidgeValidation(labels, train, val, device))


def _record(study: optuna.Study, final: list[ScoredTrial]) -> dict[str, Any]:
    trials = [
        {
            "number": position,
            "state": trial.state.name.lower(),
            "params": trial.params,
            "seed": trial.user_attrs.get("seed"),
            "smoothing": trial.user_attrs.get("smoothing"),
            "curve": {str(epoch): round(score, 5) for epoch, score in trial.intermediate_values.items()},
        }
        for position, trial in enumerate(studies.kept_trials(study))
        if studies.has_ended(trial)
    ]
    finalists = [
        {"params": one.params, "looks": [[*at, round(score, 5)] for at, score in one.scores.items()]}
        for one in final
    ]
    return {"trials": trials, "finalists": finalists}


def tune_from_list(
    graph: Graph,
    space: Space,
    budget: SearchBudget,
    *,
    models: int,
    study: str,
    device: str,
    seed: int = 0,
    splits: int | None = None,
    watch: Progress = unwatched,
) -> Tuned:
    """Try a list of drawn settings, and return the best for all splits together, with the `nested` estimate.

    The preset is one setting for the whole graph. The estimate is the test accuracy where each split chooses
    from the same list by its own nodes.

    Args:
        graph: with labels and splits.
        space: the values that settings are drawn from.
        budget: with `eval_epochs`, all train with a constant learning rate until the last.
        models: `n_models` of every trial and of the result.
        study: a name for it.
        device, seed: of the trainings.
        splits: use the first splits only, to choose and to score.
        watch: receives the share of the work that is done.
    """
    ranges = space.choices
    if "n_models" in ranges:
        message = "--choices n_models: every setting has the models of the preset; give --models"
        raise InputError(message, code="n-models-choice")
    method = replace(METHODS["h3gnn"], title="H3GNN, tuned", ranges=ranges)
    varied = {"epochs": budget.eval_epochs} if budget.eval_epochs else {}
    check_varied({**ranges, **varied}, budget.trials, method.title)
    length = {**CONSTANT_RATE, "epochs": budget.eval_epochs[-1]} if budget.eval_epochs else {}
    if ranges.keys() & length.keys():
        raise InputError(
            "--epochs evaluates each setting at several epochs, with a constant learning rate: leave out "
            "--epochs, or --choices for epochs and schedule",
            code="epochs-conflict",
        )
    model = H3GNN.from_settings({**_start_within(space), **length, "n_models": models})
    used = first_splits(graph, splits)
    found = run_nested(method, used, seeds=[seed], budget=budget, model=model, device=device, watch=watch)
    nested = found.results[NESTED.name].as_dict()
    return preset_of(found.record, found.chosen, nested, _about(study, graph), splits)


def _start_within(space: Space) -> Changes:
    """Return the first settings of the list: the space's start, changed where the choices exclude it."""
    start = start_of(space)
    if not isinstance(start["objective"], str):
        start["objective"] = "+".join(start["objective"])  # as a space writes it
    first = {name: values[0] for name, values in space.choices.items() if start[name] not in values}
    return with_objectives({**start, **first})


def preset_of(
    record: Mapping[str, Any],
    chosen: Changes,
    nested: Mapping[str, Any],
    about: Mapping[str, Any],
    splits: int | None = None,
) -> Tuned:
    """Return the best setting of `run_nested` as a preset with its record, from plain values.

    Args:
        record, chosen, nested: every setting, the choice of all splits together, and the result of `nested`.
        about: how it was made, and on which graph.
        splits: number of splits that were used; None is all.
    """
    settings = {**H3GNN().get_settings(), **canonical(record["settings"])}
    params = kept_for("preset", with_objectives({**settings, **chosen}))
    scored = [_scored(one, record) for one in record["candidates"]]
    taken = [{**record["tried"][trial], **at} for trial, at, _ in record["candidates"]].index(chosen)
    winner, *_, best = scored[taken]
    seed = nested["seeds"][0]
    made = {
        **about,
        **{"protocol": POOLED.name, "objective": "validation", "score": best, "seed": seed, "repeats": 0},
        "scored_by": "ridge regression on resplit training and validation nodes, all splits together",
        "nested": _estimate(nested),
        **{"trials": len(record["tried"]), "trainings": len(record["tried"]), "date": _today()},
        **{name: nested[name] for name in ("versions", "origin") if name in nested},
    }
    request = {
        **{"space": record["ranges"], "allowed": record["allowed"], "joined": params["n_models"]},
        "eval_epochs": record["allowed"]["looks"],
        **{"seed": seed, "objective": "validation", "splits": splits},
    }
    trials = [_trial(number, drawn, scored, seed) for number, drawn in enumerate(record["tried"])]
    finalist = {"params": record["tried"][winner], "looks": [one[1:] for one in scored if one[0] == winner]}
    return Tuned(params, made, {"search": request, "trials": trials, "finalists": [finalist]})


def _estimate(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the estimate on unseen nodes, and the trial that each split chose."""
    chosen = nested["chosen"]  # of each seed and split; a stored cell keeps it in columns
    trials = chosen["trial"][0] if isinstance(chosen, dict) else [one["trial"] for one in chosen[0]]
    return {
        "test_mean": nested["probe"]["test_mean"],
        "test_std": nested["probe"]["test_std"],
        "trials": trials,
        "in_words": "test accuracy where each split chose by its own nodes from the same list",
    }


def _scored(candidate: Sequence[Any], record: Mapping[str, Any]) -> list[Any]:
    """Return the trial, its epochs and smoothing, and the mean of its scores over the splits."""
    trial, at, scores = candidate
    known = {**record["settings"], **record["tried"][trial], **at}
    smoothing = known["smoothing"] if isinstance(known["smoothing"], int | float) else 0.0
    return [trial, known["epochs"], smoothing, round(float(np.mean(scores)), 5)]


def _trial(number: int, drawn: Changes, scored: Sequence[list[Any]], seed: int) -> dict[str, Any]:
    own = [one for one in scored if one[0] == number]
    curve: dict[str, float] = {}
    for _, epochs, _, value in own:
        curve[str(epochs)] = max(value, curve.get(str(epochs), 0.0))
    smoothing = max(own, key=lambda one: one[3])[2]
    facts = {"number": number, "state": "complete", "params": drawn, "seed": seed}
    return {**facts, "smoothing": smoothing, "curve": curve}
