"""How long a training will take, told once from its first epochs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h3gnn import H3GNN, Graph
from h3gnn.experiments import run as outlook
from h3gnn.experiments.run import Outlook, batched_epoch, duration
from h3gnn.training.history import Recorder


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    seconds: float, *, epochs: int = 50, models: int = 8, group: int = 8, nodes: int = 30_000, **more: Any
) -> list[str]:
    """Return what is told in the first ten epochs that take so long; the first takes twice as long."""
    model, clock = H3GNN.from_settings({"n_models": models, "epochs": epochs, **more}), Clock()
    told: list[str] = []
    large: Any = SimpleNamespace(num_nodes=nodes, in_memory=False)
    after, recorder = Outlook(model, large, told.append, clock).of(0), Recorder()
    for epoch in range(10):
        clock.now += seconds * (2 if epoch == 0 else 1)
        recorder.add(loss=torch.zeros(group))
        after(epoch, recorder)
    return told


def test_the_first_epochs_tell_how_long_it_takes() -> None:
    # 28 s, then 49 epochs of 14 s: 714 s
    assert run(14) == ["30,000 nodes, 8 models, 50 epochs: about 12 min"]
    assert run(0.7) == ["30,000 nodes, 8 models, 50 epochs: about 35 s"]
    assert run(0.5) == []  # over before anybody wants to know
    # two more groups of two follow the one that is measured: 2 · 1 + 49 + 2 · 50
    assert run(1.0, models=6, group=2) == ["30,000 nodes, 6 models, 50 epochs: about 3 min"]
    assert run(14, models=1, group=1)[0].startswith("30,000 nodes, 1 model, 50")


def test_mini_batches_are_offered_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outlook, "_in_batches", lambda self: 300.0)
    assert run(14) == [
        "30,000 nodes, 8 models, 50 epochs: about 12 min; with `--batch-size 1024` about 5 min"
    ]
    assert "batch" not in run(3)[0]  # 150 s are less than 300
    monkeypatch.setattr(Outlook, "_in_batches", lambda self: pytest.fail("too short to be worth it"))
    run(1)


def test_an_epoch_in_batches_is_measured_and_the_model_is_left_alone(small_mixed: Graph) -> None:
    model = H3GNN(n_models=2, epochs=1, channels=8, encoder__heads=2, device="cpu").fit(small_mixed)
    before = model.embedding_.copy()
    assert 0 < batched_epoch(model, model.graph_, 20) < 60
    assert model.batch_size is None
    assert (model.embedding_ == before).all()
    assert Outlook(model, model.graph_, print)._in_batches() is None  # a small graph has no need of batches


def test_times_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (3, 12, 88, 100, 700, 5300, 9000)] == [
        "5 s", "10 s", "90 s", "2 min", "12 min", "88 min", "2.5 h"
    ]  # fmt: skip
    assert outlook.BATCH_SIZE == 1024
