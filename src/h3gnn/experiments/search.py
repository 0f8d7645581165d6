"""Search settings from a list that is drawn before anything is trained, so that no label shapes the list.

Splits of one graph overlap: most test nodes of one are validation nodes of another. A setting that is chosen
on all splits together has therefore seen, as validation nodes, the nodes that it is tested on. Under `nested`
each split chooses by its own training and validation nodes alone. `pooled` chooses by the nodes of all splits
together, and `published` by the test nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import GRIDS, Predictions, part_of
from h3gnn.encoder.readout import Smoother, suggest_smoothing
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.criteria import cluster_accuracy, cluster_agreement
from h3gnn.evaluation.evaluator import find_probe
from h3gnn.evaluation.probe import SharedEmbedding
from h3gnn.evaluation.protocols import (
    NESTED,
    POOLED,
    PUBLISHED,
    VALIDATION,
    Candidates,
    Choice,
    SplitScores,
    count_classes,
    held_out_labels,
    one_standard_error_rule,
    score,
)
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import Method, Task, snapshot_epochs
from h3gnn.experiments.run import (
    build_evaluator,
    evaluate_predictions,
    method_params,
    rare_name,
    run_method,
    settings_of,
)
from h3gnn.experiments.selection import (
    Changes,
    SplitValidation,
    TestSelection,
    Trial,
    Trials,
    best_predictions,
)
from h3gnn.experiments.spaces import FREE, SearchBudget, check_varied, draw_settings, with_objectives
from h3gnn.graphs.graph import Graph
from h3gnn.preprocessing import Preprocessing, step_matrix
from h3gnn.resources import one_thread
from h3gnn.storage.runs import made_with
from h3gnn.training.resources import pick_device

PUBLISHED_EPOCHS, LARGE, PUBLISHED_EPOCHS_LARGE = 10, 1000, 3
"""Epochs that `published` evaluates, and how many with more training nodes than `LARGE`."""
CHOICES = ("defaults", "without labels", "by validation labels", "by all labels")
"""How `search_clusterings` chooses: not at all, by agreement of clusters, or by labels."""


def ranges_of(method: Method) -> dict[str, Sequence[Any]]:
    """Return the values that a search of a method chooses from, including a classifier's grid."""
    ranges = dict(method.ranges) or (dict(method.system.ranges) if method.system else {})
    if method.supervised:
        ranges |= {
            one.name: sorted({getattr(point, one.name) for point in GRIDS["full"]})
            for one in fields(GridPoint)
        }
    return ranges


def fix_settings(method: Method, fixed: Collection[str], trials: int) -> Method:
    """Return a method whose search does not vary the settings that the user fixed.

    Args:
        method: any; only one that takes the settings of H3GNN is changed.
        fixed: names of settings of H3GNN.
        trials: number of settings; with several, something must vary.
    """
    if not method.takes_settings:
        return method
    held = {name for name in method.ranges if name in fixed}
    check_varied({**method.ranges, **dict.fromkeys(held, ())}, trials, method.title)
    ranges = {name: values for name, values in method.ranges.items() if name not in held}
    settings = {name: value for name, value in method.settings.items() if name not in held}
    return replace(method, ranges=ranges, settings=settings)


