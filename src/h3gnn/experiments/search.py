"""Search settings from a list that is drawn before anything is trained, so that no label shapes the list.

Splits of one graph overlap: most test nodes of one are validation nodes of another. A setting that is chosen
on all splits together (`pooled`) has therefore seen, as validation nodes, the nodes that it is tested on.
Under `nested` each split chooses by its own training and validation nodes alone: `SplitValidation` holds
their labels and no others, so whatever chooses by it cannot use test labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.supervised import GRIDS, GridPoint, Predictions, best_predictions, part_of
from h3gnn.encoder.readout import Smoother, suggest_smoothing
from h3gnn.estimator import H3GNN
from h3gnn.evaluation import protocols
from h3gnn.evaluation.evaluator import RidgeValidation, find_probe
from h3gnn.evaluation.metrics import is_known
from h3gnn.evaluation.probe import SharedEmbedding
from h3gnn.evaluation.protocols import NESTED, Candidates, Choice, SplitScores
from h3gnn.evaluation.results import Result
from h3gnn.experiments import run
from h3gnn.experiments.methods import Method, Task, snapshot_epochs
from h3gnn.experiments.spaces import FREE, SearchBudget, check_varied, draw_settings, with_objectives
from h3gnn.graphs.graph import Graph, stratify
from h3gnn.preprocessing import Preprocessing, step_matrix
from h3gnn.resources import one_thread
from h3gnn.storage.runs import made_with
from h3gnn.training.resources import pick_device

Changes = dict[str, Any]
"""The settings that a trial changes in a method."""

MAX_RESPLITS, RESPLIT_NODES = 10, 5000
"""A split is resplit at most this often, until this many nodes have been trained on."""
GRID_NAMES = tuple(one.name for one in fields(GridPoint))
"""The settings of a classifier that belong to its grid, not to the system."""


def ranges_of(method: Method) -> dict[str, Sequence[Any]]:
    """Return the values that a search of a method chooses from, including a classifier's grid."""
    ranges = dict(method.ranges) or (dict(method.system.ranges) if method.system else {})
    if method.supervised and method.system:
        ranges |= {name: sorted({getattr(point, name) for point in GRIDS["full"]}) for name in GRID_NAMES}
    return ranges


def fix_settings(method: Method, fixed: Collection[str], trials: int) -> Method:
    """Return a method whose search does not vary the settings of H3GNN that the user fixed."""
    if not method.takes_settings:
        return method
    held = {name for name in method.ranges if name in fixed}
    check_varied({**method.ranges, **dict.fromkeys(held, ())}, trials, method.title)
    ranges = {name: values for name, values in method.ranges.items() if name not in held}
    settings = {name: value for name, value in method.settings.items() if name not in held}
    return replace(method, ranges=ranges, settings=settings)


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains a method on a graph; `model` has the settings of H3GNN, for the methods that take them."""

    method: Method
    graph: Graph
    model: H3GNN | None
    device: torch.device

    @property
    def settings(self) -> Changes:
        """The method's own settings."""
        return run.settings_of(self.method, self.model)

    def task(self, seed: int, changes: Mapping[str, Any], watch: Progress = unwatched) -> Task:
        """Return the task of one training."""
        settings = with_objectives({**self.settings, **changes})
        return Task(self.graph, [seed], self.device, settings, watch)

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
        """Train with one setting drawn from the ranges after another, and return those tried.

        `callback` receives the number of the setting, its changes, the epoch and the embedding; `held` are
        changes of every training that are not part of a setting.
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

        Settings that differ in the grid only train as one stack. Returns the predictions and the settings
        that were tried.
        """
        assert self.method.predict is not None
        start, usual = time.perf_counter(), self.settings["grid"][0]
        in_grid = set(GRID_NAMES) if self.method.system else set(usual)
        groups: dict[tuple[tuple[str, Any], ...], list[Changes]] = {}
        for changes in drawn:
            of_system = tuple((name, value) for name, value in changes.items() if name not in in_grid)
            groups.setdefault(of_system, []).append(changes)
        found: list[tuple[Changes, Predictions]] = []
        tried: list[Changes] = []
        for position, (of_system, alike) in enumerate(groups.items()):
            if position and budget.is_over(start):
                break
            own = dict(of_system)
            points = [
                {**usual, **{name: value for name, value in one.items() if name in in_grid}} for one in alike
            ]
            part = part_of(watch, position, 1, len(groups))
            (predictions,) = self.method.predict(self.task(seed, {**own, "grid": points}, part))
            found.append((own, predictions))
            tried += alike
        best = best_predictions([one for _, one in found], self.graph)
        scores = torch.stack([found[at][1].scores[split] for split, at in enumerate(best)])
        chosen = [{**found[at][0], **found[at][1].chosen[split]} for split, at in enumerate(best)]
        return Predictions(scores, chosen), [one for one in drawn if one in tried]


