"""The same seed gives the same result on a CPU, as docs/determinism.md promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from h3gnn import H3GNN
from h3gnn.cli.app import app
from h3gnn.experiments.compare import compare
from h3gnn.experiments.methods import find_methods
from h3gnn.experiments.spaces import Space
from h3gnn.experiments.studies import open_study
from h3gnn.experiments.tune import Budget, tune
from h3gnn.graphs.graph import Graph

SMALL: dict[str, Any] = {"epochs": 2, "channels": 8, "heads": 2, "n_models": 4, "device": "cpu"}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"batch_size": 50},
        {"precision": "float32", "token_dropout": 0.3, "attention_dropout": 0.3},
        {"edge_weights": "learned"},
    ],
    ids=["default", "batches", "dropout", "learned edges"],
)
def test_the_same_seed_gives_the_same_bytes(small_mixed: Graph, more: dict[str, Any]) -> None:
    one, other = (H3GNN.from_settings({**SMALL, **more}).fit(small_mixed) for _ in range(2))
    assert one.embedding_.tobytes() == other.embedding_.tobytes()
    for name in one.history_.names:
        assert one.history_[name].tobytes() == other.history_[name].tobytes()
    another = H3GNN.from_settings({**SMALL, **more, "random_state": 1}).fit_transform(small_mixed)
    assert another.tobytes() != one.embedding_.tobytes()


@pytest.mark.parametrize("more", [{}, {"batch_size": 50}])
def test_one_and_two_threads_agree_to_rounding(small_mixed: Graph, more: dict[str, Any]) -> None:
    embeddings = []
    for count in (1, 2):
        with threads(count):
            model = H3GNN.from_settings({**SMALL, **more, "precision": "float32"})
            embeddings.append(model.fit_transform(small_mixed))
    np.testing.assert_allclose(embeddings[0], embeddings[1], atol=1e-3)


def test_a_comparison_is_repeatable(small_mixed: Graph) -> None:
    def rows() -> list[Any]:
        model, methods = H3GNN.from_settings(SMALL), find_methods("raw,untrained,h3gnn")
        compared = compare(methods, small_mixed, seeds=[0], model=model).as_dict()["rows"]
        return [{name: value for name, value in row.items() if name != "seconds"} for row in compared]

    assert rows() == rows()


def test_a_search_is_repeatable(small_mixed: Graph) -> None:
    space = Space({"channels": (8,), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8)})

    def search() -> Any:
        study = open_study(small_mixed, "study", None, "validation")
        budget = Budget(trials=4, joined=1, eval_epochs=(1, 2))
        best = tune(small_mixed, study, space, budget, finalists=1, device=torch.device("cpu"))
        return best.params, best.record

    assert search() == search()


@pytest.fixture(scope="module")
def run_folder(small_mixed: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("determinism") / "run"
    H3GNN.from_settings(SMALL | {"n_models": 1}).fit(small_mixed).save(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("cluster", "--out x.csv"),
        ("embed", "--out x.parquet"),
        ("report", "--out x.html"),
        ("plot", "--out x.png --map pca"),
        ("plot", "--out x.svg --kind history"),
    ],
)
def test_commands_write_the_same_bytes(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, more: str
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = []
    for _ in range(2):
        done = CliRunner().invoke(app, [command, str(run_folder), *more.split()])
        assert done.exit_code == 0, done.output
        (written,) = tmp_path.glob("x.*")
        contents.append(written.read_bytes())
        written.unlink()
    assert contents[0] == contents[1]
