"""Properties that every system of the registry has."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.base import clone

import h3gnn.baselines
from h3gnn.baselines import embedder
from h3gnn.baselines.embedder import train, values_of
from h3gnn.baselines.registry import ANY, GROUPS, Sizes, System, TooLargeError, systems
from h3gnn.baselines.supervised import Noise, predict
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, MEMBERS, POINT
from tests.rejects import rejects

TINY: dict[str, Any] = {
    "width": 8,
    "epochs": 2,
    "first_epochs": 1,
    "hidden": 8,
    "walk_length": 5,
    "neighbours": 3,
    "look_every": 1,
}
"""For every system that has a setting of the name."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gae", {"all_pairs": False}),
    ("graphacl", {"samples": 0, "self_loops": True, "linear": False, "predictor_layers": 2}),
    ("graphmae2", {"decodings": 0}),
    ("greet", {"batch": 32}),
    ("hgrl", {"graph": "learned"}),
    ("maskgae", {"mask": "edge"}),
    ("mvgrl", {"sample": 40, "samples": 3, "thin": True}),
    ("node2vec", {"back": 2.0, "away": 0.5}),
    ("sage", {"norm": "batch", "residual": True}),
    ("sage-unsupervised", {"samples": (3, 2)}),
]
"""Settings that exercise other branches of a system."""
VARIED = pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in systems()), *VARIANTS],
    ids=lambda part: part if isinstance(part, str) else "",
)
NEED_EDGES = {"bandana", "graphacl", "line", "maskgae", "node2vec"}
GRAPHS = {
    *("cornell", "texas", "wisconsin", "actor", "cora", "citeseer", "pubmed"),
    *("chameleon-filtered", "squirrel-filtered"),
}
ALL = pytest.mark.parametrize("system", list(systems().values()), ids=list(systems()))
EMBEDDERS = [system for system in systems().values() if "labels" not in system.sees]
CLASSIFIERS = [system for system in systems().values() if "labels" in system.sees]


def name_of(system: System) -> str:
    return system.name


def tiny(system: System, /, **changes: Any) -> dict[str, Any]:
    known = {one.name for one in fields(system.settings)}
    small = {name: value for name, value in TINY.items() if name in known}
    if isinstance(getattr(system.settings, "hidden", None), tuple):
        small["hidden"] = (8, 8)
    return {**small, **changes}


def result(system: System, graph: Graph, seed: int, /, **changes: Any) -> npt.NDArray[np.float32]:
    """Return an embedding, or log-probabilities `[splits, nodes, classes]`."""
    settings = system.with_settings(tiny(system, **changes))
    if system in EMBEDDERS:
        return values_of(train(system.kind, graph, seed, CPU, settings))
    (found,) = predict(system.kind, graph, [seed], device=CPU, memory=2**28, grid=[POINT], settings=settings)
    scores: npt.NDArray[np.float32] = found.scores.numpy()
    return scores


def small_graph(edges: list[tuple[int, int]]) -> Graph:
    """Return four nodes with one-hot features; of each class one is for training and one for validation."""
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    train = torch.tensor([[True], [True], [False], [False]])
    graph = check_graph(torch.eye(4), index, labels=[0, 1, 0, 1])
    return replace(graph, train_mask=train, val_mask=~train, test_mask=torch.zeros_like(train))


@VARIED
def test_results_repeat_with_a_seed_and_leave_the_callers_generators(
    name: str, changes: dict[str, Any], small_mixed: Graph
) -> None:
    system = systems()[name]
    state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)
    one, again, other = (result(system, small_mixed, seed, **changes) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_state)
    assert one.shape[-2] == 100
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, again)
    has_chance = system in CLASSIFIERS or system.kind.has_chance
    assert np.array_equal(one, other) == (not has_chance)


