"""Comparisons on several linked tables: what only joined columns can see, time, and held-out labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from h3gnn.baselines.typed import HGT, RGCN, JoinedBoosting, PathMeans, TypedSystem
from h3gnn.database import Database
from h3gnn.estimator import H3GNN
from h3gnn.experiments.compare import compare
from h3gnn.experiments.methods import METHODS, find_methods
from h3gnn.experiments.tabular import TypedProblem, pooled_heads
from tests.program import call, invoke
from tests.rejects import rejects

CPU = torch.device("cpu")
MODEL = H3GNN.from_preset("single", epochs=2, channels=8, heads=2, device="cpu")
QUICK = ("--set", "epochs=2", "--set", "channels=8", "--set", "heads=2", "--models", "1", "--device", "cpu")
SYSTEMS: list[TypedSystem] = [
    PathMeans(),
    JoinedBoosting(max_iter=5),
    RGCN(width=8, epochs=4),
    HGT(width=8, heads=2, epochs=4),
]


def shop(*, late: bool = False) -> dict[str, pd.DataFrame]:
    """Clients, good if their mean order is above 50; with `late`, in orders that follow the client's date.

    The age and town of a client are random, and so is every single order of a late shop before that date.
    """
    chance = np.random.default_rng(0)
    count = 60
    good, client = np.arange(count) % 2 == 0, np.repeat(np.arange(count), 3)
    amount = np.where(good[client], 80, 20) + chance.integers(-15, 15, len(client))
    clients = {
        "client_id": np.arange(count) + 100,
        "age": chance.integers(18, 80, count),
        "town": chance.choice(["Ulm", "Bonn", "Jena"], count),
        "rank": np.where(good, "good", "poor"),
    }
    orders = {"client_id": client + 100, "amount": amount}
    if late:
        clients["joined"] = np.full(count, "2020-06-01")
        early = {"client_id": client + 100, "amount": chance.integers(5, 95, len(client))}
        orders = {name: np.concatenate([early[name], orders[name]]) for name in orders}
        orders["day"] = np.repeat(["2020-03-01", "2020-09-01"], len(client))
    frames = {"client": pd.DataFrame(clients), "order": pd.DataFrame(orders)}
    frames["order"].insert(0, "order_id", np.arange(len(frames["order"])) + 9000)
    return frames


def problem_of(frames: dict[str, pd.DataFrame], **options: Any) -> TypedProblem:
    return TypedProblem.read(Database(frames), "client.rank", **options)


def accuracy(found: Any, name: str) -> float:
    return float(found.results[name].probe.mean)


@pytest.fixture(scope="module")
def problem() -> TypedProblem:
    return problem_of(shop()).first_splits(2)


def test_only_methods_that_see_linked_rows_find_what_these_say(problem: TypedProblem) -> None:
    methods = find_methods("raw,boosting,path-means,joined-boosting,rgcn,h3gnn", tables=True)
    found = compare(methods, problem, seeds=[0], model=MODEL, settings="quick")
    assert not found.left_out
    for name in ("path-means", "joined-boosting", "rgcn"):
        assert accuracy(found, name) > 0.9, name
    for name in ("raw", "boosting"):
        assert accuracy(found, name) < 0.75, name
    assert found.results["joined-boosting"].seeds == [0]
    assert found.reference == "h3gnn"


def test_with_the_time_of_the_row_no_method_sees_later_orders() -> None:
    frames = shop(late=True)
    methods = find_methods("joined-boosting,path-means,rgcn,hgt", tables=True)
    with rejects("label-time-unclear"):
        problem_of(frames)
    now = compare(methods[:2], problem_of(frames, label_time="now").first_splits(2), seeds=[0], model=MODEL)
    assert accuracy(now, "joined-boosting") > 0.9
    at_row = problem_of(frames, label_time="row").first_splits(2)
    found = compare(methods, at_row, seeds=[0], model=MODEL)
    assert {name: one.word for name, one in found.left_out.items()} == dict.fromkeys(
        ("path-means", "rgcn", "hgt"), "sees later rows"
    )
    assert accuracy(found, "joined-boosting") < 0.75
    later = frames["order"]["day"] > "2020-06-01"
    frames["order"].loc[later, "amount"] = 7
    other = problem_of(frames, label_time="row").first_splits(2)
    system = JoinedBoosting(max_iter=5)
    assert torch.equal(at_row.fit(system, 0, CPU), other.fit(system, 0, CPU))


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: type(one).__name__)
def test_systems_do_not_see_test_labels_nor_the_order_of_the_view(
    problem: TypedProblem, system: TypedSystem
) -> None:
    view = problem.view
    assert view.labels is not None
    assert view.test_mask is not None
    found = problem.fit(system, 0, CPU)
    rows = torch.from_numpy(view.node_ids.copy())
    assert not torch.equal(rows, torch.arange(len(rows)))  # so that the order matters
    for split in range(2):
        turned = torch.where(view.test_mask[:, split], 1 - view.labels, view.labels)
        again = replace(problem, view=replace(view, labels=turned)).fit(system, 0, CPU)
        same = (found, again) if system.embeds else (found[split], again[split])
        assert torch.equal(*same)
    order = torch.arange(len(rows) - 1, -1, -1)
    masks = {name: getattr(view, name)[order] for name in ("train_mask", "val_mask", "test_mask")}
    backwards = replace(view, labels=view.labels[order], node_ids=view.node_ids[order.numpy()], **masks)
    again = replace(problem, view=backwards).fit(system, 0, CPU)
    torch.testing.assert_close(again, found[order] if system.embeds else found[:, order])


def test_boosting_on_joined_columns_predicts_numbers_and_networks_do_not() -> None:
    frames = shop()
    mean = frames["order"].groupby("client_id")["amount"].mean()
    frames["client"]["rank"] = 10 * frames["client"]["client_id"].map(mean).to_numpy() + 0.5
    problem = problem_of(frames, task="regression").first_splits(1)
    methods = find_methods("raw,joined-boosting,rgcn,hgt", tables=True)
    found = compare(methods, problem, seeds=[0], model=MODEL)
    assert {name: one.word for name, one in found.left_out.items()} == dict.fromkeys(
        ("rgcn", "hgt"), "classes only"
    )
    assert found.leading == "r2"
    assert found.score("joined-boosting").mean > 0.8
    assert found.score("raw").mean < 0.3


def test_heads_of_predict_learn_from_training_nodes_alone(problem: TypedProblem) -> None:
    view = problem.first_splits(1).view
    assert view.labels is not None
    assert view.train_mask is not None
    embedding: npt.NDArray[np.float32] = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    embedding[:, 0] += 3 * view.labels.numpy()
    shares: list[float] = []
    found = pooled_heads(view, embedding, "logistic", 0, shares.append).scores[0]
    assert shares == [1.0]
    torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(60))
    right = found.argmax(dim=1) == view.labels
    assert right[~view.train_mask[:, 0]].float().mean() > 0.8
    turned = torch.where(view.train_mask[:, 0], view.labels, 1 - view.labels)
    again = pooled_heads(replace(view, labels=turned), embedding, "logistic", 0, shares.append).scores[0]
    assert torch.equal(found, again)


def test_the_hash_is_that_of_all_tables(problem: TypedProblem) -> None:
    frames = shop()
    assert problem_of(frames).first_splits(2).sha256 == problem.sha256
    assert replace(problem, earlier_only=True).sha256 != problem.sha256
    for column, value in (("amount", 1000), ("client_id", 159)):
        other = dict(frames, order=frames["order"].copy())
        other["order"].loc[5, column] = value
        assert problem_of(other).sha256 != problem.sha256


def test_a_comparison_of_tables_on_the_command_line(tmp_path: Path) -> None:
    for name, frame in shop().items():
        (tmp_path / "shop").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "shop" / f"{name}.csv", index=False)
    shown = ("compare", tmp_path / "shop", "client.rank=good", "--quick", *QUICK)
    kept = ("--out", tmp_path / "r.json")
    result = call(*shown, *kept, "--methods", "raw,joined-boosting,h3gnn-predict", "--json")
    assert {row["name"] for row in result["rows"]} == {"raw", "joined-boosting", "h3gnn-predict"}
    assert result["reference"] == "h3gnn-predict"
    assert json.loads((tmp_path / "r.json").read_text())["comparison"]["winner"] == result["winner"]
    again = invoke(*shown, *kept, "--methods", "raw,joined-boosting,h3gnn-predict,rgcn", "--jobs", 2)
    assert again.stderr.count("taken from") == 3
    assert "R-GCN" in again.stdout
    for arguments, code in (
        ((tmp_path / "shop",), "target-missing"),
        ((tmp_path / "shop", "client.rank", "--labels", "y.csv"), "option-of-graph"),
        (("synthetic", "client.rank"), "option-needs-tables"),
        (("synthetic", "--as-of", "2020-01-01"), "option-needs-tables"),
        (("synthetic", "--methods", "rgcn"), "no-method-runs"),
    ):
        with rejects(code):
            call("compare", *arguments)


def test_a_graph_of_one_type_has_no_linked_tables(small_mixed: Any) -> None:
    methods = [METHODS["raw"], METHODS["path-means"]]
    found = compare(methods, small_mixed, seeds=[0], model=MODEL)
    assert list(found.results) == ["raw"]
    assert found.left_out["path-means"].word == "tables only"
