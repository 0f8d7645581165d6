"""Jobs of several torchrun agents: restarts, and faults of two hosts in network namespaces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch.distributed as dist

from benchmarks import hosts
from h3gnn.training.distributed import _name_of_attempt
from tests.program import call, start_ranks

NODES = 3000  # of the graph that processes share, three chunks
SHARED = ("--preset", "quick", "--channels", "4", "--epochs", "1", "--batch-size", "1000", "--device", "cpu")


def attempt(store: Any, size: int, seconds: float = 10.0) -> list[str]:
    """Return the names on which processes agree that start one after another, rank 0 last."""
    names = [""] * size

    def join(rank: int) -> None:
        try:
            names[rank] = _name_of_attempt(store, rank, size, seconds)
        except RuntimeError as error:
            names[rank] = str(error)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in reversed(range(size))]
    for thread in threads:
        thread.start()
        thread.join(0.1)
    for thread in threads:
        thread.join()
    return names


def test_each_attempt_has_a_name_of_its_own() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    attempts = [attempt(store, size) for size in (3, 3, 2, 4)]
    assert all(len(set(names)) == 1 for names in attempts)
    assert len({names[0] for names in attempts}) == 4
    store.set("h3gnn/attempt", "of-a-process-that-died-meanwhile")
    assert len(set(attempt(store, 2))) == 1


def test_a_process_that_does_not_come_is_named() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="rank 1, 2 did not join"):
        _name_of_attempt(store, 0, 3, 0.1)
    with pytest.raises(RuntimeError, match="rank 0 did not join"):
        _name_of_attempt(store, 1, 3, 0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hosts")
    hosts.make_graph(made)
    return made


def test_processes_that_cannot_join_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    alone, other = start_ranks(2, *hosts.FIT, "--out", "none", cwd=folder, H3GNN_RANK_TIMEOUT="1")
    other.kill()
    _, errors = alone.communicate()
    other.communicate()
    assert alone.returncode == 1
    assert "rank 0 of 2 cannot join" in errors
    assert "internal error" not in errors


def test_two_agents_restart_after_a_lost_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    fit = (*hosts.FIT, "--epochs", "30", "--embeddings")
    call(*fit, "one.parquet", "--out", "one")
    bench = hosts.Bench(hosts.Loopback(), folder, np.empty(0))
    with bench.job(restarts=2) as job:
        bench.begin(job, "two", 0, 1, epochs=30)
        hosts.kill_worker(job)
        assert job.wait(120) == [0, 0], job.words()
    call("embed", "two", "--out", "two.parquet")
    one, two = (hosts.embedding(folder / name) for name in ("one.parquet", "two.parquet"))
    assert np.abs(one).max() > 0.1
    np.testing.assert_allclose(two, one, atol=hosts.CLOSE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a graph on disk, of models with several objectives, blocks of features, and smoothing."""
    folder = tmp_path_factory.mktemp("shared")
    random = np.random.default_rng(0)
    names = np.array([f"n{i}" for i in range(NODES)])
    ends = random.integers(0, NODES, (2, 9000))
    pd.DataFrame({"source": names[ends[0]], "target": names[ends[1]]}).to_csv(folder / "e.csv", index=False)
    for file in ("f.csv", "g.csv"):
        columns = {f"f{i}": random.normal(size=NODES).round(3) for i in range(6)}
        pd.DataFrame({"id": names, **columns}).to_csv(folder / file, index=False)
    side = np.where(random.random(NODES) < 0.5, "left", "right")[500:2500]
    pd.DataFrame({"id": names[500:2500], "side": side}).to_csv(folder / "l.csv", index=False)
    tables = ("--edges", folder / "e.csv", "--features")
    call("prepare", *tables, folder / "f.csv", "--labels", folder / "l.csv", "--out", folder / "graph")
    call("prepare", *tables, folder / "g.csv", "--out", folder / "other")
    call("fit", folder / "graph", *SHARED, "--set", "smoothing=0.5", "--out", folder / "run")
    for stored in (folder / "run").glob("embedding*"):  # each command is to compute it
        stored.unlink()
    return folder


