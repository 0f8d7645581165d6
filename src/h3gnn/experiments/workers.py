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
"""From a task, and what is told the share of it that is done, to its outcome; all of it can be pickled."""


@dataclass(frozen=True)
class Finished:
    """A task with its outcome, or with the sentence that says why there is none.

    Attributes:
        task: what was to be done.
        record: its outcome; None where there is none.
        failure: the sentence.
        fault: the name of the exception.
        foreseen: whether the sentence was written for a user, so that nothing is wrong with the program.
    """

    task: Any
    record: Any | None
    failure: str = ""
    fault: str = ""
    foreseen: bool = False

    @property
    def out_of_memory(self) -> bool:
        """Whether it may go better with nothing beside it."""
        return "OutOfMemory" in self.fault


def attempt(task: Any, work: Work, watch: Progress) -> Finished:
    """Do a task here; what goes wrong becomes a sentence."""
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
    """Do tasks in processes and yield each as it ends, whatever becomes of it.

    Args:
        tasks: in the order in which they shall begin.
        work: what is done with each.
        jobs: processes at once.
        threads: of each process; None leaves it to torch.
        watch: told a task, and the share of it that is done.
    """
    waiting, workers = list(tasks), list[_Worker]()
    try:
        while waiting or workers:
            with _threads(threads):
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
                else:  # one that died is replaced above
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
        with suppress(OSError):  # it has just died: `receive` says so
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
    """Do tasks as they come, until there are none; Ctrl-C is the first process's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", UserWarning)  # the first process has said what a user must know
    with suppress(EOFError):
        while (task := connection.recv()) is not None:
            connection.send(attempt(task, work, connection.send))


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
