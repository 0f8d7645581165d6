"""Signals that wait: until an epoch has ended, or a library that cannot bear an exception within it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from h3gnn.errors import STOPPING


class StopRequest:
    """Remembers that a signal came, until somebody looks."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def take(self) -> int | None:
        """Return the signal that came, if any; from now on it is dealt with."""
        number, self.signal_number = self.signal_number, None
        return number

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; a second Ctrl-C does not wait for the epoch."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def signals_wait() -> Iterator[StopRequest]:
    """Hold the signals back while the block runs; it has to look at the request from time to time.

    A signal that was ignored before (`nohup`, a background job) stays ignored. Outside the main thread
    Python lets nobody take signals: there the request stays empty.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number in taken:
            signal.signal(number, before[number])
    if request.signal_number is not None:  # it came too late for the block: now it may do what it does
        signal.raise_signal(request.signal_number)
