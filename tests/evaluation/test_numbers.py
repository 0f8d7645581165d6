"""Numbers as labels: measures, the ridge probe, searches and comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from h3gnn import H3GNN, Graph
from h3gnn.evaluation.evaluator import Evaluator, RidgeValidation, probe_accuracy
from h3gnn.evaluation.metrics import number_measures, solve_ridge
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import EVERY, PROTOCOLS, SplitScores
from h3gnn.evaluation.results import Result, join_seeds
from h3gnn.experiments.compare import compare
from h3gnn.experiments.methods import METHODS, find_methods
from h3gnn.experiments.run import run_method
from h3gnn.experiments.search import resplit
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import with_splits
from tests.rejects import rejects

TINY: dict[str, Any] = {"epochs": 2, "channels": 8, "heads": 2, "n_models": 1, "device": "cpu"}
SEVERAL = "raw,smoothed,untrained,boosting,boosting-neighbours,label-propagation,gcn,correct-smooth"


@pytest.fixture(scope="module")
def priced() -> Graph:
    """A ring of 60 nodes whose number is a linear function of the features, plus noise; 5 are unknown."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(60, 4))
    numbers = 100 + features @ [10.0, -5, 3, 0] + draw.normal(size=60)
    numbers[::12] = np.nan
    ring = np.arange(60)
    edges = np.stack([ring, np.roll(ring, 1)])
    return with_splits(check_graph(features, edges, targets=numbers, target_name="price"))


def known(graph: Graph) -> tuple[torch.Tensor, ...]:
    found = (graph.targets, graph.train_mask, graph.val_mask, graph.test_mask)
    assert all(one is not None for one in found)
    return found  # type: ignore[return-value]


def test_measures_worked_out_by_hand() -> None:
    found = number_measures(np.array([1.0, 2, np.nan, 3, 6]), np.array([1.0, 3, 7, 3, 5]))
    # errors 0, 1, 0, -1; deviations from the mean 3: 4 + 1 + 0 + 9; ranks 1 2 3 4 and 1 2.5 2.5 4
    assert found == pytest.approx({"r2": 12 / 14, "mae": 0.5, "rmse": 0.5**0.5, "spearman": 4.5 / 22.5**0.5})
    constant = number_measures(np.array([1.0, 2, 3]), np.full(3, 2.0))
    assert constant == pytest.approx({"r2": 0, "mae": 2 / 3, "rmse": (2 / 3) ** 0.5, "spearman": 0})
    assert np.isnan([*number_measures(np.array([np.nan]), np.array([1.0])).values()]).all()


