"""The errors that speak to the person (what was wrong, where, what to do), and checks of a single value."""

from __future__ import annotations

import math
import numbers
import re
import signal
from collections.abc import Collection
from typing import Any

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # not all on Windows
"""The signals that ask a command to end: it does when what it writes is whole."""


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is one sentence that names the place."""


class GraphError(InputError):
    """The nodes, edges, features or labels do not make a graph."""


class ModelFolderError(InputError):
    """A saved model is missing, damaged, or was not written by h3gnn."""


class LossError(InputError):
    """The loss is no longer a finite number, so that going on would train nothing."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or was not written by this version of h3gnn."""


class RankLostError(RuntimeError):
    """Another process of a distributed job is gone; empty where a survivor has already said so."""


class TrainingStopped(KeyboardInterrupt):
    """A signal ended the training between two epochs; the message says which, and what was kept."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number that is at least `least`, and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if most is not None and int(value) > most:
        raise InputError(f"{name} must be at most {most:,}, not {value:,}")
    return int(value)


def check_number(name: str, value: Any, least: float, below: float, *, closed: bool = False) -> float:
    """Return a number in [least, below), or [least, below] when `closed`."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not least <= number <= below or (number == below and not closed):
        raise InputError(f"{name} must lie in [{least:g}, {below:g}{']' if closed else ')'}, not {value!r}")
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value


def without_secrets(text: str) -> str:
    """Return a text without the passwords of addresses in it."""
    return re.sub(r"(?<=://)[^/@\s]*@", "…@", text)
