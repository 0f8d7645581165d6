"""Comparing methods: ranking, significance, resuming from a file, and several processes."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3gnn.baselines.registry import GROUPS, systems
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.results import RepeatedScore, Result
from h3gnn.experiments import compare as comparing
from h3gnn.experiments import methods as methods_module
from h3gnn.experiments.compare import Comparison, compare, read_kept
from h3gnn.experiments.methods import METHODS, find_methods, variant
from h3gnn.experiments.run import run_method
from h3gnn.experiments.workers import attempt
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects

MODEL = H3GNN.from_preset("single", epochs=2, channels=8, heads=2, device="cpu")


def result_of(name: str, values: list[list[float]]) -> Result:
    scores = RepeatedScore(values)
    facts: dict[str, Any] = {"graph": "g", "sha256": "0", "protocol": "validation", "epoch_rule": "last"}
    facts |= {"params": {}, "seeds": [0], "versions": {}, "origin": None, "device": "cpu", "seconds": 1.0}
    facts |= dict.fromkeys(("probe", "macro_f1", "validation"), scores)
    return Result(method=METHODS[name].title, roc_auc=None, chosen=[], **facts)


def comparison(**values: list[list[float]]) -> Comparison:
    return Comparison({name: result_of(name, rows) for name, rows in values.items()}, 20 / 48)


def test_a_constant_difference_is_significant_and_a_noisy_one_is_not() -> None:
    base = np.linspace(0.7, 0.8, 10)
    steady = comparison(h3gnn=[list(base)], gcn=[list(base - 0.1 - 0.001 * (np.arange(10) % 2))])
    assert steady.ranked == ["h3gnn", "gcn"]
    assert steady.test("h3gnn", "gcn").differ
    assert "H3GNN is best: 10.1 points above GCN (supervised)" in steady.verdict
    noisy = comparison(h3gnn=[list(base)], smoothed=[list(base + np.tile([0.09, -0.08], 5))])
    assert not noisy.test("smoothed").differ
    assert "between features + neighbours and H3GNN (0.5 points) is not statistically" in noisy.verdict
    stored = noisy.as_dict()
    assert (stored["winner"], stored["reference"]) == ("smoothed", "h3gnn")
    assert stored["rows"][0]["against_reference"]["difference"] == pytest.approx(0.005)
    assert stored["rows"][1]["against_reference"]["p_value"] == 1.0


def test_one_run_allows_no_test() -> None:
    assert "more --seeds" in comparison(h3gnn=[[0.8]], raw=[[0.7]]).verdict
    assert "nothing to compare" in comparison(raw=[[0.7]]).verdict
    assert comparison(raw=[[0.7]], gcn=[[0.8]]).reference == "gcn"


@pytest.mark.parametrize("name", ["raw", "smoothed", "untrained", "decoder", "masked-features"])
def test_every_kind_of_method_becomes_a_result(small_mixed: Graph, name: str) -> None:
    result = run_method(METHODS[name], small_mixed, seeds=[0, 1], model=MODEL, device="cpu")
    assert Result.from_dict(json.loads(json.dumps(result.as_dict()))).probe == result.probe
    assert np.array(result.probe.values).shape == (1 if name in ("raw", "smoothed") else 2, 3)
    assert result.sha256 == small_mixed.provenance.sha256
    if name == "untrained":
        assert result.params["epochs"] == 0
        assert MODEL.epochs == 2


def test_a_supervised_result_records_its_grid_and_choices(small_mixed: Graph) -> None:
    shares: list[float] = []
    quick = METHODS["mlp"].with_settings(epochs=50)
    result = run_method(quick, small_mixed, seeds=[0], device="cpu", watch=shares.append)
    assert shares == [1.0]
    assert (result.params["epochs"], METHODS["mlp"].settings["epochs"]) == (50, 400)
    assert len(result.params["grid"]) == 4
    assert {"epoch", "width", "dropout", "learning_rate", "weight_decay"} == set(result.chosen[0][0])
    assert (result.protocol, result.epoch_rule) == ("validation", "validation")
    with rejects("unknown-grid"):
        run_method(METHODS["mlp"], small_mixed, seeds=[0], device="cpu", grid="huge")


def test_a_comparison_continues_from_its_file(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    real = run_method

    def counted(method: Any, *arguments: Any, **options: Any) -> Result:
        ran.append(method.name)
        if method.name == "h3gnn" and len(ran) == 2:
            raise KeyboardInterrupt
        return real(method, *arguments, **options)

    monkeypatch.setattr(comparing, "run_method", counted)
    out, methods = tmp_path / "r.json", find_methods("h3gnn, raw")
    with pytest.raises(KeyboardInterrupt):
        compare(methods, small_mixed, seeds=[0], model=MODEL, out=out)
    assert list(read_kept(out)) == ["raw"]
    found = compare(methods, small_mixed, seeds=[0], model=MODEL, out=out)
    assert ran == ["raw", "h3gnn", "h3gnn"]
    stored = json.loads(out.read_text())
    assert stored["comparison"]["verdict"] == found.verdict
    other = H3GNN.from_preset("single", **{**MODEL.get_settings(), "epochs": 1})
    again = compare(methods, small_mixed, seeds=[0], model=other, out=out)
    assert ran == ["raw", "h3gnn", "h3gnn", "h3gnn"]  # only H3GNN depends on the changed setting
    assert again.results["raw"].probe == found.results["raw"].probe


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    for content in ("[1]", "{}", "no json"):
        (tmp_path / "x.json").write_text(content)
        with rejects("comparison"):
            read_kept(tmp_path / "x.json")


def test_the_guide_lists_our_own_methods_and_the_systems_page_the_others() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    rows = [
        line.split(" | ")
        for line in guide.splitlines()
        if line.startswith("| `") and "`--methods`" not in line
    ]
    listed = {
        name: row[-1].strip(" |") == "training nodes"
        for row in rows
        for name in re.findall(r"`(.+?)`", row[0])
    }
    own = {name: method.supervised for name, method in METHODS.items() if method.system is None}
    assert listed == own


def test_a_group_selects_its_systems() -> None:
    from h3gnn.cli.compare import DEFAULT

    everything = {method.name for method in find_methods("all", tables=True)}
    assert everything == set(METHODS)
    of_tables = {"path-means", "joined-boosting", "rgcn", "hgt"}
    assert {method.name for method in find_methods("all")} == everything - of_tables
    named = {group: {method.name for method in find_methods(group)} for group in GROUPS}
    assert "greet" in named["self-supervised"]
    assert "gprgnn" in named["supervised"]
    assert "line" in named["clustering"]
    assert all("h3gnn" in names for names in named.values())
    assert set.union(*named.values()) == set(systems()) | {"h3gnn"}
    assert len(find_methods(DEFAULT)) == 17
    assert {"boosting", "boosting-neighbours", "label-propagation", "correct-smooth"} < set(
        DEFAULT.split(",")
    )
    assert [method.name for method in find_methods("h3gnn,RAW")] == ["raw", "h3gnn"]
    for unknown in ("self-supervise", "gnn,raw", ""):
        with rejects("unknown-method"):
            find_methods(unknown)


def test_a_method_that_needs_too_much_memory_is_left_out(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods_module, "free_bytes", lambda device: 3_000_000)
    found = compare(find_methods("raw, mvgrl"), small_mixed, seeds=[0], model=MODEL)
    assert list(found.results) == ["raw"]
    assert found.left_out["mvgrl"].word == "too large"
    assert found.as_dict()["left_out"]["mvgrl"]["word"] == "too large"
    with rejects("no-method-runs"):
        compare(find_methods("mvgrl"), small_mixed, seeds=[0], model=MODEL)


def compare_in_processes(graph: Graph) -> None:
    methods, watched = find_methods("raw, smoothed, s2gc"), set()
    one = compare(methods, graph, seeds=[0], model=MODEL)
    watch = lambda method, share: watched.add(method.name)  # noqa: E731
    two = compare(methods, graph, seeds=[0], model=MODEL, jobs=2, watch=watch)
    assert [(name, found.probe) for name, found in two.results.items()] == [
        (name, found.probe) for name, found in one.results.items()
    ]
    assert watched == {"raw", "smoothed", "s2gc"}


def in_turn(tasks: Any, work: Any, jobs: int, threads: int, watch: Any) -> Any:
    """Do the tasks of `in_processes` here, in the reverse order, after a round trip through pickle."""
    for task in reversed(tasks):
        again = pickle.loads(pickle.dumps(work))
        yield attempt(task, again, partial(watch, task))


def test_methods_in_several_processes_give_the_results_of_one(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "in_processes", in_turn)
    compare_in_processes(small_mixed)
    monkeypatch.setattr(methods_module, "free_bytes", lambda device: 3_000_000)
    found = compare(find_methods("raw, mvgrl"), small_mixed, seeds=[0], model=MODEL, jobs=2)
    assert found.left_out["mvgrl"].word == "too large"
    monkeypatch.setattr(comparing, "run_method", lambda *given, **options: 1 / 0)
    with rejects("methods-failed"):
        compare(find_methods("raw, smoothed"), small_mixed, seeds=[0], model=MODEL, jobs=2)


@pytest.mark.slow
def test_methods_in_real_processes_give_the_results_of_one(small_mixed: Graph) -> None:
    compare_in_processes(small_mixed)


def test_published_settings_are_the_authors_and_quick_ones_few_epochs() -> None:
    greet = METHODS["greet"]
    assert variant(greet, "published", "cora").settings["neighbours"] == 20
    assert variant(greet, "published", "cora") != variant(greet, "published", "texas")
    assert variant(METHODS["dssl"], "published", "cora") == METHODS["dssl"]  # none are known
    gcn = variant(METHODS["gcn"], "published", "cora")
    assert gcn.settings["grid"] == [
        {"width": 16, "dropout": 0.5, "learning_rate": 0.01, "weight_decay": 5e-4}
    ]
    assert variant(greet, "quick").settings["epochs"] == 20
    assert len(variant(METHODS["gcn"], "quick").settings["grid"]) == 1


def test_changed_settings_are_used(small_mixed: Graph) -> None:
    two = run_method(METHODS["smoothed"].with_settings(hops=2), small_mixed, seeds=[0], device="cpu")
    assert two.params == {"hops": 2, "rows": "unit length", "probe": "features"}
    assert two.probe == run_method("smoothed2", small_mixed, seeds=[0], device="cpu").probe
    small = METHODS["bgrl"].with_settings(epochs=2, width=8)
    assert run_method(small, small_mixed, seeds=[0], device="cpu").params["width"] == 8


def rare_result(name: str, accuracy: float, precision: float) -> Result:
    steady = np.linspace(-0.01, 0.01, 10)
    made = result_of(name, [list(accuracy + steady)])
    secondary = {
        "average_precision": RepeatedScore([list(precision + steady)]),
        "recall_at_k": RepeatedScore([list(precision + steady)]),
        "balanced_accuracy": RepeatedScore([list(1 - precision + steady)]),
        "majority": RepeatedScore([[0.96] * 10]),
    }
    return replace(made, secondary=secondary, rare="fraud", roc_auc=made.probe)


def test_with_a_rare_class_another_measure_than_accuracy_ranks() -> None:
    results = {"h3gnn": rare_result("h3gnn", 0.978, 0.61), "raw": rare_result("raw", 0.983, 0.55)}
    found = Comparison(results, 20 / 48)
    assert (found.leading, found.ranked) == ("average_precision", ["h3gnn", "raw"])
    assert "6.0 points of average precision above raw" in found.verdict
    stored = json.loads(json.dumps(found.as_dict()))
    assert (stored["leading"], stored["winner"]) == ("average_precision", "h3gnn")
    assert stored["rows"][0]["probe"]["majority"]["test_mean"] == pytest.approx(0.96)
    assert Result.from_dict(stored["rows"][0]).leading == "average_precision"
    # with more than two classes
    several = {name: replace(one, roc_auc=None) for name, one in results.items()}
    assert Comparison(several, 20 / 48).leading == "balanced_accuracy"
    assert Comparison(several, 20 / 48).ranked == ["raw", "h3gnn"]
    # a result of an older version has accuracy only
    assert Comparison({**results, "gcn": result_of("gcn", [[0.9] * 10])}, 20 / 48).ranked[0] == "raw"