@pytest.mark.parametrize("shape", [(30, 4), (6, 20)])
def test_ridge_is_that_of_scikit_learn(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(1)
    rows, numbers = draw.normal(size=shape) + 3, draw.normal(size=shape[0]) - 7
    weights = solve_ridge(torch.from_numpy(rows), torch.from_numpy(numbers), (0.01, 2.0)).numpy()
    for own, penalty in zip(weights, (0.01, 2.0), strict=True):
        theirs = Ridge(alpha=penalty * shape[0]).fit(rows, numbers)
        np.testing.assert_allclose(own, [*theirs.coef_, theirs.intercept_], rtol=1e-6, atol=1e-8)


def test_the_probe_explains_a_linear_number_and_not_noise(priced: Graph) -> None:
    scores = evaluated(priced, priced.features)
    assert np.mean(scores.accuracy) > 0.9
    assert np.mean(evaluated(priced, torch.randn(60, 4)).accuracy) < 0.3
    assert np.isnan(scores.macro_f1).all()
    truth = known(priced)[0].numpy()
    assert np.mean(scores.secondary["rmse"]) < 0.4 * np.nanstd(truth)


def evaluated(graph: Graph, rows: Any, **options: Any) -> SplitScores:
    evaluator = Evaluator(*known(graph), **options)
    evaluator.add(0, rows)
    return evaluator.result().scores


def test_scores_do_not_depend_on_the_unit(priced: Graph) -> None:
    numbers, train, val, test = known(priced)
    first, second = (
        probe_candidates(priced.features, one, train, val, test) for one in (numbers, -1e6 * numbers + 1e9)
    )
    np.testing.assert_allclose(first.val_accuracy, second.val_accuracy, atol=1e-6)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_published_chooses_by_test_numbers(priced: Graph, protocol: str) -> None:
    numbers, *_, test = known(priced)
    other = replace(priced, targets=torch.where(test[:, 0], torch.randn(60).double() * 30, numbers))
    noise = torch.randn(60, 200)
    chosen = [evaluated(one, noise, protocol=EVERY[protocol]).chosen[0] for one in (priced, other)]
    scored = [evaluated(one, noise, protocol=EVERY[protocol]).accuracy[0] for one in (priced, other)]
    assert scored[0] != scored[1]
    assert protocol == "published" or chosen[0] == chosen[1]


def test_options_of_classes_are_rejected(priced: Graph) -> None:
    with rejects("task-unsupported"):
        Evaluator(*known(priced), epoch_rule="label-free")
    with rejects("task-unsupported"):
        Evaluator(*known(priced), probe="gradient")


def test_a_result_of_numbers_is_stored(priced: Graph) -> None:
    result = run_method("raw", priced, seeds=[0])
    assert result.leading == "r2"
    assert result.rare == ""
    again = Result.from_dict(json.loads(json.dumps(result.as_dict())))
    assert again.score("mae").mean == pytest.approx(result.score("mae").mean)
    assert again.score("r2").mean > 0.9
    assert join_seeds([evaluated(priced, priced.features)])["secondary"].keys() == {"mae", "rmse", "spearman"}
    assert "R²" in repr(result)
    assert "%" not in result.shown()["mean absolute error"]


def test_a_comparison_of_numbers(priced: Graph, tmp_path: Path) -> None:
    arguments: Any = (find_methods(SEVERAL), priced)
    options: dict[str, Any] = {"seeds": [0], "model": H3GNN.from_preset("quick", **TINY)}
    found = compare(*arguments, **options, out=tmp_path / "r.json")
    assert {name: one.word for name, one in found.left_out.items()} == {
        "gcn": "classes only",
        "correct-smooth": "classes only",
    }
    assert found.leading == "r2"
    assert found.ranked[0] == "raw"  # the number is linear in the features
    assert found.score("raw").mean > 0.9
    assert found.score("label-propagation").mean < 0.2  # and neighbours know nothing of it
    again = compare(*arguments, **options, out=tmp_path / "r.json")
    assert again.as_dict()["rows"] == json.loads(json.dumps(found.as_dict()["rows"]))


def test_searches_score_by_r2(priced: Graph) -> None:
    numbers, train, val, _ = known(priced)
    device = torch.device("cpu")
    found = RidgeValidation(numbers, train, val, device, ridges=(1.0,)).accuracies(priced.features)
    rows = (priced.features - priced.features.mean(dim=0)) / priced.features.std(dim=0, correction=0) / 2
    table, split = np.column_stack([rows.numpy(), np.ones(60)]), (train[:, 0], val[:, 0])
    own, others = (np.flatnonzero((one & ~numbers.isnan()).numpy()) for one in split)
    mean, deviation = numbers[own].mean().numpy(), numbers.numpy()
    kernel = table[own] @ table[own].T + np.eye(len(own))
    predicted = table[others] @ table[own].T @ np.linalg.solve(kernel, deviation[own] - mean)
    truth = deviation[others] - mean
    assert float(found[0]) == pytest.approx(1 - ((truth - predicted) ** 2).sum() / (truth**2).sum(), abs=1e-4)
    assert probe_accuracy(numbers, train, val)(priced.features) > 0.9
    again, rest = resplit(numbers, train[:, 0], val[:, 0], 3, seed=0)
    assert (again.sum(dim=0) - train[:, 0].sum()).abs().max() <= 3  # rounded in each quantile
    assert not (again & rest).any()
    assert ((again | rest) == (train[:, :1] | val[:, :1])).all()


@pytest.mark.parametrize("name", ["h3gnn", "boosting"])
def test_a_nested_search_of_numbers(priced: Graph, name: str) -> None:
    model = H3GNN.from_preset("quick", **TINY)
    found = compare([METHODS[name]], priced, seeds=[0], model=model, trials=2)
    assert found.results[name].protocol == "nested"
    assert found.score(name).mean > 0.3
