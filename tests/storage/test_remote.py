"""Remote files, on a local server of S3; commands are processes of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import fs

from h3gnn import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.storage import atomic
from h3gnn.storage.atomic import Remote, copies_folder
from h3gnn.tables.read import read_graph
from tests.program import PROGRAM, Program
from tests.rejects import rejects

pytest.importorskip("moto", reason="the server of S3 needs `pip install 'moto[s3]' flask flask-cors`")
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
TRAINING = ("--preset", "single", "--epochs", "3", "--channels", "8", "--set", "precision=float32")


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """Start a server, and yield the variables that lead to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    variables = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield variables
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def bucket(server: dict[str, str]) -> fs.FileSystem:
    """The files of a bucket `data`, as paths `data/…`."""
    files = fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=server["AWS_ENDPOINT_URL"])
    files.create_dir("data")
    return files


@pytest.fixture(scope="module")
def tables(bucket: fs.FileSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small tables in a folder, and in `s3://data/tables/`."""
    folder, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    ids = [f"n{number}" for number in range(40)]
    features = {f"x{column}": random.normal(size=40) for column in range(3)}
    pd.DataFrame({"id": ids, **features}).to_parquet(folder / "f.parquet")
    ends = {"source": random.choice(ids, 150), "target": random.choice(ids, 150)}
    pd.DataFrame(ends).to_csv(folder / "e.csv", index=False)
    labels = ["ab"[number % 2] for number in range(30)]
    pd.DataFrame({"id": ids[:30], "label": labels}).to_csv(folder / "y.csv", index=False)
    np.save(folder / "f.npy", np.arange(80.0).reshape(40, 2))
    fs.copy_files(str(folder), "data/tables", destination_filesystem=bucket)
    return folder


def command(server: dict[str, str], *arguments: object, cwd: Path, code: int = 0) -> SimpleNamespace:
    """Run a command in a process of its own; no copy may remain."""
    (cwd / "temporary").mkdir(exist_ok=True)
    program = Program(PROGRAM, *arguments, cwd=cwd, **server, TMPDIR=str(cwd / "temporary"))
    out, err = program.communicate()
    assert program.returncode == code, err
    assert not [*(cwd / "temporary").iterdir()]
    assert "h3gnn-remote" not in out + err
    return SimpleNamespace(out=out, err=err)


def content(files: fs.FileSystem, place: str) -> bytes:
    with files.open_input_stream(place) as file:
        return bytes(file.read())


def listed(files: fs.FileSystem, place: str) -> dict[str, Any]:
    """Return the files of a folder by name, with their times."""
    found = files.get_file_info(fs.FileSelector(place, recursive=True))
    return {one.path.removeprefix(f"{place}/"): one.mtime_ns for one in found if one.is_file}


def tables_at(place: str) -> tuple[str, ...]:
    return "--edges", f"{place}/e.csv", "--features", f"{place}/f.parquet", "--labels", f"{place}/y.csv"


def test_a_graph_is_prepared_fitted_and_embedded_as_from_local_files(
    server: dict[str, str], bucket: fs.FileSystem, tables: Path, tmp_path: Path
) -> None:
    done = command(
        server, "prepare", *tables_at("s3://data/tables"), "--out", "s3://data/graph/", cwd=tmp_path
    )
    assert "wrote s3://data/graph:" in done.out
    command(server, "prepare", *tables_at(str(tables)), "--out", "graph", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "graph").iterdir()}
    assert listed(bucket, "data/graph").keys() == names
    for name in names:
        assert content(bucket, f"data/graph/{name}") == (tmp_path / "graph" / name).read_bytes(), name

    batches = (*TRAINING, "--set", "edge_weights=computed", "--batch-size", "16")
    for graph, run in (("s3://data/graph", "s3://data/run"), ("graph", "run")):
        command(server, "fit", graph, *batches, "--out", run, cwd=tmp_path)
        command(server, "embed", run, f"--out={run.replace('run', 'out.parquet')}", cwd=tmp_path)
        answer = run.replace("run", "answer.csv")
        command(server, "predict", run, "--head", "logistic", "--out", answer, cwd=tmp_path)
    for name in ("out.parquet", "answer.csv"):
        assert content(bucket, f"data/{name}") == (tmp_path / name).read_bytes()


def test_changes_in_a_remote_folder_are_uploaded(
    server: dict[str, str], bucket: fs.FileSystem, tables: Path, tmp_path: Path
) -> None:
    fit = ("fit", *tables_at("s3://data/tables"), *TRAINING, "--out", "s3://data/changed")
    command(server, *fit, "--store-embedding", "none", cwd=tmp_path)
    before = listed(bucket, "data/changed")
    done = command(server, "report", "s3://data/changed", cwd=tmp_path)
    assert "s3://data/changed/report.html" in done.out
    after = listed(bucket, "data/changed")
    assert "report.html" in after.keys() - before.keys()
    assert after["model.json"] == before["model.json"]


STOPPED = """
import itertools, sys
from h3gnn.cli import main
from h3gnn.training.step import Step
count, usual = itertools.count(1), Step.__call__
def step(*given):
    if next(count) == 3:
        sys.exit(9)
    return usual(*given)
Step.__call__ = step
main()
"""


def test_a_stopped_run_is_uploaded_and_resumed(
    server: dict[str, str], bucket: fs.FileSystem, tables: Path, tmp_path: Path
) -> None:
    fit = ("fit", *tables_at("s3://data/tables"), *TRAINING, "--checkpoint-every", "1")
    program = Program(STOPPED, *fit, "--out", "s3://data/stopped", cwd=tmp_path, **server)
    program.communicate()
    assert program.returncode == 9
    assert any("checkpoints/epoch-" in name for name in listed(bucket, "data/stopped"))
    command(server, "fit", "--resume", "s3://data/stopped", cwd=tmp_path)
    assert not any("checkpoints" in name for name in listed(bucket, "data/stopped"))
    whole = H3GNN.from_preset("single", epochs=3, channels=8, precision="float32", device="cpu")
    whole.fit(read_graph(tables / "e.csv", features=tables / "f.parquet", labels=tables / "y.csv"))
    found = H3GNN.load(Remote("s3://data/stopped").fetch())
    np.testing.assert_allclose(found.embedding_, whole.embedding_, atol=1e-5)


def test_tables_are_read_in_python(bucket: fs.FileSystem, tables: Path, tmp_path: Path) -> None:
    graphs: list[Graph] = []
    for place in (str(tables), "s3://data/tables"):
        graphs.append(read_graph(f"{place}/e.csv", features=f"{place}/f.parquet", labels=f"{place}/y.csv"))
        prepare_graph(f"{place}/e.csv", f"{place}/f.parquet", tmp_path / place[:2], labels=f"{place}/y.csv")
    assert graphs[0].provenance == graphs[1].provenance
    for path in (tmp_path / "s3").iterdir():
        assert path.read_bytes() == (tmp_path / str(tables)[:2] / path.name).read_bytes()
    numbered = "s3://data/numbered.csv"
    with bucket.open_output_stream("data/numbered.csv") as file:
        file.write(b"source,target\n0,1\n1,39\n")
    assert prepare_graph(numbered, "s3://data/tables/f.npy", tmp_path / "array").num_nodes == 40


def test_an_interrupted_prepare_of_remote_tables_resumes(tables: Path, tmp_path: Path) -> None:
    places = "s3://data/tables/e.csv", "s3://data/tables/f.parquet", tmp_path / "graph"

    def interrupt(stage: str, share: float) -> None:
        if stage == "sorting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_graph(*places, progress=interrupt)
    copies_folder.cache_clear()  # as in another process
    stages = set[str]()
    prepare_graph(*places, progress=lambda stage, share: stages.add(stage))
    assert stages == {"sorting"}


def test_messages_name_the_remote_file(bucket: fs.FileSystem) -> None:
    with bucket.open_output_stream("data/odd.csv") as file:
        file.write(b"source,target\n1,2\n3\n")
    with rejects("row-length-differs") as error:
        read_graph("s3://key:secret@data/odd.csv?region=us-east-1")
    assert "s3://data/odd.csv, line 3" in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("s3://data/none.csv", "file-missing"),
        ("s3://nothing/none.csv", "bucket-missing"),
        ("hdfs://nowhere:8020/e.csv", "missing-library"),
        ("s3://data/../../e.csv", "remote-name"),
        ("s3://data/a b.csv", "remote-failed"),
    ],
)
def test_a_file_that_cannot_be_read(bucket: fs.FileSystem, address: str, code: str) -> None:
    if code == "missing-library" and os.environ.get("HADOOP_HOME"):
        pytest.skip("Hadoop is installed")
    with rejects(code):
        read_graph(address)


class Forbidding(BaseHTTPRequestHandler):
    """A server that answers as S3 does to requests without credentials; moto fails at them."""

    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def forbidding(bucket: fs.FileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Lead to a server that forbids everything, without credentials."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        yield
        server.shutdown()


@pytest.fixture
def authenticating(bucket: fs.FileSystem, server: dict[str, str]) -> Iterator[None]:
    """Let the server check keys; it knows none."""

    def check(requests_before: bytes) -> None:
        address, kind = f"{server['AWS_ENDPOINT_URL']}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(address, requests_before, kind)).close()

    check(b"0")
    yield
    check(b"inf")


@pytest.mark.parametrize("denying", ["forbidding", "authenticating"])
def test_access_that_is_denied(denying: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(denying)
    with rejects("remote-denied"):
        Remote("s3://data/tables/e.csv").fetch()
    with rejects("remote-denied"):
        Remote("s3://data/answer.csv").reserve()


def test_outputs_are_checked_before_the_work(
    server: dict[str, str], bucket: fs.FileSystem, tables: Path, tmp_path: Path
) -> None:
    with rejects("folder-in-use"):
        Remote("s3://data/tables").reserve()
    with rejects("bucket-missing"):
        Remote("s3://nothing/out.csv").reserve()
    for name in ("old.csv", "results.json"):
        with bucket.open_output_stream(f"data/{name}") as file:
            file.write(b"{}")
    assert not Remote("s3://data/old.csv").reserve().exists()
    assert Remote("s3://data/results.json").reserve().read_bytes() == b"{}"  # of `compare`, which continues
    copied = ("fit", *tables_at(str(tables)), "--out", "s3://data/tables")
    assert "s3://data/tables exists" in command(server, *copied, cwd=tmp_path, code=2).err


def test_what_several_processes_and_small_disks_cannot_do(
    bucket: fs.FileSystem, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, rejects("disk-full"):
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        Remote("s3://data/tables/e.csv").fetch()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with rejects("remote-shared"):
        Remote("s3://data/tables/e.csv")


def test_only_differences_are_uploaded_and_a_half_is_removed(
    bucket: fs.FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("same", "changed", "gone"):
        with bucket.open_output_stream(f"data/folder/{name}") as file:
            file.write(name.encode())
    remote = Remote("s3://data/folder")
    folder, before = remote.fetch(), listed(bucket, "data/folder")
    (folder / "changed").write_bytes(b"another")
    (folder / "gone").unlink()
    (folder / "deep").mkdir()
    (folder / "deep" / "new").write_bytes(b"new")
    remote.send()
    after = listed(bucket, "data/folder")
    assert after.keys() == {"same", "changed", "deep/new"}
    assert after["same"] == before["same"]
    assert content(bucket, "data/folder/changed") == b"another"

    @contextmanager
    def interrupting() -> Iterator[Any]:
        def show(completed: int) -> None:
            if completed >= 8:
                raise KeyboardInterrupt

        yield lambda title, total: show

    (folder / "half").write_bytes(b"0123456789")
    monkeypatch.setattr(atomic, "REMOTE_BLOCK", 4)
    monkeypatch.setattr(atomic, "progress", interrupting)
    with pytest.raises(KeyboardInterrupt):
        remote.send()
    assert "half" not in listed(bucket, "data/folder")

    shutil.rmtree(copies_folder())  # a lost copy removes nothing
    monkeypatch.undo()
    remote.send()
    assert listed(bucket, "data/folder").keys() == after.keys()
