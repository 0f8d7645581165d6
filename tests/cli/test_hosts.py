"""Jobs of several torchrun agents: restarts, and faults of two hosts in network namespaces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from benchmarks import hosts
from h3gnn.training.distributed import _name_of_attempt
from tests.program import call, start_ranks


def attempt(store: dist.Store, size: int, seconds: float = 10.0) -> list[str]:
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
