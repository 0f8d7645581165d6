from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.encoder import build_support
from h3gnn.errors import GraphError
from h3gnn.graphs.graph import SEED, Graph, random_splits, stratify, with_splits
from h3gnn.graphs.scaling import MomentSums, fit_scaler
from h3gnn.ondisk import engine, prepare
from h3gnn.ondisk import mapped as mapped_module
from h3gnn.ondisk.mapped import MappedGraph, labelled_nodes, open_mapped
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.tables import files
from h3gnn.tables.read import read_graph
from tests.graphs.helpers import listed
from tests.rejects import rejects


def write(folder: Path, ids: list[Any], edges: list[tuple[int, int]], weights: list[float] | None) -> None:
    """Write a small graph as CSV and as Parquet."""
    random = np.random.default_rng(0)
    features = pd.DataFrame({"id": ids, **{f"f{i}": random.normal(size=len(ids)) for i in range(3)}})
    table = pd.DataFrame({"source": [ids[u] for u, _ in edges], "target": [ids[v] for _, v in edges]})
    if weights is not None:
        table["weight"] = weights
    features.to_csv(folder / "f.csv", index=False)
    table.to_csv(folder / "e.csv", index=False)
    features.to_parquet(folder / "f.parquet")
    table.to_parquet(folder / "e.parquet")
    np.save(folder / "f.npy", features.drop(columns="id").to_numpy())


def assert_same(mapped: MappedGraph, graph: Graph) -> None:
    np.testing.assert_array_equal(mapped.features, graph.dense_features().numpy())
    targets = np.repeat(np.arange(mapped.num_nodes), np.diff(mapped.rows.crow))
    np.testing.assert_array_equal(np.stack([mapped.rows.cols, targets]), graph.edge_index.numpy())
    assert (mapped.rows.weight is None) == (graph.edge_weight is None)
    if mapped.rows.weight is not None and graph.edge_weight is not None:
        np.testing.assert_allclose(mapped.rows.weight, graph.edge_weight.numpy())
    assert mapped.node_ids.tolist() == graph.node_ids.tolist()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 3.0, 1.0]])
@pytest.mark.parametrize("ids", [[7, 3, 12, 5], ["ann", "bob", "cy", "7"]])
def test_a_prepared_graph_equals_the_graph_in_memory(
    tmp_path: Path, ids: list[Any], weights: list[float] | None, kind: str
) -> None:
    edges = [(0, 1), (2, 1), (0, 1), (3, 3), (1, 0)]  # one twice, one loop
    write(tmp_path, ids, edges, weights)
    parts = tmp_path / f"e.{kind}", tmp_path / f"f.{kind}"
    shares: dict[str, float] = {}
    mapped = prepare_graph(*parts, tmp_path / "out", progress=shares.__setitem__)
    assert_same(mapped, read_graph(parts[0], features=parts[1]))
    assert_same(open_mapped(tmp_path / "out"), read_graph(parts[0], features=parts[1]))
    repairs = {repair.code: repair.count for repair in mapped.provenance.repairs}
    assert repairs.pop("link-columns") == len(mapped.link_columns.names if mapped.link_columns else ())
    assert repairs == {"duplicate-edges": 1}
    assert shares["edges"] == shares["sorting"] == 1.0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_blocks_and_groups_do_not_change_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    edges = [(int(u), int(v)) for u, v in random.integers(0, 200, (900, 2))]
    write(tmp_path, list(range(200)), edges, random.random(900).tolist())
    graph = read_graph(tmp_path / "e.csv", features=tmp_path / "f.csv")
    monkeypatch.setattr(engine, "BATCH_ROWS", 7)
    monkeypatch.setattr(prepare, "BLOCK_ROWS", 13)
    monkeypatch.setattr(prepare, "RANGE_ROWS", 100)
    monkeypatch.setattr(files, "BLOCK_ROWS", 30)
    monkeypatch.setattr(files, "BLOCK_BYTES", 900)
    for kind in ("csv", "parquet"):
        mapped = prepare_graph(tmp_path / f"e.{kind}", tmp_path / f"f.{kind}", tmp_path / kind)
        assert_same(mapped, graph)