@dataclass(frozen=True)
class Trainer:
    """Trains a method on a graph with one setting after another.

    Attributes:
        method: to train.
        graph: to learn from.
        model: settings of H3GNN, for the methods that take them.
        device: where to train.
    """

    method: Method
    graph: Graph
    model: H3GNN | None
    device: torch.device

    @property
    def settings(self) -> Changes:
        """The method's own settings."""
        return dict(settings_of(self.method, self.model))

    def task(self, seed: int, changes: Mapping[str, Any], **more: Any) -> Task:
        """Return the task of one training."""
        settings = with_objectives({**self.settings, **changes})
        return Task(self.graph, [seed], self.device, settings, **more)

    def report(
        self,
        seed: int,
        changes: Mapping[str, Any],
        callback: Callable[[int, Tensor], None],
        eval_epochs: Sequence[int] = (),
    ) -> None:
        """Train once and report the embedding after some epochs, or at the end."""
        task = self.task(seed, changes)
        if eval_epochs:
            task = replace(task, eval_epochs=snapshot_epochs(task.settings.get("epochs", 0), eval_epochs))
        self.method.report(task, callback)

    def embed(self, seed: int, changes: Mapping[str, Any]) -> Tensor:
        """Train once and return the final embedding `[nodes, D]`."""
        kept: list[Tensor] = []
        self.report(seed, changes, lambda epoch, rows: kept.append(rows))
        return kept[-1]

    def search(
        self,
        ranges: Mapping[str, Sequence[Any]],
        budget: SearchBudget,
        seed: int,
        callback: Callable[[int, Changes, int, Tensor], None],
        *,
        held: Mapping[str, Any] | None = None,
        watch: Progress = unwatched,
    ) -> list[Changes]:
        """Train with one drawn setting after another until the budget is spent, and return those tried.

        Args:
            ranges: the values that settings are drawn from.
            budget: number, time limit and evaluated epochs.
            seed: of the trainings.
            callback: receives the number of the setting, its changes, the epoch and the embedding.
            held: changes of every training that are not part of a setting.
            watch: receives the share of the work that is done.
        """
        drawn, start = draw_settings(ranges, budget.trials, budget.seed), time.perf_counter()
        for number, changes in enumerate(drawn):
            if number and budget.is_over(start):
                return drawn[:number]
            report = partial(callback, number, changes)
            self.report(seed, {**changes, **(held or {})}, report, budget.eval_epochs)
            watch((number + 1) / len(drawn))
        return drawn

    def search_classifier(
        self, seed: int, drawn: Sequence[Changes], budget: SearchBudget, watch: Progress
    ) -> tuple[Predictions, list[Changes]]:
        """Train a classifier with every drawn setting, and choose for each split on its validation nodes.

        Settings that share the system's own settings train as one stack.

        Returns:
            The predictions, and the settings that were tried.
        """
        assert self.method.predict is not None
        start, usual = time.perf_counter(), self.settings["grid"][0]
        found: list[tuple[Changes, Predictions]] = []
        tried: list[Changes] = []
        groups = _group_by_system(drawn)
        for position, (own, alike) in enumerate(groups):
            if position and budget.is_over(start):
                break
            points = [{**usual, **_grid_point(one)} for one in alike]
            part = part_of(watch, position, 1, len(groups))
            (predictions,) = self.method.predict(self.task(seed, {**own, "grid": points}, watch=part))
            found.append((own, predictions))
            tried += alike
        best = best_predictions([one for _, one in found], self.graph)
        scores = torch.stack([found[at][1].scores[split] for split, at in enumerate(best)])
        chosen = [{**found[at][0], **found[at][1].chosen[split]} for split, at in enumerate(best)]
        return Predictions(scores, chosen), [one for one in drawn if one in tried]


def _group_by_system(drawn: Sequence[Changes]) -> list[tuple[Changes, list[Changes]]]:
    """Group settings by the part that belongs to the system, not to the grid."""
    groups: list[tuple[Changes, list[Changes]]] = []
    for changes in drawn:
        own = {key: value for key, value in changes.items() if key not in _grid_point(changes)}
        same = [alike for other, alike in groups if other == own]
        if same:
            same[0].append(changes)
        else:
            groups.append((own, [changes]))
    return groups


def _grid_point(changes: Changes) -> Changes:
    """Return the part of a setting that is a point of the grid."""
    return {one.name: changes[one.name] for one in fields(GridPoint) if one.name in changes}