def together(folder: Path, *arguments: object, processes: int = 2, **environment: str) -> str:
    """Run a command in several processes that succeed; return what they print."""
    job = start_ranks(processes, *arguments, cwd=folder, **environment)
    streams = [process.communicate() for process in job]
    assert [process.returncode for process in job] == [0] * processes, streams
    return "".join(out for out, _ in streams)


def same_rows(one: Path, several: Path) -> None:
    """Compare a file of embeddings with the parts that several processes wrote."""
    assert len(list(several.glob("part-*.parquet"))) > 1
    whole, parts = pd.read_parquet(one), pd.read_parquet(several)
    assert list(parts) == list(whole)
    assert parts["node"].tolist() == [f"n{i}" for i in range(NODES)] == whole["node"].tolist()
    numbers = whole.drop(columns="node").to_numpy()
    assert np.abs(numbers).max() > 0.1
    np.testing.assert_allclose(parts.drop(columns="node").to_numpy(), numbers, atol=1e-5)


@pytest.mark.parametrize("local", ["2", "1"])  # of two processes on a host: one host, or two that share files
@pytest.mark.parametrize("graph", [(), ("other",)], ids=["fitted", "other"])
def test_processes_share_an_embedding(
    shared: Path, graph: tuple[str, ...], local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    name = "-".join(("one", *graph))
    call("embed", "run", *graph, "--out", f"{name}.parquet")
    for stored in Path("run").glob("embedding*"):
        stored.unlink()
    for _ in range(2):  # the second time it replaces the first
        out = together(shared, "embed", "run", *graph, "--out", "parts.parquet", LOCAL_WORLD_SIZE=local)
    assert out.count("wrote") == 1
    same_rows(shared / f"{name}.parquet", shared / "parts.parquet")
    assert not [*shared.glob(".*"), *(shared / "graph").glob(".*")]  # nothing temporary is left


def test_processes_share_an_evaluation_and_a_prediction(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    scores, predictions = [], []
    for name in ("one", "two"):
        for stored in Path("run").glob("embedding*"):
            stored.unlink()
        evaluate = ("evaluate", "run", "--no-clusters", "--json")
        predict = ("predict", "run", "--head", "logistic", "--out", f"{name}.csv")
        if name == "one":
            scores.append(call(*evaluate))
            call(*predict)
        else:
            scores.append(json.loads(together(shared, *evaluate)))
            together(shared, *predict)
        predictions.append(pd.read_csv(f"{name}.csv"))
    first, second = (one["probe"]["validation"] for one in scores)
    np.testing.assert_allclose(first, second, atol=0.01)
    one, two = predictions
    assert one["node"].tolist() == two["node"].tolist()
    assert len(one) == NODES - 2000
    np.testing.assert_allclose(one["p_left"], two["p_left"], atol=1e-3)


def test_processes_that_fit_share_the_embedding(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    fit = ("fit", "graph", *SHARED, "--out")
    together(shared, *fit, "fitted", "--embeddings", "fitted.parquet")
    call("embed", "fitted", "--out", "fitted-one.parquet")
    same_rows(shared / "fitted-one.parquet", shared / "fitted.parquet")


def test_what_cannot_be_divided_is_done_once(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    assert json.loads(together(shared, "methods", "--json")) == call("methods", "--json")
    call("fit", "synthetic", "--preset", "quick", "--epochs", "1", "--channels", "4", "--out", "inside")
    assert together(shared, "embed", "inside", "--out", "inside.parquet").count("wrote") == 1
    assert Path("inside.parquet").is_file()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Bench]:
    if not hosts.Namespaces.permitted():
        pytest.skip("this process may not create network namespaces (`ip netns add`)")
    with hosts.Namespaces() as network:
        yield hosts.make_bench(network, tmp_path_factory.mktemp("namespaces"))


@pytest.mark.slow
def test_every_fault_of_two_hosts_ends_as_it_should(bench: hosts.Bench) -> None:
    for what, run in hosts.faults(bench).items():
        row = hosts.judged(what, run())
        assert row["as_it_should"], row
