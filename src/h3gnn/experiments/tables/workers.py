"""Cells in several processes: the largest first, and one that fails does not end the others."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from h3gnn.experiments.tables.cells import Cell
from h3gnn.storage.files import Record

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
        while waiting or workers:
            with _threads(threads):
                while waiting and len(workers) < jobs:
                    workers.append(_Worker(waiting.pop(0), device))
            ready = wait([worker.connection for worker in workers])
            for worker in [one for one in workers if one.connection in ready]:
                yield worker.finish()
                if waiting and worker.process.is_alive():
                    worker.begin(waiting.pop(0))
                else:  # one that died is replaced above
                    workers.remove(worker)
                    worker.dismiss()
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


class _Worker:
    """A process that runs one cell after another."""

    def __init__(self, cell: Cell, device: str) -> None:
        context = mp.get_context("spawn")  # CUDA does not survive a fork
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there, device), daemon=True)
        self.process.start()
        there.close()
        self.begin(cell)

    def begin(self, cell: Cell) -> None:
        self.cell = cell
        with suppress(OSError):  # it has just died: `finish` says so
            self.connection.send(cell)

    def finish(self) -> Finished:
        try:
            finished: Finished = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Finished(self.cell, None, f"its process ended with code {self.process.exitcode}")
        return finished

    def dismiss(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join()


def _work(connection: Connection, device: str) -> None:
    """Run cells as they come, until there are none; Ctrl-C is the first process's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while (cell := connection.recv()) is not None:
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
