"""Threads for small graphs: one for each piece of work, and as many pieces at a time as there are cores.

Scoring a thousand nodes is many small products, which wait for one another's threads longer than they take:
with two threads each, a report took three times the processor time that it takes with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

FEW_NODES = 5_000
"""Up to so many nodes a graph is small."""

Item = TypeVar("Item")
Found = TypeVar("Found")


@contextmanager
def one_thread(nodes: int) -> Iterator[None]:
    """Let each library use one thread while the block runs, where the graph is small."""
    if nodes > FEW_NODES:
        yield
        return
    with torch_alone(), threadpool_limits(1):
        yield


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let torch use one thread while the block runs, as is best for eigenvalues of some hundred rows.

    They are found in thousands of short steps, after each of which threads wait for one another. On cores
    that other programs use too, such a wait is a turn of the other program: seconds instead of milliseconds.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def each_apart(
    work: Callable[[Item], Found], items: Iterable[Item], nodes: int, device: str = "cpu"
) -> list[Found]:
    """Return what `work` finds for each item, in their order; on a small graph several at a time.

    As many as torch has threads, which is one inside of such a piece and inside of `one_thread`. A large
    graph's pieces go one after another: each of them fills the cores, and the memory. So do those on a GPU.
    """
    several = torch.get_num_threads()
    if nodes > FEW_NODES or several == 1 or device != "cpu":
        return [work(item) for item in items]

    def alone(item: Item) -> Found:
        with threadpool_limits(1):  # OpenMP counts its threads for each thread that asks
            return work(item)

    pool = ThreadPoolExecutor(max_workers=several)
    with one_thread(nodes), pool:
        try:
            return list(pool.map(alone, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what has not begun never will
            raise
