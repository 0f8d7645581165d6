"""What a method is given to find its settings with: how many of them, for how long, from which ranges.

The settings are drawn before anything is trained, so that no label of any split can have shaped the list.
"""

from __future__ import annotations

import datetime as dt
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
from h3gnn.encoder.readout import Smoother, pick_smoothing
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.criteria import ClusterAccuracy, ClusterAgreement
from h3gnn.evaluation.evaluator import Joining, find_probe
from h3gnn.evaluation.probe import SharedRows
from h3gnn.evaluation.protocols import (
    NESTED,
    POOLED,
    PUBLISHED,
    TEST_EPOCH,
    VALIDATION,
    Candidates,
    Choice,
    SplitScores,
    answers_of,
    best_within_error,
    known_classes,
    score,
)
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.methods import METHODS, Method, Task
from h3gnn.experiments.run import (
    build_judge,
    judge_outcome,
    method_params,
    rare_name,
    run_method,
    settings_of,
)
from h3gnn.experiments.selection import Changes, OnTestNodes, OwnNodes, Preferences, Tried
from h3gnn.experiments.spaces import FREE, Space, with_objectives
from h3gnn.experiments.tune import FIXED, Tuned, start_of
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.preprocessing import Preprocessing, step_matrix
from h3gnn.resources import one_thread
from h3gnn.settings import canonical, kept_for
from h3gnn.storage.runs import made_with
from h3gnn.training.resources import pick_device


@dataclass(frozen=True)
class Allowance:
    """What each method of a table is given, so that none is tuned more than another.

    Attributes:
        trials: how many settings are drawn and tried.
        seconds: after so long no further one is begun; None is no limit. The first is always tried.
        looks: after how many epochs H3GNN's training is looked at, each a setting of its own; () for its end
            alone. Only where the learning rate is constant is a shorter run the beginning of a longer one.
        seed: of the drawn settings, and of the dealt nodes.
    """

    trials: int
    seconds: float | None = None
    looks: tuple[int, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Allowance:
        """Return one from plain values; nothing told is one trial, the method's own settings."""
        return cls(**{"trials": 1, **told, "looks": tuple(told.get("looks", ()))})

    def is_over(self, began: float) -> bool:
        """Whether no further setting may be begun, of a search that began then."""
        return self.seconds is not None and time.perf_counter() - began > self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"trials": self.trials, "seconds": self.seconds, "looks": list(self.looks), "seed": self.seed}


def ranges_of(method: Method) -> dict[str, Sequence[Any]]:
    """Return what a search of a method may choose from; a classifier's grid is part of it."""
    ranges = dict(method.ranges) or (dict(method.system.ranges) if method.system else {})
    if method.supervised:
        ranges |= {
            one.name: sorted({getattr(point, one.name) for point in GRIDS["full"]})
            for one in fields(GridPoint)
        }
    return ranges


def holding(method: Method, fixed: Collection[str], trials: int) -> Method:
    """Return a method whose search leaves alone what a user fixed.

    Where the method has a usual value of its own for it, the user's takes its place.

    Args:
        method: any; only one that takes the settings of H3GNN has anything that a user fixes.
        fixed: names of settings of H3GNN.
        trials: how many settings are asked for: of several, something must be left to vary.
    """
    if not method.takes_settings:
        return method
    held = {name for name in method.ranges if name in fixed}
    check_varied({**method.ranges, **dict.fromkeys(held, ())}, trials, method.title)
    ranges = {name: values for name, values in method.ranges.items() if name not in held}
    settings = {name: value for name, value in method.settings.items() if name not in held}
    return replace(method, ranges=ranges, settings=settings)


def check_varied(ranges: Mapping[str, Sequence[Any]], trials: int, title: str) -> None:
    """Refuse to try several settings where there is one alone: no range has a second value."""
    if trials > 1 and ranges and all(len(values) < 2 for values in ranges.values()):
        raise InputError(
            f"{title}: all that a search varies is fixed ({', '.join(ranges)}): leave one of them free, or "
            "give --trials 1"
        )