WEIGHTS = [1e-60, 1e-46, 2.0**-150, 7.1e-46, 1e-45, 1e-38, 1.0, 3.4028235e38, 3.4028236e38, 1e300]
WEIGHTS += [0.0, -1.0, float("inf")]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_extreme_weights_are_stored_or_rejected_as_in_memory(
    tmp_path: Path, weight: float, kind: str
) -> None:
    """They are stored as float32: 1e-60 would become 0, and 1e300 or a sum of duplicates infinite."""
    write(tmp_path, ["a", "b", "c"], [(0, 1), (1, 2), (0, 1)], [weight, 1.0, weight])
    parts = tmp_path / f"e.{kind}", tmp_path / f"f.{kind}"
    try:
        graph = read_graph(parts[0], features=parts[1], weight_column="weight")
    except GraphError:
        with rejects("edge-weight-not-positive"):
            prepare_graph(*parts, tmp_path / "out", weight_column="weight")
        return
    mapped = prepare_graph(*parts, tmp_path / "out")
    assert_same(mapped, graph)
    assert mapped.rows.weight is not None
    assert np.isfinite(mapped.rows.weight).all()
    assert (mapped.rows.weight > 0).all()


def test_text_tables_are_read_as_they_are_written(tmp_path: Path) -> None:
    """White space around ids, several line ends, blank lines, quotation marks."""
    (tmp_path / "e[1]*.csv").write_bytes(b'source;target\r\na; b\n\n"c;d";a\r\n')
    (tmp_path / "f.csv").write_bytes(b'\xef\xbb\xbfid;x\n a ;1\nb\t;2.5\n"c;d";-3e1\n')
    parts = tmp_path / "e[1]*.csv", tmp_path / "f.csv"
    assert_same(prepare_graph(*parts, tmp_path / "out"), read_graph(parts[0], features=parts[1]))


def test_texts_and_integers_are_the_same_ids(tmp_path: Path) -> None:
    write(tmp_path, [7, 12], [(0, 1)], None)
    for edges, known in (("7,12", True), ("07,12", False), ("+7,12", False), ("7.0,12", False)):
        (tmp_path / "t.csv").write_text(f"source,target\n{edges}\nx,7\n"[: None if not known else -4])
        if known:
            assert prepare_graph(tmp_path / "t.csv", tmp_path / "f.parquet", tmp_path / "out").num_edges == 1
        else:
            with rejects("node-unknown") as caught:
                prepare_graph(tmp_path / "t.csv", tmp_path / "f.parquet", tmp_path / "out")
            assert "2 problems" in caught.message


def test_a_memory_limit_is_obeyed_or_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "f.npy", np.zeros((1000, 1)))
    edges = pd.DataFrame(random.integers(0, 1000, (200_000, 2)), columns=["source", "target"])
    edges.to_parquet(tmp_path / "e.parquet")
    prepare_graph(tmp_path / "e.parquet", tmp_path / "f.npy", tmp_path / "out", memory=60_000_000)
    with rejects("memory-limit"):
        prepare_graph(tmp_path / "e.parquet", tmp_path / "f.npy", tmp_path / "out", memory=1_000_000)


