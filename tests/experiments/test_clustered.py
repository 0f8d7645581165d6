"""k-means: which settings are taken without labels, and which labels would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.evaluator import Judge
from h3gnn.experiments.methods import METHODS, Method, Task
from h3gnn.experiments.search import CHOICES, Allowance, run_clustered, run_nested
from h3gnn.graphs.graph import Graph

OWN = torch.randperm(100, generator=torch.Generator().manual_seed(0)) % 5
"""Groups that have nothing to do with the classes."""


def noisy(classes: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return one_hot(classes, 5).float() + noise * torch.randn(len(classes), 5, generator=generator)


@pytest.fixture
def shown(small_mixed: Graph) -> tuple[Method, Callable[[str, int], torch.Tensor]]:
    """A method that shows noise, clusters of its own, or classes in some noise."""
    labels = small_mixed.labels
    assert labels is not None

    def rows(shows: str, seed: int) -> torch.Tensor:
        kinds = {"noise": (OWN, 9.0), "clusters": (OWN, 0.05), "classes": (labels, 0.35)}
        return noisy(*kinds[shows], seed)

    def train(task: Task) -> list[Callable[[Judge], None]]:
        return [lambda judge: judge.add(0, rows(task.settings["shows"], task.seeds[0]))]

    system = replace(METHODS["dgi"].system, ranges={"shows": ("noise", "clusters", "classes")})  # type: ignore[type-var]
    return replace(METHODS["dgi"], train=train, settings={"shows": "noise"}, system=system), rows


def clustered(method: Method, graph: Graph) -> dict[str, Any]:
    return run_clustered(method, graph, [0, 1], Allowance(4), torch.device("cpu"))


def test_labels_have_no_part_in_the_choice_without_labels(
    small_mixed: Graph, shown: tuple[Method, Callable[[str, int], torch.Tensor]]
) -> None:
    method, rows = shown
    found = clustered(method, small_mixed)
    assert found["tried"] == 4
    taken = {name: one["changes"] for name, one in found["choices"].items()}
    assert taken == {
        "defaults": {},
        "without labels": {"shows": "clusters"},
        "by validation labels": {"shows": "classes"},
        "by all labels": {"shows": "classes"},
    }
    assert small_mixed.labels is not None
    for seed in range(2):  # each seed's values are those of its own training
        wanted = cluster_scores(rows("clusters", seed), small_mixed.labels, seeds=(seed,))
        for name in MEASURES:
            assert found["choices"]["without labels"]["values"][name][seed] == wanted[name][0]
    other = clustered(method, replace(small_mixed, labels=OWN))
    for name in CHOICES[:2]:
        assert other["choices"][name]["changes"] == taken[name]
    for name in CHOICES[2:]:
        assert other["choices"][name]["changes"] == {"shows": "clusters"}


def test_when_the_time_is_over_no_further_setting_is_begun(
    small_mixed: Graph,
    shown: tuple[Method, Callable[[str, int], torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, _ = shown
    over = iter([False, True])
    monkeypatch.setattr(Allowance, "is_over", lambda self, began: next(over))
    assert clustered(method, small_mixed)["tried"] == 2
    over = iter([True])
    listed = run_nested(method, small_mixed, seeds=[0], allowance=Allowance(4, 1.0), device="cpu")
    assert listed.record["tried"] == [{}]
    assert [trial for trial, *_ in listed.record["candidates"]] == [0]
