"""Running a method for several seeds, and the expected duration of a training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn.answers.links import reduced_features
from h3gnn.baselines.layers import scaled_features as of_other_systems
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.protocols import PUBLISHED
from h3gnn.evaluation.results import Result
from h3gnn.experiments.methods import fit_and_report, snapshot_epochs
from h3gnn.experiments.run import (
    BATCH_SIZE,
    TrainingTime,
    batched_epoch_seconds,
    build_evaluator,
    duration,
    run_method,
)
from h3gnn.graphs.graph import Graph
from h3gnn.tables.plan import encode_table
from h3gnn.training.history import Recorder
from tests.known import known
from tests.rejects import rejects

MODEL: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 4, "n_models": 3, "device": "cpu"}


def test_snapshots_are_evenly_spaced_and_end_with_the_last() -> None:
    assert snapshot_epochs(100, 4) == [25, 50, 75, 100]
    assert snapshot_epochs(3, 20) == [1, 2, 3]
    assert snapshot_epochs(0, 20) == [0]


def test_models_trained_in_groups_are_evaluated_together(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, grouped = (build_evaluator(small_mixed, protocol=PUBLISHED, parts=3) for _ in range(2))
    fit_and_report(H3GNN.from_preset("single", **MODEL), small_mixed, together.add, [1, 2, 3, 4])
    monkeypatch.setattr("h3gnn.training.models.models_at_once", lambda *_, **__: 2)
    fit_and_report(H3GNN.from_preset("single", **MODEL), small_mixed, grouped.add, [1, 2, 3, 4])
    assert list(together.by_epoch) == list(grouped.by_epoch) == [1, 2, 3, 4]
    width = 3 * (2 + 2) * 8
    for evaluator in (together, grouped):
        assert known(evaluator.kept)[1].shape == (100, width)
    assert together.result().scores.accuracy == pytest.approx(grouped.result().scores.accuracy, abs=0.06)


def test_a_result_records_its_origin(small_mixed: Graph) -> None:
    shares: list[float] = []

    def run(**options: Any) -> Result:
        asked: dict[str, Any] = {"seeds": [3, 5], "epoch_rule": "label-free", "snapshots": 2, "cluster": True}
        return run_method(
            "h3gnn", small_mixed, model=H3GNN.from_preset("single", **MODEL), device="cpu", **asked, **options
        )

    result = run(watch=shares.append)
    assert shares == [0.5, 1.0]
    assert result.seeds == [3, 5]
    assert result.sha256 == small_mixed.provenance.sha256
    assert result.epoch_rule == "label-free"
    assert result.params["channels"] == 8
    assert result.params["snapshots"] == 2
    assert result.device == "cpu"
    assert len(result.probe.values) == 2
    assert len(result.probe.values[0]) == small_mixed.num_splits
    again = run()
    assert again.probe == result.probe
    assert again.clustering == result.clustering


def test_a_graph_without_splits_is_rejected(path_graph: Graph) -> None:
    with rejects("no-splits"):
        build_evaluator(path_graph)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reported(
    seconds: float, *, epochs: int = 50, models: int = 8, group: int = 8, nodes: int = 30_000, **more: Any
) -> list[str]:
    """Return the messages in ten epochs of given seconds; the first takes twice as long."""
    model, clock = H3GNN.from_settings({"n_models": models, "epochs": epochs, **more}), Clock()
    messages: list[str] = []
    large: Any = SimpleNamespace(num_nodes=nodes, in_memory=False)
    after, recorder = TrainingTime(model, large, messages.append, clock).of(0), Recorder()
    for epoch in range(10):
        clock.now += seconds * (2 if epoch == 0 else 1)
        recorder.add(loss=torch.zeros(group))
        after(epoch, recorder)
    return messages


def test_the_duration_is_estimated_from_the_first_epochs() -> None:
    # 28 s, then 49 epochs of 14 s: 714 s
    assert reported(14) == ["30,000 nodes, 8 models, 50 epochs: about 12 min"]
    assert reported(0.7) == ["30,000 nodes, 8 models, 50 epochs: about 35 s"]
    assert reported(0.5) == []  # too short to report
    # two more groups of two follow the one that is measured: 2 · 1 + 49 + 2 · 50
    assert reported(1.0, models=6, group=2) == ["30,000 nodes, 6 models, 50 epochs: about 3 min"]
    assert reported(14, models=1, group=1)[0].startswith("30,000 nodes, 1 model, 50")


def test_mini_batches_are_suggested_if_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingTime, "_in_batches", lambda self: 300.0)
    assert reported(14) == [
        "30,000 nodes, 8 models, 50 epochs: about 12 min; with `--batch-size 1024` about 5 min"
    ]
    assert "batch" not in reported(3)[0]  # 150 s are less than 300
    monkeypatch.setattr(TrainingTime, "_in_batches", lambda self: pytest.fail("too short to be worth it"))
    reported(1)


def test_measuring_mini_batches_does_not_change_the_model(small_mixed: Graph) -> None:
    model = H3GNN(n_models=2, epochs=1, channels=8, encoder__heads=2, device="cpu").fit(small_mixed)
    before = model.embedding_.copy()
    assert 0 < batched_epoch_seconds(model, small_mixed, 20) < 60
    assert model.batch_size is None
    assert (model.embedding_ == before).all()
    assert (
        TrainingTime(model, model.graph_, print)._in_batches() is None
    )  # a small graph has no need of batches


def test_durations_are_rounded() -> None:
    assert [duration(s) for s in (3, 12, 88, 100, 700, 5300, 9000)] == [
        "5 s", "10 s", "90 s", "2 min", "12 min", "88 min", "2.5 h"
    ]  # fmt: skip
    assert BATCH_SIZE == 1024


def test_encoded_columns_are_not_scaled_again(small_mixed: Graph) -> None:
    """`fit`, other systems and the features of pairs use an encoded table unchanged."""
    amount = np.random.default_rng(0).lognormal(3, 2, small_mixed.num_nodes)
    values, plan, _ = encode_table(pd.DataFrame({"amount": amount, "kind": ["a", "b"] * (len(amount) // 2)}))
    graph = replace(small_mixed, features=torch.as_tensor(values).float(), plan=plan)
    cpu = torch.device("cpu")
    unchanged = graph.features
    assert torch.allclose(torch.as_tensor(of_other_systems(graph, cpu).matrix), unchanged)
    taken = graph.fit_scaler(H3GNN().get_settings()["scale_features"])(graph.features)
    assert torch.allclose(torch.as_tensor(taken), unchanged)
    centred = unchanged - unchanged.mean(dim=0)
    assert np.allclose(reduced_features(graph, graph.num_features), centred)
