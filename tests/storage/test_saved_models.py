from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from h3gnn import H3GNN, Graph, ModelFolderError
from h3gnn.graphs.checks import check_graph
from h3gnn.settings import BEFORE
from h3gnn.storage.atomic import write_atomically
from tests.program import run
from tests.rejects import rejects

QUICK: dict[str, Any] = {"epochs": 3, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_preset("single", **QUICK, n_models=2, batch_norm=True).fit(small_mixed)


def test_a_loaded_model_equals_the_saved_one(fitted: H3GNN, small_mixed: Graph, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run")
    np.testing.assert_allclose(again.embedding_, fitted.embedding_, atol=1e-6)
    assert again.get_params() == fitted.get_params()
    assert again.graph_.provenance == small_mixed.provenance
    assert again.graph_.class_names == small_mixed.class_names
    np.testing.assert_array_equal(again.history_["loss"], fitted.history_["loss"])
    np.testing.assert_allclose(again.transform(small_mixed), fitted.embedding_, atol=1e-6)


def test_sparse_features_and_ids_are_loaded(tmp_path: Path) -> None:
    features = sp.random(30, 50, density=0.05, random_state=0, format="csr")
    names = np.array([f"node {i}" for i in range(30)], dtype=object)
    graph = check_graph(features, np.array([[0, 1, 2], [1, 2, 3]]), node_ids=names)
    H3GNN.from_preset("single", **QUICK).fit(graph).save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run")
    assert again.graph_.node_ids.tolist() == names.tolist()
    assert again.graph_.features.layout == graph.features.layout
    assert (again.graph_.dense_features() == graph.dense_features()).all()


def test_numbers_to_predict_are_loaded(tmp_path: Path) -> None:
    targets = np.array([1.5, np.nan, -2.25, 1e300])
    graph = check_graph(np.eye(4), np.array([[0, 1], [1, 2]]), targets=targets, target_name="price")
    H3GNN.from_preset("single", **QUICK).fit(graph).save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run").graph_
    np.testing.assert_array_equal(again.targets, targets)
    assert (again.target_name, again.labels, again.provenance) == ("price", None, graph.provenance)


def test_a_loaded_table_model_transforms_new_rows(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4))
    model = H3GNN.from_preset("single", **QUICK).fit(rows)
    model.save(tmp_path / "run")
    new = np.random.default_rng(1).normal(size=(3, 4))
    np.testing.assert_allclose(H3GNN.load(tmp_path / "run").transform(new), model.transform(new), atol=1e-5)


def test_saving_again_replaces_and_leaves_nothing_behind(
    fitted: H3GNN, path_graph: Graph, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    H3GNN.from_preset("single", **QUICK).fit(path_graph).save(tmp_path)
    assert H3GNN.load(tmp_path).graph_.num_nodes == 5
    found = sorted(path.suffix for path in tmp_path.iterdir())
    assert found == [".json", ".json", ".npy", ".safetensors", ".safetensors"]


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes the description in a folder."""

    def edit(folder: Path) -> None:
        description = json.loads((folder / "model.json").read_text())
        change(description)
        (folder / "model.json").write_text(json.dumps(description))

    return edit


def flip_byte(folder: Path) -> None:
    weights = next(folder.glob("weights-*"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 0xFF
    weights.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (flip_byte, "file-damaged"),
    "truncated": (lambda folder: os.truncate(next(folder.glob("weights-*")), 1000), "file-damaged"),
    "missing": (lambda folder: next(folder.glob("weights-*")).unlink(), "file-missing"),
    "half a description": (lambda folder: os.truncate(folder / "model.json", 200), "file-damaged"),
    "foreign": (lambda folder: (folder / "model.json").write_text('{"a": ["Bert"]}'), "file-foreign"),
    "newer": (edited(lambda content: content.update(format_version=99)), "format-version"),
    "missing field": (edited(lambda content: content.pop("history")), "file-damaged"),
    "other settings": (edited(lambda content: content["params"].update(channels=16)), "file-damaged"),
    "other folder": (edited(lambda content: content["files"].update(weights="../../passwd")), "file-damaged"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_foreign_folder_is_rejected(fitted: H3GNN, tmp_path: Path, case: str) -> None:
    damage, code = DAMAGE[case]
    fitted.save(tmp_path)
    damage(tmp_path)
    with rejects(code, ModelFolderError) as caught:
        H3GNN.load(tmp_path)
    assert {"other settings": "params.channels", "other folder": "files.weights"}.get(
        case, ""
    ) in caught.message


def test_folders_without_a_model_are_rejected(fitted: H3GNN, tmp_path: Path) -> None:
    with rejects("folder-missing", ModelFolderError):
        H3GNN.load(tmp_path / "nowhere")
    with rejects("model-missing", ModelFolderError):
        H3GNN.load(tmp_path)
    (tmp_path / "file").write_text("x")
    with rejects("not-a-folder", ModelFolderError):
        fitted.save(tmp_path / "file")
    with rejects("folder-not-empty", ModelFolderError):
        fitted.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def broken(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, b"new and longer")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


KILLED_SAVE = """
import os, signal, sys
from pathlib import Path
from h3gnn import H3GNN
model = H3GNN.load(sys.argv[1])
model.encoder_.linear_bias.data += 1.0
calls = 0
replace = Path.replace
def dying(self, target):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = dying
model.save(sys.argv[1])
"""


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_kill_in_the_middle_of_saving_leaves_the_old_model(
    path_graph: Graph, tmp_path: Path, moment: int
) -> None:
    H3GNN.from_preset("single", **QUICK).fit(path_graph).save(tmp_path)
    before = H3GNN.load(tmp_path).embedding_
    outcome = run(tmp_path, moment, cwd=tmp_path, code=KILLED_SAVE)
    assert outcome.returncode == -signal.SIGKILL, outcome.stderr
    np.testing.assert_array_equal(H3GNN.load(tmp_path).embedding_, before)


def test_a_model_without_newer_settings_loads(small_mixed: Graph, tmp_path: Path) -> None:
    fitted = H3GNN.from_preset("single", epochs=2, channels=8, n_models=2).fit(small_mixed)
    fitted.save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    for name in BEFORE:
        del description["params"][name]
    (tmp_path / "model.json").write_text(json.dumps(description))
    np.testing.assert_array_equal(H3GNN.load(tmp_path).embedding_, fitted.embedding_)