@dataclass(frozen=True)
class Part:
    """One ablation of the chosen settings.

    Attributes:
        changes: of the chosen settings.
        probe: another probe of the embedding; "" for the same.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""


@dataclass(frozen=True)
class SearchResult:
    """The outcome of `run_nested`.

    Attributes:
        results: by the name of the protocol.
        parts: ablations under `nested`, by name.
        record: every setting that was tried, with its score on each split's own nodes.
        chosen: the choice of `pooled`: one setting for the whole graph.
    """

    results: dict[str, Result]
    parts: dict[str, Result]
    record: dict[str, Any]
    chosen: Changes


def run_nested(
    method: Method,
    graph: Graph,
    *,
    seeds: Sequence[int],
    budget: SearchBudget,
    protocols: Sequence[str] = (NESTED.name,),
    parts: Mapping[str, Part] | None = None,
    model: H3GNN | None = None,
    device: str = "auto",
    name: str | None = None,
    top: int | None = None,
    watch: Progress = unwatched,
) -> SearchResult:
    """Train a method with several settings, and let each split choose among them by its own nodes alone.

    A method that embeds is trained once with each setting, from the first seed. Each split resplits its
    training and validation nodes several times and takes the setting with the best ridge regression. The
    probe is chosen on the same resplits and trained on the split's training nodes. With the other seeds only
    the chosen settings are trained. A classifier's settings are compared on the split's validation nodes, on
    which it stops as well.

    Args:
        method: any with ranges.
        graph: with labels and splits.
        seeds: of the trainings.
        budget: number of settings, and time.
        protocols: besides `nested`, "pooled" and "published" for a method that embeds.
        parts: ablations of the chosen settings, by name, for a method that embeds.
        model: settings of H3GNN, for the methods that take them.
        device: "auto", "cpu", "cuda".
        name: of the graph, for the result.
        top: the k of recall at k.
        watch: receives the share of the work that is done.
    """
    used = list(seeds) if method.has_chance else list(seeds)[:1]
    run = _Run(method, graph, used, budget, model, pick_device(device), name, top, watch)
    return run.classifiers() if method.supervised else run.embeddings(protocols, parts or {})


@dataclass
class _Run:
    """One method on one graph."""

    method: Method
    graph: Graph
    seeds: list[int]
    budget: SearchBudget
    model: H3GNN | None
    device: torch.device
    name: str | None
    top: int | None
    watch: Progress
    started: float = field(default_factory=time.perf_counter)

    @cached_property
    def validation(self) -> SplitValidation:
        return SplitValidation(self.graph, self.device, self.budget.seed)

    @property
    def trainer(self) -> Trainer:
        return Trainer(self.method, self.graph, self.model, self.device)

    @property
    def settings(self) -> Changes:
        return self.trainer.settings

    def embeddings(self, protocols: Sequence[str], parts: Mapping[str, Part]) -> SearchResult:
        """Search the settings of a method that embeds."""
        trials = Trials(self.validation)
        tested = TestSelection(self.graph, self.device) if PUBLISHED.name in protocols else None
        settings, spent = self._explore(trials, tested)
        of_split, pooled = trials.nested(), trials.pooled()
        about = {"tried": settings, "allowed": self.budget.as_dict(), "searched_s": round(spent, 1)}
        results = {NESTED.name: self._result(NESTED.name, of_split, about)}
        if POOLED.name in protocols:
            results[POOLED.name] = self._result(POOLED.name, [pooled] * len(of_split), about)
        ablations = {
            title: self._result(NESTED.name, of_split, about, part, self.method.title + f", {title}")
            for title, part in parts.items()
        }
        if tested is not None:
            results[PUBLISHED.name] = self._published(tested.chosen(), about)
        record = {
            "method": self.method.title,
            "settings": self.settings,
            "ranges": {key: list(values) for key, values in ranges_of(self.method).items()},
            **about,
            "candidates": [one.as_row() for one in trials.all],
        }
        return SearchResult(results, ablations, record, pooled.changes)

    def _explore(self, trials: Trials, tested: TestSelection | None) -> tuple[list[Changes], float]:
        """Train and score every drawn setting; return the settings tried, and the seconds."""
        ranges, start = ranges_of(self.method), time.perf_counter()
        free = {key: values for key, values in ranges.items() if key in FREE}
        read_outs = self._read_outs(free)

        def add(number: int, changes: Changes, epoch: int, rows: Tensor) -> None:
            at = {"epochs": epoch} if self.budget.eval_epochs else {}
            for own, read_out in read_outs:
                smoothed = read_out(rows)
                with one_thread(self.graph.num_nodes):
                    trials.add(number, changes, {**at, **own}, smoothed)
                    if tested is not None:
                        tested.add(number, changes, {**at, **own}, smoothed)

        tried = self.trainer.search(
            {key: values for key, values in ranges.items() if key not in free},
            self.budget,
            self.seeds[0],
            add,
            held={"smoothing": 0.0} if "smoothing" in free else {},
            watch=part_of(self.watch, 0, 4, 5),
        )
        return tried, time.perf_counter() - start

    def _read_outs(
        self, free: Mapping[str, Sequence[Any]]
    ) -> list[tuple[Changes, Callable[[Tensor], Tensor]]]:
        """Return the variants that need no training of their own: every value of `smoothing`."""
        if "smoothing" not in free:
            return [({}, lambda rows: rows)]
        walk = step_matrix(self.graph, "walks", self.device)
        usual = self.settings["smoothing"]
        if usual == "auto":
            usual = suggest_smoothing(Preprocessing.of(self.settings).fit(self.graph).rows())
        values = dict.fromkeys([float(usual), *map(float, free["smoothing"])])
        return [({"smoothing": one}, Smoother(walk, one)) for one in values]

    def _result(
        self,
        protocol: str,
        of_split: Sequence[Trial],
        about: Mapping[str, Any],
        part: Part | None = None,
        title: str | None = None,
    ) -> Result:
        """Score the choice of each split from each seed; an ablation of several splits from the first."""
        part = part or Part()
        probe = part.probe or _probe_of(self.method)
        seeds = self.seeds[:1] if title and self.graph.num_splits > 1 else self.seeds
        scores = [self._scores(seed, of_split, dict(part.changes), probe) for seed in seeds]
        params = {**method_params(self.method, self.model), **part.changes, "probe": probe, **about}
        return self._as_result(title or self.method.title, protocol, "last", params, scores, seeds)

    def _as_result(
        self,
        title: str,
        protocol: str,
        rule: str,
        params: Changes,
        scores: Sequence[SplitScores],
        seeds: Sequence[int],
    ) -> Result:
        return Result(
            method=title,
            graph=self.name or self.graph.provenance.source,
            sha256=self.graph.provenance.sha256,
            protocol=protocol,
            epoch_rule=rule,
            params=params,
            seeds=list(seeds),
            **made_with(),
            device=str(self.device),
            seconds=time.perf_counter() - self.started,
            rare=rare_name(self.graph),
            top=self.top,
            **join_seeds(scores),
        )

    def _scores(self, seed: int, of_split: Sequence[Trial], changes: Changes, probe: str) -> SplitScores:
        """Probe the embedding of every setting that some split chose, and score each split with its own."""
        assert self.graph.labels is not None
        assert self.graph.test_mask is not None
        evaluator, fit = build_evaluator(self.graph), find_probe(probe)
        answers = held_out_labels(self.graph.labels, self.graph.test_mask)
        found: dict[int, SplitScores] = {}
        for trial in {id(one): one for one in of_split}.values():
            kept = trial.rows if seed == self.seeds[0] and not changes else None
            rows = self.trainer.embed(seed, {**trial.changes, **changes}) if kept is None else kept
            shared = SharedEmbedding(rows.to(self.device))
            for split in (split for split, chosen in enumerate(of_split) if chosen is trial):
                # separately: solved together, each would depend on the others' nodes in its last digits
                own = [mask[:, [split]] for mask in evaluator.masks]
                with one_thread(self.graph.num_nodes):
                    candidates = {0: fit(shared, evaluator.labels, *own, classes=self.classes)}
                    choice = self._choose_probe(candidates[0], split, fit, shared)
                named = {"trial": trial.number, **trial.changes, **choice.setting}
                scored = score(candidates, [choice], [answers[split]], self.top)
                found[split] = replace(scored, chosen=[named])
        return SplitScores.joined([found[split] for split in range(len(of_split))])

    def _choose_probe(
        self, candidates: Candidates, split: int, fit: Callable[..., Candidates], shared: SharedEmbedding
    ) -> Choice:
        """Choose the probe of one split by the mean over its resplits."""
        labels, train, val = self.validation.resplits[split]
        if train.shape[1] > 1:
            resplit = fit(shared, labels, train, val, torch.zeros_like(val), classes=self.classes)
            accuracy, loss = resplit.val_accuracy.mean(axis=0), resplit.val_loss.mean(axis=0)
            position = one_standard_error_rule(accuracy, loss, int(resplit.val_nodes[0]))
            return Choice(0, position, candidates.settings[position])
        (choice,) = VALIDATION.choose({0: candidates})
        return choice

    @property
    def classes(self) -> int:
        """The number of classes among the training and validation nodes of all splits."""
        assert self.graph.labels is not None
        assert self.graph.train_mask is not None
        assert self.graph.val_mask is not None
        return count_classes(self.graph.labels, self.graph.train_mask, self.graph.val_mask)

    def _published(self, changes: Changes, about: Mapping[str, Any]) -> Result:
        """Run the setting that is best on test nodes, with the best test epoch of each split."""
        assert self.graph.train_mask is not None
        is_large = int(self.graph.train_mask.sum(dim=0).amax()) > LARGE
        found = run_method(
            replace(self.method, settings=with_objectives({**self.settings, **changes})),
            self.graph,
            seeds=self.seeds[:1],
            model=self.model,
            protocol=PUBLISHED,
            snapshots=PUBLISHED_EPOCHS_LARGE if is_large else PUBLISHED_EPOCHS,
            device=str(self.device),
            name=self.name,
            top=self.top,
        )
        return replace(found, params={**found.params, **about})

    def classifiers(self) -> SearchResult:
        """Search the settings of a classifier, from every seed."""
        drawn = draw_settings(ranges_of(self.method), self.budget.trials, self.budget.seed)
        scores, of_seed, start = [], [], time.perf_counter()
        for position, seed in enumerate(self.seeds):
            watch = part_of(self.watch, position, 1, len(self.seeds))
            found, tried = self.trainer.search_classifier(seed, drawn, self.budget, watch)
            scores.append(evaluate_predictions(found, build_evaluator(self.graph, top=self.top)).scores)
            of_seed.append(tried)
        spent = round((time.perf_counter() - start) / len(self.seeds), 1)  # one search for each seed
        about = {**_tried_by(of_seed, drawn), "allowed": self.budget.as_dict(), "searched_s": spent}
        params = {**method_params(self.method, self.model), **about}
        result = self._as_result(self.method.title, NESTED.name, "validation", params, scores, self.seeds)
        return SearchResult({NESTED.name: result}, {}, about, {})


def _tried_by(of_seed: Sequence[Sequence[Changes]], drawn: Sequence[Changes]) -> dict[str, Any]:
    """Return the settings tried; by seed where the time limit cut some seeds short."""
    tried = [one for one in drawn if any(one in mine for mine in of_seed)]
    if all(len(mine) == len(tried) for mine in of_seed):
        return {"tried": tried}
    return {"tried": tried, "tried_by_seed": [[tried.index(one) for one in mine] for mine in of_seed]}


def _probe_of(method: Method) -> str:
    """Return the probe of a method; of a system, each split also chooses the scaling of its columns.

    H3GNN's columns have one scale already.
    """
    return "scaled" if method.probe == "logistic" and method.system is not None else method.probe


def search_clusterings(
    method: Method, graph: Graph, seeds: Sequence[int], budget: SearchBudget, device: torch.device
) -> dict[str, Any]:
    """Cluster the embedding of every drawn setting, and return the choice of each rule in `CHOICES`.

    The settings are tried from the first seed; the chosen ones are trained from the others, too.

    Args:
        method: one that embeds.
        graph: with labels.
        seeds: of the trainings.
        budget: number of settings, and time.
        device: where to train.

    Returns:
        For each of `CHOICES` the setting and the values of every measure, one for each seed; and the number
        of settings tried.
    """
    assert graph.labels is not None
    assert graph.val_mask is not None
    labels, trainer = graph.labels, Trainer(method, graph, None, device)
    agreement = cluster_agreement(graph.num_classes)
    by_labels = cluster_accuracy(labels, graph.val_mask, graph.num_classes)
    start = time.perf_counter()
    tried: list[tuple[Changes, float, float, dict[str, list[float]]]] = []

    def cluster(number: int, changes: Changes, epoch: int, rows: Tensor) -> None:
        measured = cluster_scores(rows, labels, seeds=(seeds[0],))
        tried.append((changes, agreement(rows), by_labels(rows), measured))

    trainer.search(ranges_of(method), replace(budget, eval_epochs=()), seeds[0], cluster)
    best = {
        "defaults": 0,
        "without labels": int(np.argmax([one[1] for one in tried])),
        "by validation labels": int(np.argmax([one[2] for one in tried])),
        "by all labels": int(np.argmax([one[3]["acc"][0] for one in tried])),
    }
    known: dict[int, dict[str, list[float]]] = {}
    for position in sorted(set(best.values())):
        changes, _, _, found = tried[position]
        for seed in seeds[1:]:
            more = cluster_scores(trainer.embed(seed, changes), labels, seeds=(seed,))
            found = {name: [*found[name], *more[name]] for name in MEASURES}
        known[position] = found
    choices = {choice: {"changes": tried[at][0], "values": known[at]} for choice, at in best.items()}
    return {"choices": choices, "tried": len(tried), "searched_s": time.perf_counter() - start}
