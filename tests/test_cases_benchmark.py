"""`python -m benchmarks.cases`: `h3gnn predict` and its rivals are scored on the same nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import cases
from benchmarks.rivals import RIVALS, Floats, Integers, Table
from h3gnn.evaluation.heads import Target


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 nodes, every second is "b" and has few edges; the labels of the first 40 are known."""
    rng = np.random.default_rng(0)
    nodes = pd.DataFrame({"id": [f"n{at}" for at in range(60)], "size": rng.normal(size=60).round(3)})
    nodes["label"] = [("a", "b")[at % 2] if at < 40 else "" for at in range(60)]
    ends = rng.choice(60, (400, 2), p=np.tile([0.9, 0.1], 30) / 30)
    edges = pd.DataFrame([(f"n{one}", f"n{other}") for one, other in ends], columns=["source", "target"])
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    truth = pd.DataFrame({"id": nodes["id"], "label": np.tile(["a", "b"], 30)})
    truth.to_csv(tmp_path / "truth.csv", index=False)
    asked = truth.iloc[40:]
    p = np.where(asked["label"] == "b", 0.9, 0.1)
    p[:2] = 0.5  # the only mistake: a tie
    predictions = pd.DataFrame({"node": asked["id"], "p_a": 1 - p, "p_b": p})
    predictions.to_csv(tmp_path / "predictions.csv", index=False)
    monkeypatch.setattr(cases, "RIVALS", {name: RIVALS[name] for name in ("logistic-links", "boosting")})
    return tmp_path


def rows_of(tables: Path, *more: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    edges, nodes, truth = (str(tables / f"{name}.csv") for name in ("edges", "nodes", "truth"))
    given = [str(tables / "predictions.csv"), "--edges", edges, "--features", nodes, "--truth", truth, *more]
    cases.main(given)
    return [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]


def test_scores_are_those_of_the_predicted_nodes(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(tables, "--of", "b", capsys=capsys)
    assert rows[0] == ["method", "average precision of b", "ROC AUC"]
    title, precision, area = rows[2]
    assert title == "`h3gnn predict`"
    assert area.startswith("0.995 ±")  # of 100 pairs one is a tie
    assert precision.startswith("0.991 ±")  # nine nodes with precision 1, one with 10 of 11
    found = {row[0]: float(row[2].split(" ±")[0]) for row in rows[3:]}
    assert found["linear, link columns"] > 0.9 > found["boosting"]  # only links tell the classes apart


def test_tables_of_new_nodes_are_appended(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = rows_of(tables, capsys=capsys)
    nodes = pd.read_csv(tables / "nodes.csv", dtype=str)
    nodes.iloc[:40].to_csv(tables / "nodes.csv", index=False)
    nodes.iloc[40:].to_csv(tables / "new.csv", index=False)
    assert rows_of(tables, "--features", str(tables / "new.csv"), capsys=capsys) == whole


def test_a_truth_that_is_among_the_labels_is_hidden(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def rival(table: Table, nodes: Integers, known: Target) -> Floats:
        seen.extend(nodes)
        return np.full((60, 2), np.log(0.5))

    monkeypatch.setattr(cases, "RIVALS", {"rival": ("rival", rival)})
    nodes = pd.read_csv(tables / "nodes.csv", dtype=str)
    nodes["label"] = np.tile(["a", "b"], 30)
    nodes.to_csv(tables / "nodes.csv", index=False)
    rows_of(tables, capsys=capsys)
    assert seen == list(range(40))
