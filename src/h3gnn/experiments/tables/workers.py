"""Cells in several processes: the largest first, and one that fails does not end the others."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from h3gnn.experiments.store import Record
from h3gnn.experiments.tables.cells import Cell

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Finished:
    """A cell with its outcome, or with the sentence that says why there is none."""

    cell: Cell
    record: Record | None
    failure: str = ""

    @property
    def out_of_memory(self) -> bool:
        """Whether it may go better with nothing beside it."""
        return "OutOfMemory" in self.failure


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    cell: Cell


def run_cells(cells: Sequence[Cell], device: str, jobs: int = 1) -> Iterator[Finished]:
    """Run cells and yield each as it ends; those that must be alone come last, one after another.

    On a CPU each of those has a fresh process, whose memory says what the cell needed.

    Args:
        cells: in the order in which they shall begin.
        device: "cpu" or "cuda".
        jobs: processes at once; with 1, cells run in this process.
    """
    together = [cell for cell in cells if not cell.alone]
    alone = [cell for cell in cells if cell.alone]
    if jobs == 1:
        yield from (attempt(cell, device) for cell in together)
    else:
        for finished in _in_processes(together, device, min(jobs, max(1, len(together))), threads=1):
            if finished.out_of_memory:
                alone.append(finished.cell)
            else:
                yield finished
    for group in [[cell] for cell in alone] if device == "cpu" else [alone]:
        yield from _in_processes(group, device, 1, threads=None)


def attempt(cell: Cell, device: str) -> Finished:
    """Run a cell here; what goes wrong becomes a sentence."""
    from h3gnn.experiments.tables.running import run_cell
    from h3gnn.training.resources import pick_device

    try:
        return Finished(cell, run_cell(cell, pick_device(device)))
    except Exception as error:
        return Finished(cell, None, f"{type(error).__name__}: {error}".splitlines()[0])


def _in_processes(cells: Sequence[Cell], device: str, jobs: int, threads: int | None) -> Iterator[Finished]:
    waiting, workers = list(cells), list[_Worker]()
    try:
        with _threads(threads):
            while waiting and len(workers) < jobs:
                workers.append(_begin(waiting.pop(0), device))
        while workers:
            ready = wait([worker.connection for worker in workers])
            for worker in [one for one in workers if one.connection in ready]:
                yield _receive(worker)
                workers.remove(worker)
                if waiting:
                    with _threads(threads):
                        workers.append(_hand_over(worker, waiting.pop(0), device))
                else:
                    _dismiss(worker)
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def _begin(cell: Cell, device: str) -> _Worker:
    context = mp.get_context("spawn")  # CUDA does not survive a fork
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, device), daemon=True)
    process.start()
    there.close()
    here.send(cell)
    return _Worker(process, here, cell)


def _hand_over(worker: _Worker, cell: Cell, device: str) -> _Worker:
    """Give a worker its next cell; one that died is replaced."""
    if not worker.process.is_alive():
        return _begin(cell, device)
    try:
        worker.connection.send(cell)
    except OSError:
        return _begin(cell, device)
    return _Worker(worker.process, worker.connection, cell)


def _receive(worker: _Worker) -> Finished:
    try:
        finished: Finished = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        return Finished(worker.cell, None, f"its process ended with code {worker.process.exitcode}")
    return finished


def _dismiss(worker: _Worker) -> None:
    with suppress(OSError):
        worker.connection.send(None)
    worker.process.join()


def _work(connection: Connection, device: str) -> None:
    """Run cells as they come, until there are none; Ctrl-C is the first process's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            cell = connection.recv()
        except EOFError:
            return
        if cell is None:
            return
        connection.send(attempt(cell, device))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let processes that begin inside have so many threads each; None leaves it to torch."""
    before = {name: os.environ.get(name) for name in THREADS}
    if count is not None:
        os.environ |= dict.fromkeys(THREADS, str(count))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
