"""The benchmark of databases: labels of a window after a cut-off date, scores by hand, hidden labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import databases
from benchmarks.database_tasks import WINDOWS, Problem, Task, Window, drawn
from benchmarks.databases import Running, markdown, run
from h3gnn.tables.schema import Schema, TableSchema
from reproduction.files import read_json


def problem(measure: str = "AUC") -> Running:
    """Return six shops of which the last two are scored."""
    values = ["a", "b", "b", "b", "a", "b"] if measure != "MAE" else [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    shops = pd.DataFrame({"size": np.arange(6), "kind": values})
    parts = np.arange(4), np.array([4, 5])
    positive = () if measure == "MAE" else ("b",)
    found = Problem(
        {"shop": shops}, Schema({"shop": TableSchema("shop")}), "shop.kind", None, *parts, positive
    )
    return Running(Task("Shops", measure, lambda data, draw, part: found, 2), found)


def test_the_labels_of_scored_rows_are_hidden() -> None:
    assert problem().frames["shop"]["kind"].tolist() == ["a", "b", "b", "b", None, None]


def test_scores_are_those_by_hand() -> None:
    right = np.array([[0.5, 0.5]] * 4 + [[0.9, 0.1], [0.4, 0.6]])
    assert problem().score(right, np.array([4, 5])) == 1
    assert problem().score(right[:, ::-1], np.array([4, 5])) == 0
    numbers = np.array([[0.0]] * 4 + [[5.5], [4.0]])
    assert problem("MAE").score(numbers, np.array([4, 5])) == pytest.approx((0.5 + 2) / 2)
    # of the training rows a quarter is a: 0.3 / 0.25 > 0.7 / 0.75, and 0.1 / 0.25 < 0.9 / 0.75
    found = np.array([[0.5, 0.5]] * 4 + [[0.3, 0.7], [0.1, 0.9]])
    assert problem("balanced accuracy").score(found, np.array([4, 5])) == 1


def test_cut_offs_are_windows_apart_before_and_after_the_scored_dates_begin() -> None:
    days = pd.Timestamp("2000-01-01"), pd.Timestamp("2012-01-01")
    found = WINDOWS["dnf"].cutoffs(*days, 2005, 2010)
    assert {pd.Timestamp("2005-01-01"), pd.Timestamp("2010-01-01")} <= {*found}
    before = found[: found.get_loc(pd.Timestamp("2005-01-01"))]
    assert set(np.diff(before)) == {np.timedelta64(30, "D")}
    assert before[0] >= days[0]
    assert found[-1] <= days[1] - pd.Timedelta(days=30)


def test_a_label_is_of_the_window_after_its_cut_off() -> None:
    dates = ["2000-01-01", "2000-01-05", "2000-01-11", "2000-01-12"]
    results = pd.DataFrame(
        {"driverId": ["1", "1", "2", "1"], "statusId": ["1", "2", "1", "1"], "date": pd.to_datetime(dates)}
    )
    window = Window("results", 10, WINDOWS["dnf"].label)
    found = window.rows(results, pd.DatetimeIndex(["2000-01-01", "2000-01-05"]))
    # days 2 to 11: driver 1 retires on the 5th, driver 2 finishes; days 6 to 15: both finish
    assert found[["driverId", "label"]].values.tolist() == [["1", 1], ["2", 0], ["1", 0], ["2", 0]]


def test_rows_to_choose_on_are_none_of_the_test_rows() -> None:
    labels = pd.Series(["a", "b"] * 50 + [None] * 20)
    train, test = drawn(labels, 0, "test")
    fitted, chosen = drawn(labels, 0, "val")
    assert not {*test} & {*train} | {*test} & {*chosen, *fitted}
    assert {*fitted} | {*chosen} == {*train}
    assert labels[train].value_counts().tolist() == [35, 35]


def test_scores_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ran = problem(), list[str]()

    def method(score: float) -> Any:
        def predict(running: Running) -> np.ndarray:
            ran.append(running.task.title)
            return np.array([[0.5, 0.5]] * 4 + [[1 - score, score], [0.5, 0.5]])

        return predict

    monkeypatch.setattr(databases, "TASKS", {"shops": made.task})
    monkeypatch.setattr(databases, "FUNCTIONS", {"refitted": method(0.9), "quick": method(0.1)})
    cells = [*databases.wanted(["shops"], ["refitted", "quick"], 0, "val")]
    assert len(cells) == 4
    for again in (False, False, True):
        run(tmp_path, tmp_path / "out.json", cells, 1, again=again)
    assert len(ran) == 8
    lines = markdown(read_json(tmp_path / "out.json")["cells"], "val").splitlines()
    assert "| Shops | AUC | 2 | h3gnn, quick | 1.000 ± 0.000 | +1.000 ± 0.000 | 0 |" in lines