def resplit(labels: Tensor, train: Tensor, val: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Redistribute the training and validation nodes of one split, with the same class counts for training.

    Numbers are stratified by quantile. From labels and masks `[nodes]` to masks of both `[nodes, draws]`.
    """
    generator = torch.Generator().manual_seed(seed)
    own = (train | val) & is_known(labels)
    labels = stratify(labels) if labels.is_floating_point() else labels
    inner_train = torch.zeros(len(labels), draws, dtype=torch.bool)
    for one in torch.unique(labels[own]).tolist():
        members = torch.nonzero(own & (labels == one)).flatten()
        count = int((train & (labels == one)).sum())
        count = min(max(1, count), max(1, len(members) - 1))  # one remains for validation, of two or more
        for draw in range(draws):
            order = torch.randperm(len(members), generator=generator)
            inner_train[members[order[:count]], draw] = True
    return inner_train, own[:, None] & ~inner_train


class Resplit(NamedTuple):
    """Labels `[nodes]`, known for a split's training and validation nodes, and masks `[nodes, draws]`."""

    labels: Tensor
    train: Tensor
    val: Tensor


class SplitValidation:
    """Accuracy of an embedding on each split's own training and validation nodes, which are resplit."""

    def __init__(self, graph: Graph, device: torch.device, seed: int) -> None:
        labels, train, val, _ = run.labels_and_masks(graph)
        self.resplits: list[Resplit] = []
        for split in range(graph.num_splits):
            own_train, own_val = train[:, split], val[:, split]
            own = torch.where(own_train | own_val, labels, torch.nan if labels.is_floating_point() else -1)
            draws = min(MAX_RESPLITS, RESPLIT_NODES // max(1, int(own_train.sum())))
            masks = (own_train[:, None], own_val[:, None])
            if draws > 1:
                masks = resplit(own, own_train, own_val, draws, seed + split)
            self.resplits.append(Resplit(own, *masks))
        self.ridge = RidgeValidation.concat([RidgeValidation(*one, device) for one in self.resplits])

    def accuracies(self, rows: Tensor) -> npt.NDArray[np.float64]:
        """Return the mean accuracy over the resplits of each split, `[splits]`."""
        each = self.ridge.accuracies(rows).double()
        total = torch.zeros(2, len(self.resplits), dtype=torch.float64, device=each.device)
        total.index_add_(1, self.ridge.group, torch.stack([each, torch.ones_like(each)]))
        found: npt.NDArray[np.float64] = (total[0] / total[1]).cpu().numpy()
        return found


@dataclass
class Trial:
    """A drawn setting, its variant, and the accuracy on each split's resplit nodes, `[splits]`.

    The variant is the number of epochs and the smoothing, which need no separate training. The embedding
    `rows` is kept while it is the best for some split or for all together.
    """

    number: int
    drawn: Changes
    variant: Changes
    scores: npt.NDArray[np.float64]
    rows: Tensor | None

    @property
    def changes(self) -> Changes:
        """All differences from the method's own settings."""
        return {**self.drawn, **self.variant}


class Trials:
    """All trials, and the best of them for each split."""

    def __init__(self, validation: SplitValidation) -> None:
        self.validation = validation
        self.all: list[Trial] = []

    def add(self, number: int, drawn: Changes, variant: Changes, rows: Tensor) -> None:
        """Score an embedding `[nodes, D]`; of equal ones a split keeps the first."""
        added = Trial(number, drawn, variant, self.validation.accuracies(rows), rows)
        self.all.append(added)
        best = {id(one) for one in (*self.nested(), self.pooled())}
        for trial in self.all:
            trial.rows = trial.rows if id(trial) in best else None
        added.rows = None if added.rows is None else rows.cpu()

    def nested(self) -> list[Trial]:
        """Return the best trial of each split, by its own nodes."""
        return [self.all[at] for at in np.array([one.scores for one in self.all]).argmax(axis=0)]

    def pooled(self) -> Trial:
        """Return the best trial by the nodes of all splits together."""
        return self.all[int(np.argmax([one.scores.mean() for one in self.all]))]


@dataclass(frozen=True)
class SearchResult:
    """The outcome of `run_nested`.

    Attributes:
        results: by the name of the protocol.
        record: every setting that was tried, with its score on each split's own nodes.
        chosen: the choice of `pooled`: one setting for the whole graph.
    """

    results: dict[str, Result]
    record: dict[str, Any]
    chosen: Changes


def run_nested(
    method: Method,
    graph: Graph,
    *,
    seeds: Sequence[int],
    budget: SearchBudget,
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
        seeds, budget, device: of the trainings.
        model: settings of H3GNN, for the methods that take them.
        name: of the graph, for the result.
        top: the k of recall at k.
        watch: receives the share of the work that is done.
    """
    used = method.used_seeds(seeds)
    search = NestedSearch(method, graph, model, pick_device(device), used, budget, name, top, watch)
    return search.classifiers() if method.supervised else search.embeddings()


@dataclass(frozen=True, eq=False)
class NestedSearch(Trainer):
    """One call of `run_nested`."""

    seeds: list[int]
    budget: SearchBudget
    name: str | None = None
    top: int | None = None
    watch: Progress = unwatched
    started: float = field(default_factory=time.perf_counter)

    @cached_property
    def validation(self) -> SplitValidation:
        """The labels that each split chooses by."""
        return SplitValidation(self.graph, self.device, self.budget.seed)

    @cached_property
    def classes(self) -> int:
        """The number of classes among the training and validation nodes of all splits; 0 for numbers."""
        return protocols.count_classes(*run.labels_and_masks(self.graph)[:3])

    def embeddings(self) -> SearchResult:
        """Search the settings of a method that embeds."""
        trials = Trials(self.validation)
        about = self.explore(trials.add)
        results = {NESTED.name: self.result(NESTED.name, trials.nested(), about)}
        return SearchResult(results, self.record(trials, about), trials.pooled().changes)

    def record(self, trials: Trials, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return every trial as plain values."""
        return {
            "method": self.method.title,
            "settings": self.settings,
            "ranges": {key: list(values) for key, values in ranges_of(self.method).items()},
            **about,
            "candidates": [[one.number, one.variant, one.scores.round(4).tolist()] for one in trials.all],
        }

    def explore(self, *callbacks: Callable[[int, Changes, Changes, Tensor], None]) -> dict[str, Any]:
        """Train every drawn setting and report its embeddings; return the settings tried, and the seconds."""
        ranges, start = ranges_of(self.method), time.perf_counter()
        free = {key: values for key, values in ranges.items() if key in FREE}
        read_outs = self._read_outs(free)

        def add(number: int, changes: Changes, epoch: int, rows: Tensor) -> None:
            at = {"epochs": epoch} if self.budget.eval_epochs else {}
            for own, read_out in read_outs:
                smoothed = read_out(rows)
                with one_thread(self.graph.num_nodes):
                    for callback in callbacks:
                        callback(number, changes, {**at, **own}, smoothed)

        tried = self.search(
            {key: values for key, values in ranges.items() if key not in free},
            self.budget,
            self.seeds[0],
            add,
            held={"smoothing": 0.0} if "smoothing" in free else {},
            watch=part_of(self.watch, 0, 4, 5),
        )
        spent = round(time.perf_counter() - start, 1)
        return {"tried": tried, "allowed": self.budget.as_dict(), "searched_s": spent}

    def _read_outs(
        self, free: Mapping[str, Sequence[Any]]
    ) -> list[tuple[Changes, Callable[[Tensor], Tensor]]]:
        """Return the variants that need no separate training: every value of `smoothing`."""
        if "smoothing" not in free:
            return [({}, lambda rows: rows)]
        walk = step_matrix(self.graph, "walks", self.device)
        usual = self.settings["smoothing"]
        if usual == "auto":
            usual = suggest_smoothing(Preprocessing.of(self.settings).fit(self.graph).rows())
        values = dict.fromkeys([float(usual), *map(float, free["smoothing"])])
        return [({"smoothing": one}, Smoother(walk, one)) for one in values]

    def result(
        self,
        protocol: str,
        of_split: Sequence[Trial],
        about: Mapping[str, Any],
        *,
        changes: Mapping[str, Any] | None = None,
        probe: str = "",
        **facts: Any,
    ) -> Result:
        """Score the choice of each split from each seed, possibly with further changes or another probe."""
        if not probe:  # of a system each split chooses the scaling too; the columns of H3GNN have one scale
            scaled = self.method.probe == "logistic" and self.method.system is not None
            probe = "scaled" if scaled else self.method.probe
        held, seeds = dict(changes or {}), facts.get("seeds", self.seeds)
        scores = [self._scores(seed, of_split, held, probe) for seed in seeds]
        params = {**run.method_params(self.method, self.model), **held, "probe": probe, **about}
        return self._make(scores, protocol=protocol, epoch_rule="last", params=params, **facts)

    def _make(self, scores: Sequence[SplitScores], **facts: Any) -> Result:
        usual = {"method": self.method.title, "seeds": self.seeds, "device": str(self.device)}
        facts = {**usual, "top": self.top, **made_with(), **facts}
        return run.make_result(self.graph, scores, self.name, self.started, **facts)

    def _scores(self, seed: int, of_split: Sequence[Trial], changes: Changes, probe: str) -> SplitScores:
        """Probe the embedding of every setting that some split chose, and score each split with its own."""
        evaluator = run.build_evaluator(self.graph)
        fit = find_probe(probe, numbers=self.graph.targets is not None)
        answers = protocols.held_out_labels(evaluator.labels, evaluator.masks[2])
        found: dict[int, SplitScores] = {}
        for trial in {id(one): one for one in of_split}.values():
            kept = trial.rows if seed == self.seeds[0] and not changes else None
            rows = self.embed(seed, {**trial.changes, **changes}) if kept is None else kept
            shared = SharedEmbedding(rows.to(self.device))
            for split in (split for split, chosen in enumerate(of_split) if chosen is trial):
                # separately: solved together, each would depend on the others' nodes in its last digits
                own = [mask[:, [split]] for mask in evaluator.masks]
                with one_thread(self.graph.num_nodes):
                    candidates = {0: fit(shared, evaluator.labels, *own, classes=self.classes)}
                    choice = self._choose_probe(candidates[0], split, fit, shared)
                named = {"trial": trial.number, **trial.changes, **choice.setting}
                scored = protocols.score(candidates, [choice], [answers[split]], self.top)
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
            if self.classes == protocols.NUMBERS:
                return Choice(0, int(loss.argmin()), candidates.settings[int(loss.argmin())])
            position = protocols.one_standard_error_rule(accuracy, loss, int(resplit.val_nodes[0]))
            return Choice(0, position, candidates.settings[position])
        (choice,) = protocols.VALIDATION.choose({0: candidates})
        return choice

    def classifiers(self) -> SearchResult:
        """Search the settings of a classifier, from every seed."""
        drawn = draw_settings(ranges_of(self.method), self.budget.trials, self.budget.seed)
        scores, of_seed, start = [], [], time.perf_counter()
        for position, seed in enumerate(self.seeds):
            watch = part_of(self.watch, position, 1, len(self.seeds))
            found, tried = self.search_classifier(seed, drawn, self.budget, watch)
            evaluator = run.build_evaluator(self.graph, top=self.top)
            scores.append(run.evaluate_predictions(found, evaluator).scores)
            of_seed.append(tried)
        spent = round((time.perf_counter() - start) / len(self.seeds), 1)  # one search for each seed
        every = [one for one in drawn if any(one in mine for mine in of_seed)]
        about: dict[str, Any] = {"tried": every}
        if any(len(mine) < len(every) for mine in of_seed):  # the time limit cut some seeds short
            about["tried_by_seed"] = [[every.index(one) for one in mine] for mine in of_seed]
        about |= {"allowed": self.budget.as_dict(), "searched_s": spent}
        params = {**run.method_params(self.method, self.model), **about}
        result = self._make(scores, protocol=NESTED.name, epoch_rule="validation", params=params)
        return SearchResult({NESTED.name: result}, about, {})
