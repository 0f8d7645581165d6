from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.encode import GraphRows
from h3gnn.errors import InputError, ModelFolderError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.mapped import MappedFeatures, MappedGraph, open_mapped
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.tables.read import read_graph
from h3gnn.training.models import files_in
from h3gnn.training.step import MaskStrategy, Step
from tests.rejects import rejects

QUICK: dict[str, Any] = {"epochs": 3, "channels": 8, "batch_size": 30, "device": "cpu"}
QUICK |= {"edge_weights": "fixed"}


def prepared(graph: Graph, folder: Path) -> MappedGraph:
    source, target = graph.edge_index.numpy()
    pd.DataFrame({"source": source, "target": target}).to_csv(folder / "e.csv", index=False)
    np.save(folder / "f.npy", graph.dense_features().numpy())
    return prepare_graph(folder / "e.csv", folder / "f.npy", folder / "graph")


def joined(model: H3GNN) -> np.ndarray:
    return np.concatenate(list(model.embedding_chunks()))


@pytest.mark.parametrize("batches", ["neighbours", "clusters"])
@pytest.mark.parametrize("self_loops", [False, True])
def test_a_graph_on_disk_gives_the_same_model(
    small_mixed: Graph, tmp_path: Path, batches: str, self_loops: bool
) -> None:
    if batches == "clusters":
        pytest.importorskip("pymetis")
    settings = {**QUICK, "batches": batches, "self_loops": self_loops, "n_models": 2}
    inside = H3GNN.from_preset("single", **settings).fit(small_mixed)
    outside = H3GNN.from_preset("single", **settings).fit(small_mixed)
    outside.fit(prepared(small_mixed, tmp_path))  # replaces the first fit
    assert not hasattr(outside, "embedding_")
    np.testing.assert_allclose(joined(outside), inside.embedding_, atol=1e-5)
    np.testing.assert_allclose(outside.history_["loss"], inside.history_["loss"], rtol=1e-4)


