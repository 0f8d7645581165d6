"""Benchmark graphs by name: found, downloaded, and verified by their checksums."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from h3gnn.graphs.datasets import (
    PinnedFile,
    benchmarks,
    cache_folder,
    data_folders,
    find_files,
    load,
    sha256_of,
)
from h3gnn.graphs.libraries import import_pyg
from h3gnn.graphs.profile import profile
from tests.rejects import rejects

DATA = os.environ.get("H3GNN_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="H3GNN_DATA does not point at the raw files")


def pinned(folder: Path, name: str, content: bytes) -> PinnedFile:
    served = folder / "server" / name
    served.parent.mkdir(exist_ok=True)
    served.write_bytes(content)
    return PinnedFile(name, sha256_of(served), len(content), served.as_uri())


def test_the_nine_graphs_have_checksums_and_addresses() -> None:
    assert list(benchmarks()) == list(TABLE)
    files = [file for one in benchmarks().values() for file in one.files]
    assert len(files) == 74
    assert all(len(file.sha256) == 64 and file.bytes > 0 for file in files)
    assert all(file.url.startswith("https://") and file.url.endswith(file.name) for file in files)


def test_missing_files_are_downloaded_verified_and_cached(tmp_path: Path) -> None:
    file = pinned(tmp_path, "a.txt", b"hello")
    data = tmp_path / "data"
    assert find_files("toy", "toy", [file], data) == [data / "toy" / "raw" / "a.txt"]
    (tmp_path / "server" / "a.txt").unlink()  # the second time nothing is fetched
    assert find_files("toy", "toy", [file], data)[0].read_bytes() == b"hello"
    assert [path.name for path in (data / "toy" / "raw").iterdir()] == ["a.txt"]


def test_a_file_with_another_checksum_is_neither_cached_nor_used(tmp_path: Path) -> None:
    file = pinned(tmp_path, "a.txt", b"hello")
    (tmp_path / "server" / "a.txt").write_bytes(b"jello")
    data = tmp_path / "data"
    with rejects("checksum-mismatch"):
        find_files("toy", "toy", [file], data)
    assert list((data / "toy" / "raw").iterdir()) == []
    (data / "toy" / "raw" / "a.txt").write_bytes(b"jello")
    with rejects("checksum-mismatch"):
        find_files("toy", "toy", [file], data)


def test_a_failed_download_names_the_files_and_their_folder(tmp_path: Path) -> None:
    files = [PinnedFile(f"{name}.txt", "0" * 64, 5, (tmp_path / name).as_uri()) for name in "abcd"]
    with rejects("download-failed") as caught:
        find_files("toy", "toy", files[:2], tmp_path / "data")
    where = tmp_path / "data" / "toy" / "raw"
    addresses = ", ".join(file.url for file in files[:2])
    assert caught.message.endswith(f"put these files into {where}: {addresses}")
    with rejects("download-failed") as caught:
        find_files("toy", "toy", files, tmp_path / "data")
    assert caught.message.endswith(f"{where}: a.txt, b.txt, c.txt, d.txt")


def test_the_read_only_folder_is_read_first_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, cache = tmp_path / "shared", tmp_path / "cache"
    first, second = pinned(tmp_path, "a.txt", b"one"), pinned(tmp_path, "b.txt", b"two")
    (shared / "toy" / "raw").mkdir(parents=True)
    shutil.copy(tmp_path / "server" / "a.txt", shared / "toy" / "raw")
    monkeypatch.setenv("H3GNN_DATA", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    paths = find_files("toy", "toy", [first, second])
    assert paths[0] == shared / "toy" / "raw" / "a.txt"
    assert paths[1] == cache_folder() / "toy" / "raw" / "b.txt"
    assert [path.name for path in shared.rglob("*.txt")] == ["a.txt"]
    assert data_folders(tmp_path) == [tmp_path]  # a folder that the user names is the only one


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", "xdg/h3gnn"), ("darwin", "home/Library/Caches/h3gnn"), ("win32", "local/h3gnn/Cache")],
)
def test_the_cache_folder_follows_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / expected


def test_progress_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    find_files("toy", "toy", [pinned(tmp_path, "a.txt", b"x" * 100)], tmp_path / "data")
    assert "downloading toy" in capfd.readouterr().err


@pytest.mark.parametrize(
    "name", ["corra", "pyg:Nothing/Here", "pyg:Amazon", "pyg:KarateClub/Zachary", "pyg:Amazon/../../.."]
)
def test_unknown_names_are_rejected(tmp_path: Path, name: str) -> None:
    with rejects("graph-unknown"):
        load(name, tmp_path)


def test_a_graph_that_pyg_cannot_load_is_rejected(tmp_path: Path) -> None:
    with rejects("download-failed"):
        load("pyg:Amazon/Nonsense", tmp_path)


def test_any_single_graph_of_pyg(tmp_path: Path) -> None:
    graph = load("pyg:KarateClub", tmp_path)
    assert (graph.num_nodes, graph.num_edges) == (34, 156)
    assert list(tmp_path.iterdir()) == []


def test_processed_pickles_of_pyg_are_never_kept_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyg = import_pyg()

    class Toy(pyg.data.InMemoryDataset):  # type: ignore[misc,name-defined]
        raw_file_names = "edges.txt"
        processed_file_names = "data.pt"

        def __init__(self, root: str) -> None:
            super().__init__(root)
            self.load(self.processed_paths[0])

        def download(self) -> None:
            Path(self.raw_paths[0]).write_text("0 1")

        def process(self) -> None:
            ends = [[int(word)] for word in Path(self.raw_paths[0]).read_text().split()]
            import torch

            labels = torch.tensor([0, 1])
            self.save([pyg.data.Data(edge_index=torch.tensor(ends), y=labels)], self.processed_paths[0])

    monkeypatch.setattr(pyg.datasets, "Toy", Toy, raising=False)
    graph = load("pyg:Toy", tmp_path)
    assert graph.num_edges == 1
    assert graph.num_splits == 10  # it has labels and no splits
    kept = tmp_path / "pyg" / "Toy" / "Toy"
    assert [path.name for path in kept.rglob("*") if path.is_file()] == ["edges.txt"]
    shared = tmp_path / "shared"
    shutil.copytree(kept, shared / "pyg" / "Toy" / "Toy")
    monkeypatch.setenv("H3GNN_DATA", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "untouched"))
    assert load("pyg:Toy").provenance.sha256 == graph.provenance.sha256
    assert not (tmp_path / "untouched").exists()
    (kept / "processed").mkdir()
    (kept / "processed" / "data.pt").write_bytes(b"a planted pickle")
    assert load("pyg:Toy", tmp_path).provenance.sha256 == graph.provenance.sha256


# nodes, edges (directed), features, classes, splits, edge homophily
TABLE = {
    "cora": (2708, 10556, 1433, 7, 1, 0.810),
    "citeseer": (3327, 9104, 3703, 6, 1, 0.736),
    "pubmed": (19717, 88648, 500, 3, 1, 0.802),
    "cornell": (183, 298, 1703, 5, 10, 0.305),
    "texas": (183, 325, 1703, 5, 10, 0.108),
    "wisconsin": (251, 515, 1703, 5, 10, 0.196),
    "actor": (7600, 30019, 932, 5, 10, 0.219),
    "chameleon-filtered": (890, 2 * 8854, 2325, 5, 10, 0.236),
    "squirrel-filtered": (2223, 2 * 46998, 2089, 5, 10, 0.207),
}


@needs_data
@pytest.mark.filterwarnings("ignore:cornell:UserWarning")
@pytest.mark.parametrize("name", TABLE)
def test_the_nine_graphs_have_the_documented_figures(name: str) -> None:
    assert DATA is not None
    before = sorted(Path(DATA).rglob("*"))
    graph = load(name)
    measured = profile(graph)
    nodes, edges, features, classes, splits, homophily = TABLE[name]
    assert (measured.nodes, measured.edges, measured.features) == (nodes, edges, features)
    assert (measured.classes, measured.splits) == (classes, splits)
    assert measured.edge_homophily == pytest.approx(homophily, abs=5e-4)
    assert measured.directed == (name in ("cornell", "texas", "wisconsin", "actor"))
    known = benchmarks()[name]
    assert (known.nodes, known.edges, known.features, known.classes) == (nodes, edges, features, classes)
    assert known.edge_homophily == pytest.approx(homophily)
    assert known.is_cached()
    assert sorted(Path(DATA).rglob("*")) == before


@needs_data
def test_notes_on_the_webkb_graphs() -> None:
    with pytest.warns(UserWarning, match="features and labels are those of texas, byte for byte"):
        cornell = load("cornell")
    texas = load("texas")
    assert texas.labels is not None
    assert cornell.labels is not None
    assert (cornell.features == texas.features).all()
    assert (cornell.labels == texas.labels).all()
    assert any("texas, byte for byte" in repair.message for repair in cornell.provenance.repairs)
    assert 1 in texas.labels.bincount().tolist()
    assert any("single node" in repair.message for repair in texas.provenance.repairs)
    assert profile(load("citeseer")).isolated == 48
    assert texas.train_mask is not None
    assert texas.val_mask is not None
    assert texas.test_mask is not None
    sizes = [int(mask[:, 0].sum()) for mask in (texas.train_mask, texas.val_mask, texas.test_mask)]
    assert sizes == [87, 59, 37]


@needs_data
def test_two_loads_are_the_same_graph() -> None:
    assert load("texas").provenance == load("TEXAS").provenance
