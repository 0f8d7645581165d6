"""Temporary files of killed processes are removed by the next writer; those in use are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from h3gnn.storage.atomic import atomic_folder, make_temporary, remove_orphans, write_atomically
from tests.program import run

HOLD = """
import sys, time
from pathlib import Path
from h3gnn.storage.atomic import make_temporary
held = [make_temporary(Path(sys.argv[1]), "graph", is_folder=is_folder) for is_folder in (False, True)]
print(*(path.name for path, _ in held), flush=True)
time.sleep(600)
"""


def test_files_and_folders_of_another_process_stay_until_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        names = sorted(process.stdout.readline().split())
        assert remove_orphans(tmp_path, "graph") == []
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        process.kill()
    assert [path.name for path in remove_orphans(tmp_path, "graph")] == names
    assert list(tmp_path.iterdir()) == []


def test_only_temporary_names_are_removed(tmp_path: Path) -> None:
    kept = (".graph.old.part", ".graphs.abcdefgh.part", "graph.abcdefgh.part", ".graph.abcdefgh", ".graph")
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("x")
    (tmp_path / ".graph.aaaaaaaa.part").symlink_to(tmp_path / ".graph")
    (tmp_path / ".graph.abcd_123.part").mkdir()
    assert [path.name for path in remove_orphans(tmp_path, "graph")] == [".graph.abcd_123.part"]
    assert {path.name for path in tmp_path.iterdir()} == {*kept, ".graph.aaaaaaaa.part"}
    assert (tmp_path / ".graph" / "thesis.txt").exists()
    assert remove_orphans(tmp_path / "nowhere", "graph") == []


def test_the_next_writer_of_the_same_name_cleans_up(tmp_path: Path) -> None:
    for name in (".x.csv.abcdefgh.part", ".y.csv.abcdefgh.part"):
        (tmp_path / name).write_text("half")
    write_atomically(tmp_path / "x.csv", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"x.csv", ".y.csv.abcdefgh.part"}
    (tmp_path / ".g.abcdefgh.part").mkdir()
    with atomic_folder(tmp_path / "g") as made:
        (made / "a").write_text("a")
        other, handle = make_temporary(tmp_path, "g", is_folder=True)  # a second one beside it, which stays
        assert made.exists()
    os.close(handle)
    assert {path.name for path in tmp_path.iterdir()} == {"x.csv", ".y.csv.abcdefgh.part", "g", other.name}


KILLED = """
import os, signal, sys
from pathlib import Path
from h3gnn.ondisk import prepare
def dying(*_):
    os.kill(os.getpid(), signal.SIGKILL)
prepare._edge_stage = dying
prepare.prepare_graph("e.csv", "f.csv", "g")
"""


def test_a_killed_prepare_is_cleaned_up_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from h3gnn import prepare_graph

    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\na,b\nb,c\n")
    Path("f.csv").write_text("id,x\na,1\nb,2\nc,3\n")
    killed = run(cwd=tmp_path, code=KILLED)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".g.*"))) == 1
    prepare_graph("e.csv", "f.csv", "g")
    assert {path.name for path in tmp_path.iterdir()} == {"e.csv", "f.csv", "g"}
