"""Models and checkpoints that were changed under a matching hash: one sentence with file and field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from h3gnn import H3GNN, CheckpointError, Checkpoints, Graph, ModelFolderError
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.storage.tensors import read_tensor_file, read_tensors, write_tensor_file

TINY: dict[str, Any] = {"channels": 4, "heads": 2, "n_models": 2, "epochs": 2, "device": "cpu"}
Change = Callable[[dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return mixed_graph(30, words=12, splits=2)


@pytest.fixture(scope="module")
def model(graph: Graph) -> H3GNN:
    return H3GNN.from_settings(TINY).fit(graph)


@pytest.fixture
def saved(model: H3GNN, tmp_path: Path) -> Path:
    model.save(tmp_path / "run")
    return tmp_path / "run"


FIELDS: dict[str, tuple[str, Any, str]] = {
    "channels": ("params", {"channels": -1}, r"params\.channels must be an integer of at least 1, not -1"),
    "heads": ("params", {"heads": 0}, r"params\.heads must be an integer of at least 1, not 0"),
    "hops": ("params", {"hops": 99}, r"params\.hops is 99, more than"),
    "many hops": ("params", {"hops": 10**12}, r"params\.hops must be at most 100, not 1,000,000,000,000"),
    "models": ("params", {"n_models": 9999}, r"params\.n_models is 9999, but 2 in"),
    "many models": ("params", {"n_models": 10**12}, r"params\.n_models must be at most 10,000"),
    "wide": ("params", {"hidden_channels": 10**12}, r"params\.hidden_channels must be at most 262,144"),
    "wider": ("params", {"hidden_channels": 32}, "do not fit the saved settings: encoder"),
    "odd heads": ("params", {"heads": 3}, "in params, channels .4. must be a multiple of heads .3."),
    "no params": ("params", None, "params must be `object`, not `null`"),
    "unknown": ("surprise", 1, "it has the unknown field `surprise`"),
    "deep": ("cost", json.loads("[" * 90 + "]" * 90), r"cost\[.* is nested too deeply"),
    "seeds": ("seeds", [1], r"seeds must have 2 value\(s\), not 1"),
    "scaling": ("scaling", "magic", "scaling has the unknown value"),
    "history": (
        "history",
        {"engine": {}, "columns": {"loss": [[1.0]]}},
        r"history\.columns must have the loss",
    ),
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_changed_field_of_a_model_is_named(saved: Path, case: str) -> None:
    field, value, words = FIELDS[case]
    description = json.loads((saved / "model.json").read_text())
    description[field] = {**description[field], **value} if field == "params" and value else value
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises((ModelFolderError, ValueError), match=words) as caught:
        H3GNN.load(saved)
    assert "\n" not in str(caught.value)


def change_file(folder: Path, stem: str, change: Change) -> None:
    (path,) = folder.glob(f"{stem}-*")
    tensors, _ = read_tensors(path, ModelFolderError)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    path.unlink()
    named = write_tensor_file(folder, stem, tensors).name
    description = folder / "model.json"
    description.write_text(description.read_text().replace(path.name, named))


def put(name: str, at: Any, value: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name][at] = value

    return change


def replace(name: str, made: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: made(tensors[name])})


TENSORS: dict[str, tuple[str, Change, str]] = {
    "edge out of range": (
        "graph",
        put("edge_index", (1, -1), 30),
        "edge_index holds 30, which is not in 0 to 29",
    ),
    "unsorted": (
        "graph",
        replace("edge_index", lambda one: one.flip(1)),
        "edge_index is not sorted by target",
    ),
    "label": ("graph", put("labels", 0, 99), "labels holds 99"),
    "nan": ("graph", put("features", (0, 0), float("nan")), "features holds NaN or infinity"),
    "type": ("graph", replace("labels", Tensor.double), "labels holds float64 instead of int64"),
    "shape": ("graph", replace("labels", lambda one: one[:-1]), r"labels has shape \[29\] instead of \[30\]"),
    "mask": ("graph", replace("val_mask", torch.ones_like), "train_mask overlaps val_mask"),
    "more": ("graph", lambda tensors: tensors.update(new=torch.zeros(1)), "new is unexpected"),
    "ids": (
        "graph",
        lambda tensors: tensors.update(node_ids=torch.frombuffer(bytearray(b"[1,"), dtype=torch.uint8)),
        "node_ids is not a list in JSON",
    ),
    "weights": (
        "weights",
        put("encoder.linear_bias", (0, 0, 0), float("inf")),
        "linear_bias holds NaN or infinity",
    ),
    "no bias": (
        "weights",
        lambda tensors: tensors.pop("encoder.linear_bias"),
        "encoder.linear_bias is missing",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_changed_tensor_of_a_model_is_named(saved: Path, case: str) -> None:
    stem, change, words = TENSORS[case]
    if case == "nan":  # of dense features
        H3GNN.from_settings(TINY).fit(torch.rand(30, 3).numpy()).save(saved)
    change_file(saved, stem, change)
    with pytest.raises(ModelFolderError, match=words) as caught:
        H3GNN.load(saved)
    assert re.search(rf"{stem}-[0-9a-f]{{16}}\.safetensors", str(caught.value))


STATES: dict[str, tuple[Change, str]] = {
    "strides": (put("strides/nodes", 0, 10**12), "strides/nodes is not a contiguous layout"),
    "generator": (
        replace("generators/0", lambda one: torch.full_like(one, 255)),
        "generators/0 is not the state of a generator",
    ),
    "steps": (replace("adam/0.step", lambda one: one - 99), "adam/0.step has a negative value"),
    "epochs": (put("history/loss.epochs", -1, 10**12), "its history has 1000000000001 epochs"),
    "growing": (
        replace("history/loss.epochs", lambda one: torch.tensor([6 * 10**18, -6 * 10**18])[: len(one)]),
        r"history/loss.epochs are not in ascending order",
    ),
    "moments": (put("moments/0.exp_avg", (0, 0), float("nan")), "moments/0.exp_avg holds NaN or infinity"),
    "type": (replace("student/linear_bias", Tensor.double), "student/linear_bias holds float64"),
}


@pytest.fixture(scope="module")
def checkpoint(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(folder, every=2, keep_finished=True)
    H3GNN.from_preset("single", **TINY).fit(graph, checkpoints=checkpoints)
    return next(folder.glob("epoch-*"))


@pytest.mark.parametrize("case", [*STATES, "fingerprint", "columns", "epoch"])
def test_a_changed_checkpoint_is_rejected(graph: Graph, checkpoint: Path, tmp_path: Path, case: str) -> None:
    tensors, description = read_tensor_file(checkpoint)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    words = f"{case} must be|{case} is "
    if case in STATES:
        change, words = STATES[case]
        change(tensors)
    else:
        description[case] = {"fingerprint": None, "columns": "loss", "epoch": 7}[case]
    write_tensor_file(tmp_path, "epoch-00000002", tensors, description)
    with pytest.raises(CheckpointError, match=words):
        H3GNN.from_preset("single", **TINY).fit(graph, checkpoints=Checkpoints(tmp_path))
