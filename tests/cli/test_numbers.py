"""Numbers that the method cannot use are rejected before any work."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from h3gnn import H3GNN, Checkpoints, InputError, LossError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.settings import as_plain, kept_for
from h3gnn.training.history import History, Recorder, collapse_epochs
from tests.program import invoke
from tests.rejects import rejects

FIT = "fit synthetic --out run --epochs 1"
FIT_OPTIONS = [
    *("--seed -1", f"--seed {2**32}", "--set random_state=1.5", "--set device=mps", "--set hops=999999"),
    *("--set undirected=maybe", '--set undirected="False"', "--models 100000", f"--channels {10**12}"),
    *("--set learning_rate=NaN", "--set learning_rate=1e999", "--checkpoint-minutes nan"),
    *(f"--device {name}" for name in ("abacus", "mps", "meta", "xla", "cuda:99")),
]
TUNE = "tune synthetic --trials 1 --epochs 1 --choices channels=8"
TUNE_OPTIONS = [
    *("--seed -1", "--models 0", "--splits 0", "--joined 0", "--finalists 0", "--trials 0", "--trials -5"),
    *("--clusters 0", "--minutes nan", "--minutes -1", "--minutes inf"),
    *("--choices undirected=maybe", "--choices hops=999999"),
]
INVALID = [
    *(f"{FIT} {options}" for options in FIT_OPTIONS),
    *(f"{TUNE} {options}" for options in TUNE_OPTIONS),
    *("report run --seed -1", "cluster run --seed -1"),
]


@pytest.mark.parametrize("command", INVALID)
def test_unusable_values_are_rejected_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(InputError):
        assert invoke(*command.split()).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 1.5, "one", 2**32, True, np.float64(3.0)])
def test_a_seed_is_an_integer(seed: object, path_graph: Graph) -> None:
    with rejects("value-invalid"):
        H3GNN(random_state=seed).fit(path_graph)


SMALL: dict[str, object] = {"n_models": 1, "channels": 4, "heads": 2, "device": "cpu", "objective": "teacher"}


def test_numpy_numbers_are_numbers(path_graph: Graph, tmp_path: Path) -> None:
    numpys = {
        **SMALL,
        "learning_rate": np.float32(0.01),
        "epochs": np.int64(2),
        "undirected": np.bool_(True),
        "mask": np.str_("random"),
        "random_state": np.uint32(3),
        "n_models": np.int64(1),
    }
    model = H3GNN.from_settings(numpys)
    found = model.fit(path_graph, checkpoints=Checkpoints(tmp_path / "c", every=1)).embedding_
    model.save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run")
    assert again.embedding_.tobytes() == found.tobytes()
    assert type(again.learning_rate) is float
    assert json.loads(json.dumps(kept_for("log", model.get_settings())))["epochs"] == 2
    assert as_plain((np.int64(1), [np.float32(0.5)])) == [1, [0.5]]


def test_a_loss_that_is_not_finite_ends_the_training(path_graph: Graph) -> None:
    huge = check_graph(path_graph.features * 1e30, path_graph.edge_index)
    seen: list[int] = []
    model = H3GNN.from_settings({**SMALL, "epochs": 50, "scale_features": "none"})
    with pytest.raises(LossError, match=r"model 0 is not finite after epoch (\d+): scale"):
        model.fit(huge, after_epoch_of=lambda _: lambda epoch, recorder: seen.append(epoch))
    assert len(seen) < 3
    assert not hasattr(model, "embedding_")
    H3GNN.from_settings({**SMALL, "epochs": 2}).fit(huge)


def test_the_first_epoch_and_model_with_a_nonfinite_loss() -> None:
    recorder = Recorder()
    recorder.add(loss=torch.tensor([1.0, 2.0]))
    assert recorder.first_nonfinite() is None
    recorder.add(loss=torch.tensor([1.0, 2.0]))
    recorder.add(loss=torch.tensor([1.0, float("inf")]))
    recorder.add(loss=torch.tensor([float("nan"), float("nan")]))
    assert recorder.first_nonfinite() == (2, 1)
    assert recorder.first_nonfinite() == (2, 1)


def test_an_unmeasured_rank_is_no_collapse() -> None:
    history = History({"effective_rank": np.full((3, 2), np.nan), "loss": np.ones((3, 2))})
    assert collapse_epochs(history) == {}
    assert np.isnan(history.last("effective_rank")).all()