def test_rows_of_an_array_are_nodes_by_position(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 2, 3], [(0, 1), (3, 2)], None)
    mapped = prepare_graph(tmp_path / "e.csv", tmp_path / "f.npy", tmp_path / "out")
    assert_same(mapped, read_graph(tmp_path / "e.csv", features=tmp_path / "f.npy"))


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_the_support_in_files_is_the_support_in_memory(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    nodes = data.draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = data.draw(st.lists(pairs, min_size=1, max_size=25))
    weighted = data.draw(st.booleans())
    weights = [data.draw(st.floats(0.125, 9, width=32)) for _ in edges] if weighted else None
    write(folder, list(range(nodes)), edges, weights)
    graph = read_graph(folder / "e.csv", features=folder / "f.csv", header=True)
    mapped = prepare_graph(folder / "e.csv", folder / "f.csv", folder / "out", header=True)
    for undirected in (False, True):
        for self_loops in (False, True):
            ours = mapped.adjacency(undirected=undirected, self_loops=self_loops)
            kind = {"undirected": undirected, "self_loops": self_loops}
            wanted = build_support(graph.edge_index, nodes, edge_weight=graph.edge_weight, **kind)
            np.testing.assert_array_equal(ours.crow, wanted.pattern.crow)
            np.testing.assert_array_equal(ours.cols, wanted.pattern.cols)
            again = mapped.adjacency(undirected=undirected, self_loops=self_loops)
            np.testing.assert_array_equal(again.cols, ours.cols)


def test_one_process_builds_the_support_while_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock belongs to an open folder, so threads exclude each other as ranks do."""
    write(tmp_path, [0, 1, 2, 3], [(0, 1), (3, 2)], None)
    graph = prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "out")
    usual, builds = mapped_module._build_support, list[Path]()

    def slow(graph: MappedGraph, folder: Path, **kinds: bool) -> None:
        builds.append(folder)
        time.sleep(0.3)
        usual(graph, folder, **kinds)

    monkeypatch.setattr(mapped_module, "_build_support", slow)
    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(lambda _: graph.adjacency(undirected=True, self_loops=True), range(4)))
    assert len(builds) == 1
    assert [rows.cols.tolist() for rows in found] == [found[0].cols.tolist()] * 4
    assert not list((tmp_path / "out").glob(".support*"))


FEATURES = {
    "words": (torch.rand(40, 5, generator=torch.Generator().manual_seed(0)) < 0.2).float(),
    "counts": torch.rand(40, 5, generator=torch.Generator().manual_seed(0)).sub(0.7).clamp_min(0),
    "measured": torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * 3 + 1000,
    "constant": torch.full((40, 5), 2.5),
}


@pytest.mark.parametrize("name", FEATURES)
def test_scaling_fitted_in_blocks_equals_scaling_fitted_at_once(name: str) -> None:
    sums = MomentSums(5)
    for block in torch.split(FEATURES[name], 7):
        sums.add(block)
    ours, wanted = sums.moments().scaler(), fit_scaler(FEATURES[name])
    assert ours.kind == wanted.kind
    torch.testing.assert_close(ours(FEATURES[name]), wanted(FEATURES[name]), atol=2e-3, rtol=2e-3)


def test_selected_rows_are_read_and_scaled(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 2, 3], [(0, 1)], None)
    mapped = prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "out")
    scaler = mapped.fit_scaler("columns")
    whole = scaler(torch.from_numpy(np.array(mapped.features)))
    torch.testing.assert_close(mapped.feature_reader(scaler)(torch.tensor([3, 1])), whole[[3, 1]])


def test_labels_and_splits_are_those_of_the_graph_in_memory(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b", "c", "d"], [(0, 1), (3, 2)], None)
    (tmp_path / "l.csv").write_text("id,kind,split\nd,cat,test\na,dog,train\nb,cat,val\n")
    parts, labels = (tmp_path / "e.csv", tmp_path / "f.csv"), tmp_path / "l.csv"
    mapped = prepare_graph(*parts, tmp_path / "out", labels=labels)
    graph = read_graph(parts[0], features=parts[1], labels=labels)
    assert mapped.class_names == graph.class_names == ("cat", "dog")
    assert mapped.feature_names == graph.feature_names
    assert listed(mapped.labels) == [1, 0, -1, 0]
    assert mapped.masks is not None
    wanted = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [one.tolist() for one in mapped.masks] == [listed(one) for one in wanted]
    nodes, labelled = labelled_nodes(mapped)
    assert nodes.tolist() == [0, 1, 3]
    assert labelled.node_ids.tolist() == ["a", "b", "d"]
    assert mapped.provenance.sha256 != prepare_graph(*parts, tmp_path / "bare").provenance.sha256
    with rejects("labels-missing"):
        labelled_nodes(open_mapped(tmp_path / "bare"))


def by_rows(codes: Any) -> tuple[torch.Tensor, ...]:
    """Return the splits of a graph on disk, which are drawn in the order of its rows."""
    return random_splits(codes, generator=torch.Generator().manual_seed(SEED))


def test_splits_are_drawn_by_rows(tmp_path: Path) -> None:
    ids = list(range(40))
    write(tmp_path, ids, [(0, 1), (3, 2)], None)
    classes = pd.DataFrame({"id": ids[::-1], "label": [i % 3 if i % 5 else None for i in ids]})
    classes.to_csv(tmp_path / "l.csv", index=False)
    parts, labels = (tmp_path / "e.csv", tmp_path / "f.csv"), tmp_path / "l.csv"
    mapped = prepare_graph(*parts, tmp_path / "out", labels=labels)
    graph = with_splits(read_graph(parts[0], features=parts[1], labels=labels))
    assert mapped.num_splits == graph.num_splits == 10
    assert mapped.masks is not None
    for ours, wanted in zip(mapped.masks, by_rows(graph.labels), strict=True):
        assert ours.tolist() == listed(wanted)
    assert mapped.provenance.repairs[-1] == graph.provenance.repairs[-1]


def test_numbers_to_predict_are_those_of_the_graph_in_memory(tmp_path: Path) -> None:
    ids = list(range(40))
    write(tmp_path, ids, [(0, 1), (3, 2)], None)
    prices = pd.DataFrame({"id": ids[::-1], "price": [i / 8 if i % 5 else None for i in ids]})
    prices.to_csv(tmp_path / "l.csv", index=False)
    parts, labels = (tmp_path / "e.csv", tmp_path / "f.csv"), tmp_path / "l.csv"
    mapped = prepare_graph(*parts, tmp_path / "out", labels=labels)
    graph = with_splits(read_graph(parts[0], features=parts[1], labels=labels))
    assert mapped.targets is not None
    assert graph.targets is not None
    np.testing.assert_array_equal(mapped.targets, graph.targets)
    assert mapped.masks is not None
    assert mapped.masks[2].tolist() == by_rows(stratify(graph.targets))[2].tolist()
    assert (mapped.target_name, mapped.class_names, mapped.labels) == ("price", (), None)
    nodes, labelled = labelled_nodes(mapped)
    assert labelled.targets is not None
    assert labelled.targets.tolist() == mapped.targets[nodes].tolist()
    (mapped.folder / "targets.bin").write_bytes(np.full(40, np.inf).tobytes())
    with rejects("prepared-folder-damaged"):
        _ = open_mapped(tmp_path / "out").targets


def test_labels_of_unknown_nodes_are_rejected_and_label_columns_are_no_features(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b"], [(0, 1)], None)
    parts, labels = (tmp_path / "e.csv", tmp_path / "f.csv"), tmp_path / "l.csv"
    labels.write_text("id,f0\na,cat\nz,dog\n")
    with pytest.raises(GraphError, match=r"l.csv, line 3: node 'z' is unknown; it is not in .*f.csv"):
        prepare_graph(*parts, tmp_path / "out", labels=labels)
    labels.write_text("id,f0\na,cat\nb,dog\n")
    mapped = prepare_graph(*parts, tmp_path / "out", labels=labels)
    assert mapped.feature_names == ("f1", "f2")
    repair = mapped.provenance.repairs[0]
    assert (repair.code, repair.fields) == ("column-is-label", ("f0",))
    np.array([0, 2], dtype=np.int32).tofile(tmp_path / "out" / "labels.bin")
    with rejects("prepared-folder-damaged"):
        _ = open_mapped(tmp_path / "out").labels
    parts[1].write_text("id,label,f\na,1,2\nb,0,3\n")
    with rejects("feature-column-doubtful"):
        prepare_graph(*parts, tmp_path / "out")
    assert prepare_graph(*parts, tmp_path / "out", feature_columns=["f"]).num_features == 1


BAD: dict[str, tuple[str, str | bytes, str]] = {
    "unknown node": (
        "e.csv",
        "source,target\n1,2\n2,99\n",
        "line 3: node 99 is unknown; it is not in .*f",
    ),
    "after blank lines": ("e.csv", "# note\n\nsource,target\n\n1,2\n\n2,x\n", "line 7: node 'x' is unknown"),
    "gap": ("f.csv", "id,a\n0,1\n1,\n", r"line 3, column 2 \(a\): the value is empty"),
    "beyond": ("f.csv", "id,a\n0,1\n1,1e60\n", "line 3, .*: the value is infinite or beyond"),
    "twice": ("f.csv", "id,a\n1,1\n1,2\n", "line 3: node 1 is already in .*f.csv, line 2"),
    "word": ("f.csv", "id,a\n1,1\n2,x\n", r"line 3, column 2 \(a\): 'x' is not a number"),
    "cells": ("f.csv", "id,a\n1,1\n2\n", r"line 3: 1 cell\(s\), the first row has 2"),
    "no id": ("f.csv", "id,a\n1,1\n,2\n", r"line 3, column 1 \(id\): the node id is missing"),
    "invalid weight": ("e.csv", "source,target,weight\n0,1,0\n", "line 2: the edge weight 0 is not a pos"),
    "no row": ("e.csv", "", "0 bytes"),
    "header alone": ("e.csv", "source,target\n", "a header and no row"),
    "quotation mark": ("e.csv", 'source,target\n0,"1\n', "line 2: a quotation mark is not closed"),
    "encoding": ("e.csv", b"source,target\n0,1\n\xe9,1\n", "line 3: not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_line_and_leave_no_files(tmp_path: Path, name: str) -> None:
    write(tmp_path, [0, 1, 2, 3], [(0, 1)], None)
    file, text, words = BAD[name]
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    before = sorted(tmp_path.iterdir())
    with pytest.raises(GraphError, match=words):
        prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "out", header=True)
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_folders_are_rejected(tmp_path: Path) -> None:
    with rejects("not-a-prepared-folder"):
        open_mapped(tmp_path)
    write(tmp_path, [0, 1, 2, 3], [(0, 1)], None)
    out = tmp_path / "out"
    prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", out)
    content = (out / "features.bin").read_bytes()
    (out / "features.bin").write_bytes(content[:-1])
    with rejects("prepared-folder-damaged") as caught:
        open_mapped(out)
    assert "47 bytes instead of 48" in caught.message
    (out / "features.bin").write_bytes(content)
    about = json.loads((out / "graph.json").read_text())
    (out / "graph.json").write_text(json.dumps({**about, "format_version": 9}))
    with rejects("format-unknown"):
        open_mapped(out)
    (out / "graph.json").write_text("{")
    with pytest.raises(GraphError, match="damaged"):
        open_mapped(out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with rejects("folder-in-use"):
        prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "full")


def corrupted(folder: Path) -> Path:
    """Prepare a graph of three nodes, whose files a test damages."""
    (folder / "e.csv").write_text("source,target\na,b\nb,c\n")
    (folder / "f.csv").write_text("id,f0\na,1\nb,3\nc,5\n")
    return prepare_graph(folder / "e.csv", folder / "f.csv", folder / "graph").folder


@pytest.mark.parametrize("begins", [[0, 6 * 10**18, -6 * 10**18, 2], [0, 2, 1, 2], [0, 9, 9, 2]])
def test_invalid_row_pointers_are_rejected(tmp_path: Path, begins: list[int]) -> None:
    """Differences of the first overflow to positive ones."""
    folder = corrupted(tmp_path)
    np.array(begins, dtype=np.int64).tofile(folder / "crow.bin")
    with rejects("prepared-folder-damaged"):
        open_mapped(folder).adjacency(undirected=True, self_loops=True)


def test_ids_with_an_invalid_column_name_are_rejected(tmp_path: Path) -> None:
    path = corrupted(tmp_path) / "ids.arrow"
    name = pa.ipc.open_file(path).schema.names[0].encode()
    path.write_bytes(path.read_bytes().replace(name, b"\xff" * len(name)))
    with rejects("prepared-folder-damaged"):
        list(open_mapped(path.parent).id_blocks())
