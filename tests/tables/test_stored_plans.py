"""Plans of tables in saved models: restored unchanged, and rejected with the field that was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn import H3GNN, Checkpoints, ModelFolderError
from h3gnn.storage.graphs import STATES
from h3gnn.storage.runs import Run, begin_run, read_run
from h3gnn.storage.tensors import read_tensors, write_tensor_file
from h3gnn.tables.plan import encode_table
from tests.storage.mixed import ENCODERS, mixed_table, mixed_table_graph

TINY: dict[str, Any] = {"channels": 4, "heads": 2, "n_models": 2, "epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "run"
    H3GNN.from_settings(TINY).fit(mixed_table_graph()).save(folder)
    return folder


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the description of a saved model."""
    path = folder / "model.json"
    stored = json.loads(path.read_text())
    edit(stored)
    path.write_text(json.dumps(stored))


@pytest.fixture
def saved(fitted: Path, tmp_path: Path) -> Path:
    return shutil.copytree(fitted, tmp_path / "run")


def test_plan_and_feature_names_are_restored(saved: Path) -> None:
    graph, model = mixed_table_graph(), H3GNN.load(saved)
    assert graph.plan is not None
    assert [column.encoder for column in graph.plan.columns] == ENCODERS
    assert {*ENCODERS, "sentences"} == {*STATES, ""}
    back = model.graph_.plan
    assert back.as_dict() == graph.plan.as_dict()
    assert model.graph_.feature_names == graph.feature_names
    before, after = (encode_table(mixed_table(), plan)[0] for plan in (graph.plan, back))
    assert np.array_equal(before, after)


def test_an_unfinished_run_keeps_the_plan(tmp_path: Path) -> None:
    graph = mixed_table_graph()
    begin_run(
        tmp_path,
        Run(H3GNN.from_settings(TINY).get_settings(), graph, Checkpoints(tmp_path / "checkpoints"), None),
    )
    back = read_run(tmp_path).graph
    assert graph.plan is not None
    assert back.plan is not None
    assert back.plan.as_dict() == graph.plan.as_dict()
    assert back.feature_names == graph.feature_names


def test_a_model_without_a_plan_is_loaded(tmp_path: Path) -> None:
    H3GNN.from_settings(TINY).fit(np.random.default_rng(0).normal(size=(20, 3))).save(tmp_path)
    change(tmp_path, lambda stored: (stored.pop("feature_names"), stored.pop("plan", None)))
    graph = H3GNN.load(tmp_path).graph_
    assert graph.plan is None
    assert graph.feature_names == ()


WORDS: dict[str, tuple[int, dict[str, Any], str]] = {
    "kind": (0, {"kind": "magic"}, r"plan\.columns\[0\]\.kind "),
    "encoder": (0, {"encoder": "magic"}, r"plan\.columns\[0\]\.encoder "),
    "another encoder": (2, {"encoder": "date"}, r"plan\.columns\[2\]\.encoder is 'date', which does not fit"),
    "no vector": (5, {"form": ""}, r"plan\.columns\[5\]\.encoder is 'vector', which does not fit"),
    "left out": (0, {"encoder": ""}, r"plan\.columns\[0\]\.names must be empty for an unused column"),
    "names": (2, {"names": ["a"]}, r"plan\.columns\[2\]\.names must have 3 value\(s\), not 1"),
    "more": (2, {"surprise": 1}, r"plan\.columns\[2\] .*surprise"),
    "learned": (0, {"plain": {}}, r"plan\.columns\[0\]\.plain .*fill"),
    "said": (0, {"said": "yes"}, r"plan\.columns\[0\]\.said "),
    "used": (7, {"encoder": "plain", "names": ["same"]}, r"plan has \d+ features, but the graph has \d+"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_changed_field_of_a_plan_is_rejected(saved: Path, case: str) -> None:
    at, fields, words = WORDS[case]
    change(saved, lambda stored: stored["plan"]["columns"][at].update(fields))
    with pytest.raises(ModelFolderError, match=words):
        H3GNN.load(saved)


@pytest.mark.parametrize(("name", "value"), [("scale", 0.0), ("scale", -1), ("gaps", 1), ("mean", "a")])
def test_a_changed_value_of_an_encoder_is_rejected(saved: Path, name: str, value: object) -> None:
    change(saved, lambda stored: stored["plan"]["columns"][0]["plain"].update({name: value}))
    with pytest.raises(ModelFolderError, match=rf"plan\.columns\[0\]\.plain\.{name} must be"):
        H3GNN.load(saved)


def test_too_few_feature_names_are_rejected(saved: Path) -> None:
    change(saved, lambda stored: stored["feature_names"].pop())
    with pytest.raises(ModelFolderError, match=r"feature_names has \d+ names for \d+ features"):
        H3GNN.load(saved)


ARRAYS: dict[str, tuple[str, Any, str]] = {
    "bucket": ("plan.6.used", lambda one: one + 2**20, "plan.6.used holds .*, which is not in 0 to 32767"),
    "type": ("plan.6.weight", Tensor.double, "plan.6.weight holds float64 instead of float32"),
    "shape": ("plan.6.directions", lambda one: one[:, 1:], "plan.6.directions has shape"),
    "width": ("plan.6.directions", lambda one: one[1:], r"plan\.columns\[6\]\.names must have"),
    "nan": ("plan.5.mean", lambda one: one * float("nan"), "plan.5.mean holds NaN or infinity"),
    "missing": ("plan.5.mean", None, "plan.5.mean is missing"),
    "of no column": ("plan.99.mean", torch.ones_like, "plan.99.mean is unexpected"),
    "of another": ("plan.0.mean", torch.ones_like, "plan.0.mean is unexpected"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_a_changed_array_of_a_plan_is_rejected(saved: Path, case: str) -> None:
    name, edit, words = ARRAYS[case]
    (path,) = saved.glob("graph-*")
    tensors, _ = read_tensors(path, ModelFolderError)
    tensors = {one: tensor.clone() for one, tensor in tensors.items()}
    if edit is None:
        tensors.pop(name)
    else:
        tensors[name] = edit(tensors.get(name, torch.zeros(1))).contiguous()
    path.unlink()
    named = write_tensor_file(saved, "graph", tensors).name
    description = saved / "model.json"
    description.write_text(description.read_text().replace(path.name, named))
    with pytest.raises(ModelFolderError, match=words):
        H3GNN.load(saved)


def test_arrays_without_a_plan_are_rejected(saved: Path) -> None:
    change(saved, lambda stored: stored.pop("plan"))
    with pytest.raises(ModelFolderError, match=r"plan\.\d\.\w+ is unexpected"):
        H3GNN.load(saved)
