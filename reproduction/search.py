"""Searches that only the tables need: other rules of choosing, ablations, and clusterings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.evaluator import RidgeValidation, cluster_accuracy, cluster_agreement
from h3gnn.evaluation.protocols import NESTED, POOLED, PUBLISHED
from h3gnn.evaluation.results import Result
from h3gnn.experiments.methods import Method
from h3gnn.experiments.run import labels_and_masks, run_method
from h3gnn.experiments.search import Changes, NestedSearch, SearchResult, Trainer, Trials, ranges_of
from h3gnn.experiments.spaces import SearchBudget, with_objectives
from h3gnn.graphs.graph import Graph

PUBLISHED_EPOCHS, LARGE, PUBLISHED_EPOCHS_LARGE = 10, 1000, 3
"""Epochs that `published` evaluates, and how many with more training nodes than `LARGE`."""
CHOICES = ("defaults", "without labels", "by validation labels", "by all labels")
"""How `search_clusterings` chooses: not at all, by agreement of clusters, or by labels."""


@dataclass(frozen=True)
class Part:
    """One ablation of the chosen settings.

    Attributes:
        changes: of the chosen settings.
        probe: another probe of the embedding; "" for the same.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""


class TestSelection:
    """The choice of `published`: the best accuracy of each setting on test nodes, over its epochs."""

    __test__ = False  # not a test case

    def __init__(self, graph: Graph, device: torch.device) -> None:
        labels, train, _, test = labels_and_masks(graph)
        self.ridge = RidgeValidation(labels, train, test, device)
        self.best: dict[tuple[Any, ...], npt.NDArray[np.float64]] = {}
        self.changes: dict[tuple[Any, ...], Changes] = {}

    def add(self, number: int, drawn: Changes, variant: Changes, rows: Tensor) -> None:
        """Score an embedding on each split's test nodes."""
        found = self.ridge.accuracies(rows).cpu().numpy().astype(np.float64)
        read_out = {key: value for key, value in variant.items() if key != "epochs"}
        key = (number, *read_out.values())
        self.best[key] = np.maximum(self.best.get(key, found), found)
        self.changes[key] = {**drawn, **read_out}

    def chosen(self) -> Changes:
        """Return the setting with the best mean over splits, each at its best epoch."""
        return self.changes[max(self.best, key=lambda key: float(self.best[key].mean()))]


@dataclass(frozen=True)
class TableSearch(SearchResult):
    """The outcome of `search_protocols`, with ablations under `nested` by name."""

    parts: dict[str, Result]


def search_protocols(
    method: Method,
    graph: Graph,
    *,
    seeds: Sequence[int],
    budget: SearchBudget,
    protocols: Sequence[str],
    parts: Mapping[str, Part],
    device: torch.device,
    name: str,
) -> TableSearch:
    """Search once, and choose by `nested` and by other protocols; `parts` are ablations under `nested`.

    Of a classifier only `nested` is known. An ablation on several splits is trained from the first seed.
    """
    search = NestedSearch(method, graph, None, device, method.used_seeds(seeds), budget, name)
    if method.supervised:
        found = search.classifiers()
        return TableSearch(found.results, found.record, found.chosen, {})
    trials = Trials(search.validation)
    tested = TestSelection(graph, device) if PUBLISHED.name in protocols else None
    about = search.explore(*(one.add for one in (trials, tested) if one is not None))
    of_split, pooled = trials.nested(), trials.pooled()
    results = {NESTED.name: search.result(NESTED.name, of_split, about)}
    if POOLED.name in protocols:
        results[POOLED.name] = search.result(POOLED.name, [pooled] * len(of_split), about)
    first = search.seeds[:1] if graph.num_splits > 1 else search.seeds
    ablations = {
        title: search.result(
            NESTED.name,
            of_split,
            about,
            changes=part.changes,
            probe=part.probe,
            method=f"{method.title}, {title}",
            seeds=first,
        )
        for title, part in parts.items()
    }
    if tested is not None:
        results[PUBLISHED.name] = _published(search, tested.chosen(), about)
    return TableSearch(results, search.record(trials, about), pooled.changes, ablations)


def _published(search: NestedSearch, changes: Changes, about: Mapping[str, Any]) -> Result:
    """Run the setting that is best on test nodes, with the best test epoch of each split."""
    is_large = int(labels_and_masks(search.graph)[1].sum(dim=0).amax()) > LARGE
    found = run_method(
        replace(search.method, settings=with_objectives({**search.settings, **changes})),
        search.graph,
        seeds=search.seeds[:1],
        protocol=PUBLISHED,
        snapshots=PUBLISHED_EPOCHS_LARGE if is_large else PUBLISHED_EPOCHS,
        device=str(search.device),
        name=search.name,
    )
    return replace(found, params={**found.params, **about})


def search_clusterings(
    method: Method, graph: Graph, seeds: Sequence[int], budget: SearchBudget, device: torch.device
) -> dict[str, Any]:
    """Cluster the embedding of every drawn setting, and return the choice of each rule in `CHOICES`.

    The settings are tried from the first seed; the chosen ones are trained from the others, too.

    Returns:
        For each of `CHOICES` the setting and the values of every measure, one for each seed; and the number
        of settings tried.
    """
    labels, _, val, _ = labels_and_masks(graph)
    trainer, start = Trainer(method, graph, None, device), time.perf_counter()
    agreement = cluster_agreement(graph.num_classes)
    by_labels = cluster_accuracy(labels, val, graph.num_classes)
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
