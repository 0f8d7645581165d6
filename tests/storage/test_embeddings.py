from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from h3gnn import H3GNN, Graph, as_graph
from h3gnn.answers.similarity import NeighbourIndex
from h3gnn.cli.output import write_rows
from h3gnn.cli.training import Training
from h3gnn.encoder.encode import LayerwiseEncoder
from h3gnn.preprocessing import expected_width
from h3gnn.resources import format_bytes
from h3gnn.storage import runs
from tests.ondisk.test_estimator import prepared
from tests.program import call
from tests.rejects import rejects

SMALL: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 2, "device": "cpu"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of nodes of each embedding that is computed."""
    found: list[int] = []
    usual = LayerwiseEncoder.chunks

    def watched(layers: LayerwiseEncoder, *, with_tokens: bool = False) -> Iterator[Tensor]:
        found.append(layers.support.nodes)
        return usual(layers, with_tokens=with_tokens)

    monkeypatch.setattr(LayerwiseEncoder, "chunks", watched)
    return found


@pytest.fixture
def run(small_mixed: Graph, tmp_path: Path) -> Path:
    H3GNN.from_settings(SMALL).fit(small_mixed).save(tmp_path / "run")
    return tmp_path / "run"


def array_of(run: Path) -> Path:
    (path,) = run.glob("embedding-*.npy")
    return path


def test_a_loaded_model_reads_the_embedding_of_the_fit(
    small_mixed: Graph, tmp_path: Path, counted: list[int]
) -> None:
    model = H3GNN.from_settings({**SMALL, "smoothing": 0.4}).fit(small_mixed)
    model.save(tmp_path)
    other = as_graph(small_mixed.dense_features().numpy(), small_mixed.edge_index[:, ::2].numpy())
    embedded, attached = (
        model.transform(other),
        model.extend(torch.ones(1, 60).numpy(), torch.tensor([[3], [100]]).numpy()),
    )
    np.testing.assert_array_equal(np.load(array_of(tmp_path)), model.embedding_)
    before = len(counted)
    loaded = H3GNN.load(tmp_path)
    np.testing.assert_array_equal(loaded.embedding_, model.embedding_)
    assert len(counted) == before
    assert isinstance(loaded.embedding_.base, np.memmap)
    # the scales that were learned with it are stored, too
    np.testing.assert_array_equal(loaded.transform(other), embedded)
    assert len(counted) == before + 1
    again = loaded.extend(torch.ones(1, 60).numpy(), torch.tensor([[3], [100]]).numpy())
    np.testing.assert_array_equal(again.embedding, attached.embedding)


def test_constant_columns_keep_their_infinite_spread(tmp_path: Path, small_mixed: Graph) -> None:
    model = H3GNN.from_settings(SMALL).fit(small_mixed)
    assert model.inference_.columns is not None
    model.inference_.columns.spread[3] = float("inf")
    model.save(tmp_path)
    columns = H3GNN.load(tmp_path).inference_.columns
    assert columns is not None
    assert columns.spread.isinf().nonzero().flatten().tolist() == [3]


def other_model(run: Path) -> None:
    about = json.loads((run / "model.json").read_text())
    about["seeds"][0] += 1
    (run / "model.json").write_text(json.dumps(about))


def other_graph(run: Path) -> None:
    """The model was fitted to another graph in the meantime, and the process ended before its embedding."""
    graph = H3GNN.load(run).graph_
    fitted = H3GNN.from_settings(SMALL).fit(replace(graph, features=graph.features.flip(0)))
    fitted.save(run.parent / "other", embedding="later")
    for name in (EMBEDDING, array_of(run).name):
        shutil.copy(run / name, run.parent / "other")
    shutil.rmtree(run)
    (run.parent / "other").rename(run)


EMBEDDING = "embedding.json"


def flipped(run: Path) -> None:
    content = bytearray(array_of(run).read_bytes())
    content[-1] ^= 0x40
    array_of(run).write_bytes(content)


def half(run: Path) -> None:
    path = array_of(run)
    path.write_bytes(path.read_bytes()[:-100])


def gone(run: Path) -> None:
    array_of(run).unlink()


def unreadable(run: Path) -> None:
    (run / EMBEDDING).write_text("[" * 50)


@pytest.mark.parametrize("change", [other_model, other_graph, flipped, half, gone, unreadable])
@pytest.mark.parametrize("checked", [True, False])
def test_a_stale_or_damaged_embedding_is_not_used(
    run: Path,
    counted: list[int],
    change: Callable[[Path], None],
    checked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not checked:  # as if it were larger than what is compared with the hash in its name
        monkeypatch.setattr(runs, "_LARGEST_CHECKED", 10)
        if change is flipped:
            pytest.skip("only small arrays are compared with their hash")
    change(run)
    counted.clear()
    loaded = H3GNN.load(run)
    assert counted == [100]
    loaded.store_embedding(run)
    counted.clear()
    np.testing.assert_array_equal(H3GNN.load(run).embedding_, loaded.embedding_)
    assert not counted


def test_float16_rounds_and_stays(run: Path, tmp_path: Path) -> None:
    exact = H3GNN.load(run)
    exact.save(tmp_path / "half", embedding="float16")
    assert 2 * array_of(tmp_path / "half").stat().st_size < array_of(run).stat().st_size + 200
    rounded = H3GNN.load(tmp_path / "half")
    assert rounded.embedding_.dtype == np.float32
    np.testing.assert_array_equal(rounded.embedding_, exact.embedding_.astype(np.float16))
    np.testing.assert_allclose(rounded.embedding_, exact.embedding_, rtol=2**-11, atol=1e-7)
    rounded.save(tmp_path / "again")
    assert np.load(array_of(tmp_path / "again")).dtype == np.float16
    rounded.save(tmp_path / "full", embedding="float32")  # rounded rows are not called float32
    np.testing.assert_array_equal(H3GNN.load(tmp_path / "full").embedding_, exact.embedding_)
    with rejects("value-invalid"):
        exact.save(tmp_path / "half", embedding="float8")


def test_values_beyond_float16_are_rejected(run: Path) -> None:
    chunks = [np.full((2, 3), 1e5, np.float32)]
    before = sorted(run.iterdir())
    with rejects("float16-range"):
        runs.store_embedding(run, "float16", (2, 3), chunks, dict)
    assert sorted(run.iterdir()) == before


def test_an_interrupted_write_leaves_no_half_file(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    def chunks() -> Iterator[np.ndarray]:
        yield np.zeros((60, 4), np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.store_embedding(run, "float32", (100, 4), chunks(), dict)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    with pytest.raises(ValueError, match="60 rows"):
        runs.store_embedding(run, "float32", (100, 4), [np.zeros((60, 4), np.float32)], dict)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_an_embedding_that_is_not_wanted_is_not_written(run: Path, counted: list[int]) -> None:
    H3GNN.load(run).save(run, embedding="none")
    assert not list(run.glob("*.npy"))
    counted.clear()
    call("similar", run, "3", "--json")
    assert not list(run.glob("*.npy"))


@pytest.mark.parametrize("missing", [True, False])
def test_commands_read_the_embedding(run: Path, counted: list[int], missing: bool) -> None:
    """That of an old run is stored by the first command."""
    if missing:
        (run / EMBEDDING).unlink()
        array_of(run).unlink()
    labels = run.parent / "y.csv"
    labels.write_text("id,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(60)))
    counted.clear()
    out = run.parent / "out.csv"
    wanted = [100] if missing else []
    for command in (
        ("similar", run, "3", "5"),
        ("links", run, "--check", "none"),
        ("anomalies", run),
        ("embed", run, "--out", run.parent / "e.npy"),
        ("predict", run, "--labels", labels, "--out", out),
        ("evaluate", run),
        ("report", run, "--out", run.parent / "page.html"),
    ):
        call(*command)
        if command[0] == "report":
            wanted = [*wanted, 100]  # an untrained encoder, to compare with
        assert counted == wanted, command[0]


def test_a_graph_on_disk_keeps_its_embedding(small_mixed: Graph, tmp_path: Path, counted: list[int]) -> None:
    graph = prepared(small_mixed, tmp_path)
    how = {**SMALL, "batch_size": 30, "edge_weights": "fixed", "smoothing": 0.3}
    model = H3GNN.from_settings(how).fit(graph)
    computed = np.concatenate(list(model.embedding_chunks()))
    model.save(tmp_path / "run")
    np.testing.assert_array_equal(np.load(array_of(tmp_path / "run")), computed)
    counted.clear()
    loaded = H3GNN.load(tmp_path / "run")
    with loaded.embedding_rows() as rows:
        np.testing.assert_array_equal(rows, computed)
    call("embed", tmp_path / "run", "--out", tmp_path / "e.parquet")
    assert not counted
    other = as_graph(small_mixed.dense_features().numpy(), small_mixed.edge_index[:, ::2].numpy())
    np.testing.assert_array_equal(loaded.transform(other), model.transform(other))


@pytest.mark.parametrize(
    "changed",
    [{}, {"input_weight": 0}, {"output": "first", "concat_tokens": True}, {"dimensions": 7}, {"hops": 3}],
    ids=str,
)
def test_the_width_is_known_before_the_fit(small_mixed: Graph, changed: dict[str, Any]) -> None:
    model = H3GNN.from_settings({**SMALL, "epochs": 0, **changed})
    expected = expected_width(model.get_settings(), small_mixed)
    assert expected == model.fit(small_mixed).embedding_.shape[1]


def test_a_large_embedding_is_announced(
    small_mixed: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = H3GNN.from_settings({**SMALL, "epochs": 0})
    Training(model, small_mixed, tmp_path / "run").start()
    assert "dimensions=256" not in capsys.readouterr().err
    monkeypatch.setattr("h3gnn.cli.training.MANY_NODES", 99)
    Training(model, small_mixed, tmp_path / "run", tmp_path / "e.npy", stored="float16").start()
    said = capsys.readouterr().err
    assert (
        format_bytes(100 * 244 * (2 + 4)) in said
    )  # 2 models · 4 tokens · 8 columns, and 120 + 60 of blocks
    assert (
        format_bytes(array_of(tmp_path / "run").stat().st_size + (tmp_path / "e.npy").stat().st_size - 256)
        in said
    )
    assert "store-embedding none" in said
    assert "store-embedding float16" not in said
    monkeypatch.setattr("h3gnn.cli.training.MANY_NODES", 100)
    Training(model, small_mixed, tmp_path / "run").start()
    assert not capsys.readouterr().err


def test_parquet_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3gnn.cli.output.ROWS", 4)
    values = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    for ids in (np.arange(10) + 5, np.array([f"n{i}" for i in range(10)], dtype=object)):
        write_rows(tmp_path / "e.parquet", values, ids)
        table = pd.read_parquet(tmp_path / "e.parquet")
        assert table["node"].tolist() == ids.tolist()
        np.testing.assert_array_equal(table[["e0", "e1", "e2"]].to_numpy(), values)
        assert pq.ParquetFile(tmp_path / "e.parquet").num_row_groups == 3


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_dimensions_on_disk_equal_those_in_memory(
    small_mixed: Graph, tmp_path: Path, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("h3gnn.inference.CHUNK", 7)
    how = {**SMALL, "batch_size": 30, "edge_weights": "fixed", "smoothing": smoothing, "memory": "1KB"}
    graph = prepared(small_mixed, tmp_path)
    inside = H3GNN.from_settings({**how, "memory": None, "dimensions": 6}).fit(small_mixed)
    outside = H3GNN.from_settings({**how, "dimensions": 6}).fit(
        graph
    )  # every array over all nodes is in a file
    outside.save(tmp_path / "run")
    stored = np.load(array_of(tmp_path / "run"))
    assert stored.shape == (100, 6)
    np.testing.assert_allclose(stored, inside.embedding_, atol=1e-4)
    # by the definition: the first principal components of all columns
    whole = H3GNN.from_settings({**how, "memory": None}).fit(small_mixed).embedding_.astype(np.float64)
    left, values, _ = np.linalg.svd(whole - whole.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(stored, axis=0), values[:6], rtol=1e-2)
    np.testing.assert_allclose(
        np.abs((left[:, :3] * values[:3] * stored[:, :3]).sum(axis=0)), values[:3] ** 2, rtol=1e-2
    )


def test_the_index_is_kept_and_not_built_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")

    def found(*options: str) -> list[tuple[int, int, float]]:
        rows = call("similar", run, "3", "50", *options, "--json")
        return [(one["node"], one["similar"], round(one["similarity"], 3)) for one in rows]

    exact = found()
    assert not list(run.glob("*.faiss"))
    assert found("--search", "approximate") == exact  # the candidates are all 100 nodes
    (index,) = run.glob("index-*.faiss")
    built: list[int] = []
    usual = NeighbourIndex.build.__func__  # type: ignore[attr-defined]

    def watched(kind: type[NeighbourIndex], embedding: np.ndarray) -> NeighbourIndex:
        built.append(len(embedding))
        made: NeighbourIndex = usual(kind, embedding)
        return made

    monkeypatch.setattr(NeighbourIndex, "build", classmethod(watched))
    assert found("--search", "approximate") == exact
    assert not built
    index.write_bytes(index.read_bytes()[:-1])
    assert found("--search", "approximate") == exact
    assert built == [100]
    assert H3GNN.load(run).inference_.index_for("approximate", np.zeros((1, 1), np.float32)) is not None
    assert built == [100]
    H3GNN.load(run).save(run)  # the index goes with the embedding
    assert not list(run.glob("*.faiss"))
