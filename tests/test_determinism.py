"""The same seed gives the same result: what docs/determinism.md promises for a CPU."""

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

SMALL: dict[str, Any] = {"epochs": 4, "channels": 8, "heads": 2, "n_models": 4, "device": "cpu"}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "more", [{}, {"batch_size": 20}, {"precision": "float32"}, {"edge_weights": "learned"}]
)
def test_the_same_seed_twice_is_the_same_bytes(small_mixed: Graph, more: dict[str, Any]) -> None:
    one, other = (H3GNN.from_settings({**SMALL, **more}).fit(small_mixed) for _ in range(2))
    assert one.embedding_.tobytes() == other.embedding_.tobytes()
    for name in one.history_.names:
        assert one.history_[name].tobytes() == other.history_[name].tobytes()
    another = H3GNN.from_settings({**SMALL, **more, "random_state": 1}).fit_transform(small_mixed)
    assert another.tobytes() != one.embedding_.tobytes()


@pytest.mark.parametrize("more", [{}, {"batch_size": 50}])
def test_one_and_two_threads_agree_to_rounding(small_mixed: Graph, more: dict[str, Any]) -> None:
    short, found = SMALL | {"epochs": 2}, []
    for count in (1, 2):
        with threads(count):
            found.append(
                H3GNN.from_settings({**short, **more, "precision": "float32"}).fit_transform(small_mixed)
            )
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_a_comparison_twice_is_the_same(small_mixed: Graph) -> None:
    def made() -> list[Any]:
        model = H3GNN.from_settings(SMALL)
        methods = find_methods("raw,untrained,h3gnn")
        found = compare(methods, small_mixed, seeds=[0], model=model).as_dict()["rows"]
        return [{name: value for name, value in row.items() if name != "seconds"} for row in found]

    assert made() == made()


def test_a_search_twice_is_the_same(small_mixed: Graph) -> None:
    space = Space({"channels": (8,), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8)})

    def made() -> Any:
        study = open_study(small_mixed, "study", None, "validation")
        budget = Budget(trials=4, joined=1, eval_epochs=(1, 2))
        found = tune(small_mixed, study, space, budget, finalists=1, device=torch.device("cpu"))
        return found.params, found.record

    assert made() == made()


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_settings(SMALL).fit(small_mixed)


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (("cluster", "run", "--out", "x.csv"), "x.csv"),
        (("embed", "run", "--out", "x.parquet"), "x.parquet"),
        (("report", "run", "--out", "x.html"), "x.html"),
        (("plot", "run", "--out", "x.png", "--map", "pca"), "x.png"),
        (("plot", "run", "--out", "x.svg", "--kind", "history"), "x.svg"),
    ],
)
def test_commands_write_the_same_bytes(
    fitted: H3GNN,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    written: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    fitted.save("run")
    found = []
    for _ in range(2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        found.append(Path(written).read_bytes())
        Path(written).unlink()
    assert found[0] == found[1]