def draw_settings(ranges: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[Changes]:
    """Return different settings: nothing changed; the first setting alone; then values drawn for all.

    So the setting that matters most stands first in a method's ranges; its first value is the usual one.
    """
    generator = np.random.default_rng(seed)
    found: list[Changes] = [{}]
    first = next(iter(ranges), "")
    found += [{first: value} for value in ranges.get(first, ())[1:]] if len(ranges) > 1 else []
    del found[trials:]
    most = int(np.prod([float(len(values)) for values in ranges.values()])) if ranges else 0
    while len(found) < min(trials, most + 1):
        one = {name: values[int(generator.integers(len(values)))] for name, values in ranges.items()}
        if one not in found:
            found.append(one)
    return found


class _Shown(Joining):
    """Stands in a judge's place and hands every embedding on."""

    def __init__(self, hand_on: Callable[[int, Tensor], None], parts: int, *, looks: bool) -> None:
        super().__init__(parts)
        self.epoch_rule = TEST_EPOCH if looks else "last"
        self.add = hand_on  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class Training:
    """A method on a graph, trained with one setting after another.

    Attributes:
        method: which.
        graph: to learn from.
        model: the settings of H3GNN, for the methods that take them.
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
        """Return what the method is given to do."""
        settings = with_objectives({**self.settings, **changes})
        return Task(self.graph, [seed], self.device, settings, **more)

    def show(
        self,
        seed: int,
        changes: Mapping[str, Any],
        hand_on: Callable[[int, Tensor], None],
        looks: Sequence[int] = (),
    ) -> None:
        """Train once, and hand on the embedding after each of some epochs, or at the end."""
        task = self.task(seed, changes, snapshots=looks) if looks else self.task(seed, changes)
        shown = _Shown(hand_on, task.settings.get("n_models", 1), looks=bool(looks))
        (outcome,) = self.method.train(task)
        if isinstance(outcome, Predictions):
            raise InputError(f"{self.method.title} gives no embedding")
        outcome(shown)  # type: ignore[arg-type]

    def rows(self, seed: int, changes: Mapping[str, Any]) -> Tensor:
        """Train once and return the embedding at the end, `[nodes, D]`."""
        kept: list[Tensor] = []
        self.show(seed, changes, lambda epoch, rows: kept.append(rows))
        return kept[-1]

    def explore(
        self,
        ranges: Mapping[str, Sequence[Any]],
        allowance: Allowance,
        seed: int,
        look: Callable[[int, Changes, int, Tensor], None],
        *,
        held: Mapping[str, Any] | None = None,
        watch: Progress = unwatched,
    ) -> list[Changes]:
        """Train with one drawn setting after another, as long as the allowance lasts.

        Args:
            ranges: what the settings are drawn from.
            allowance: how many, how long, and after which epochs each is looked at.
            seed: of the trainings.
            look: handed the number of the setting, what it changes, the epoch and the embedding.
            held: changes of every training that are no part of a setting.
            watch: told the share of the work that is done.

        Returns:
            The settings that were tried.
        """
        drawn, began = draw_settings(ranges, allowance.trials, allowance.seed), time.perf_counter()
        for trial, changes in enumerate(drawn):
            if trial and allowance.is_over(began):
                return drawn[:trial]
            self.show(seed, {**changes, **(held or {})}, partial(look, trial, changes), allowance.looks)
            watch((trial + 1) / len(drawn))
        return drawn


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


PUBLISHED_LOOKS, LARGE, LOOKS_OF_LARGE = 10, 1000, 3
"""So many epochs are looked at for the best on test nodes; with more training nodes than this, fewer."""


@dataclass(frozen=True)
class Part:
    """One thing taken out of what was chosen, to see what it gives.

    Attributes:
        changes: of the chosen settings.
        probe: another probe of the embedding; "" for the same.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""


@dataclass(frozen=True)
class Searched:
    """What came of a search.

    Attributes:
        results: by the name of the protocol.
        parts: under `nested`, by the name of the part.
        record: every setting that was tried, with how each split's own nodes liked it.
        chosen: what `pooled` chose: one setting for the whole graph.
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
    allowance: Allowance,
    protocols: Sequence[str] = (NESTED.name,),
    parts: Mapping[str, Part] | None = None,
    model: H3GNN | None = None,
    device: str = "auto",
    name: str | None = None,
    top: int | None = None,
    watch: Progress = unwatched,
) -> Searched:
    """Train a method with several settings, and let each split choose among them by its own nodes alone.

    One that embeds is trained once with each setting, from the first seed; a split deals its training and
    validation nodes anew several times, and takes the setting whose ridge regression is right most often.
    The probe of that embedding is chosen by the nodes so dealt, and trained on the split's training nodes.
    With the other seeds only what was chosen is trained. A classifier's settings are compared by their
    accuracy on the split's validation nodes, on which it stops as well.

    Args:
        method: any with ranges.
        graph: with labels and splits.
        seeds: of the trainings.
        allowance: how many settings, and how long.
        protocols: beside `nested`, "pooled" and "published" for a method that embeds.
        parts: what to take out of the chosen settings, by name, for a method that embeds.
        model: the settings of H3GNN, for the methods that take them.
        device: "auto", "cpu", "cuda".
        name: of the graph, for the result.
        top: the k of recall at k.
        watch: told the share of the work that is done.
    """
    used = list(seeds) if method.has_chance else list(seeds)[:1]
    run = _Run(method, graph, used, allowance, model, pick_device(device), name, top, watch)
    if method.supervised:
        return run.classifiers()
    return run.embeddings(protocols, parts or {})


@dataclass
class _Run:
    """One method on one graph."""

    method: Method
    graph: Graph
    seeds: list[int]
    allowance: Allowance
    model: H3GNN | None
    device: torch.device
    name: str | None
    top: int | None
    watch: Progress
    started: float = field(default_factory=time.perf_counter)

    @cached_property
    def own_nodes(self) -> OwnNodes:
        return OwnNodes(self.graph, self.device, self.allowance.seed)

    @property
    def settings(self) -> Changes:
        return self.training.settings

    @property
    def training(self) -> Training:
        return Training(self.method, self.graph, self.model, self.device)

    def embeddings(self, protocols: Sequence[str], parts: Mapping[str, Part]) -> Searched:
        liked = Preferences(self.own_nodes)
        tested = OnTestNodes(self.graph, self.device) if PUBLISHED.name in protocols else None
        settings, spent = self._explore(liked, tested)
        of_split = [liked.tried[at] for at in liked.nested()]
        together = liked.tried[liked.pooled()]
        about = {"tried": settings, "allowed": self.allowance.as_dict(), "searched_s": round(spent, 1)}
        results = {NESTED.name: self._result(NESTED.name, of_split, about)}
        if POOLED.name in protocols:
            results[POOLED.name] = self._result(POOLED.name, [together] * len(of_split), about)
        found = {
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
            "candidates": [one.as_row() for one in liked.tried],
        }
        return Searched(results, found, record, together.changes)

    def _explore(self, liked: Preferences, tested: OnTestNodes | None) -> tuple[list[Changes], float]:
        """Train with each drawn setting and score it at every look; return the settings, and the seconds."""
        ranges, began = ranges_of(self.method), time.perf_counter()
        free = {key: values for key, values in ranges.items() if key in FREE}
        read_outs = self._read_outs(free)

        def score_look(trial: int, changes: Changes, epoch: int, rows: Tensor) -> None:
            at = {"epochs": epoch} if self.allowance.looks else {}
            for own, read_out in read_outs:
                seen = read_out(rows)
                with one_thread(self.graph.num_nodes):
                    liked.add(trial, changes, {**at, **own}, seen)
                    if tested is not None:
                        tested.add(trial, changes, {**at, **own}, seen)

        tried = self.training.explore(
            {key: values for key, values in ranges.items() if key not in free},
            self.allowance,
            self.seeds[0],
            score_look,
            held={"smoothing": 0.0} if "smoothing" in free else {},
            watch=part_of(self.watch, 0, 4, 5),
        )
        return tried, time.perf_counter() - began

    def _read_outs(
        self, free: Mapping[str, Sequence[Any]]
    ) -> list[tuple[Changes, Callable[[Tensor], Tensor]]]:
        """Return what needs no training of its own: every strength of smoothing, where it may be chosen."""
        if "smoothing" not in free:
            return [({}, lambda rows: rows)]
        walk = step_matrix(self.graph, "walks", self.device)
        usual = self.settings["smoothing"]
        if usual == "auto":
            usual = pick_smoothing(Preprocessing.of(self.settings).fit(self.graph).rows())
        strengths = dict.fromkeys([float(usual), *map(float, free["smoothing"])])
        return [({"smoothing": one}, Smoother(walk, one)) for one in strengths]

    def _result(
        self,
        protocol: str,
        of_split: Sequence[Tried],
        about: Mapping[str, Any],
        part: Part | None = None,
        title: str | None = None,
    ) -> Result:
        """Score what each split chose, from each seed; the first seed's embeddings are there already.

        A part is scored from the first seed alone where there are several splits.
        """
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

    def _scores(self, seed: int, of_split: Sequence[Tried], out: Changes, probe: str) -> SplitScores:
        """Probe the embedding of every setting that some split chose, and score each split with its own."""
        assert self.graph.labels is not None
        assert self.graph.test_mask is not None
        judge, fit = build_judge(self.graph), find_probe(probe)
        answers = answers_of(self.graph.labels, self.graph.test_mask)
        found: dict[int, SplitScores] = {}
        for one in {id(one): one for one in of_split}.values():
            kept = one.rows if seed == self.seeds[0] and not out else None
            rows = self.training.rows(seed, {**one.changes, **out}) if kept is None else kept
            shared = SharedRows(rows.to(self.device))
            for split in (split for split, chosen in enumerate(of_split) if chosen is one):
                # by itself: solved together, each would hang on the others' nodes in its last digits
                own = [mask[:, [split]] for mask in judge.masks]
                with one_thread(self.graph.num_nodes):
                    candidates = {0: fit(shared, judge.labels, *own, classes=self.classes)}
                    pick = self._pick(candidates[0], split, fit, shared)
                named = {"trial": one.trial, **one.changes, **pick.setting}
                scored = score(candidates, [pick], [answers[split]], self.top)
                found[split] = replace(scored, chosen=[named])
        return SplitScores.joined([found[split] for split in range(len(of_split))])

    def _pick(
        self, candidates: Candidates, split: int, fit: Callable[..., Candidates], shared: SharedRows
    ) -> Choice:
        """Choose one split's probe: by how each setting does, on average, where its nodes are dealt anew."""
        labels, train, val = self.own_nodes.dealt[split]
        if train.shape[1] > 1:
            dealt = fit(shared, labels, train, val, torch.zeros_like(val), classes=self.classes)
            right, loss = dealt.val_accuracy.mean(axis=0), dealt.val_loss.mean(axis=0)
            position = best_within_error(right, loss, int(dealt.val_nodes[0]))
            return Choice(0, position, candidates.settings[position])
        (pick,) = VALIDATION.choose({0: candidates})
        return pick

    @property
    def classes(self) -> int:
        """How many the training and validation nodes of all splits show."""
        assert self.graph.labels is not None
        assert self.graph.train_mask is not None
        assert self.graph.val_mask is not None
        return known_classes(self.graph.labels, self.graph.train_mask, self.graph.val_mask)

    def _published(self, changes: Changes, about: Mapping[str, Any]) -> Result:
        """Run the setting that does best on test nodes, with the best test epoch of each split."""
        chosen = with_objectives({**self.settings, **changes})
        found = run_method(
            replace(self.method, settings=chosen),
            self.graph,
            seeds=self.seeds[:1],
            model=self.model,
            protocol=PUBLISHED,
            snapshots=LOOKS_OF_LARGE if self.is_large else PUBLISHED_LOOKS,
            device=str(self.device),
            name=self.name,
            top=self.top,
        )
        return replace(found, params={**found.params, **about})

    @property
    def is_large(self) -> bool:
        assert self.graph.train_mask is not None
        return int(self.graph.train_mask.sum(dim=0).amax()) > LARGE

    def classifiers(self) -> Searched:
        drawn = draw_settings(ranges_of(self.method), self.allowance.trials, self.allowance.seed)
        judgements, of_seed, began = [], [], time.perf_counter()
        for position, seed in enumerate(self.seeds):
            watch = part_of(self.watch, position, 1, len(self.seeds))
            found, tried = try_classifier(self.training, seed, drawn, self.allowance, watch)
            judgements.append(judge_outcome(found, build_judge(self.graph, top=self.top)))
            of_seed.append(tried)
        spent = round((time.perf_counter() - began) / len(self.seeds), 1)  # each seed has a search of its own
        about = {**_tried_by(of_seed, drawn), "allowed": self.allowance.as_dict(), "searched_s": spent}
        params = {**method_params(self.method, self.model), **about}
        scores = [one.scores for one in judgements]
        result = self._as_result(self.method.title, NESTED.name, "validation", params, scores, self.seeds)
        return Searched({NESTED.name: result}, {}, about, {})


def _tried_by(of_seed: Sequence[Sequence[Changes]], drawn: Sequence[Changes]) -> dict[str, Any]:
    """Return what was tried; where time was left for more from one seed than another, which from each."""
    tried = [one for one in drawn if any(one in mine for mine in of_seed)]
    if all(len(mine) == len(tried) for mine in of_seed):
        return {"tried": tried}
    return {"tried": tried, "tried_by_seed": [[tried.index(one) for one in mine] for mine in of_seed]}


def _probe_of(method: Method) -> str:
    """Return the probe of a method: of a system, each split also chooses the scale that suits its columns.

    H3GNN's columns stand on one scale already.
    """
    return "scaled" if method.probe == "logistic" and method.system is not None else method.probe


CHOICES = ("defaults", "without labels", "by validation labels", "by all labels")
"""How the settings are chosen: not at all; by clusters that agree; by labels of validation nodes, or all."""


def run_clustered(
    method: Method, graph: Graph, seeds: Sequence[int], allowance: Allowance, device: torch.device
) -> dict[str, Any]:
    """Cluster the embedding of every setting that is tried, and return what each rule of choosing takes.

    The settings are tried from the first seed; what was chosen is trained from the others, too.

    Args:
        method: one that embeds.
        graph: with labels.
        seeds: of the trainings.
        allowance: how many settings, and how long.
        device: where to train.

    Returns:
        For each of `CHOICES` the setting and the values of every measure, one for each seed; and how many
        settings were tried.
    """
    assert graph.labels is not None
    assert graph.val_mask is not None
    training = Training(method, graph, None, device)
    agreement = ClusterAgreement(graph.num_classes)
    by_labels = ClusterAccuracy(graph.labels, graph.val_mask, graph.num_classes)
    began = time.perf_counter()
    tried: list[tuple[Changes, float, float, dict[str, list[float]]]] = []

    def cluster(trial: int, changes: Changes, epoch: int, rows: Tensor) -> None:
        liked = agreement.score(rows), by_labels.score(rows)
        tried.append((changes, *liked, _measured(rows, graph, seeds[0])))

    at_the_end = replace(allowance, looks=())
    training.explore(ranges_of(method), at_the_end, seeds[0], cluster)
    best = {
        "defaults": 0,
        "without labels": int(np.argmax([one[1] for one in tried])),
        "by validation labels": int(np.argmax([one[2] for one in tried])),
        "by all labels": int(np.argmax([one[3]["acc"][0] for one in tried])),
    }
    known: dict[int, dict[str, list[float]]] = {}
    for place in sorted(set(best.values())):
        changes, _, _, found = tried[place]
        for seed in seeds[1:]:
            more = _measured(training.rows(seed, changes), graph, seed)
            found = {name: [*found[name], *more[name]] for name in MEASURES}
        known[place] = found
    choices = {choice: {"changes": tried[place][0], "values": known[place]} for choice, place in best.items()}
    return {"choices": choices, "tried": len(tried), "searched_s": time.perf_counter() - began}


def _measured(rows: Tensor, graph: Graph, seed: int) -> dict[str, list[float]]:
    assert graph.labels is not None
    return cluster_scores(rows, graph.labels, seeds=(seed,))


def tune_from_list(
    graph: Graph,
    space: Space,
    allowance: Allowance,
    *,
    models: int,
    study: str,
    device: str,
    seed: int = 0,
    splits: int | None = None,
    watch: Progress = unwatched,
) -> Tuned:
    """Try a list of settings, and return what all splits like best, with the estimate of `nested`.

    Args:
        graph: with labels and splits.
        space: what the settings are drawn from.
        allowance: how many, and how long. Where it has looks, all train with a constant learning rate until
            the last of them.
        models: `n_models` of every trial and of the result.
        study: a name for it.
        device: "auto", "cpu", "cuda".
        seed: of the trainings.
        splits: let the first few splits choose, and score them, only.
        watch: told the share of the work that is done.
    """
    ranges = space.choices
    if "n_models" in ranges:
        raise InputError("--choices n_models: every setting has as many models as the preset: give --models")
    method = replace(METHODS["h3gnn"], title="H3GNN, tuned", ranges=ranges)
    lengths = {"epochs": allowance.looks} if allowance.looks else {}
    check_varied({**ranges, **lengths}, allowance.trials, method.title)
    length = {**FIXED, "epochs": allowance.looks[-1]} if allowance.looks else {}
    if ranges.keys() & length.keys():
        raise InputError(
            "--epochs says after how many epochs each setting is looked at, with a constant learning rate: "
            "leave out --epochs, or --choices for epochs and schedule"
        )
    model = H3GNN.from_settings({**_start_within(space), **length, "n_models": models})
    some = first_splits(graph, splits)
    found = run_nested(
        method, some, seeds=[seed], allowance=allowance, model=model, device=device, watch=watch
    )
    about = {"by": "h3gnn tune", "study": study, "graph": graph.provenance.source}
    return preset_from(found, {**about, "sha256": graph.provenance.sha256}, splits)


def _start_within(space: Space) -> Changes:
    """Return the settings that the list begins with: the space's start, where a choice does not forbid it."""
    start = start_of(space)
    if not isinstance(start["objective"], str):
        start["objective"] = "+".join(start["objective"])  # as a space writes it
    first = {name: values[0] for name, values in space.choices.items() if start[name] not in values}
    return with_objectives({**start, **first})


def preset_from(found: Searched, about: Mapping[str, Any], splits: int | None = None) -> Tuned:
    """Return what a search liked best as a preset, with its record.

    Args:
        found: of `run_nested`.
        about: who made it, and on which graph.
        splits: how many of the first splits it was asked for; None is all.
    """
    nested = found.results[NESTED.name]
    return preset_of(found.record, found.chosen, nested.as_dict(), about, splits)


def preset_of(
    record: Mapping[str, Any],
    chosen: Changes,
    nested: Mapping[str, Any],
    about: Mapping[str, Any],
    splits: int | None = None,
) -> Tuned:
    """Return the same from plain values, such as a stored cell's.

    Args:
        record: every setting that was tried.
        chosen: what all splits like best.
        nested: the row of `nested`.
        about: who made it, and on which graph.
        splits: how many of the first splits it was asked for; None is all.
    """
    settings = {**H3GNN().get_settings(), **canonical(record["settings"])}
    params = kept_for("preset", with_objectives({**settings, **chosen}))
    looks = [_look(one, record) for one in record["candidates"]]
    taken = [{**record["tried"][trial], **at} for trial, at, _ in record["candidates"]].index(chosen)
    winner, *_, best = looks[taken]
    seed = nested["seeds"][0]
    made = {
        **about,
        "protocol": POOLED.name,
        "objective": "validation",
        "score": best,
        "scored_by": "ridge regression on dealt training and validation nodes, all splits together",
        "nested": _worth(nested),
        "trials": len(record["tried"]),
        "trainings": len(record["tried"]),
        "repeats": 0,
        "seed": seed,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **{name: nested[name] for name in ("versions", "origin") if name in nested},
    }
    asked = {
        "space": record["ranges"],
        "allowed": record["allowed"],
        "rungs": record["allowed"]["looks"],
        "at_once": 1,
        "joined": params["n_models"],
        **{"seed": seed, "objective": "validation", "splits": splits},
    }
    trials = [_trial(number, drawn, looks, seed) for number, drawn in enumerate(record["tried"])]
    finalist = {"params": record["tried"][winner], "looks": [look[1:] for look in looks if look[0] == winner]}
    return Tuned(params, made, {"search": asked, "trials": trials, "finalists": [finalist]})


def _worth(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return what such tuning is worth on unseen nodes, and which trial each split chose."""
    chosen = nested["chosen"]  # of each seed and split; a cell keeps it in columns
    trials = chosen["trial"][0] if isinstance(chosen, dict) else [one["trial"] for one in chosen[0]]
    return {
        "test_mean": nested["probe"]["test_mean"],
        "test_std": nested["probe"]["test_std"],
        "trials": trials,
        "in_words": "test accuracy where each split chose by its own nodes from the same list",
    }


def _look(candidate: Sequence[Any], record: Mapping[str, Any]) -> list[Any]:
    """Return trial, epochs, smoothing, and the mean over splits of how their own nodes liked it."""
    trial, at, own = candidate
    known = {**record["settings"], **record["tried"][trial], **at}
    smoothing = known["smoothing"] if isinstance(known["smoothing"], int | float) else 0.0
    return [trial, known["epochs"], smoothing, round(float(np.mean(own)), 5)]


def _trial(number: int, drawn: Changes, looks: Sequence[list[Any]], seed: int) -> dict[str, Any]:
    own = [look for look in looks if look[0] == number]
    best = max(own, key=lambda look: look[3])
    curve: dict[str, float] = {}
    for _, epochs, _, value in own:
        curve[str(epochs)] = round(max(value, curve.get(str(epochs), 0.0)), 5)
    return {
        "number": number,
        "state": "complete",
        "params": drawn,
        "smoothing": best[2],
        "curve": curve,
        "seed": seed,
    }
