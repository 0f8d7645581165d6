"""Seconds of an epoch and of the fit that they were taken from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from h3gnn.graphs.graph import Graph
from reproduction import running as measures
from reproduction.running import TimedFit, seconds_per_epoch, timed_fit

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"epochs": 7, "channels": 8, "heads": 2, "n_models": 2}


def test_seconds_per_epoch_by_hand() -> None:
    # three epochs of 1 s and one that started something up
    assert TimedFit(total=13.0, epochs=5, between=[[9.0, 1.0, 1.0, 1.0]]).epoch == 1.0
    # two groups of models, one after the other: an epoch of all is one of each
    assert TimedFit(total=10.0, epochs=3, between=[[1.0, 1.0], [2.0, 2.0]]).epoch == 3.0
    # most epochs are slower than the mean: the whole bounds what an epoch may be
    assert TimedFit(total=8.0, epochs=4, between=[[0.0, 3.0, 3.0]]).epoch == 2.0
    # a single epoch has no end before it
    assert TimedFit(total=2.0, epochs=1, between=[[]]).epoch == 2.0
    assert TimedFit(total=2.0, epochs=0, between=[]).epoch == 0.0


@pytest.mark.parametrize("params", [SMALL, {"method": "dgi", "epochs": 7, "width": 8}])
def test_epochs_take_less_than_the_whole_fit(params: dict[str, Any], small_mixed: Graph) -> None:
    fit = timed_fit(params, small_mixed, CPU)
    assert fit.epochs == 7
    assert [len(some) for some in fit.between] == [6]
    assert sum(map(sum, fit.between)) < fit.total
    assert 0 < fit.epoch * fit.epochs <= fit.total


def test_early_stopping_counts_the_trained_epochs(small_mixed: Graph) -> None:
    # a rate of 0 leaves a loss that falls by chance alone: patience ends it soon
    params = {"method": "dgi", "epochs": 200, "width": 8, "patience": 2, "learning_rate": 0.0}
    fit = timed_fit(params, small_mixed, CPU)
    assert fit.epochs < 200
    assert fit.epoch * fit.epochs <= fit.total


def test_one_fit_gives_both_times(monkeypatch: pytest.MonkeyPatch, small_mixed: Graph) -> None:
    fits = []

    def once(*given: Any) -> TimedFit:
        fits.append(given)
        return TimedFit(total=9.0, epochs=4, between=[[2.0, 2.0, 2.0]])

    monkeypatch.setattr(measures, "timed_fit", once)
    assert seconds_per_epoch(SMALL, small_mixed, CPU) == (2.0, 9.0)
    assert len(fits) == 1
