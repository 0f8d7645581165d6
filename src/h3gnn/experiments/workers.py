"""Work in several processes: one task at a time in each, and one that fails does not end the others.

A process that is killed costs the task that it was doing. All of them exit when their parent does, however
it ends. This module imports nothing heavy, so that a process watches its parent before it loads torch.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any

from h3gnn.errors import InputError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CHECK_SECONDS = 0.2
"""Seconds between two looks for the parent."""
Work = Callable[[Any, Callable[[float], None]], Any]
"""From a task and a callback for the share that is done to the outcome; all of it can be pickled."""


@dataclass(frozen=True)
class Finished:
    """A task with its outcome `record`, or with the message and the name of its exception.

    `foreseen` exceptions are `InputError`s, not faults of the program. `exit_code` is that of a process that
    ended before its task did, minus the signal that killed it.
    """

    task: Any
    record: Any | None
    failure: str = ""
    fault: str = ""
    foreseen: bool = False
    exit_code: int | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether it may succeed when nothing else runs; a kernel without memory sends SIGKILL."""
        return "OutOfMemory" in self.fault or self.exit_code == -signal.SIGKILL


def attempt(task: Any, work: Work, watch: Callable[[float], None]) -> Finished:
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
            ready = wait([one for worker in workers for one in (worker.connection, worker.process.sentinel)])
            for worker in [one for one in workers if {one.connection, one.process.sentinel} & {*ready}]:
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
        self.process = context.Process(target=_serve, args=(there, os.getpid()), daemon=True)
        with _uninterrupted():
            self.process.start()
        there.close()
        self._send(work)
        self.begin(task)

    def begin(self, task: Any) -> None:
        self.task = task
        self._send(task)

    def _send(self, content: Any) -> None:
        with suppress(OSError):  # it has just died, which `receive` reports
            self.connection.send(content)

    def receive(self) -> Finished | float:
        try:
            if self.connection.poll():
                message: Finished | float = self.connection.recv()
                return message
        except (EOFError, OSError):
            pass
        self.process.join()
        code = self.process.exitcode
        return Finished(self.task, None, f"its process {_ending(code)}", "Lost", exit_code=code)

    def dismiss(self) -> None:
        self._send(None)
        self.process.join()


def _ending(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"was killed by {name} (exit code {code}){why}"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C in the processes that start inside; this one, which ends them, receives it afterwards."""
    resource_tracker.ensure_running()  # would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, parent: int) -> None:
    Thread(target=_exit_with, args=(parent,), daemon=True).start()
    warnings.simplefilter("ignore", UserWarning)  # the parent has shown them
    with suppress(EOFError, OSError):  # the parent has ended
        work = connection.recv()
        while (task := connection.recv()) is not None:
            connection.send(attempt(task, work, connection.send))


def _exit_with(parent: int) -> None:
    """End this process at once when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(CHECK_SECONDS)
    os._exit(1)


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
