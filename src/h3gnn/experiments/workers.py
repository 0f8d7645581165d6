"""Work in several processes: one task at a time in each, and one that fails does not end the others."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from h3gnn.baselines import Progress
from h3gnn.errors import InputError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Work = Callable[[Any, Progress], Any]
"""From a task and a callback for the share that is done to the outcome; all of it can be pickled."""


@dataclass(frozen=True)
class Finished:
    """A task with its outcome `record`, or with the message and the name of its exception.

    `foreseen` exceptions are `InputError`s, not faults of the program.
    """

    task: Any
    record: Any | None
    failure: str = ""
    fault: str = ""
    foreseen: bool = False

    @property
    def out_of_memory(self) -> bool:
        """Whether it may succeed when nothing else runs."""
        return "OutOfMemory" in self.fault


def attempt(task: Any, work: Work, watch: Progress) -> Finished:
    """Do a task in this process, and return its outcome or its exception."""
    try:
        return Finished(task, work(task, watch))
    except Exception as error:
        words = str(error).strip() or type(error).__name__
        foreseen = isinstance(error, InputError)
        return Finished(task, None, words.splitlines()[0], type(error).__name__, foreseen)


def in_processes(
    tasks: Sequence[Any],
    work: Work,
    jobs: int,
    threads: int | None,
    watch: Callable[[Any, float], None] = lambda task, share: None,
) -> Iterator[Finished]:
    """Do tasks in order in `jobs` processes with `threads` threads each, and yield each as it ends.

    `watch` receives a task and the share of it that is done. With `threads=None` torch decides.
    """
    waiting, workers = list(tasks), list[_Worker]()
    try:
        while waiting or workers:
            with _thread_limit(threads):
                while waiting and len(workers) < jobs:
                    workers.append(_Worker(waiting.pop(0), work))
            ready = wait([worker.connection for worker in workers])
            for worker in [one for one in workers if one.connection in ready]:
                message = worker.receive()
                if not isinstance(message, Finished):
                    watch(worker.task, message)
                    continue
                yield message
                if waiting and worker.process.is_alive():
                    worker.begin(waiting.pop(0))
                else:  # a dead worker is replaced above
                    workers.remove(worker)
                    worker.dismiss()
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


class _Worker:
    """A process that does one task after another."""

    def __init__(self, task: Any, work: Work) -> None:
        context = mp.get_context("spawn")  # CUDA does not survive a fork
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, work), daemon=True)
        self.process.start()
        there.close()
        self.begin(task)

    def begin(self, task: Any) -> None:
        self.task = task
        with suppress(OSError):  # it has just died, which `receive` reports
            self.connection.send(task)

    def receive(self) -> Finished | float:
        try:
            message: Finished | float = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Finished(self.task, None, f"its process ended with code {self.process.exitcode}", "Lost")
        return message

    def dismiss(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join()


def _serve(connection: Connection, work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    warnings.simplefilter("ignore", UserWarning)  # the parent has shown them
    with suppress(EOFError):
        while (task := connection.recv()) is not None:
            connection.send(attempt(task, work, connection.send))


@contextmanager
def _thread_limit(count: int | None) -> Iterator[None]:
    """Set the number of threads of the processes that start inside."""
    before = dict(os.environ)
    if count is not None:
        os.environ |= dict.fromkeys(THREADS, str(count))
    try:
        yield
    finally:
        for name in THREADS:
            os.environ.pop(name, None)
        os.environ |= {name: before[name] for name in THREADS if name in before}
