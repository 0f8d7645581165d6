"""Tuning every method alike, split by split: what a split's own training and validation nodes choose.

Splits of one graph overlap: most test nodes of one are validation nodes of another. A setting that is chosen
on all splits together has therefore seen, as validation nodes, what it is then tested on. Here the settings
are drawn before anything is trained, and each split has its own choice among them, made by its own training
and validation nodes alone. What the other rules would choose from the same trainings is told beside it:
`pooled`, by all splits' nodes together, and `published`, by the test nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.supervised import part_of
from h3gnn.encoder.readout import Smoother, pick_smoothing
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.candidates import Candidates, SharedRows, known_classes
from h3gnn.evaluation.judge import find_probe
from h3gnn.evaluation.protocols import (
    NESTED,
    POOLED,
    PUBLISHED,
    VALIDATION,
    Choice,
    SplitScores,
    answers_of,
    best_within_error,
    score,
)
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.allowances import Allowance, Changes, Training, draw_settings, ranges_of
from h3gnn.experiments.classifying import try_classifier
from h3gnn.experiments.methods import Method
from h3gnn.experiments.preferences import OnTestNodes, OwnNodes, Preferences, Tried
from h3gnn.experiments.run import (
    build_judge,
    judge_outcome,
    method_params,
    rare_name,
    run_method,
)
from h3gnn.experiments.spaces import FREE, with_objectives
from h3gnn.graphs.graph import Graph
from h3gnn.intake import Intake, steps_of
from h3gnn.storage.origin import made_with
from h3gnn.threads import one_thread
from h3gnn.training.resources import pick_device

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
        walk = steps_of(self.graph, "walks", self.device)
        usual = self.settings["smoothing"]
        usual = pick_smoothing(Intake.of(self.settings).rows(self.graph)) if usual == "auto" else float(usual)
        strengths = dict.fromkeys([usual, *map(float, free["smoothing"])])
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
