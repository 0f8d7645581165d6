from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h3gnn import H3GNN, CheckpointError, Checkpoints, Graph, ModelFolderError
from h3gnn.graphs.checks import check_graph
from h3gnn.storage.models import check_folder
from h3gnn.storage.runs import Run, begin_run, finish_run, read_run
from h3gnn.storage.tensors import read_tensor_file, write_tensor_file
from tests.rejects import rejects

QUICK: dict[str, Any] = {"epochs": 3, "channels": 4, "heads": 2, "device": "cpu", "edge_init": 0.3}


def run_in(out: Path, graph: Graph, **changes: Any) -> Run:
    params = H3GNN.from_preset("single", **{**QUICK, **changes}).get_settings()
    return Run(params, graph, Checkpoints(out / "checkpoints", 7, 2.5, 3, keep_finished=True), out / "e.npy")


def test_a_stored_run_trains_to_the_same_bits(tmp_path: Path) -> None:
    features = sp.random(30, 50, density=0.05, random_state=0, format="csr")
    names = np.array([f"node {i}" for i in range(30)], dtype=object)
    weights = np.array([0.5, 2.0, 1.5], dtype=np.float32)
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    graph = check_graph(features, edges, edge_weight=weights, node_ids=names, labels=[0, 1] * 15)
    begun = run_in(tmp_path / "run", graph)
    begin_run(tmp_path / "run", begun)
    again = read_run(tmp_path / "run")
    assert again.params == begun.params
    assert (again.checkpoints, again.embeddings) == (begun.checkpoints, begun.embeddings)
    assert again.graph.provenance == graph.provenance
    assert isinstance(again.graph, Graph)
    assert again.graph.node_ids.tolist() == names.tolist()
    wanted = H3GNN.from_preset("single", **begun.params).fit_transform(graph)
    found = H3GNN.from_preset("single", **again.params).fit_transform(again.graph)
    assert found.tobytes() == wanted.tobytes()


def test_the_same_run_may_begin_again_with_another_policy(path_graph: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    other = run_in(tmp_path, path_graph, device="auto", verbose=True)
    begin_run(tmp_path, Run(other.params, path_graph, Checkpoints(tmp_path / "checkpoints", 1, None), None))
    assert len(list(tmp_path.glob("checkpoints/start-*"))) == 1
    assert read_run(tmp_path).checkpoints.every == 1


def test_a_tuple_is_read_back_as_a_list(path_graph: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph, batch_size=3, num_neighbors=(4, 3)))
    begin_run(tmp_path, run_in(tmp_path, path_graph, batch_size=3, num_neighbors=(4, 3)))
    assert read_run(tmp_path).params["num_neighbors"] == [4, 3]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_in_the_start_is_rejected(
    path_graph: Graph, tmp_path: Path, data: st.DataObject
) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    (path,) = tmp_path.glob("checkpoints/start-*")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content[: data.draw(st.integers(place + 1, len(content)))])
    with rejects("file-damaged", CheckpointError):
        read_run(tmp_path)


def test_another_run_is_rejected(path_graph: Graph, small_mixed: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    with rejects("other-run") as caught:
        begin_run(tmp_path, run_in(tmp_path, path_graph, epochs=4))
    assert "epochs is 3 there and 4 here" in caught.message
    with rejects("other-run"):
        begin_run(tmp_path, run_in(tmp_path, small_mixed))
    assert read_run(tmp_path).params["epochs"] == 3


def test_a_start_of_another_version_is_rejected_and_stays(path_graph: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    (path,) = tmp_path.glob("checkpoints/start-*")
    tensors, description = read_tensor_file(path)
    path.unlink()
    old = write_tensor_file(path.parent, "start", tensors, {**description, "versions": {"h3gnn": "0.0.1"}})
    with rejects("other-version", CheckpointError):
        read_run(tmp_path)
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    assert old.exists()
    assert read_run(tmp_path).params["epochs"] == 3
    lost = {name: value for name, value in description.items() if name != "params"}
    for start in tmp_path.glob("checkpoints/start-*"):
        start.unlink()
    write_tensor_file(path.parent, "start", tensors, lost)
    with rejects("file-damaged", CheckpointError):
        read_run(tmp_path)


def test_a_finished_run_leaves_the_model_alone(path_graph: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    weights = "weights-0123456789abcdef.safetensors"
    for name in (f".{weights}.x1", ".model.json.abc", weights):  # of a killed save
        (tmp_path / name).write_text("half")
    check_folder(tmp_path)
    H3GNN.from_preset("single", **QUICK).fit(path_graph).save(tmp_path)
    finish_run(tmp_path)
    found = sorted(path.suffix for path in tmp_path.iterdir())
    assert found == [".json", ".json", ".npy", ".safetensors", ".safetensors"]
    with rejects("nothing-to-resume"):
        read_run(tmp_path)


def test_a_folder_with_other_files_is_rejected(path_graph: Graph, tmp_path: Path) -> None:
    begin_run(tmp_path, run_in(tmp_path, path_graph))
    (tmp_path / "best.safetensors").write_text("mine")
    with rejects("folder-not-empty", ModelFolderError):
        check_folder(tmp_path)


def test_a_full_disk_leaves_what_was_there(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    begin_run(tmp_path / "old", run_in(tmp_path / "old", path_graph))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(os, "fsync", full)
    for name in ("old", "new"):
        with rejects("not-writable"):
            begin_run(tmp_path / name, run_in(tmp_path / name, path_graph))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "new").exists()
