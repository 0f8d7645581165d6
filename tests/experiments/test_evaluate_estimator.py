"""Training for several seeds and judging: groups of models, and which epochs are shown."""

from __future__ import annotations

from typing import Any

import pytest

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.protocols import PUBLISHED
from h3gnn.evaluation.results import Result
from h3gnn.experiments.methods import fit_and_judge, snapshot_epochs
from h3gnn.experiments.run import build_judge, run_method
from h3gnn.graphs.graph import Graph

MODEL: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 4, "n_models": 3, "device": "cpu"}


def test_snapshots_are_evenly_spaced_and_end_with_the_last() -> None:
    assert snapshot_epochs(100, 4) == [25, 50, 75, 100]
    assert snapshot_epochs(3, 20) == [1, 2, 3]
    assert snapshot_epochs(0, 20) == [0]


def test_models_trained_in_groups_are_judged_together(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, grouped = (build_judge(small_mixed, protocol=PUBLISHED, parts=3) for _ in range(2))
    fit_and_judge(H3GNN.from_preset("single", **MODEL), small_mixed, together)
    monkeypatch.setattr("h3gnn.training.models.models_at_once", lambda *_, **__: 2)
    fit_and_judge(H3GNN.from_preset("single", **MODEL), small_mixed, grouped)
    assert list(together.by_epoch) == list(grouped.by_epoch) == [1, 2, 3, 4]
    width = 3 * (2 + 2) * 8
    for judge in (together, grouped):
        assert judge.kept is not None
        assert judge.kept[1].shape == (100, width)
    assert together.result().scores.accuracy == pytest.approx(grouped.result().scores.accuracy, abs=0.06)


def test_a_result_says_where_it_came_from(small_mixed: Graph) -> None:
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


def test_a_graph_without_splits_is_refused(path_graph: Graph) -> None:
    with pytest.raises(InputError, match="no splits"):
        build_judge(path_graph)