def test_standardized_and_smoothed_columns_equal_those_in_memory(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjacency = torch.eye(100).index_put_(tuple(small_mixed.edge_index), torch.ones(1), accumulate=True)
    alike = adjacency @ adjacency @ torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
    small_mixed = replace(small_mixed, features=alike)
    monkeypatch.setattr("h3gnn.inference.CHUNK", 7)
    settings = {**QUICK, "n_models": 4, "smoothing": "auto", "tokens": True}
    inside = H3GNN.from_settings(settings).fit(small_mixed)
    outside = H3GNN.from_settings(settings).fit(prepared(small_mixed, tmp_path))
    assert outside.smoothing_ == inside.smoothing_ > 0
    np.testing.assert_allclose(joined(outside), inside.embedding_, atol=1e-5)
    with outside.embedding_rows() as rows:
        np.testing.assert_array_equal(rows, joined(outside))
    few = outside.set_params(memory="1KB")  # arrays over all nodes in files
    np.testing.assert_allclose(joined(few), inside.embedding_, atol=1e-5)


@pytest.mark.parametrize("words", [True, False])
def test_sparse_features_on_disk_train_as_in_memory(small_mixed: Graph, tmp_path: Path, words: bool) -> None:
    """Zeros and ones stay as they are; counts are scaled by rows."""
    stored: Any = sp.random(100, 80, 0.05, "csr", random_state=0)
    stored.data = np.ones_like(stored.data) if words else 1 + np.round(9 * stored.data)
    sp.save_npz(tmp_path / "f.npz", stored)
    source, target = small_mixed.edge_index.numpy()
    pd.DataFrame({"source": source, "target": target}).to_csv(tmp_path / "e.csv", index=False)
    graph = read_graph(tmp_path / "e.csv", features=tmp_path / "f.npz")
    mapped = prepare_graph(tmp_path / "e.csv", tmp_path / "f.npz", tmp_path / "graph")
    assert isinstance(mapped.features, MappedFeatures)
    torch.testing.assert_close(
        mapped.features[np.array([7, 0, 7])].to_dense(), graph.dense_features()[[7, 0, 7]]
    )
    inside, outside = (H3GNN.from_preset("single", **QUICK).fit(one) for one in (graph, mapped))
    assert outside.scaler_.kind == inside.scaler_.kind == ("none" if words else "rows")
    np.testing.assert_allclose(joined(outside), inside.embedding_, atol=1e-5)
    wide = np.fromfile(mapped.folder / "feature-cols.bin", dtype=np.int32)
    (wide + 80).tofile(mapped.folder / "feature-cols.bin")
    with pytest.raises(InputError, match=r"feature-cols.bin is damaged"):
        H3GNN.from_preset("single", **QUICK).fit(open_mapped(mapped.folder))


def as_tables(graph: Graph, folder: Path, names: list[str], order: list[int]) -> tuple[Path, Path]:
    folder.mkdir()
    ids = np.array(names)
    source, target = graph.edge_index.numpy()
    columns = {f"f{i}": graph.dense_features()[:, i].numpy() for i in order}
    pd.DataFrame({"source": ids[source], "target": ids[target]}).to_csv(folder / "e.csv", index=False)
    pd.DataFrame({"id": ids, **columns}).to_csv(folder / "f.csv", index=False)
    return folder / "e.csv", folder / "f.csv"


@pytest.mark.parametrize(
    "settings", [{"edge_weights": "computed"}, {"objective": ["teacher", "edges"]}], ids=str
)
def test_another_graph_on_disk_is_embedded_as_in_memory(
    small_mixed: Graph, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Half of its nodes and edges are known, and its columns have another order."""
    nodes, width = small_mixed.num_nodes, small_mixed.num_features
    names = [f"n{i}" for i in range(nodes)]
    fitted = as_tables(small_mixed, tmp_path / "a", names, list(range(width)))
    changed = replace(small_mixed, edge_index=small_mixed.edge_index[:, ::2])
    renamed = [name if i % 2 else f"new {i}" for i, name in enumerate(names)]
    other = as_tables(changed, tmp_path / "b", renamed, list(range(width))[::-1])
    in_memory = [read_graph(edges, features=features) for edges, features in (fitted, other)]
    in_files = [prepare_graph(*one, one[0].parent / "graph") for one in (fitted, other)]
    how = {**QUICK, "n_models": 2, "edge_rate": 30.0, "smoothing": 0.4, **settings}
    inside, outside = H3GNN.from_settings(how).fit(in_memory[0]), H3GNN.from_settings(how).fit(in_files[0])
    wanted = inside.transform(in_memory[1])
    for model in (inside, outside):
        np.testing.assert_allclose(
            np.concatenate(list(model.embedding_chunks(in_files[1]))), wanted, atol=2e-5
        )
    np.testing.assert_allclose(outside.transform(in_memory[1]), wanted, atol=2e-5)
    assert np.abs(wanted - inside.embedding_).max() > 0.1


def test_a_graph_on_disk_with_other_columns_is_rejected(small_mixed: Graph, tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(small_mixed.num_nodes)]
    tables = [as_tables(small_mixed, tmp_path / str(count), names, list(range(count))) for count in (5, 4)]
    fitted, fewer = (prepare_graph(*one, one[0].parent / "graph") for one in tables)
    model = H3GNN.from_preset("single", **{**QUICK, "epochs": 0}).fit(fitted)
    with pytest.raises(InputError, match="'f4' is missing"):
        next(model.embedding_chunks(fewer))
    mixed = pd.DataFrame({"colour": ["red", "blue"] * 50, "f": np.arange(100.0)})
    encoded = H3GNN.from_preset("single", **{**QUICK, "epochs": 0})
    encoded.fit(mixed, edge_index=small_mixed.edge_index.numpy())
    with pytest.raises(InputError, match="prepare both"):
        next(encoded.embedding_chunks(fitted))


def test_a_budget_decides_how_many_models_train_at_once(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**QUICK, "batch_size": None, "n_models": 3, "precision": "float32"}
    plain = H3GNN.from_preset("single", **settings).fit(small_mixed)
    monkeypatch.setattr("h3gnn.training.models.pick_group", lambda *_: (2, 40))
    in_groups = H3GNN.from_preset("single", **settings, memory="1GB").fit(small_mixed)
    assert in_groups.history_.engine["models_at_once"] == 2
    np.testing.assert_allclose(in_groups.embedding_, plain.embedding_, atol=1e-4)


@pytest.mark.parametrize(("machine", "files"), [(10**9, 0), (10**5, 1)])
def test_without_a_budget_large_arrays_are_in_files(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: int, files: int
) -> None:
    """100 nodes, 32 columns of a layer and of the embedding: 25,600 bytes, more than a quarter of 10⁵."""
    made = []

    def in_files(folder: Path) -> Any:
        made.append(folder)
        return files_in(folder)

    monkeypatch.setattr("h3gnn.inference.physical_memory", lambda: machine)
    monkeypatch.setattr("h3gnn.inference.files_in", in_files)
    model = H3GNN.from_preset("single", **QUICK).fit(prepared(small_mixed, tmp_path))
    joined(model)
    assert len(made) == files


def test_the_history_records_the_engine(small_mixed: Graph) -> None:
    model = H3GNN.from_preset("single", **QUICK, n_models=2, precision="bfloat16").fit(small_mixed)
    engine = {"device": "cpu", "precision": "bfloat16", "models_at_once": 2, "processes": 1}
    assert model.history_.engine == engine
    assert not model.encoder_.fuse_in_bfloat16


def test_a_model_of_a_graph_on_disk_is_saved_and_loaded(small_mixed: Graph, tmp_path: Path) -> None:
    model = H3GNN.from_preset("single", **QUICK).fit(prepared(small_mixed, tmp_path))
    model.save(tmp_path / "run")
    again = H3GNN.load(tmp_path / "run")
    np.testing.assert_array_equal(joined(again), joined(model))
    assert not any("features" in path.name for path in (tmp_path / "run").iterdir())
    with rejects("graph-on-disk"):
        again.transform(model.graph_)
    with rejects("graph-on-disk"):
        again.transform(small_mixed.features)
    with rejects("graph-on-disk"):
        again.attention()
    (tmp_path / "y.csv").write_text("id,label\n0,a\n5,b\n")
    tables = (tmp_path / "e.csv", tmp_path / "f.npy", tmp_path / "graph")
    labelled = prepare_graph(*tables, labels=tmp_path / "y.csv")
    assert labelled.provenance.sha256 != labelled.unlabelled == model.graph_.provenance.sha256
    np.testing.assert_array_equal(joined(H3GNN.load(tmp_path / "run")), joined(model))  # labels may be added
    np.save(tmp_path / "f.npy", torch.randn(small_mixed.num_nodes, 3).numpy())
    prepare_graph(tmp_path / "e.csv", tmp_path / "f.npy", tmp_path / "graph")
    with rejects("other-graph", ModelFolderError):
        H3GNN.load(tmp_path / "run")


@pytest.mark.parametrize("dimensions", [None, 5])
def test_similar_nodes_of_a_graph_on_disk_are_those_in_memory(
    small_mixed: Graph, tmp_path: Path, dimensions: int | None
) -> None:
    ones = (small_mixed.dense_features() > 0.5).float()
    graph = replace(small_mixed, features=torch.cat([small_mixed.dense_features(), ones], dim=1))
    settings = {**QUICK, "dimensions": dimensions}
    inside = H3GNN.from_preset("single", **settings).fit(graph)
    outside = H3GNN.from_preset("single", **settings).fit(prepared(graph, tmp_path))
    outside.save(tmp_path / "run")
    expected = inside.similar([3, 50], 4)
    for model in (outside, H3GNN.load(tmp_path / "run")):
        found = model.similar([3, 50], 4)
        assert list(found) == [name for name in expected if not str(name).startswith("listens")]
        exact = ["node", "similar", "rank", "linked", "shared_neighbours", "neighbours", "features"]
        pd.testing.assert_frame_equal(found[exact], expected[exact])
        pd.testing.assert_frame_equal(found, expected[list(found)], check_exact=False, atol=1e-4)
    assert outside.similar(3, 2, among=[5, 6])["similar"].isin([5, 6]).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize(
    ("bounded", "at_a_time"), [({"memory": "1GB"}, 7), ({"batch_size": 30}, 7), ({}, 100)], ids=str
)
def test_a_loaded_model_reads_as_many_rows_at_a_time_as_in_the_fit(
    small_mixed: Graph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bounded: dict[str, Any],
    at_a_time: int,
    smoothing: float,
) -> None:
    monkeypatch.setattr("h3gnn.inference.CHUNK", 7)
    settings = {**QUICK, "batch_size": None, **bounded, "smoothing": smoothing}
    model = H3GNN.from_preset("single", **settings).fit(small_mixed)
    model.save(tmp_path / "run", embedding="none")
    read: list[int] = []
    usual = GraphRows.rows

    def watched(graph: GraphRows, first: int, last: int, device: torch.device) -> FeatureMatrix:
        read.append(last - first)
        return usual(graph, first, last, device)

    monkeypatch.setattr(GraphRows, "rows", watched)
    loaded = H3GNN.load(tmp_path / "run")
    assert max(read) == at_a_time
    np.testing.assert_array_equal(loaded.embedding_, model.embedding_)


def test_mini_batches_resume_from_a_checkpoint(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**QUICK, "epochs": 6, "token_dropout": 0.2}
    whole = H3GNN.from_preset("single", **settings).fit(small_mixed)
    made, usual = [0], Step.__call__

    def dying(step: Step, strategy: MaskStrategy) -> torch.Tensor:
        made[0] += 1
        if made[0] == 4:
            raise RuntimeError("power cut")
        return usual(step, strategy)

    monkeypatch.setattr(Step, "__call__", dying)
    policy = Checkpoints(tmp_path / "checkpoints", every=1)
    with pytest.raises(RuntimeError, match="power cut"):
        H3GNN.from_preset("single", **settings).fit(small_mixed, checkpoints=policy)
    monkeypatch.setattr(Step, "__call__", usual)
    resumed = H3GNN.from_preset("single", **settings).fit(small_mixed, checkpoints=policy)
    np.testing.assert_array_equal(resumed.embedding_, whole.embedding_)


def test_the_loss_decreases_in_mini_batches(small_mixed: Graph) -> None:
    model = H3GNN.from_preset("single", **{**QUICK, "epochs": 20, "num_neighbors": 4}).fit(small_mixed)
    losses = model.history_["loss"][:, 0]
    assert losses[-1] < losses[0]
    assert model.embedding_.shape == (100, 32)
    np.testing.assert_array_equal(model.transform(small_mixed), model.embedding_)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "batch_size": ({"batch_size": 0}, "batch_size must be an integer"),
    "num_neighbors": ({"num_neighbors": 0}, "num_neighbors must be"),
    "depth": ({"num_neighbors": [3]}, "hops is 2"),
    "batches": ({"batches": "stars"}, "batches must be one of"),
    "memory": ({"memory": "lots"}, "memory must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_arguments_are_checked(small_mixed: Graph, name: str) -> None:
    settings, words = BAD[name]
    with pytest.raises(InputError, match=words):
        H3GNN.from_preset("single", **settings).fit(small_mixed)