@pytest.mark.parametrize("system", EMBEDDERS, ids=name_of)
def test_labels_are_not_used(system: System, small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    turned = replace(small_mixed, labels=small_mixed.labels.flip(0))
    one, other = (result(system, graph, 0) for graph in (small_mixed, turned))
    np.testing.assert_array_equal(one, other)


@VARIED
def test_a_graph_without_edges_is_embedded_or_rejected(name: str, changes: dict[str, Any]) -> None:
    graph, system = small_graph([]), systems()[name]
    if name in NEED_EDGES and not changes.get("self_loops"):
        with rejects("no-edges"):
            result(system, graph, 0, **changes)
    else:
        assert np.isfinite(result(system, graph, 0, **changes)).all()


@VARIED
def test_one_edge_and_isolated_nodes_give_finite_results(name: str, changes: dict[str, Any]) -> None:
    rows = result(systems()[name], small_graph([(0, 1)]), 0, **changes)
    assert rows.shape[-2] == 4
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("system", CLASSIFIERS, ids=name_of)
def test_gradients_reach_every_weight_of_every_model(system: System, small_mixed: Graph) -> None:
    stack = system.kind(system.kind.on(small_mixed, CPU, system.settings), MEMBERS, CPU)
    assert stack.logits(None).shape == (100, 2, small_mixed.num_classes)
    stack.logits(Noise(MEMBERS, CPU)).square().sum().backward()
    for name, tensor in stack.weights.tensors.items():
        assert tensor.grad is not None, name
        assert bool((tensor.grad.abs().sum(dim=(0, 2)) > 0).all()), name
        assert bool(torch.isfinite(tensor.grad).all()), name


@ALL
def test_the_estimator_clones_and_fits(system: System, small_mixed: Graph) -> None:
    estimator = getattr(h3gnn.baselines, system.estimator)
    own = {one.name for one in fields(system.settings)} | {"random_state", "device"}
    own |= set(asdict(POINT)) if system in CLASSIFIERS else set()
    assert set(inspect.signature(estimator).parameters) == own
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        estimator(nonsense=1)
    model = estimator(**tiny(system), random_state=3, device="cpu")
    again = clone(model)
    assert again.get_params() == model.get_params()
    again.fit(small_mixed)
    if system in EMBEDDERS:
        np.testing.assert_array_equal(again.embedding_, result(system, small_mixed, 3))
    else:
        assert again.predict_proba().shape == (100, small_mixed.num_classes)
        np.testing.assert_allclose(again.predict_proba().sum(axis=1), 1, rtol=1e-5)
        assert set(again.predict()) <= set(again.classes_)


@ALL
def test_published_settings_are_valid_and_for_known_graphs(system: System) -> None:
    assert set(system.published) <= GRAPHS | {ANY}
    assert bool(system.source) >= bool(system.published)
    for graph in system.published:
        changes = system.published_for(graph)
        assert changes is not None
        made = getattr(h3gnn.baselines, system.estimator).published(None if graph == ANY else graph)
        assert {name: made.get_params()[name] for name in changes} == changes
        if system in CLASSIFIERS:
            changes = {name: value for name, value in changes.items() if name not in asdict(POINT)}
        system.with_settings(changes)
    if ANY not in system.published:
        with rejects("no-published-settings"):
            getattr(h3gnn.baselines, system.estimator).published("nowhere")


@ALL
def test_ranges_are_valid_and_include_the_default(system: System) -> None:
    for name, values in system.ranges.items():
        for value in values:
            system.with_settings({name: value})
        assert getattr(system.settings, name) in values, name
        assert len(set(values)) == len(values) > 1, name


@ALL
def test_memory_estimates_grow_with_the_graph_and_reject_large_ones(system: System) -> None:
    sizes = Sizes(10_000, 80_000, 500)
    needed = [system.kind.bytes_for(sizes.shrunk(nodes), system.settings) for nodes in (100, 5000, 10_000)]
    assert all(isinstance(one, int) for one in needed)
    assert 0 < needed[0] < needed[1] < needed[2]
    system.check_memory(sizes, system.settings, needed[2])
    with pytest.raises(TooLargeError, match=r"on 10,000 nodes .* about [45],\d00 nodes .* would fit"):
        system.check_memory(sizes, system.settings, needed[1])


@ALL
def test_an_estimator_checks_memory_before_training(
    system: System, small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "free_bytes", lambda _: 1000)
    with rejects("not-enough-memory", TooLargeError):
        getattr(h3gnn.baselines, system.estimator)(device="cpu").fit(small_mixed)


@ALL
def test_a_card_names_the_paper_inputs_and_cost(system: System) -> None:
    words = system.kind.__doc__ or ""
    author = re.split(r"[:, ]", system.paper)[0]
    assert re.search(rf"\({author}\b[^)]*, {system.year}\)", words)
    assert system.group in GROUPS
    assert set(system.sees) <= {"features", "edges", "labels"}
    assert ("labels" in system.sees) == (system.group == "supervised")
    assert system.cost


def test_systems_have_unique_names() -> None:
    assert len(systems()) == 36
    for name in ("estimator", "title", "path"):
        assert len({getattr(system, name) for system in systems().values()}) == 36, name
