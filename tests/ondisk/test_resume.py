"""An interrupted `prepare` goes on: the folder is the one of a command that nobody disturbed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from h3gnn.cli.app import app
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.scaling import MomentSums
from h3gnn.ondisk import csr as buckets
from h3gnn.ondisk import prepare as unfinished
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.ondisk.prepare import Unfinished, hidden_beside, prepare_graph
from h3gnn.tables import files

NODES = 60


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of many blocks and buckets, each of which is written down at once."""
    monkeypatch.setattr(buckets, "BUCKET_NODES", 17)
    monkeypatch.setattr(files, "BLOCK_BYTES", 300)
    monkeypatch.setattr(files, "BLOCK_ROWS", 13)
    monkeypatch.setattr(unfinished, "KEEP_SECONDS", 0.0)
    random = np.random.default_rng(0)
    ends, ids = random.integers(0, NODES, (2, 90)), np.array([f"n{i}" for i in range(NODES)])
    numbers, weight = random.normal(size=(NODES, 3)).round(4), random.random(90).round(3)
    edges = pd.DataFrame({"source": ids[ends[0]], "target": ids[ends[1]], "weight": weight})
    features = pd.DataFrame({"id": ids, **{f"f{i}": numbers[:, i] for i in range(3)}})
    edges.to_csv(tmp_path / "e.csv", index=False)
    features.to_csv(tmp_path / "f.csv", index=False)
    edges.to_parquet(tmp_path / "e.parquet", row_group_size=31)
    features.to_parquet(tmp_path / "f.parquet", row_group_size=31)
    pd.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(tmp_path / "p.csv", index=False)
    np.save(tmp_path / "f.npy", numbers)
    sp.save_npz(tmp_path / "f.npz", sp.csr_matrix((random.random((NODES, 30)) < 0.05).astype(float)))
    return tmp_path


def disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every note be the last of its command: each second one is not even written."""
    usual, calls = Unfinished.keep, [0]

    def keep(
        work: Unfinished, stage: str, done: Any, files: Sequence[BinaryIO], gone: Sequence[Path] = ()
    ) -> None:
        calls[0] += 1
        if calls[0] % 2:
            usual(work, stage, done, files, gone)
        raise KeyboardInterrupt

    monkeypatch.setattr(Unfinished, "keep", keep)


def assert_same(folder: Path, other: Path) -> None:
    """Files of the same bytes; blocks of text end elsewhere, so the sums may round otherwise."""
    ours, theirs = ({path.name: path.read_bytes() for path in one.iterdir()} for one in (folder, other))
    told, wanted = (json.loads(one.pop("graph.json")) for one in (ours, theirs))
    assert ours == theirs
    moments, sums = told.pop("moments"), wanted.pop("moments")
    assert told == wanted
    assert all(moments[name] == pytest.approx(sums[name], rel=1e-12) for name in sums)


def finish(*given: Any, **named: Any) -> tuple[MappedGraph, int]:
    """Prepare a graph, again and again."""
    for interruptions in range(200):
        try:
            return prepare_graph(*given, **named), interruptions
        except KeyboardInterrupt:
            continue
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize(
    "kind", [("e.csv", "f.csv"), ("e.parquet", "f.parquet"), ("p.csv", "f.npy")], ids=str
)
def test_wherever_it_is_interrupted_the_folder_becomes_the_same(
    parts: Path, monkeypatch: pytest.MonkeyPatch, kind: tuple[str, str]
) -> None:
    inputs = parts / kind[0], parts / kind[1]
    prepare_graph(*inputs, parts / "whole")
    usual, rows = MomentSums.add, list[int]()

    def counted(sums: MomentSums, block: torch.Tensor) -> None:
        rows.append(len(block))
        usual(sums, block)

    monkeypatch.setattr(MomentSums, "add", counted)
    disturb(monkeypatch)
    told: list[str] = []
    _, interruptions = finish(*inputs, parts / "often", going_on=told.append)
    assert_same(parts / "often", parts / "whole")
    assert interruptions > 20
    assert NODES < sum(rows) <= 2 * NODES  # a block whose note was not written is read again, and no other
    assert "rows of features and 0 of edges" in told[0]
    assert "all edges" in told[-1]
    assert not hidden_beside(parts / "often").exists()


def test_other_files_or_columns_begin_again(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = parts / "e.csv", parts / "f.csv"
    prepare_graph(*inputs, parts / "whole", feature_columns=["f0"])
    with monkeypatch.context() as patched:
        disturb(patched)
        for _ in range(9):
            with pytest.raises(KeyboardInterrupt):
                prepare_graph(*inputs, parts / "out")
    assert hidden_beside(parts / "out").is_dir()
    assert not (parts / "out").exists()
    told: list[str] = []
    prepare_graph(*inputs, parts / "out", feature_columns=["f0"], going_on=told.append)
    assert told == []
    assert_same(parts / "out", parts / "whole")


def test_sparse_features_and_labels_are_written_when_it_goes_on(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"id": range(NODES), "label": np.arange(NODES) % 2}).to_csv(parts / "l.csv", index=False)
    prepare_graph(parts / "p.csv", parts / "f.npz", parts / "whole", labels=parts / "l.csv")
    disturb(monkeypatch)
    told: list[str] = []
    finish(parts / "p.csv", parts / "f.npz", parts / "often", labels=parts / "l.csv", going_on=told.append)
    assert told
    assert_same(parts / "often", parts / "whole")


def test_a_fault_of_the_files_leaves_nothing_to_go_on_with(parts: Path) -> None:
    with (parts / "e.csv").open("a") as file:
        file.write("n0,stranger,1\n")
    with pytest.raises(GraphError, match="'stranger' is unknown"):
        prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")
    assert not hidden_beside(parts / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_two_do_not_make_the_same_folder(parts: Path) -> None:
    import fcntl

    hidden_beside(parts / "out").mkdir()
    handle = os.open(hidden_beside(parts / "out"), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process is making"):
        prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")
    os.close(handle)
    prepare_graph(parts / "e.csv", parts / "f.csv", parts / "out")


def test_the_command_says_that_it_can_go_on_and_that_it_does(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(parts)
    command = ["prepare", "--edges", "e.csv", "--features", "f.csv", "--out", "out"]
    with monkeypatch.context() as patched:
        disturb(patched)
        with pytest.raises(SystemExit) as stopped:
            app(command, standalone_mode=False)
    assert stopped.value.code == 130
    assert "h3gnn: stopped; the same command goes on" in capsys.readouterr().err
    app(command, standalone_mode=False)
    told = capsys.readouterr()
    assert "going on with out: " in told.err
    assert f"wrote out: {NODES} nodes" in told.out
