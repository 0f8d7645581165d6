from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3gnn.training.distributed import Ranks
from tests.program import run
from tests.training.ranked import run_together


def of_size(size: int, rank: int = 0) -> Ranks:
    ranks = Ranks()
    ranks.size, ranks.rank = size, rank
    return ranks


@given(st.integers(0, 10**10), st.integers(1, 40))
def test_every_row_belongs_to_one_process(count: int, size: int) -> None:
    parts = [of_size(size).shard(count, owner) for owner in range(size)]
    assert parts[0].start == 0
    assert parts[-1].stop == count
    assert all(one.stop == following.start for one, following in pairwise(parts))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [of_size(size, rank).shard(count) for rank in range(size)] == parts


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        torch.testing.assert_close(found[name], one, atol=1e-7, rtol=1e-6, msg=name)


@pytest.mark.parametrize("work", ["trained", pytest.param("trained_longer", marks=pytest.mark.slow)])
def test_sharded_rows_train_as_rows_in_every_process(tmp_path: Path, work: str) -> None:
    first, second = run_together(work, tmp_path)
    assert len(first) >= 2
    for name, found in first.items():
        sharded, plain = found["states"]
        assert_close(sharded, plain)
        assert_close(second[name]["states"][0], sharded)
        for distance in (*found["distances"], *second[name]["distances"]):
            torch.testing.assert_close(distance, found["distances"][1], equal_nan=True)


def test_in_double_precision_two_processes_train_as_one(tmp_path: Path) -> None:
    for found in run_together("together_and_alone", tmp_path):
        for kind, (together, alone) in found.items():
            assert together.keys() == alone.keys()
            for name, one in alone.items():
                torch.testing.assert_close(together[name], one, atol=1e-7, rtol=0, msg=f"{kind} {name}")


def test_several_processes_resume_from_the_state_of_the_first(tmp_path: Path) -> None:
    for found in run_together("resumed", tmp_path):
        for whole, again, done in found.values():
            assert done == 1
            for name in whole:
                if not name.startswith("history"):
                    assert torch.equal(whole[name], again[name]), name


def test_a_process_may_need_nothing_of_another_or_everything(tmp_path: Path) -> None:
    found = run_together("asked", tmp_path)
    for one in found:
        assert all(all(same) for name, same in one.items() if name.startswith("rows"))
        assert one["sent"] > 0
    messages = [one["messages"] for one in found]  # only one process reports, from whichever thread
    assert sorted(messages) == [[False, False], [True, True]]


@pytest.fixture(scope="module")
def fitted_by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("two")
    return folder, run_together("fitted", folder)


def test_both_processes_have_the_model(fitted_by_two: tuple[Path, list[Any]]) -> None:
    folder, (first, second) = fitted_by_two
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert len(list((folder / "kept").glob("epoch-*"))) == 4


def test_a_process_group_that_exists_is_used(tmp_path: Path, fitted_by_two: tuple[Path, list[Any]]) -> None:
    _, (first, _) = fitted_by_two
    for embedding, weight, _ in run_together("fitted_in_a_group", tmp_path):
        assert torch.equal(embedding, first[0])
        assert torch.equal(weight, first[1])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_resumes_a_run_of_two(
    tmp_path: Path, fitted_by_two: tuple[Path, list[Any]], processes: int
) -> None:
    folder, (first, _) = fitted_by_two
    shutil.copytree(folder / "kept", tmp_path / "kept")
    kept = sorted((tmp_path / "kept").glob("epoch-*"))
    for newer in kept[2:]:
        newer.unlink()
    if processes == 1:
        code = "import torch; from tests.training.ranked import fitted; torch.save(fitted(), 'fitted-0.pt')"
        done = run(cwd=tmp_path, code=code)
        assert done.returncode == 0, done.stderr
        again = [torch.load(tmp_path / "fitted-0.pt")]
    else:
        again = run_together("fitted", tmp_path, processes)
    assert sorted((tmp_path / "kept").glob("epoch-*"))[:2] == kept[:2]
    for embedding, weight, _ in again:
        torch.testing.assert_close(embedding, first[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(weight, first[1], atol=1e-4, rtol=0)
    assert again[0][2] == first[2] == 4
